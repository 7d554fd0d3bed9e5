"""Collective saving: all ranks write and agree that all succeeded, then rank 0 publishes the
result; otherwise nothing is left.

transformers runs collectives during a save. A rank with a full disk must not skip them, or the
others wait half an hour for it. So a failure is stored, the save continues, and then all ranks
raise the same error.
"""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpctrain.errors import HpctrainError
from hpctrain.memory.sample import node_name
from hpctrain.runs import checkpoints
from hpctrain.runs.manifest import walk, write_manifest
from hpctrain.training.process import Ranks, say
from hpctrain.training.survival import ResilienceContext
from hpctrain.util import files

#: The sums that Trainer keeps between log lines and in total.
_SUMS = ("_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "current_flos")
#: The sums that TRL's trainers keep for logged averages, if they exist.
_OF_TRL = ("_metrics", "_stored_metrics", "_total_train_tokens")


@dataclass
class Due:
    """What remained to be done at a step when it was saved: a stop does not wait for an evaluation.

    Attributes:
        evaluate: an evaluation.
        save: a regular save.
        boundary: the step was the last one of an epoch.
        epoch_ended: the callbacks were notified of the epoch's end.
        ended: early stopping had ended the training.
        grad_norm: the step's, for a log line at the epoch's end; a tensor until it is saved.
        learning_rate: the step's, likewise.
        training: whether the model was in training mode; after an evaluation, TRL logs differently
            until the next step.
    """

    evaluate: bool = False
    save: bool = False
    boundary: bool = False
    epoch_ended: bool = False
    ended: bool = False
    grad_norm: float | None = None
    learning_rate: float | None = None
    training: bool = True

    def key(self) -> tuple[bool, ...]:
        """Return the key that distinguishes saves of the same step."""
        return (self.evaluate, self.save, self.boundary, self.epoch_ended, self.ended)


@dataclass
class RankState:
    """The content of a rank's file.

    Attributes:
        sums: see `sums_of`.
        due: what remained to be done.
        epoch_rng: the random state at the start of the epoch, which determines the order of its
            data.
        step_seconds: measured duration of a step.
    """

    sums: dict[str, Any]
    due: Due
    epoch_rng: dict[str, Any] | None
    step_seconds: float | None


def rank_file(rank: int) -> str:
    """Return the name of the file that a rank adds to a checkpoint."""
    return f"hpctrain-rank-{rank}.pt"


def write_rank_state(directory: Path, rank: int, kept: RankState) -> None:
    """Write a rank's file.

    Raises:
        OSError, RuntimeError: it cannot be written.
    """
    torch.save({"schema": 1, **asdict(kept)}, directory / rank_file(rank))


def read_rank_state(directory: Path, rank: int) -> RankState | None:
    """Return a rank's file; None if it is missing.

    Raises:
        Exception: it is damaged.
    """
    path = directory / rank_file(rank)
    if not path.is_file():
        return None
    value = torch.load(path, map_location="cpu", weights_only=True)
    value.pop("schema")
    return RankState(**{**value, "due": Due(**value["due"])})


def sums_of(trainer: Any) -> dict[str, Any]:
    """Return the sums of a Trainer as plain values; reading the loss synchronizes with the GPU."""
    found = {name: getattr(trainer, name) for name in _SUMS if hasattr(trainer, name)}
    found["_tr_loss"] = trainer._tr_loss.item()
    found["total_flos"] = trainer.state.total_flos
    return found | {
        name: _plain(getattr(trainer, name)) for name in _OF_TRL if hasattr(trainer, name)
    }


def restore_sums(trainer: Any, sums: Mapping[str, Any]) -> None:
    """Set the sums of a Trainer to stored ones."""
    for name in _SUMS:
        if name in sums:
            setattr(trainer, name, sums[name])
    trainer._tr_loss.fill_(sums["_tr_loss"])
    trainer.state.total_flos = sums["total_flos"]
    for name in _OF_TRL:
        if name in sums and hasattr(trainer, name):
            setattr(trainer, name, _filled(getattr(trainer, name), sums[name]))


def _plain(value: Any) -> Any:
    """Return a copy of plain dicts and lists: loading TRL's defaultdicts would execute pickled
    code.
    """
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def _filled(now: Any, saved: Any) -> Any:
    """Return the saved value, in the dicts that are there now: TRL's are defaultdicts."""
    if not isinstance(now, dict) or not isinstance(saved, Mapping):
        return saved
    filled = {key: _filled(now.get(key), value) for key, value in saved.items()}
    now.clear()
    now.update(filled)
    return now


def random_state() -> dict[str, Any]:
    """Return the state of all random number generators of this process, as plain values and
    tensors.
    """
    numpy: Any = np.random.get_state(legacy=False)
    numpy["state"]["key"] = numpy["state"]["key"].tolist()
    state = {"python": random.getstate(), "numpy": numpy, "cpu": torch.random.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Set all random number generators of this process."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.random.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


#: In each checkpoint and in the final model: the training's data and options, compared at a resume.
RECORD = "hpctrain-training.json"
#: Seconds that rank 0 waits for files of other ranks that are not visible yet. NFS shows new files
#: of another node when the directory cache expires, by default after 30 to 60 s.
WAIT_S = 60.0
#: Seconds without a write after which an unfinished save is abandoned: more than clock differences
#: and the duration of a save.
ABANDONED_S = 86400.0


class SaveError(HpctrainError):
    """A checkpoint or the final model could not be saved; earlier saves are intact."""


class Attempt:
    """One attempt to save a checkpoint or model, on all ranks: written to `writing`, then renamed
    to `saving`, then to `final`.

    Args:
        ranks: the processes that save.
        final: where it will be.
        key: the step, or `model`.
        name: the name of this start of the job.
        wait_s: seconds that rank 0 waits for files of other ranks.
    """

    def __init__(
        self, ranks: Ranks, final: Path, key: int | str, name: str, *, wait_s: float = WAIT_S
    ) -> None:
        self.ranks, self.final, self.wait_s = ranks, final, wait_s
        self.saving = checkpoints.saving_path(final.parent, key, name)
        self.writing = final.with_name(f"{self.saving.name}.writing") / final.name
        self.began = time.monotonic()
        self._error: Exception | None = None
        self._failure: str | None = None

    def do(self, action: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        """Run an action that may fail; the first failure is stored, and raised by `agree`."""
        try:
            action(*arguments, **named)
        except Exception as error:
            if self._error is not None:
                return
            self._error = error
            # Read the free space now, before the written files are removed.
            self._failure = _failure(error, self.final.parent, self.ranks.rank)
            known = isinstance(error, (OSError, RuntimeError, HpctrainError))
            if not known and "os error" not in self._failure:  # safetensors' of a full disk
                sys.stderr.write("".join(traceback.format_exception(error)))

    def agree(self) -> None:
        """Wait for all ranks.

        Raises:
            SaveError: on all ranks, if an action failed on one; the written files are then removed.
        """
        failed = [failure for failure in self.ranks.gather(self._failure) if failure is not None]
        if not failed:
            return
        if self.ranks.rank == 0:
            for path in (self.writing.parent, self.saving):
                shutil.rmtree(path, ignore_errors=True)
        raise _save_error(self.final, failed) from self._error

    def begin(self) -> None:
        """Create an empty directory, on rank 0.

        Raises:
            SaveError: on all ranks.
        """
        if self.ranks.rank == 0:
            self.do(self._make)
        self.agree()

    def _make(self) -> None:
        for path in (self.writing.parent, self.saving):
            if path.exists():
                shutil.rmtree(path)
        self.writing.mkdir(parents=True)

    def finish(
        self,
        *,
        step: int,
        needed: tuple[str, ...],
        survival: ResilienceContext,
    ) -> float:
        """Write the manifest and publish, on rank 0, after all ranks have written their files.

        Args:
            step: optimizer steps done.
            needed: names that must exist, in addition to every file that any rank sees.
            survival: the run's context.

        Returns:
            Duration of the entire save, in seconds.

        Raises:
            SaveError: on all ranks.
        """
        self.agree()
        # On a network file system, files of other nodes may appear late in a listing, so every rank
        # reports what it sees.
        listed = self.ranks.gather(self.listed())
        if self.ranks.rank == 0:
            self.do(self._publish, listed, step, needed, survival)
        self.agree()
        return time.monotonic() - self.began

    def listed(self) -> dict[str, int]:
        """Return the files of this save that this rank sees, with sizes in bytes; its own are
        always visible.
        """
        found: dict[str, int] = {}
        # A rank that wrote nothing may not see the directory yet.
        with contextlib.suppress(OSError):
            for name, path in walk(self.writing):
                # NFS renames removed files that are still open to such names. Opening a file makes
                # NFS query the server for its existence and size.
                if not path.name.startswith(".nfs"):
                    with contextlib.suppress(OSError), path.open("rb") as stream:
                        found[name] = os.fstat(stream.fileno()).st_size
        return found

    def _await(self, listed: list[dict[str, int]], needed: tuple[str, ...]) -> None:
        sizes: dict[str, set[int]] = {name: set() for name in needed}
        for one in listed:
            for name, size in one.items():
                sizes.setdefault(name, set()).add(size)
        until = time.monotonic() + self.wait_s
        while True:
            mine = self.listed()
            late = sorted(name for name in sizes if mine.get(name) not in sizes[name])
            if not late:
                return
            if time.monotonic() > until or not all(sizes[name] for name in late):
                names = ", ".join(late[:4])
                raise HpctrainError(f"rank 0 does not see {names} after {self.wait_s:g} s")
            time.sleep(min(1.0, self.wait_s / 10))

    def _publish(
        self,
        listed: list[dict[str, int]],
        step: int,
        needed: tuple[str, ...],
        survival: ResilienceContext,
    ) -> None:
        self._await(listed, needed)
        state = state_in(self.writing, self.ranks.size)
        self.writing.rename(self.saving)
        self.writing.parent.rmdir()
        write_manifest(
            self.saving,
            step=step,
            world_size=self.ranks.size,
            state=state,
            run_id=survival.run_id,
            attempt=survival.attempt,
            began=self.began,
        )
        in_the_way = checkpoints.publish(self.saving, self.final)
        if in_the_way is not None:
            say(
                f"[train] notice: {self.final.name} existed without a manifest; it is"
                f" {in_the_way.name} now"
            )


def state_in(directory: Path, world_size: int) -> tuple[str, ...]:
    """Return the content of a checkpoint's directory as Manifest.state."""
    names = {path.name for path in directory.iterdir()}
    deepspeed = any(name.startswith("global_step") for name in names)
    rng = (
        {f"rng_state_{rank}.pth" for rank in range(world_size)}
        if world_size > 1
        else {"rng_state.pth"}
    )
    weights = (".safetensors", ".bin", ".safetensors.index.json")
    found = {
        "model": (
            deepspeed
            or any(name.endswith(weights) for name in names)
            or any("model" in name and "." not in name for name in names)
        ),
        "optimizer": deepspeed or any(name.startswith("optimizer") for name in names),
        "scheduler": deepspeed or "scheduler.pt" in names,
        "rng": rng <= names,
        "trainer": "trainer_state.json" in names,
    }
    return tuple(name for name, there in found.items() if there)


def is_over(path: Path, attempt: str, survival: ResilienceContext) -> bool:
    """Return whether an unfinished save is over: another job of the run might still write to it.

    Args:
        path: the directory.
        attempt: the attempt in its name.
        survival: this training's context.
    """
    job = checkpoints.job_of(attempt)
    if job is not None and job == checkpoints.job_of(survival.attempt):
        return True  # from this start, or one before a requeue
    end = Path(survival.run_dir or "/", "attempts", attempt, "end.json")
    if job is not None and end.is_file():
        return True
    try:  # from a killed job, or not from a job
        newest = max(one.lstat().st_mtime for one in (path, *path.rglob("*")))
    except OSError:
        return False
    return time.time() - newest > ABANDONED_S


def save_final(trainer: Any, *, run_dir: Path, record: dict[str, Any]) -> Path:
    """Save the final weights as RUN_DIR/model with a manifest, on all ranks; `record` has their
    `step`.

    Raises:
        SaveError: on all ranks; an older model stays intact.
    """
    final = run_dir / checkpoints.MODEL
    saving = Attempt(trainer.ranks, final, checkpoints.MODEL, trainer.try_name)
    saving.begin()
    saving.do(save_whole, trainer, saving.writing)
    if trainer.ranks.rank == 0:
        saving.do(files.write_json, saving.writing / RECORD, record)
        saving.do(_look_for_weights, saving.writing)
    saving.finish(step=record["step"], needed=(RECORD,), survival=trainer.survival)
    return final


def save_whole(trainer: Any, folder: Path) -> None:
    """Save the weights for `from_pretrained` and peft, on all ranks; FSDP shards are gathered.

    With FSDP's sharded checkpoints Trainer.save_model silently writes no weights at all.
    """
    plugin = trainer.accelerator.state.fsdp_plugin if trainer.is_fsdp_enabled else None
    if plugin is None:
        trainer.save_model(str(folder))
        return
    from torch.distributed.fsdp import StateDictType

    with replaced(plugin, "state_dict_type", StateDictType.FULL_STATE_DICT):
        trainer.save_model(str(folder))


def _look_for_weights(folder: Path) -> None:
    there = [path for path in folder.iterdir() if path.name != "training_args.bin"]
    if any(path.name.endswith((".safetensors", ".bin")) and path.stat().st_size for path in there):
        return
    if not any(path.name.startswith("global_step") for path in there):
        raise HpctrainError("the libraries have written no weights")
    say(
        "[train] warning: the final weights are in DeepSpeed's parts (zero3_save_16bit_model is"
        " off); in the model's directory, run: python zero_to_fp32.py . WHOLE"
    )


@contextlib.contextmanager
def replaced(target: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of an object temporarily; a method of its class shows through again."""
    own, before = name in vars(target), getattr(target, name)
    setattr(target, name, value)
    try:
        yield
    finally:
        if own:
            setattr(target, name, before)
        else:
            delattr(target, name)


# -- the error -------------------------------------------------------------------------------------

_FEWER = "use --save_total_limit 2"
#: Words in the messages, a reason, a command and a hint.
_REASONS = (
    (("No space left", "os error 28"), "the disk is full", "df -h {0}", _FEWER),
    (("Disk quota exceeded", "os error 122"), "the quota is used up", "du -sh {0}", _FEWER),
    (
        ("Read-only file system", "Permission denied", "not permitted", "os error 30"),
        "the directory cannot be written",
        "ls -ld {0} && findmnt -T {0}",
        None,
    ),
)


def _failure(error: BaseException | None, directory: Path, rank: int) -> str:
    said = []
    # torch and safetensors hide the operating system's error in their own.
    while error is not None:
        text = error.what if isinstance(error, HpctrainError) else str(error)
        said.append(f"{type(error).__name__}: {' '.join(text.split())[:300]}")
        error = error.__cause__ or error.__context__
    with contextlib.suppress(OSError):
        usage = shutil.disk_usage(directory)
        said.append(f"{usage.free / 2**20:.1f} MiB free of {usage.total / 2**20:.1f} MiB")
        if usage.free < 2**20:
            said.append("No space left")
    return f"rank {rank} on {node_name()}: {'; '.join(said)}"


def _save_error(final: Path, failed: list[str]) -> SaveError:
    why, fix = failed[0], "df -h {0} && ls -la {0}"
    hint: str | None = None
    for words, reason, command, more in reversed(_REASONS):
        if any(word in text for word in words for text in failed):
            why, fix, hint = reason, command, more
    return SaveError(
        f"{final.name} could not be saved: {why}",
        details=(
            *(f"  {text}" for text in failed[:4]),
            "what was saved before is complete; nothing of this save is left",
        ),
        fix=fix.format(shlex.quote(str(final.parent))),
        hint=hint,
    )
