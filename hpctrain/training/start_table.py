"""The first lines of a training's log: a table of what is trained, on what, how, and for how long.

    [train] model            Llama-3.2-1B (llama), 1.24 B parameters, all of them trained
    [train] global batch     64 rows = 8 micro x 2 accumulation x 4 processes
    [train] expected peak    61.2 GiB of the 79.1 GiB of NVIDIA H100 80GB HBM3 (77 %)

Plain text of 80 columns, each line with the mark of the training, so that it can be read back (`parse`). What cannot be known is
`unknown`, with the reason. Written by rank 0.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.training.estimate import Job, duration, judge, reserve, sentence
from hpctrain.training.expectation import Expectation, checkpoints_activations, nodes_of, sharding_of
from hpctrain.training.lengths import Lengths

MARK = "[train]"
WIDTH = 80
LABELS = (
    "model", "data", "tokens per step", "global batch", "precision", "sharding", "attention", "loss", "checkpointing", "expected peak",
    "steps", "time",
)  # fmt: skip
"""The labels, in their order."""
_COLUMN = 17
_INDENT = " " * _COLUMN


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """How many the model has, and how many of them are trained."""

    total: int
    trained: int


def lines(table: dict[str, str]) -> list[str]:
    """Return the table's lines, by label; a long value goes on in lines without one."""
    found = []
    for label, value in table.items():
        first, *more = textwrap.wrap(value, WIDTH - len(MARK) - 1 - _COLUMN, break_long_words=True, break_on_hyphens=False) or ["-"]
        found.append(f"{MARK} {label:{_COLUMN}}{first}")
        found += [f"{MARK} {_INDENT}{part}" for part in more]
    return found


def parse(log: Iterable[str]) -> dict[str, str]:
    """Return the last table in the lines of a log, by label; empty where there is none.

    A value that was broken into several lines is one again.
    """
    found: dict[str, str] = {}
    label = None
    for line in log:
        at = line.find(f"{MARK} ")
        text = line[at + len(MARK) + 1 :].rstrip("\n") if at >= 0 else ""
        name, value = text[:_COLUMN].rstrip(), text[_COLUMN:]
        if name in LABELS and text[: _COLUMN + 1].startswith(f"{name} "):
            if name == LABELS[0]:
                found = {}
            label = name
            found[name] = value
        elif label is not None and text.startswith(_INDENT):
            found[label] += f" {value}"
        else:
            label = None
    return found


def count_parameters(model: Any) -> Parameters:
    """Return the number of a model's parameters, whole however they are divided among processes, or quantised."""
    total = trained = 0
    for parameter in model.parameters():
        number = int(getattr(parameter, "ds_numel", 0) or parameter.numel())  # DeepSpeed leaves an empty tensor behind
        if type(parameter).__name__ == "Params4bit":  # bitsandbytes: two of them to a byte
            number *= 2 * getattr(parameter, "element_size", lambda: 1)()
        total += number
        trained += number if parameter.requires_grad else 0
    return Parameters(total=total, trained=trained)


def table(
    trainer: Any,
    options: Any,
    *,
    parameters: Parameters,
    lengths: Lengths | None,
    expectation: Expectation,
    steps: int,
    done: int,
) -> dict[str, str]:
    """Return the table of a Trainer that is about to train, without its last row (`time_words`).

    Args:
        trainer: the Trainer.
        options: hpctrain.training.options.Options.
        parameters: of the model.
        lengths: of the training split, as it is trained on.
        expectation: what was worked out.
        steps: optimizer steps of the whole training.
        done: how many of them are done already.
    """
    args = trainer.args
    attention, loss = _kernels(trainer)
    return {
        "model": _model(trainer, options, parameters),
        "data": _data(trainer, options, lengths),
        "tokens per step": _tokens(args, lengths),
        "global batch": _batch(args),
        "precision": _precision(trainer),
        "sharding": _sharding(trainer),
        "attention": attention,
        "loss": loss,
        "checkpointing": "on" if checkpoints_activations(trainer.model) else "off",
        "expected peak": peak_words(expectation),
        "steps": _steps(args, steps, done, _rows(trainer)),
    }


def peak_words(expectation: Expectation) -> str:
    """Return the expected peak of a GPU's memory against what it has."""
    if expectation.memory is None:
        return f"unknown ({expectation.no_memory})"
    total, has = expectation.memory.total, expectation.device.memory
    rough = "about " if expectation.memory.approximate else ""
    if not has:
        return f"{rough}{_gib(total)} of each GPU"
    more = "; more than it has: hpctrain fit shows what fits" if total > has else ""
    return f"{rough}{_gib(total)} of the {_gib(has)} of {expectation.device.name} ({total / has:.0%}){more}"


def time_words(
    expectation: Expectation, lengths: Lengths | None, args: Any, *, steps_left: int, job: Job, now: float, save_s: float | None
) -> str:
    """Return the time that the training is expected to take, before any of it was measured, against the time limit."""
    if expectation.speed is None or lengths is None:
        limit = "" if job.end is None else f"; the time limit leaves {duration(job.end - now)}"
        why = expectation.no_speed if expectation.speed is None else "how long the rows are is not known"
        return f"unknown ({why}); measured after a few steps{limit}"
    # The estimate is of rows of the greatest length; of text, a step has so much less.
    part = 1.0 if lengths.packed or getattr(args, "packing", False) else min(1.0, lengths.mean / lengths.longest)
    step_s = expectation.speed.step_s * part
    needed = steps_left * step_s
    spare = reserve(step_s, save_s, None)
    verdict = judge(needed, job, now=now, spare=spare)
    return f"{sentence(verdict, needed, job, now=now)}; expected, not measured"


