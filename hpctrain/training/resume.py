"""Whether a training starts anew or goes on, and from which checkpoint; what does not fit is an error that says how to accept it.

Decided by rank 0, for all (`decided`); reads files, needs no torch. A checkpoint counts when its manifest says that it is complete.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.runs import checkpoints, files, layout
from hpctrain.runs.checkpoints import Checkpoint
from hpctrain.runs.manifest import Manifest, problems, read_manifest
from hpctrain.training.preflight import split_folders
from hpctrain.training.saving import RECORD, rank_files, state_in
from hpctrain.training.settings import Survival

if TYPE_CHECKING:
    from hpctrain.training.ranks import Ranks

#: Options that decide what the next step is; a change of one is said at a resume.
OPTIONS = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "lr_scheduler_type", "warmup_steps", "max_steps",
    "num_train_epochs", "weight_decay", "max_grad_norm", "optim", "seed", "data_seed", "max_length", "packing", "packing_strategy",
    "train_sampling_strategy", "neftune_noise_alpha", "padding_free", "completion_only_loss", "assistant_only_loss", "loss_type",
    "label_smoothing_factor", "average_tokens_across_devices", "dataloader_drop_last", "bf16", "fp16", "adam_beta1", "adam_beta2",
    "adam_epsilon", "lr_scheduler_kwargs",
    "dtype", "lora_alpha", "lora_dropout", "use_rslora",  # of ModelConfig
    "class_weights", "max_events", "random_truncation", "min_events", "truncation_keeps",  # of the classifier
)  # fmt: skip
#: Of these, the ones that the optimizer's state holds: its groups, and the scheduler's base_lrs, are loaded as they were saved.
HELD = ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")
#: Of these, the ones that say when a training is done.
ENDS = ("max_steps", "num_train_epochs", "early_stopping_patience", "early_stopping_threshold")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What may differ from the checkpoint; the options are `--resume_with_missing_state true` and so on."""

    missing_state: bool = False
    other_world_size: bool = False
    other_data: bool = False
    no_manifest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a training starts.

    Attributes:
        checkpoint: what is resumed; None to start anew.
        step: optimizer steps done.
        lines: for the log, in front of everything.
        complete: there is nothing to do: where the final weights are.
        save_seconds: what the checkpoint's save took.
        leaving_seconds: what passed from that save to the end of its job, where the job script wrote that down.
    """

    checkpoint: str | None = None
    step: int = 0
    lines: tuple[str, ...] = ()
    complete: str | None = None
    save_seconds: float | None = None
    leaving_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked for.

    Attributes:
        output_dir: where the checkpoints of this training are saved.
        explicit: `--resume_from_checkpoint`: a directory, `stage:NAME`, RUN_ID, RUN_ID/checkpoint-40, `true` for the newest in output_dir,
            or None.
        anew: the first line of the log where nothing is resumed, behind `[train] `.
        init_from: the word of `--init_from`.
        world_size: processes now.
        record: what this training would write into its checkpoints (`record`).
        accepted: what may differ.
    """

    output_dir: Path
    explicit: str | None
    anew: str
    init_from: str | None
    world_size: int
    record: Mapping[str, Any]
    accepted: Accepted


def decided(ranks: Ranks, request: Request, survival: Survival) -> Start:
    """Return what rank 0 decides, on all ranks.

    Raises:
        HpctrainError: on all ranks.
    """
    told: Any = None
    if ranks.rank == 0:
        try:
            told = decide(request, survival)
        except HpctrainError as error:
            told = error
        except OSError as error:
            told = HpctrainError(f"the checkpoints in {request.output_dir} cannot be read: {error.strerror}", details=(str(error),))
    told = ranks.share(told)
    if isinstance(told, HpctrainError):
        raise told
    start: Start = told
    return start


def decide(request: Request, survival: Survival) -> Start:
    """Return how the training starts.

    Raises:
        HpctrainError: what is asked for does not fit, or cannot be read.
    """
    done = None if survival.run_dir is None else _complete(survival.run_dir / checkpoints.MODEL, request)
    if done is not None:
        return done
    found, skipped = _own(request, survival)
    lines = [f"[train] skipped {one.name}: {one.why}" for one in skipped]
    explicit = request.explicit if request.explicit != "true" else None
    # Of a stage before, a requeued job has no further use: its own checkpoint is newer, and that stage may be gone.
    path = None if explicit is None or (found is not None and explicit.startswith("stage:")) else _path_of(explicit, survival)
    further = found if path is None else _further(found, path, request, survival)
    if path is not None and further is None:
        found = _asked_for(path, request)
        lines = []
    elif explicit is not None:
        found = further
        lines.append(f"[train] --resume_from_checkpoint {explicit} was where this run began; it has a checkpoint of its own since")
    if found is None:
        if request.explicit == "true":
            raise _usage(f"there is no complete checkpoint in {request.output_dir}", f"ls -la {shlex.quote(str(request.output_dir))}")
        return Start(lines=(*lines, f"[train] {request.anew}"))
    _check(found, request)
    return Start(
        checkpoint=str(found.path),
        step=found.step,
        lines=(*lines, *_lines(found, request, survival)),
        save_seconds=found.manifest.seconds,
        leaving_seconds=_leaving(found.manifest, survival),
    )


