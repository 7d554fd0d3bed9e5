"""Saving together: all ranks write, agree that every one of them could, and rank 0 puts the whole into place; or it never was.

transformers saves with collectives in between. A rank whose disk is full must not leave them out, or the others wait for it for half an
hour: what fails is remembered, the rest of the save is gone through, and then all ranks give up with the same error.
"""

from __future__ import annotations

import contextlib
import errno
import shlex
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.errors import HpctrainError
from hpctrain.memory.reader import node_name
from hpctrain.runs import checkpoints, files
from hpctrain.runs.manifest import write_manifest
from hpctrain.training import kept
from hpctrain.training.process import say
from hpctrain.training.ranks import Ranks

RECORD = "hpctrain-training.json"
"""In each checkpoint and in the final model: the training's data and options, to be compared at a resume."""


class SaveError(HpctrainError):
    """A checkpoint or the final model could not be saved; what was saved before is whole."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is saved: written below `writing`, then `saving`, then `final`, all in one directory."""

    writing: Path
    saving: Path
    final: Path


def checkpoint_place(directory: Path, step: int, attempt: str) -> Place:
    """Return the place of a checkpoint."""
    return Place(
        writing=checkpoints.saving_path(directory, step, f"{attempt}.writing") / f"checkpoint-{step}",
        saving=checkpoints.saving_path(directory, step, attempt),
        final=directory / f"checkpoint-{step}",
    )


def model_place(run_dir: Path, attempt: str) -> Place:
    """Return the place of a run's final weights."""
    saving = run_dir / f"{checkpoints.SAVING}{checkpoints.MODEL}.{attempt}"
    return Place(writing=saving.with_name(f"{saving.name}.writing") / checkpoints.MODEL, saving=saving, final=run_dir / checkpoints.MODEL)