# -- the rows ----------------------------------------------------------------------------------------------------------


def _model(trainer: Any, options: Any, parameters: Parameters) -> str:
    folder = options.weights.model
    name = _place(folder) if folder else "unknown (it has no folder)"
    kind = getattr(trainer.model.config, "model_type", None) or "unknown"
    trained = "all of them trained"
    if parameters.trained != parameters.total:
        trained = f"{big(parameters.trained)} of them trained ({parameters.trained / max(1, parameters.total):.2%})"
    return f"{name} ({kind}), {big(parameters.total)} parameters, {trained}"


def _data(trainer: Any, options: Any, lengths: Lengths | None) -> str:
    folder = _place(options.script.dataset_name)
    split = options.script.dataset_train_split
    if lengths is None:
        rows = _rows(trainer)
        number = "unknown (they stream)" if rows is None else str(rows)
        return f"{folder}, {split}: rows {number}, tokens unknown (the dataset does not say how long its rows are)"
    words = [f"{folder}, {split}: {lengths.rows} rows, {big(lengths.tokens)} tokens, {lengths.mean:.0f} a row, {lengths.longest} at most"]
    if lengths.packed:
        words.append(f"packed, {lengths.examples} examples")
    else:
        words.append("packed" if getattr(trainer.args, "packing", False) else "not packed")
    return ", ".join(words)


def _rows(trainer: Any) -> int | None:
    """Return the rows of the training split; None where they stream."""
    try:
        return len(trainer.train_dataset)
    except TypeError:
        return None


def _place(folder: Any) -> str:
    """Return the end of a path: `model` alone says nothing."""
    return "/".join(Path(str(folder)).parts[-2:])


def _tokens(args: Any, lengths: Lengths | None) -> str:
    if lengths is None:
        return "unknown (the length of the rows is not known)"
    rows = min(_global_batch(args), lengths.rows)
    return f"{big(rows * lengths.mean)} on average without padding, {big(rows * lengths.longest)} at most"


def _global_batch(args: Any) -> int:
    return int(args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size)


def _batch(args: Any) -> str:
    processes = f"{args.world_size} process{'es' if args.world_size != 1 else ''}"
    return (
        f"{_global_batch(args)} rows = {args.per_device_train_batch_size} micro x {args.gradient_accumulation_steps} accumulation"
        f" x {processes}"
    )


def _precision(trainer: Any) -> str:
    args = trainer.args
    trained = {_dtype(each) for each in trainer.model.parameters() if each.requires_grad}
    frozen = {_dtype(each) for each in trainer.model.parameters() if not each.requires_grad}
    words = f"weights {'/'.join(sorted(trained)) or 'none'}"
    if frozen and frozen != trained:
        words += f" (frozen: {'/'.join(sorted(frozen))})"
    compute = "bfloat16" if args.bf16 else "float16" if args.fp16 else None
    return f"{words}, computed in {compute} (autocast)" if compute else f"{words}, computed in the same"


def _dtype(parameter: Any) -> str:
    quantised = {"Params4bit": "4bit", "Int8Params": "8bit"}.get(type(parameter).__name__)
    return quantised or str(parameter.dtype).removeprefix("torch.")


def _sharding(trainer: Any) -> str:
    args = trainer.args
    nodes, each = nodes_of(args.world_size)
    what = "CPU process" if args.use_cpu else "GPU"
    place = f"{nodes} node{'s' if nodes != 1 else ''} x {each} {what}{'' if each == 1 else 'es' if args.use_cpu else 's'}"
    return f"none, {place}" if args.world_size == 1 else f"{sharding_of(trainer)} over {place}"


def _kernels(trainer: Any) -> tuple[str, str]:
    """Return attention and loss in words; what else is said of kernels stands with the loss."""
    from hpctrain.training.kernels import in_words

    try:
        attention, _, loss = in_words(trainer).partition(", loss ")
    except Exception as error:  # words must not keep a training from beginning
        return (f"unknown ({type(error).__name__}: {error})",) * 2
    return attention, loss or "of the model"


def _steps(args: Any, steps: int, done: int, rows: int | None) -> str:
    words = f"{steps}"
    if rows:
        step_rows = _global_batch(args)
        # As the Trainer counts: the last step of an epoch is a step, however few rows are left for it.
        each = max(1, rows // step_rows if args.dataloader_drop_last else -(-rows // step_rows))
        words += f", {steps / each:.3g} epochs"
    return words + (f"; {done} of them done" if done else "")


# -- numbers -----------------------------------------------------------------------------------------------------------


def big(number: float) -> str:
    """Return a count as people read it: `512`, `81.9 k`, `1.24 M`, `8.03 B`."""
    for least, size, unit in ((999.5e9, 1e12, "T"), (999.5e6, 1e9, "B"), (999.5e3, 1e6, "M"), (9999.5, 1e3, "k")):
        if number >= least:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
