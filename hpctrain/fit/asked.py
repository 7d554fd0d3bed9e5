"""The layout that is asked for: a training's options, and for what nobody asked, what hpctrain's trainings take then.

Pure. The defaults are those of TRL 1.16 (SFTConfig, ModelConfig) with hpctrain's own laid over them (hpctrain/training/rails.py, sft.py,
classify.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpctrain.errors import UsageError
from hpctrain.fit import memory, parameters
from hpctrain.fit.layout import Attention, DataFacts, Layout, Lora, Loss, Precision, Quantization, Sharding, SplitFacts
from hpctrain.fit.shape import ModelShape, labels_of, read_shape

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
_DTYPES: dict[str, Precision] = {
    "float32": "float32", "fp32": "float32", "float": "float32", "bfloat16": "bfloat16", "bf16": "bfloat16", "float16": "float16",
    "fp16": "float16", "half": "float16",
}  # fmt: skip


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """Return the options in the words of a command line: name to its word, to several words, or to True where none follows.

    Dashes in names count as underscores, as HfArgumentParser has them, and the last of several counts.
    """
    found: dict[str, Any] = {}
    name = None
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            found[name] = value if equals else True
        elif name is not None:
            before = found[name]
            found[name] = word if before is True else (*((before,) if isinstance(before, str) else before), word)
    return found


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
    """Return the layout that these options ask for.

    Args:
        options: TRL's names, as words (`"8"`, `"true"`) or typed; what is missing or None is the default.
        nodes: of the job; one process for each GPU.
        gpus_per_node: of each node.
        sharding: of the job.
        shape: the model; that of a classifier says which training it is.
        cuda: whether it trains on a GPU.
        bf16: whether that GPU has bfloat16.
        gpu_bytes: what a GPU has; decides on checkpointing where nobody asked. None: unknown, and then there is none.
        dataset: the manifest of the prepared dataset.
        stored: the dtype that config.json names, for `--dtype auto`.

    Raises:
        UsageError: values that are no numbers or truth values, LoRA on layers that the model lacks; all of them at once.
    """
    reader = _Options(options)
    lora = _lora(reader, shape)
    compute = _compute(reader, cuda=cuda, bf16=bf16)
    packing, length = _rows(reader, dataset) if not shape.labels else (False, _events(reader, dataset))
    layout = Layout(
        nodes=nodes, gpus_per_node=gpus_per_node, sharding=sharding,
        micro_batch=reader.number("per_device_train_batch_size", rows_unasked(dataset), least=1),
        length=length,
        accumulation=reader.number("gradient_accumulation_steps", 1, least=1),
        weights=_weights(reader, lora is not None, compute, stored),
        compute=compute,
        lora=lora,
        quantization=_quantization(reader),
        attention=_attention(reader),
        loss=_loss(reader) if not shape.labels else "classes",
        optimizer=(reader.word("optim", OPTIMIZER) or OPTIMIZER).rpartition(".")[2].lower(),
        padding_free=not shape.labels and (reader.truth("padding_free", False) or packing),
        sync_each_batch=_synced(reader),
        evaluation=_evaluation(reader, dataset, "epoch" if shape.labels else "no"),
    )  # fmt: skip
    asked = _checkpointing(reader)
    reader.check()
    if asked is None:
        asked = gpu_bytes is not None and not shape.labels and needs_checkpointing(shape, layout, gpu_bytes)
    return replace(layout, checkpointing="full" if asked else "off")


def shape_of(config: Mapping[str, Any], options: Mapping[str, Any], *, task: str, dataset: DataFacts | None = None) -> ModelShape:
    """Return the shape of the model as a task trains it.

    Args:
        config: config.json.
        options: of the training, as for `layout_of`.
        task: `sft`, or `classify`, which puts an output layer of the data's classes on it.
        dataset: the manifest of the prepared dataset; the size of its vocabulary is the model's where that is made `--from_scratch`.

    Raises:
        HpctrainError: as `read_shape`.
    """
    if task != "classify":
        return read_shape(config)
    reader = _Options(options)
    names = reader.get("class_names")
    said = len(names) if isinstance(names, list | tuple) else 1 if names else 0
    known = 0 if dataset is None else len(dataset.labels) or 1  # none at all: a regression
    if dataset is not None and reader.truth("from_scratch", False):
        config = {**config, "vocab_size": dataset.vocabulary}
    return read_shape(config, labels=said or known or labels_of(config))


def rows_unasked(dataset: DataFacts | None) -> int:
    """Return the rows of a pass where nobody says: TRL's 8, and of long packed rows as many as have the tokens of 8 at TRL's length.

    Args:
        dataset: the manifest of the prepared dataset; None: it has none.
    """
    if dataset is None or not dataset.packed or not dataset.max_length:
        return MICRO_BATCH
    return min(MICRO_BATCH, max(1, MICRO_BATCH * MAX_LENGTH // dataset.max_length))


def needs_checkpointing(shape: ModelShape, layout: Layout, gpu_bytes: int) -> bool:
    """Whether a layout without checkpointing takes more than a GPU has, so that it is switched on where nobody said either.

    Args:
        shape: the model.
        layout: its own `checkpointing` does not matter.
        gpu_bytes: all memory of the GPU, as torch shows it.
    """
    return memory.gpu_memory(shape, replace(layout, checkpointing="off", evaluation=0)).total > gpu_bytes


def checkpointing_asked(options: Mapping[str, Any]) -> bool | None:
    """Return whether the options ask for checkpointing, or against it; None where they say nothing."""
    return _checkpointing(_Options(options))


def uncounted(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the options ask for that the formula does not follow, in sentences that say in which direction it is off."""
    reader, found = _Options(options), []
    if reader.truth("use_liger_kernel", False):
        found.append("Liger's layers are not counted: they keep fewer activations, so the GPU needs less; the loss is in pieces anyway")
    if any(reader.get(f"torch_compile_{name}") is not None for name in ("backend", "mode")) or reader.truth("torch_compile", False):
        found.append("torch.compile is not counted: it is faster and mostly keeps fewer activations, and takes memory of its own at first")
    if reader.truth("activation_offloading", False):
        found.append("activation_offloading is not counted: activations go to the host, so the GPU needs less than this, and the node more")
    if _offloads(reader):
        found.append("FSDP's offloading is not counted: the GPU needs less: weights, gradients and optimizer lie on the host")
    if reader.get("deepspeed") is not None:
        found.append("the DeepSpeed config is not read: what it offloads to the host is counted on the GPU")
    if isinstance(name := reader.get("accelerator_config"), str) and not name.lstrip().startswith("{"):
        found.append(f"{name} is not read: if it has sync_each_batch, a step that accumulates needs less with fsdp")
    return tuple(found)


