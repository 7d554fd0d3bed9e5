"""The requested layout: a training's options, completed with the defaults of hpctrain's trainings.

Pure. The defaults are those of TRL 1.16 (SFTConfig, ModelConfig), overridden by hpctrain's
(hpctrain/training/entry_point.py, sft.py, classify.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hpctrain.fit import memory
from hpctrain.fit.layout import (
    Attention,
    DataFacts,
    Layout,
    Lora,
    Loss,
    Precision,
    Quantization,
    Sharding,
)
from hpctrain.fit.shape import ModelShape, labels_of, lora_targets, read_shape

#: TRL's defaults, by option.
MICRO_BATCH = 8
MAX_LENGTH = 1024
OPTIMIZER = "adamw_torch_fused"
LORA_RANK = 16
LORA_DROPOUT = 0.05
_LONGEST = 10**9
_TRUE = frozenset({"true", "1", "yes", "y", "t", "on"})
_FALSE = frozenset({"false", "0", "no", "n", "f", "off"})
_NONE = frozenset({"none", "null", ""})
#: Options that the formula does not model, with the direction of the error.
_UNCOUNTED = {
    "use_liger_kernel": (
        "use_liger_kernel is not counted: it keeps fewer activations, so the GPU needs less"
    ),
    "torch_compile": (
        "torch_compile is not counted: it is faster and mostly keeps fewer activations, but takes"
        " memory of its own at first"
    ),
    "activation_offloading": (
        "activation_offloading is not counted: the GPU needs less, and the node more"
    ),
    "fsdp_config": "fsdp_config is not read: what it offloads to the host is counted on the GPU",
    "deepspeed": "the DeepSpeed config is not read: what it offloads is counted on the GPU",
    "config": "--config is not read: the options in that file are taken as their defaults",
}


def layout_of(
    options: Mapping[str, Any],
    *,
    nodes: int,
    gpus_per_node: int,
    sharding: Sharding,
    shape: ModelShape,
    cuda: bool = True,
    bf16: bool = True,
    gpu_bytes: int | None = None,
    dataset: DataFacts | None = None,
    stored: str | None = None,
) -> Layout:
    """Return the layout that these options request.

    Args:
        options: TRL's names, with values as text (`"8"`, `"true"`) or typed; missing or None: the
            default.
        nodes: of the job, with one process per GPU.
        gpus_per_node: of each node.
        sharding: of the job.
        shape: the model; also determines whether a classifier is trained.
        cuda: whether it trains on a GPU.
        bf16: whether the GPU supports bfloat16.
        gpu_bytes: memory of a GPU; decides on checkpointing if the options do not. None: unknown,
            no checkpointing.
        dataset: the manifest of the prepared dataset.
        stored: the dtype in config.json, for `--dtype auto`.

    Raises:
        UsageError: LoRA targets that the model lacks.
        ValueError: text instead of a number.
    """
    reader = _Options(options)
    lora = _lora(reader, shape)
    compute = _compute(reader, cuda=cuda, bf16=bf16)
    packing, length = (
        _rows(reader, dataset) if not shape.labels else (False, _events(reader, dataset))
    )
    quantized: Quantization = "8bit" if reader.truth("load_in_8bit", False) else "none"
    evaluated = reader.word("eval_strategy", "epoch" if shape.labels else "no") != "no"
    # Packed rows are long, so the default batch is small in training and evaluation
    # (hpctrain/training/preflight/rules.py).
    rows = rows_unasked(dataset)
    layout = Layout(
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        sharding=sharding,
        micro_batch=reader.number("per_device_train_batch_size", rows),
        length=length,
        accumulation=reader.number("gradient_accumulation_steps", 1),
        weights=_weights(reader, lora is not None, compute, stored),
        compute=compute,
        lora=lora,
        quantization="4bit" if reader.truth("load_in_4bit", False) else quantized,
        attention=_attention(reader),
        loss=_loss(reader) if not shape.labels else "classes",
        optimizer=reader.word("optim", OPTIMIZER).rpartition(".")[2].lower(),
        padding_free=not shape.labels and (reader.truth("padding_free", False) or packing),
        evaluation=reader.number("per_device_eval_batch_size", rows) * evaluated,
    )
    asked = checkpointing_asked(options)
    if asked is None and gpu_bytes is not None and not shape.labels:
        asked = needs_checkpointing(shape, layout, gpu_bytes)
    return replace(layout, checkpointing="full" if asked else "off")


def shape_of(
    config: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    task: str,
    dataset: DataFacts | None = None,
) -> ModelShape:
    """Return the shape of the model as a task trains it.

    Args:
        config: config.json.
        options: of the training, as for `layout_of`.
        task: `sft`, or `classify`, which adds an output layer for the data's classes.
        dataset: the manifest of the prepared dataset; its vocabulary size is the model's with
            `--from_scratch`.

    Raises:
        HpctrainError: as for `read_shape`.
    """
    if task != "classify":
        return read_shape(config)
    reader = _Options(options)
    names = reader.get("class_names")
    said = len(names) if isinstance(names, list | tuple) else 1 if names else 0
    known = 0 if dataset is None else len(dataset.labels) or 1  # no labels: a regression
    if dataset is not None and reader.truth("from_scratch", False):
        config = {**config, "vocab_size": dataset.vocabulary}
    return read_shape(config, labels=said or known or labels_of(config))


def rows_unasked(dataset: DataFacts | None) -> int:
    """Return the default rows per pass: TRL's 8; for long packed rows, as many as have the tokens
    of 8 rows of TRL's default length.

    Args:
        dataset: the manifest of the prepared dataset, or None.
    """
    if dataset is None or not dataset.packed or not dataset.max_length:
        return MICRO_BATCH
    return min(MICRO_BATCH, max(1, MICRO_BATCH * MAX_LENGTH // dataset.max_length))


def needs_checkpointing(shape: ModelShape, layout: Layout, gpu_bytes: int) -> bool:
    """Whether a layout without checkpointing exceeds a GPU's memory, so that it is enabled by
    default.

    Args:
        shape: the model.
        layout: its own `checkpointing` is ignored.
        gpu_bytes: total memory of the GPU, as torch reports it.
    """
    plain = replace(layout, checkpointing="off", evaluation=0)
    return memory.gpu_memory(shape, plain).total > gpu_bytes


def checkpointing_asked(options: Mapping[str, Any]) -> bool | None:
    """Return whether the options enable or disable checkpointing; None: neither."""
    reader = _Options(options)
    for name in ("activation_checkpointing", "gradient_checkpointing"):
        if reader.get(name) is not None:
            return reader.truth(name, False)
    return None


def uncounted(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence for each option that the formula does not model, with the direction of the
    error.
    """
    off = _FALSE | _NONE
    return tuple(
        sentence
        for name, sentence in _UNCOUNTED.items()
        if str(options.get(name) or "").lower() not in off
    )


