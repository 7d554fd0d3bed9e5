"""The first lines of a training's log: a table of the model, the data and the settings.

    [train] model            Llama-3.2-1B (llama), 1.24 billion parameters, all trained
    [train] global batch     64 rows = 8 micro x 2 accumulation x 4 processes
    [train] expected peak    61.2 GiB of the 79.1 GiB of NVIDIA H100 80GB HBM3 (77 %)

Plain text of 80 columns, each line with the prefix `[train]`. Unknown values are `unknown`, with
the reason. Printed by rank 0.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from hpctrain.errors import HpctrainError
from hpctrain.fit import gpus, speed, training_options
from hpctrain.fit import memory as gpu_memory
from hpctrain.fit.layout import Attention, Layout, Sharding
from hpctrain.fit.shape import ModelShape, read_shape
from hpctrain.training.preflight import rules
from hpctrain.training.process import nodes_of
from hpctrain.util import files
from hpctrain.util.text import count, size


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Length statistics of the rows of one split.

    Attributes:
        examples: number of examples, more than rows if these are packed.
        tokens: total number of tokens.
        longest: tokens of the longest row.
        context: mean length of the examples, weighted by their tokens: the context length of an
            average token.
    """

    examples: int
    tokens: int
    longest: int
    context: float


def lengths_of(dataset: Any) -> Lengths | None:
    """Return the lengths of a datasets.Dataset with a column `input_ids`; None for any other."""
    try:
        if dataset.format["type"] == "custom":  # the classifier's, stored with padding
            return None
        rows = examples = rules.lengths_of(dataset)
        if "seq_lengths" in dataset.column_names:
            examples = rules.flat(dataset, "seq_lengths").astype("int64")
    except Exception:  # another kind of dataset, unknown before it is read
        return None
    tokens = int(rows.sum())
    if not tokens:
        return None
    return Lengths(
        examples=len(examples),
        tokens=tokens,
        longest=int(rows.max()),
        context=float((examples * examples).sum() / tokens),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The expected memory and speed of a training.

    Attributes:
        shape, layout: the model and how it is trained; None for the reason in `why`.
        memory: memory of one GPU; None on the CPU, or without shape and layout.
        host: memory of a node, likewise.
        speed: None if the GPU is unknown.
        gpu: the GPU's specification, if known.
        gpu_name, gpu_bytes: the GPU as torch reports it; None on the CPU.
        context: from the rows' Lengths; None if unknown.
        why: why memory or speed is None.
    """

    shape: ModelShape | None = None
    layout: Layout | None = None
    memory: gpu_memory.GpuMemory | None = None
    host: gpu_memory.HostMemory | None = None
    speed: speed.SpeedEstimate | None = None
    gpu: gpus.Gpu | None = None
    gpu_name: str | None = None
    gpu_bytes: int | None = None
    context: float | None = None
    why: str = ""

    def mfu(self, tokens_per_s: float, processes: int) -> float | None:
        """Return the model FLOPS utilization for the tokens per second of all processes, as a
        fraction of the GPUs' dense bfloat16 peak; None if unknown.
        """
        if self.shape is None or self.layout is None or self.gpu is None or not self.gpu.bf16:
            return None
        flops = speed.model_flops_per_token(self.shape, self.layout, context=self.context)
        return tokens_per_s * flops / (processes * self.gpu.bf16)

    def as_record(self) -> dict[str, Any]:
        """Return the part of fit.json that is known before the first step
        (hpctrain.runs.predicted).
        """
        predicted = None
        if self.memory is not None:
            predicted = {
                "total": self.memory.total,
                "allocated": self.memory.allocated,
                "reserved": self.memory.reserved,
                "parts": {part.name: part.bytes for part in self.memory.parts},
                "host": None if self.host is None else self.host.total,
                "tokens_per_s": None if self.speed is None else self.speed.tokens_per_s,
            }
        return {
            "layout": None if self.layout is None else asdict(self.layout),
            "shape": None if self.shape is None else asdict(self.shape),
            "gpu": self.gpu_name,
            "gpu_bytes": self.gpu_bytes,
            "predicted": predicted,
        }


def device_of(args: Any) -> tuple[str | None, int | None]:
    """Return name and memory in bytes of this process's GPU; None, None on the CPU."""
    if args.use_cpu or not torch.cuda.is_available():
        return None, None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return properties.name, int(properties.total_memory)


def expect(trainer: Any, options: Any, lengths: Lengths | None) -> Expectation:
    """Return the expected memory and speed of a Trainer that is about to train.

    Args:
        trainer: the Trainer.
        options: hpctrain.training.options.Options.
        lengths: lengths of the training rows.
    """
    name, bytes_ = device_of(trainer.args)
    context = lengths.context if lengths else None
    found = Expectation(
        gpu_name=name, gpu_bytes=bytes_, context=context, why="it trains on the CPU"
    )
    try:
        shape = _shape(trainer, options)
        layout = _layout(trainer, options, shape, found, lengths)
    except HpctrainError as error:
        return replace(found, why=error.what)
    except Exception as error:  # an estimate must not keep a training from starting
        return replace(found, why=f"{type(error).__name__}: {error}")
    found = replace(found, shape=shape, layout=layout)
    if name is None:
        return found
    gpu, workers = gpus.find(name, bytes_), trainer.args.dataloader_num_workers
    return replace(
        found,
        memory=gpu_memory.gpu_memory(shape, layout),
        host=gpu_memory.host_memory(shape.parameters, layout, workers=workers),
        speed=speed.tokens_per_second(shape, layout, gpu, context=context) if gpu else None,
        gpu=gpu,
        why="" if gpu else f"the speed of {name} is unknown",
    )


def _sharding_of(trainer: Any) -> Sharding:
    kind = trainer.accelerator.distributed_type.name
    if kind == "DEEPSPEED":
        return "zero2" if os.environ.get("HPCTRAIN_SHARDING") == "zero2" else "zero3"
    return "fsdp" if kind == "FSDP" else "ddp"


def _checkpoints_activations(model: Any) -> bool:
    return any(bool(getattr(module, "gradient_checkpointing", False)) for module in model.modules())


def _shape(trainer: Any, options: Any) -> ModelShape:
    """Return the shape of a classifier or language model, even if it is wrapped.

    Raises:
        HpctrainError: it is neither, or unknown.
    """
    labels, names = None, {type(module).__name__ for module in trainer.model.modules()}
    if any("ForSequenceClassification" in name for name in names):
        labels = int(trainer.model.config.num_labels)
    elif any("CausalLM" in name or "LMHeadModel" in name for name in names):
        labels = 0
    if labels is None:
        raise HpctrainError("the estimate is of language models and classifiers only")
    folder, made = options.weights.model, trainer.model.config.to_dict()
    found = files.read_json(Path(folder) / "config.json") if folder else None
    if found and labels and "vocab_size" in made:  # from scratch, it has the dataset's vocabulary
        found["vocab_size"] = made["vocab_size"]
    return read_shape(cast("Mapping[str, Any]", found or made), labels=labels)


def _layout(
    trainer: Any, options: Any, shape: ModelShape, found: Expectation, lengths: Lengths | None
) -> Layout:
    args = trainer.args
    nodes, each = nodes_of(args.world_size)
    layout = training_options.layout_of(
        {**vars(options.model), **vars(args)},
        nodes=nodes,
        gpus_per_node=each,
        sharding=_sharding_of(trainer),
        shape=shape,
        cuda=found.gpu_name is not None,
        gpu_bytes=found.gpu_bytes,
        stored=str(trainer.model.config.dtype or "").removeprefix("torch.") or None,
    )
    name = rules.attention_of(trainer)
    attention = next((kind for kind in ("eager", "flex", "flash") if kind in name), "sdpa")
    # The actual Trainer and data override the options.
    return replace(
        layout,
        length=lengths.longest if lengths else layout.length,
        attention=cast("Attention", attention),
        checkpointing="full" if _checkpoints_activations(trainer.model) else "off",
        padding_free=bool(getattr(trainer, "padding_free", layout.padding_free)),
    )


MARK = "[train]"
WIDTH = 80
_COLUMN = 17


def lines(table: dict[str, str]) -> list[str]:
    """Return the table's lines; a long value continues on lines without a label."""
    return [
        f"{MARK} {line}"
        for label, value in table.items()
        for line in textwrap.wrap(
            value or "-",
            WIDTH - len(MARK) - 1,
            initial_indent=f"{label:{_COLUMN}}",
            subsequent_indent=" " * _COLUMN,
            break_on_hyphens=False,
        )
    ]


def count_parameters(model: Any) -> tuple[int, int]:
    """Return the number of a model's parameters and of the trainable ones, even if sharded or
    quantized.
    """
    total = trained = 0
    for parameter in model.parameters():
        # DeepSpeed leaves an empty tensor.
        number = int(getattr(parameter, "ds_numel", 0) or parameter.numel())
        if type(parameter).__name__ == "Params4bit":  # bitsandbytes: two per byte
            number *= 2 * getattr(parameter, "element_size", lambda: 1)()
        total += number
        trained += number if parameter.requires_grad else 0
    return total, trained


def begin(
    trainer: Any, options: Any, state: Any, parameters: tuple[int, int]
) -> tuple[Expectation, list[str]]:
    """Return the expectation for a Trainer that is about to train, and the lines of its table.

    Args:
        trainer: the Trainer.
        options: hpctrain.training.options.Options.
        state: the Trainer's state.
        parameters: number of parameters, and of trainable ones.
    """
    args, lengths = trainer.args, lengths_of(trainer.train_dataset)
    expected, (total, trained) = expect(trainer, options, lengths), parameters
    kind = getattr(trainer.model.config, "model_type", None) or "unknown"
    part = "all" if trained == total else f"{trained:,} ({trained / max(1, total):.2%})"
    nodes, each = nodes_of(args.world_size)
    split = "none," if args.world_size == 1 else f"{_sharding_of(trainer)} over"
    what = count(each, "CPU process", "CPU processes") if args.use_cpu else count(each, "GPU")
    table = {
        "model": (
            f"{_place(options.weights.model)} ({kind}), {gpu_memory.billions(total)} parameters, {part}"
            " trained"
        ),
        "data": _data(trainer, options, lengths),
        "global batch": (
            f"{_global_batch(args)} rows = {args.per_device_train_batch_size} micro x"
            f" {args.gradient_accumulation_steps} accumulation x"
            f" {count(args.world_size, 'process', 'processes')}"
        ),
        "precision": _precision(trainer),
        "sharding": f"{split} {count(nodes, 'node')} x {what}",
        "attention": rules.attention_of(trainer),
        "checkpointing": "on" if _checkpoints_activations(trainer.model) else "off",
        "expected peak": peak_words(expected),
        "steps": steps_words(args, state, len(trainer.train_dataset)),
    }
    return expected, lines(table)


# -- the rows --------------------------------------------------------------------------------------


def peak_words(expected: Expectation) -> str:
    """Return the expected peak memory of a GPU and the GPU's total, as text."""
    total, has = expected.memory.total if expected.memory else 0, expected.gpu_bytes
    if not total or not has:
        return f"unknown ({expected.why})"
    more = "; more than it has: hpctrain fit shows what fits" if total > has else ""
    return f"{size(total)} of the {size(has)} of {expected.gpu_name} ({total / has:.0%}){more}"


def _place(folder: Any) -> str:
    return "/".join(Path(str(folder)).parts[-2:])


def _data(trainer: Any, options: Any, lengths: Lengths | None) -> str:
    place = f"{_place(options.script.dataset_name)}, {options.script.dataset_train_split}"
    rows = len(trainer.train_dataset)
    if lengths is None:
        return f"{place}: {rows} rows"
    packed = "packed" if getattr(trainer.args, "packing", False) else "not packed"
    if "seq_lengths" in trainer.train_dataset.column_names:
        packed = f"packed, {lengths.examples} examples"
    return (
        f"{place}: {rows} rows, {lengths.tokens:,} tokens, {lengths.tokens / rows:.0f} a row,"
        f" {lengths.longest} at most, {packed}"
    )


def _precision(trainer: Any) -> str:
    args = trainer.args
    trained = {str(each.dtype) for each in trainer.model.parameters() if each.requires_grad}
    words = f"weights {'/'.join(sorted(trained)).replace('torch.', '') or 'none'}"
    if not args.bf16 and not args.fp16:
        return f"{words}, computed in the same"
    return f"{words}, computed in {'bfloat16' if args.bf16 else 'float16'} (autocast)"


def _global_batch(args: Any) -> int:
    return int(
        args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    )


def steps_words(args: Any, state: Any, rows: int) -> str:
    """Return the number of steps and epochs, and the steps that are done, as text."""
    batch, steps, done = _global_batch(args), int(state.max_steps), int(state.global_step)
    # As in the Trainer: the last, incomplete step of an epoch counts as a step.
    each = max(1, rows // batch if args.dataloader_drop_last else -(-rows // batch))
    return f"{steps}, {steps / each:.3g} epochs" + (f"; {done} of them done" if done else "")