class Attempt:
    """One try to save something, the same on all ranks.

    Args:
        ranks: the processes that save.
        place: where.
    """

    def __init__(self, ranks: Ranks, place: Place) -> None:
        self.ranks, self.place = ranks, place
        self.began = time.monotonic()
        self._error: Exception | None = None
        self._failure: _Failure | None = None

    def do(self, action: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        """Do something that may fail; the first failure is remembered, and told by `agree`."""
        try:
            action(*arguments, **named)
        except Exception as error:
            if self._error is None:  # the space is looked at now: what was written is removed soon
                self._error, self._failure = error, _failure(error, self.place.final.parent, self.ranks.rank)
                if self._failure.number is None and not isinstance(error, (OSError, RuntimeError, HpctrainError)):
                    # No disk says this: show where it comes from.
                    sys.stderr.write("".join(traceback.format_exception(error)))

    def agree(self) -> None:
        """Wait for all ranks.

        Raises:
            SaveError: on all of them, when one could not do something; what was written is removed then.
        """
        failed = [failure for failure in self.ranks.gather(self._failure) if failure is not None]
        if not failed:
            return
        if self.ranks.rank == 0:
            for path in (self.place.writing.parent, self.place.saving):
                shutil.rmtree(path, ignore_errors=True)
        raise _save_error(self.place, failed) from self._error

    def begin(self) -> None:
        """Make the directory, on rank 0, empty.

        Raises:
            SaveError: on all ranks.
        """
        if self.ranks.rank == 0:
            self.do(self._make)
        self.agree()

    def finish(self, *, step: int, state: tuple[str, ...], needed: tuple[str, ...], run_id: str | None, attempt: str | None) -> float:
        """Write the manifest and publish, on rank 0, when all ranks have written what is theirs.

        Args:
            step: optimizer steps done.
            state: what was saved (Manifest.state).
            needed: names that must be there. A network file system may show the files of other nodes late to who lists a directory.
            run_id: the run.
            attempt: the attempt.

        Returns:
            How long all of the save took, in seconds.

        Raises:
            SaveError: on all ranks.
        """
        self.agree()
        if self.ranks.rank == 0:
            self.do(self._publish, step=step, state=state, needed=needed, run_id=run_id, attempt=attempt)
        self.agree()
        return time.monotonic() - self.began

    def _make(self) -> None:
        for path in (self.place.writing.parent, self.place.saving):
            if path.exists():
                shutil.rmtree(path)
        self.place.writing.mkdir(parents=True)

    def _publish(self, *, step: int, state: tuple[str, ...], needed: tuple[str, ...], run_id: str | None, attempt: str | None) -> None:
        missing = [name for name in needed if not (self.place.writing / name).is_file()]
        if missing:
            raise HpctrainError(f"{', '.join(missing)} is not there, though it was written")
        self.place.writing.rename(self.place.saving)
        self.place.writing.parent.rmdir()
        manifest = write_manifest(
            self.place.saving,
            step=step,
            world_size=self.ranks.size,
            state=state,
            run_id=run_id,
            attempt=attempt,
            began=self.began,
        )
        if absent := [name for name in needed if name not in manifest.files]:
            raise HpctrainError(f"{', '.join(absent)} was not seen when the manifest was written")
        in_the_way = checkpoints.publish(self.place.saving, self.place.final)
        if in_the_way is not None:
            say(f"[train] notice: {self.place.final.name} was there without a manifest; it is {in_the_way.name} now")


def state_in(directory: Path, world_size: int) -> tuple[str, ...]:
    """Return what a checkpoint's directory holds, in the manifest's words."""
    names = {path.name for path in directory.iterdir()}
    deepspeed = any(name.startswith("global_step") for name in names)
    rng = {f"rng_state_{rank}.pth" for rank in range(world_size)} if world_size > 1 else {"rng_state.pth"}
    weights = (".safetensors", ".bin", ".safetensors.index.json")
    found = {
        "model": deepspeed or any(name.endswith(weights) for name in names) or any("model" in name and "." not in name for name in names),
        "optimizer": deepspeed or any(name.startswith("optimizer") for name in names),
        "scheduler": deepspeed or "scheduler.pt" in names,
        "rng": rng <= names,
        "trainer": "trainer_state.json" in names,
    }
    return tuple(name for name, there in found.items() if there)


def save_final(trainer: Any, *, run_dir: Path, record: dict[str, Any]) -> Path:
    """Save the final weights as RUN_DIR/model with a manifest, on all ranks.

    Raises:
        SaveError: on all ranks; an older model is whole then.
    """
    survival = trainer.survival
    place = model_place(run_dir, trainer.try_name)
    saving = Attempt(trainer.ranks, place)
    saving.begin()
    saving.do(trainer.save_model, str(place.writing))
    if trainer.ranks.rank == 0:
        saving.do(files.write_json, place.writing / RECORD, record)
    saving.finish(step=trainer.state.global_step, state=("model",), needed=(RECORD,), run_id=survival.run_id, attempt=survival.attempt)
    return place.final


@contextlib.contextmanager
def replaced(target: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute for a while."""
    before = getattr(target, name)
    setattr(target, name, value)
    try:
        yield
    finally:
        setattr(target, name, before)


def rank_files(world_size: int) -> tuple[str, ...]:
    """Return the names of the files that each rank adds to a checkpoint by itself."""
    return tuple(kept.file_name(rank) for rank in range(world_size))


# -- the error ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Failure:
    """What one rank could not do."""

    who: str
    text: str
    number: int | None
    total_mib: float | None
    free_mib: float | None


def _failure(error: Exception, directory: Path, rank: int) -> _Failure:
    text = error.what if isinstance(error, HpctrainError) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    total = free = None
    with contextlib.suppress(OSError):
        usage = shutil.disk_usage(directory)
        total, free = usage.total / (1 << 20), usage.free / (1 << 20)
    line = f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:300]
    return _Failure(f"rank {rank} on {node_name()}", line, _number(error), total, free)


def _number(error: BaseException | None) -> int | None:
    """Return the error number of the operating system; torch and safetensors hide it in a text of their own."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error.errno
        if "os error 28" in str(error).lower() or "no space left" in str(error).lower():
            return errno.ENOSPC
        error = error.__cause__ or error.__context__
    return None


def _save_error(place: Place, failed: list[_Failure]) -> SaveError:
    directory = place.final.parent
    quoted = shlex.quote(str(directory))
    details = [f"  {failure.who}: {failure.text}" for failure in failed[:4]]
    if failed[0].free_mib is not None:
        details.append(f"  {directory}: {failed[0].free_mib:.1f} MiB were free, of {failed[0].total_mib:.1f} MiB")
    details.append("what was saved before is whole; nothing of this save is left")
    numbers = {failure.number for failure in failed}
    if numbers & {errno.EROFS, errno.EACCES, errno.EPERM}:
        why, fix = "the directory cannot be written", f"ls -ld {quoted}; findmnt -T {quoted}"
    elif errno.EDQUOT in numbers:
        why, fix = "the quota is used up", f"du -sh {quoted}; --save_total_limit 2"
    elif errno.ENOSPC in numbers or any(failure.free_mib is not None and failure.free_mib < 1 for failure in failed):
        why, fix = "the disk is full", f"df -h {quoted}; --save_total_limit 2"
    else:
        why, fix = failed[0].text, f"df -h {quoted}; ls -la {quoted}"
    return SaveError(f"{place.final.name} could not be saved: {why}", details=tuple(details), fix=fix)
