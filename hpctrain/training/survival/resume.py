"""Decides whether a training starts from scratch or resumes, and from which checkpoint. A mismatch
is an error that names the option to accept it.

Rank 0 decides for all ranks. Reads files; needs no torch. Only complete checkpoints, by
their manifest, are used.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.errors import UsageError
from hpctrain.runs import checkpoints, layout
from hpctrain.runs.manifest import problems, read_manifest
from hpctrain.training.options import Options
from hpctrain.training.preflight import split_folders
from hpctrain.training.survival import ResilienceContext
from hpctrain.training.survival.saving import RECORD, state_in
from hpctrain.util import files

#: Options that affect the next step; a resume prints those that changed.
OPTIONS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "max_steps",
    "num_train_epochs",
    "weight_decay",
    "max_grad_norm",
    "optim",
    "seed",
    "data_seed",
    "max_length",
    "packing",
    "packing_strategy",
    "train_sampling_strategy",
    "neftune_noise_alpha",
    "padding_free",
    "completion_only_loss",
    "assistant_only_loss",
    "loss_type",
    "label_smoothing_factor",
    "average_tokens_across_devices",
    "dataloader_drop_last",
    "bf16",
    "fp16",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "lr_scheduler_kwargs",
    "dtype",
    "lora_alpha",
    "lora_dropout",
    "use_rslora",  # of ModelConfig
    "class_weights",
    "max_events",  # of the classifier
)
#: Of these, the ones restored with the optimizer's state: its groups, and the scheduler's base_lrs.
HELD = ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")
#: Of these, the ones that determine when a training is done.
ENDS = ("max_steps", "num_train_epochs", "early_stopping_patience", "early_stopping_threshold")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a training starts.

    Attributes:
        checkpoint: the checkpoint to resume from; None to start from scratch.
        step: optimizer steps done.
        lines: the first lines of the log.
        complete: the directory of the final weights, if there is nothing left to do.
    """

    checkpoint: str | None = None
    step: int = 0
    lines: tuple[str, ...] = ()
    complete: str | None = None


def decide(options: Options, survival: ResilienceContext) -> Start:
    """Return how the training starts.

    Raises:
        HpctrainError: the requested checkpoint does not match, or cannot be read.
    """
    if survival.run_dir is not None:
        done = _complete(survival.run_dir / checkpoints.MODEL, survival)
        if done is not None:
            return done
    found, skipped = _own(options, survival)
    lines = [f"[train] skipped {one.name}: {one.why}" for one in skipped]
    word = options.training.resume_from_checkpoint
    if word is not None and word != "true":
        since = _since(word, found, options, survival)
        if since is None:
            found, lines = _requested(_path_of(word, survival)), []
        else:
            found = since
            lines.append(
                f"[train] this run started at --resume_from_checkpoint {word}; it has its own"
                " checkpoint since"
            )
    if found is None and word == "true":
        raise UsageError(
            f"there is no complete checkpoint in {options.training.output_dir}",
            fix=f"ls -la {shlex.quote(options.training.output_dir)}",
        )
    if found is None:
        return Start(lines=(*lines, f"[train] {options.weights.in_words()}"))
    record = files.read_json(found.path / RECORD) or {}
    _check(found, record, options, survival)
    return Start(
        checkpoint=str(found.path),
        step=found.manifest.step,
        lines=(*lines, *_lines(found, record, options, survival)),
    )


# -- which checkpoint ------------------------------------------------------------------------------


def _own(
    options: Options, survival: ResilienceContext
) -> tuple[checkpoints.Checkpoint | None, tuple[checkpoints.Skipped, ...]]:
    if survival.run_dir is None and options.training.resume_from_checkpoint != "true":
        return None, ()  # not a run: the directory may be from another training
    found, skipped = checkpoints.newest_complete(Path(options.training.output_dir), digests=True)
    other = found.manifest.run_id if found is not None else None
    if found is not None and other is not None and survival.run_id not in (None, other):
        raise UsageError(
            f"{options.training.output_dir} holds checkpoints of another run, {other}",
            details=(f"this run is {survival.run_id}; their checkpoints would replace each other",),
            hint="leave --output_dir out, or use --output_dir ANOTHER_FOLDER --init_from "
            + shlex.quote(str(found.path)),
        )
    return found, skipped


def _since(
    word: str, own: checkpoints.Checkpoint | None, options: Options, survival: ResilienceContext
) -> checkpoints.Checkpoint | None:
    """Return the run's newer checkpoint, after it started from an explicit one: a requeued job has
    the same command line again.

    A requeued job no longer needs the checkpoint of an earlier stage, which may have been removed.
    If the explicit checkpoint is the run's own, the run may be going back to it: then only
    checkpoints saved by this job are newer, not later steps of an earlier job.
    """
    if own is None or word.startswith("stage:"):
        return own
    if _path_of(word, survival).resolve().parent != own.path.resolve().parent:
        return own
    job = checkpoints.job_of(survival.attempt)
    if job is None:
        return None
    return checkpoints.newest_complete(Path(options.training.output_dir), digests=True, job=job)[0]


def _path_of(word: str, survival: ResilienceContext) -> Path:
    runs = survival.run_dir.absolute().parent if survival.run_dir is not None else Path(layout.RUNS)
    return checkpoints.checkpoint_of(word, runs=runs, tag=os.environ.get(layout.TAG_VARIABLE))