class _Options:
    """Options with values as text or typed; they are validated elsewhere
    (hpctrain.config.arguments, the training's own parser).
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options

    def get(self, name: str, default: Any = None) -> Any:
        value = self._options.get(name)
        is_unset = value is None or (isinstance(value, str) and value.lower() in _NONE)
        return default if is_unset else value

    def word(self, name: str, default: str) -> str:
        value = self.get(name, default)
        return str(getattr(value, "value", value))

    def truth(self, name: str, default: bool) -> bool:
        return str(self.get(name, default)).lower() in _TRUE

    def number(self, name: str, default: int) -> int:
        return max(1, int(str(self.get(name, default))))

    def real(self, name: str, default: float) -> float:
        return float(str(self.get(name, default)))


def _lora(reader: _Options, shape: ModelShape) -> Lora | None:
    if not reader.truth("use_peft", False):
        return None
    words = reader.get("lora_target_modules")
    named = tuple(str(word) for word in words) if isinstance(words, list | tuple) else words
    return Lora(
        rank=reader.number("lora_r", LORA_RANK),
        targets=lora_targets(shape, named),
        dropout=reader.real("lora_dropout", LORA_DROPOUT) > 0,
    )


def _compute(reader: _Options, *, cuda: bool, bf16: bool) -> Precision | None:
    half = reader.truth("fp16", False)
    if half and cuda:
        return "float16"
    return "bfloat16" if reader.truth("bf16", cuda and bf16 and not half) and cuda else None


def _weights(
    reader: _Options, lora: bool, compute: Precision | None, stored: str | None
) -> Precision:
    usual = "bfloat16" if lora and compute == "bfloat16" else "float32"
    said = reader.word("dtype", reader.word("torch_dtype", usual)).removeprefix("torch.")
    if said == "auto":
        said = (stored or "bfloat16").removeprefix("torch.")
    names: tuple[Precision, ...] = ("bfloat16", "float16")
    return next((name for name in names if name == said), "float32")


def _loss(reader: _Options) -> Loss:
    # TRL 1.16 (sft_trainer.py, compute_loss): only label smoothing needs all logits, and of the
    # loss types only nll supports it.
    is_nll = reader.word("loss_type", "nll") in ("nll", "chunked_nll")
    return "logits" if is_nll and reader.real("label_smoothing_factor", 0) > 0 else "fused"


def _attention(reader: _Options) -> Attention:
    said = reader.word("attn_implementation", "sdpa").lower()
    names: tuple[Attention, ...] = ("flex", "flash")
    return "eager" if said == "eager" else next((name for name in names if name in said), "sdpa")


def _rows(reader: _Options, dataset: DataFacts | None) -> tuple[bool, int]:
    """Return whether rows are packed without padding between documents, and the tokens of the
    longest row.
    """
    limit = reader.number("max_length", MAX_LENGTH)
    packing = reader.truth("packing", False)
    if dataset is not None:
        split = dataset.splits.get(reader.word("dataset_train_split", "train"))
        longest = split.longest if split is not None else dataset.max_length
        if dataset.packed:  # packed rows are never truncated
            return True, dataset.max_length or longest or limit
        if packing:
            limit = limit if reader.get("max_length") is not None else dataset.max_length or limit
        elif longest:  # prepared rows are truncated only on request
            return False, min(limit, longest) if reader.get("max_length") is not None else longest
    return packing and reader.word("packing_strategy", "bfd").startswith("bfd"), limit


def _events(reader: _Options, dataset: DataFacts | None) -> int:
    """Return the number of events in the longest row of a classifier's batches; random crops only
    shorten rows.
    """
    splits = dataset.splits.values() if dataset is not None else ()
    longest = max((each.longest for each in splits), default=0)
    return min(reader.number("max_events", longest or MAX_LENGTH), longest or _LONGEST)