class _Options:
    """Reads options, and collects what is wrong with them."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options, self._problems = options, list[str]()

    def get(self, name: str) -> Any:
        value = self._options.get(name)
        return None if isinstance(value, str) and value.lower() in _NONE else value

    def word(self, name: str, default: str | None) -> str | None:
        value = self.get(name)
        return default if value is None else str(getattr(value, "value", value))

    def truth(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        if str(value).lower() not in _TRUE | _FALSE:
            self._problems.append(f"{name} must be true or false, not {value!r}")
        return str(value).lower() in _TRUE

    def number(self, name: str, default: int, *, least: int) -> int:
        value = self.get(name)
        if value is None:
            return default
        try:
            number = int(str(value))
        except ValueError:
            number = least - 1
        if number < least or number > 10**9:
            self._problems.append(f"{name} must be a whole number of at least {least}, not {value!r}")
            return default
        return number

    def real(self, name: str, default: float) -> float:
        value = self.get(name)
        try:
            return default if value is None else float(str(value))
        except ValueError:
            self._problems.append(f"{name} must be a number, not {value!r}")
            return default

    def problem(self, what: str) -> None:
        self._problems.append(what)

    def check(self) -> None:
        if self._problems:
            many = len(self._problems) > 1
            what = f"{len(self._problems)} problems in the training's options" if many else self._problems[0]
            raise UsageError(
                what, details=tuple(self._problems) if many else (), fix="edit training: in config.yaml, or what stands behind --"
            )


def _lora(reader: _Options, shape: ModelShape) -> Lora | None:
    if not reader.truth("use_peft", False):
        return None
    words = reader.get("lora_target_modules")
    named = tuple(str(word) for word in words) if isinstance(words, list | tuple) else words
    return Lora(
        rank=reader.number("lora_r", LORA_RANK, least=1),
        targets=parameters.lora_targets(shape, named),
        dropout=reader.real("lora_dropout", LORA_DROPOUT) > 0,
    )


def _compute(reader: _Options, *, cuda: bool, bf16: bool) -> Precision | None:
    half = reader.truth("fp16", False)
    if half and cuda:
        return "float16"
    return "bfloat16" if reader.truth("bf16", cuda and bf16 and not half) and cuda else None


def _weights(reader: _Options, lora: bool, compute: Precision | None, stored: str | None) -> Precision:
    said = reader.word("dtype", reader.word("torch_dtype", None))
    if said is None:
        return "bfloat16" if lora and compute == "bfloat16" else "float32"
    said = said.removeprefix("torch.")
    if said == "auto":
        said = (stored or "bfloat16").removeprefix("torch.")
    if said not in _DTYPES:
        reader.problem(f"dtype must be auto, float32, bfloat16 or float16, not {said!r}")
    return _DTYPES.get(said, "float32")


def _quantization(reader: _Options) -> Quantization:
    four, eight = reader.truth("load_in_4bit", False), reader.truth("load_in_8bit", False)
    if four and eight:
        reader.problem("load_in_4bit and load_in_8bit exclude each other")
    return "4bit" if four else "8bit" if eight else "none"


def _loss(reader: _Options) -> Loss:
    # TRL 1.16 (sft_trainer.py, compute_loss): smoothing alone takes all logits, and of the kinds of losses only nll is smoothed.
    smoothed = reader.real("label_smoothing_factor", 0) > 0 and reader.word("loss_type", "nll") in ("nll", "chunked_nll")
    return "logits" if smoothed else "fused"


def _attention(reader: _Options) -> Attention:
    said = (reader.word("attn_implementation", None) or "sdpa").lower()
    if said == "eager":
        return "eager"
    return "flex" if "flex" in said else "flash" if "flash" in said else "sdpa"


def _synced(reader: _Options) -> bool:
    """Return whether gradients are reduced in each pass (transformers' AcceleratorConfig); what lies in a file is not read."""
    said = reader.get("accelerator_config")
    if isinstance(said, str) and said.lstrip().startswith("{"):
        try:
            said = json.loads(said)
        except ValueError as error:
            reader.problem(f"accelerator_config is no JSON: {error}")
    # Words, or a mapping of them; or transformers' own object, in the training.
    kwargs = said.get("gradient_accumulation_kwargs") if isinstance(said, Mapping) else getattr(said, "gradient_accumulation_kwargs", None)
    return bool(kwargs.get("sync_each_batch")) if isinstance(kwargs, Mapping) else False


def _offloads(reader: _Options) -> bool:
    """Return whether FSDP is asked to keep its shares on the host (transformers' `fsdp` and `fsdp_config`); a file is not read."""
    words, said = reader.get("fsdp"), reader.get("fsdp_config")
    if isinstance(said, str) and said.lstrip().startswith("{"):
        try:
            said = json.loads(said)
        except ValueError:
            return False
    given = said if isinstance(said, Mapping) else {}
    named = ("offload_params", "cpu_offload", "fsdp_offload_params", "fsdp_cpu_offload")
    return any(str(given.get(name)).lower() in _TRUE for name in named) or (words is not None and "offload" in str(words))


def _checkpointing(reader: _Options) -> bool | None:
    for name in ("activation_checkpointing", "gradient_checkpointing"):
        if reader.get(name) is not None:
            return reader.truth(name, False)
    return None


def _rows(reader: _Options, dataset: DataFacts | None) -> tuple[bool, int]:
    """Return whether rows are packed without padding between documents, and the tokens of the longest row."""
    limit = reader.number("max_length", MAX_LENGTH, least=1)
    packing = reader.truth("packing", False)
    if dataset is not None:
        split: SplitFacts | None = dataset.splits.get(reader.word("dataset_train_split", "train") or "train")
        longest = split.longest if split is not None else dataset.max_length
        if dataset.packed:  # as long as they were made; nothing cuts them
            return True, dataset.max_length or longest or limit
        if packing:
            limit = limit if reader.get("max_length") is not None else dataset.max_length or limit
        elif longest:  # what was prepared is cut only where somebody asks for it
            return False, min(limit, longest) if reader.get("max_length") is not None else longest
    return packing and (reader.word("packing_strategy", "bfd") or "bfd").startswith("bfd"), limit


def _events(reader: _Options, dataset: DataFacts | None) -> int:
    """Return the events of the longest row of a classifier's batches; a cut at random makes rows shorter, and never longer."""
    longest = max((each.longest for each in dataset.splits.values()), default=0) if dataset is not None else 0
    return min(reader.number("max_events", longest or MAX_LENGTH, least=1), longest or _LONGEST)


def _evaluation(reader: _Options, dataset: DataFacts | None, unasked: str) -> int:
    """Return the rows of an evaluation's batch; 0 where nothing is evaluated."""
    if (reader.word("eval_strategy", unasked) or unasked) == "no":
        return 0
    # Packed rows are long: batches that nobody asked for are small in both (hpctrain/training/prepared.py).
    return reader.number("per_device_eval_batch_size", rows_unasked(dataset), least=1)