def _requested(path: Path) -> checkpoints.Checkpoint:
    if not path.is_dir():
        raise UsageError(
            f"there is no checkpoint {path}", fix=f"ls {shlex.quote(str(path.parent))}"
        )
    wrong, manifest = problems(path, digests=True), read_manifest(path)
    if manifest is not None and not wrong:
        return checkpoints.Checkpoint(path, manifest)
    raise UsageError(
        f"the checkpoint {path} is not complete: {wrong[0]}",
        details=tuple(f"  {one}" for one in wrong[1:]),
        hint=f"use another one, or its weights only: --init_from {shlex.quote(str(path))}",
    )


# -- whether it fits -------------------------------------------------------------------------------


def _check(
    found: checkpoints.Checkpoint,
    record: Mapping[str, Any],
    options: Options,
    survival: ResilienceContext,
) -> None:
    processes = found.manifest.world_size
    has = state_in(found.path, processes)
    if missing := [part for part in ("model", "trainer") if part not in has]:
        raise UsageError(
            f"{found.path} has no {' and no '.join(missing)} state: it cannot be resumed",
            hint=f"use --init_from {shlex.quote(str(found.path))}",
        )
    different: dict[str, list[str]] = {}
    if missing := [part for part in ("optimizer", "scheduler", "rng") if part not in has]:
        different["resume_with_missing_state"] = [
            f"it has no {', no '.join(missing)} state: the training would go another way from there"
        ]
    if processes != options.training.world_size:
        different["resume_with_other_world_size"] = [
            f"{processes} processes saved it, and there are {options.training.world_size} now:"
            " other batches, in another order"
        ]
    before, now = record.get("data"), survival.record.get("data")
    for role in ("train", "eval"):
        was, is_ = (each.get(role) if each else None for each in (before, now))
        # An evaluation may be new, or no longer wanted.
        if before and now and was != is_ and (role == "train" or (was and is_)):
            different.setdefault("resume_with_other_data", []).append(
                f"the {role} data is not what it was: another fingerprint, or other sizes"
            )
    refused = {name: why for name, why in different.items() if not getattr(options.common, name)}
    if not refused:
        return
    why = [line for lines in refused.values() for line in lines]
    accept = " ".join(f"--{name} true" for name in refused)
    anew = f"--init_from {shlex.quote(str(found.path))} for its weights only"
    raise UsageError(
        f"{found.path.name} cannot be resumed as it is",
        details=(str(found.path), *why),
        hint=f"run the job as it was, use {accept}, or use {anew}",
    )


def _complete(model: Path, survival: ResilienceContext) -> Start | None:
    record = files.read_json(model / RECORD)
    if record is None or problems(model, digests=False):
        return None
    # For the best checkpoint's weights, `step` is an earlier step.
    step, now = record["trained_steps"], survival.record.get("ends") or {}
    if record["ends"] != now and not 0 < (now.get("max_steps") or -1) <= step:
        return None
    line = (
        f"[train] already complete: {step} of {record['max_steps']} steps, model in {model};"
        " nothing is trained"
    )
    return Start(step=step, lines=(line,), complete=str(model))


# -- messages --------------------------------------------------------------------------------------


def _lines(
    found: checkpoints.Checkpoint,
    record: Mapping[str, Any],
    options: Options,
    survival: ResilienceContext,
) -> list[str]:
    who = f"run {survival.run_id} " if survival.run_id else ""
    lines = [
        f"[train] resumes {who}at step {found.manifest.step} from {found.path} (weights, optimizer, learning"
        " rate, data order, random numbers)"
    ]
    if options.common.init_from is not None:
        lines.append(
            f"[train] --init_from {options.common.init_from} was for the first start; its weights"
            " are not used again"
        )
    before, now = record.get("options") or {}, survival.record.get("options") or {}
    changed = [name for name in now if name in before and before[name] != now[name]]
    if changed:
        words = ", ".join(f"{name} {before[name]} -> {now[name]}" for name in changed)
        lines.append(f"[train] changed since the checkpoint: {words}")
    if held := [name for name in changed if name in HELD]:
        lines.append(
            f"[train] notice: {', '.join(held)}: the checkpoint's own value is used (for new ones:"
            f" --init_from {shlex.quote(str(found.path))})"
        )
    return lines


def record(parts: Sequence[Any], dataset: str, splits: Sequence[str]) -> dict[str, Any]:
    """Return the record for each checkpoint: the data's identity, the options, and when the
    training is done.

    Args:
        parts: dataclasses of options, the training arguments first; for duplicate names, the first
            counts.
        dataset: the dataset's directory, as it was saved by save_to_disk.
        splits: the training split, and the evaluation split if there is one.
    """
    values: dict[str, Any] = {}
    for part in parts:
        for name in (*OPTIONS, *ENDS):
            if hasattr(part, name):
                values.setdefault(name, _plain(getattr(part, name)))
    folders = split_folders(Path(dataset)) or {}
    data = {
        role: _identity(folders.get(split, folders.get("")))
        for role, split in zip(("train", "eval"), splits, strict=False)
    }
    return {
        "schema": 1,
        "data": data,
        "options": {name: values[name] for name in OPTIONS if name in values},
        "ends": {name: values.get(name) for name in ENDS},
    }


def _identity(folder: Path | None) -> dict[str, Any] | None:
    """Return the identity of a saved dataset, independent of its location: its fingerprint and the
    sizes of its files, in bytes.
    """
    state = None if folder is None else files.read_json(folder / "state.json")
    if folder is None or state is None:
        return None
    names = [str(entry["filename"]) for entry in state.get("_data_files", [])]
    sizes = {name: (folder / name).stat().st_size for name in names if (folder / name).is_file()}
    return {"fingerprint": state.get("_fingerprint"), "bytes": sizes}


def _plain(value: Any) -> Any:
    value = getattr(value, "value", value)
    return value if isinstance(value, (int, float, str, bool)) or value is None else str(value)