# -- which checkpoint --------------------------------------------------------------------------------------------------


def _own(request: Request, survival: Survival) -> tuple[Checkpoint | None, tuple[checkpoints.Skipped, ...]]:
    """Return the newest complete checkpoint where this training saves, if it is to be looked for there."""
    if survival.run_dir is None and request.explicit != "true":
        return None, ()  # no run, only a folder that may have served another training
    found, skipped = checkpoints.newest_complete(request.output_dir, digests=True)
    if found is not None and survival.run_id is not None and found.manifest.run_id not in (None, survival.run_id):
        raise UsageError(
            f"{request.output_dir} holds checkpoints of another run, {found.manifest.run_id}",
            details=(f"this run is {survival.run_id}; their checkpoints would replace each other",),
            fix="leave --output_dir out, or --output_dir ANOTHER_FOLDER --init_from " + shlex.quote(str(found.path)),
        )
    return found, skipped


def _further(own: Checkpoint | None, explicit: Path, request: Request, survival: Survival) -> Checkpoint | None:
    """Return where the run is since it began at an explicit checkpoint: a requeued job has the same command line again.

    To a checkpoint among its own the run may want to go back; then only what this job itself has saved since is newer, and not the
    later steps of an earlier job.
    """
    if own is None or explicit.resolve().parent != own.path.resolve().parent:
        return own
    job = checkpoints.job_of(survival.attempt)
    return None if job is None else checkpoints.newest_complete(request.output_dir, digests=True, job=job)[0]


def _path_of(word: str, survival: Survival) -> Path:
    runs = survival.run_dir.absolute().parent if survival.run_dir is not None else Path(layout.RUNS)
    return checkpoints.checkpoint_of(word, runs=runs, tag=os.environ.get(layout.TAG_VARIABLE))


def _asked_for(path: Path, request: Request) -> Checkpoint:
    if not path.is_dir():
        raise _usage(f"there is no checkpoint {path}", f"ls {shlex.quote(str(path.parent))}")
    wrong = problems(path, digests=True, extra=False)
    manifest = read_manifest(path)
    if manifest is not None and not wrong:
        return Checkpoint(path, manifest)
    if manifest is not None or not request.accepted.no_manifest:
        raise UsageError(
            f"the checkpoint {path} is not complete: {wrong[0]}",
            details=tuple(f"  {one}" for one in wrong[1:]),
            fix=f"hpctrain checkpoints verify {shlex.quote(str(path))}"
            if manifest is not None
            else "--resume_without_manifest true, if you know that it is whole",
        )
    state = files.read_json(path / "trainer_state.json") or {}
    step = int(state.get("global_step") or 0)
    processes = len(list(path.glob("rng_state_*.pth"))) or 1
    nothing = Manifest(
        step=step, world_size=processes, saved_at=0.0, seconds=None, run_id=None, attempt=None,
        state=state_in(path, processes), files={},
    )  # fmt: skip
    return Checkpoint(path, nothing)


# -- whether it fits ---------------------------------------------------------------------------------------------------


def _check(found: Checkpoint, request: Request) -> None:
    """Raise UsageError with everything that does not fit and was not accepted."""
    accepted, manifest, said, fixes = request.accepted, found.manifest, [], []
    has = state_in(found.path, manifest.world_size)
    if missing := [part for part in ("model", "trainer") if part not in has]:
        raise _usage(f"{found.path} has no {' and no '.join(missing)} state: it cannot be resumed", f"--init_from {found.path}")
    missing = [part for part in ("optimizer", "scheduler", "rng") if part not in has]
    if missing and not accepted.missing_state:
        said.append(f"it has no {', no '.join(missing)} state: the training would go another way from there")
        fixes.append("--resume_with_missing_state true")
    if manifest.world_size != request.world_size and not accepted.other_world_size:
        said.append(f"{manifest.world_size} processes saved it, and there are {request.world_size} now: other batches, in another order")
        fixes.append("--resume_with_other_world_size true")
    record = files.read_json(found.path / RECORD) or {}
    if (other := _other_data(record.get("data"), request.record.get("data"))) and not accepted.other_data:
        said += other
        fixes.append("--resume_with_other_data true")
    if said:
        what = f"{found.name} cannot be resumed as it is" if len(said) > 1 else f"{found.name} cannot be resumed: {said[0]}"
        fixes.append(f"the job as it was, or --init_from {found.path} for its weights only")
        raise UsageError(what, details=(str(found.path), *(said if len(said) > 1 else ())), fix="; ".join(fixes))


def _other_data(saved: Any, now: Any) -> list[str]:
    if not isinstance(saved, dict) or not isinstance(now, dict):
        return []
    return [
        f"the {role} data is not what it was: {_data_words(saved.get(role))}, and is {_data_words(now.get(role))} now"
        for role in ("train", "eval")
        if saved.get(role) != now.get(role) and (role == "train" or (saved.get(role) and now.get(role)))
    ]


