"""Saving together: all ranks write, agree that every one of them could, and rank 0 puts the whole into place; or it never was.

transformers saves with collectives in between. A rank whose disk is full must not leave them out, or the others wait for it for half an
hour: what fails is remembered, the rest of the save is gone through, and then all ranks give up with the same error.
"""

from __future__ import annotations

import contextlib
import errno
import os
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
from hpctrain.runs.manifest import walk, write_manifest
from hpctrain.training import kept
from hpctrain.training.process import say
from hpctrain.training.ranks import Ranks
from hpctrain.training.settings import Survival

RECORD = "hpctrain-training.json"
"""In each checkpoint and in the final model: the training's data and options, to be compared at a resume."""


WAIT_S = 60.0
"""How long rank 0 waits for files that other ranks have written and it does not see yet, in seconds. NFS shows a new file of another
node when what it remembers of the directory is old, by default after 30 to 60 s."""


ABANDONED_S = 86400.0
"""An unfinished save in which nothing was written for so long is nobody's, in seconds; more than clocks differ, and than a save takes."""


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
        wait_s: how long rank 0 waits for a file of another rank, in seconds.
    """

    def __init__(self, ranks: Ranks, place: Place, *, wait_s: float = WAIT_S) -> None:
        self.ranks, self.place, self.wait_s = ranks, place, wait_s
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

    def finish(
        self, *, step: int, state: tuple[str, ...] | None, needed: tuple[str, ...], run_id: str | None, attempt: str | None
    ) -> float:
        """Write the manifest and publish, on rank 0, when all ranks have written what is theirs.

        Args:
            step: optimizer steps done.
            state: what was saved (Manifest.state); None for what the files say.
            needed: names that must be there, besides every file that any rank sees.
            run_id: the run.
            attempt: the attempt.

        Returns:
            How long all of the save took, in seconds.

        Raises:
            SaveError: on all ranks.
        """
        self.agree()
        # A network file system may show the files of other nodes late to who lists a directory: all say what they see.
        listed = self.ranks.gather(self.listed())
        if self.ranks.rank == 0:
            self.do(self._publish, listed, step=step, state=state, needed=needed, run_id=run_id, attempt=attempt)
        self.agree()
        return time.monotonic() - self.began

    def _make(self) -> None:
        for path in (self.place.writing.parent, self.place.saving):
            if path.exists():
                shutil.rmtree(path)
        self.place.writing.mkdir(parents=True)

    def listed(self) -> dict[str, int]:
        """Return the files of this save that this rank sees, and their sizes in bytes; it sees its own."""
        found: dict[str, int] = {}
        with contextlib.suppress(OSError):  # a rank that has written nothing may not see the directory yet
            for name, path in walk(self.place.writing):
                # NFS keeps a removed file that is open under such a name. Opening asks the server for the size, and whether it is there.
                if not path.name.startswith(".nfs"):
                    with contextlib.suppress(OSError), path.open("rb") as stream:
                        found[name] = os.fstat(stream.fileno()).st_size
        return found

    def _await(self, listed: list[dict[str, int]], needed: tuple[str, ...]) -> set[str]:
        """Wait until this rank sees what all see, and return the names."""
        names = {*needed, *(name for one in listed for name in one)}
        until = time.monotonic() + self.wait_s
        while True:
            mine = self.listed()
            late = sorted(name for name in names if mine.get(name) not in [one[name] for one in listed if name in one])
            if not late:
                return names
            if time.monotonic() > until or any(not any(name in one for one in listed) for name in late):
                break
            time.sleep(min(1.0, self.wait_s / 10))
        more = f" and {len(late) - 4} more" if len(late) > 4 else ""
        # Of those that saw it: another one than rank 0, which has looked again since, and in vain.
        who = max((rank for rank, one in enumerate(listed) if late[0] in one), default=None)
        seen = "" if who is None else f": rank {who} sees {late[0]}, and rank 0 did not in {self.wait_s:g} s"
        raise HpctrainError(f"{', '.join(late[:4])}{more} is not there, though it was written{seen}")

    def _publish(
        self, listed: list[dict[str, int]], *, step: int, state: tuple[str, ...] | None, needed: tuple[str, ...],
        run_id: str | None, attempt: str | None,
    ) -> None:  # fmt: skip
        names = self._await(listed, needed)
        if state is None:
            state = state_in(self.place.writing, self.ranks.size)
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
        if absent := sorted(names - set(manifest.files)):
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


def is_over(path: Path, attempt: str, survival: Survival) -> bool:
    """Say whether nobody writes into an unfinished save any more: another job of the run might.

    Args:
        path: the directory.
        attempt: the attempt that its name says.
        survival: of this training.
    """
    job = checkpoints.job_of(attempt)
    if survival.attempt is not None and job is not None and job == checkpoints.job_of(survival.attempt):
        return True  # of this start, or of one before a requeue
    if survival.run_dir is not None and job is not None and (survival.run_dir / "attempts" / attempt / "end.json").is_file():
        return True
    try:  # of a job that was killed, or of no job
        newest = max(one.lstat().st_mtime for one in (path, *path.rglob("*")))
    except OSError:
        return False
    return time.time() - newest > ABANDONED_S


def save_final(trainer: Any, *, run_dir: Path, record: dict[str, Any]) -> Path:
    """Save the final weights as RUN_DIR/model with a manifest, on all ranks.

    Raises:
        SaveError: on all ranks; an older model is whole then.
    """
    survival = trainer.survival
    place = model_place(run_dir, trainer.try_name)
    saving = Attempt(trainer.ranks, place)
    saving.begin()
    saving.do(save_whole, trainer, place.writing)
    if trainer.ranks.rank == 0:
        saving.do(files.write_json, place.writing / RECORD, record)
        saving.do(_look_for_weights, place.writing)
    saving.finish(step=trainer.state.global_step, state=("model",), needed=(RECORD,), run_id=survival.run_id, attempt=survival.attempt)
    return place.final


def save_whole(trainer: Any, folder: Path) -> None:
    """Save the weights as `from_pretrained` and peft read them, on all ranks; whole where FSDP has divided them.

    With FSDP's sharded checkpoints Trainer.save_model writes no weights at all, without a word.
    """
    plugin = trainer.accelerator.state.fsdp_plugin if trainer.is_fsdp_enabled else None
    if plugin is None:
        trainer.save_model(str(folder))
        return
    from torch.distributed.fsdp import StateDictType

    with replaced(plugin, "state_dict_type", StateDictType.FULL_STATE_DICT):
        trainer.save_model(str(folder))


def _look_for_weights(folder: Path) -> None:
    """Refuse a folder without weights; of DeepSpeed's parts, which an accelerate config of one's own may ask for, say what they are."""
    there = [path for path in folder.iterdir() if path.name != "training_args.bin"]
    if any(path.name.endswith((".safetensors", ".bin")) and path.stat().st_size for path in there):
        return
    if not any(path.name.startswith("global_step") for path in there):
        raise HpctrainError("the libraries have written no weights")
    say("[train] warning: the final weights are in DeepSpeed's parts (zero3_save_16bit_model is off): no model is read from them")
    say("[train] fix: cd to the model's folder, then: python zero_to_fp32.py . WHOLE")


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