def _data_words(data: Any) -> str:
    if not isinstance(data, dict):
        return "nothing"
    return f"{sum((data.get('bytes') or {}).values())} bytes with fingerprint {data.get('fingerprint')}"


def _complete(model: Path, request: Request) -> Start | None:
    """Return the start of a run that is done; None for any other."""
    record = files.read_json(model / RECORD)
    if record is None or problems(model, digests=False, extra=False):
        return None
    step, ends, now = record.get("step"), record.get("ends"), request.record.get("ends") or {}
    if not isinstance(step, int) or not isinstance(ends, dict):
        return None
    most = now.get("max_steps") or -1
    if ends != now and not 0 < most <= step:
        return None
    line = f"[train] is complete already: {step} of {record.get('max_steps', step)} steps, model in {model}; nothing is trained"
    return Start(step=step, lines=(line,), complete=str(model))


# -- words -------------------------------------------------------------------------------------------------------------


def _lines(found: Checkpoint, request: Request, survival: Survival) -> list[str]:
    who = f"run {survival.run_id} " if survival.run_id else ""
    lines = [f"[train] resumes {who}at step {found.step} from {found.path} (weights, optimizer, learning rate, data order, random numbers)"]
    if request.init_from is not None:
        lines.append(f"[train] --init_from {request.init_from} was for the first start; its weights are not used again")
    if (found.path / RECORD).is_file() and any(not (found.path / name).is_file() for name in rank_files(request.world_size)):
        lines.append("[train] notice: sums of the log begin anew: not every process has a file in the checkpoint")
    before = (files.read_json(found.path / RECORD) or {}).get("options")
    now = request.record.get("options")
    if isinstance(before, dict) and isinstance(now, dict):
        changed = [name for name in now if name in before and before[name] != now[name]]
        if changed:
            words = ", ".join(f"{name} {before[name]} -> {now[name]}" for name in changed)
            lines.append(f"[train] changed since the checkpoint: {words}")
        has = state_in(found.path, found.manifest.world_size)
        if held := [name for name in changed if name in HELD and "optimizer" in has]:
            verb = "hold" if len(held) > 1 else "holds"
            lines.append(f"[train] notice: {', '.join(held)} of the checkpoint {verb} on, as its optimizer's state says")
            lines.append(f"[train] fix: another run, --init_from {shlex.quote(str(found.path))}: its weights, and all else anew")
        if any(name in ("max_steps", "num_train_epochs") and before.get(name) != now[name] for name in now):
            lines.append("[train] with another number of steps the learning rate follows another schedule from here on")
    return lines


def _leaving(manifest: Manifest, survival: Survival) -> float | None:
    """Return the seconds from the save to the end of its job, when that job stopped right after it."""
    if survival.run_dir is None or manifest.attempt is None:
        return None
    attempt = survival.run_dir / "attempts" / manifest.attempt
    end = files.read_json(attempt / "end.json") or {}
    at = end.get("at")
    if end.get("reason") not in ("deadline", "signal") or not isinstance(at, (int, float)):
        return None
    return max(0.0, float(at) - manifest.saved_at)


def record(training: Any, *more: Any, dataset: str, splits: list[str], ends: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is written into each checkpoint: the data's identity, the options, and when the training is done.

    Args:
        training: the training arguments.
        more: further dataclasses of options; of a name that several have, the first counts.
        dataset: the dataset's folder, as it was saved by save_to_disk.
        splits: the training split, and the evaluation split if there is one.
        ends: the values of early stopping.
    """
    found = {name: [getattr(part, name) for part in (training, *more) if hasattr(part, name)] for name in OPTIONS}
    options = {name: _plain(values[0]) for name, values in found.items() if values}
    folders = split_folders(Path(dataset)) or {}
    data = {role: _identity(folders.get(split, folders.get(""))) for role, split in zip(("train", "eval"), splits, strict=False)}
    until = {name: options.get(name, _plain(ends.get(name))) for name in ENDS}
    return {"schema": 1, "data": data, "options": options, "ends": until}


def _identity(folder: Path | None) -> dict[str, Any] | None:
    """Return what tells one saved dataset from another, wherever it lies: its fingerprint and the sizes of its files, in bytes."""
    state = None if folder is None else files.read_json(folder / "state.json")
    if folder is None or state is None:
        return None
    names = [entry.get("filename") for entry in state.get("_data_files", []) if isinstance(entry, dict)]
    sizes = {str(name): (folder / str(name)).stat().st_size for name in names if (folder / str(name)).is_file()}
    return {"fingerprint": state.get("_fingerprint"), "bytes": sizes}


def _plain(value: Any) -> Any:
    value = getattr(value, "value", value)
    return value if isinstance(value, (int, float, str, bool)) or value is None else str(value)


def _usage(what: str, fix: str) -> UsageError:
    return UsageError(what, fix=fix)
