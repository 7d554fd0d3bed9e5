"""The checkpoint directories of a run: publishing, finding, rotating and removing them. No torch,
no lock.

A checkpoint is written as `.saving-STEP.ATTEMPT`, gets its manifest last and is renamed
(`publish`); a directory is renamed to `.removing-…` before it is deleted. A killed process leaves
only directories with these two kinds of names, never an incomplete `checkpoint-N`. One process of a
run writes here at a time; any number may read.

Also lists what a run has saved: checkpoints and final weights, complete or not, and the best
checkpoint.
"""

from __future__ import annotations

import shlex
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.runs import layout
from hpctrain.runs.manifest import (
    CHECKPOINT,
    Manifest,
    problems,
    read_manifest,
    sync_directory,
    walk,
)
from hpctrain.util import stored
from hpctrain.util.text import is_number

CHECKPOINTS = "checkpoints"
MODEL = "model"
_NAMED = 20
SAVING, REMOVING, REPLACED = ".saving-", ".removing-", ".replaced-"


class Checkpoint(NamedTuple):
    """A complete checkpoint."""

    path: Path
    manifest: Manifest


class Skipped(NamedTuple):
    """A directory that is not a complete checkpoint, and why."""

    name: str
    why: str


def saving_path(checkpoints: Path, step: int | str, attempt: str) -> Path:
    """Return where a checkpoint is written before it is published: one path for all processes of an
    attempt.
    """
    return checkpoints / f"{SAVING}{step}.{attempt}"


def publish(saving: Path, final: Path) -> Path | None:
    """Rename the checkpoint written as `saving` to `final`; both are in one directory.

    If `final` exists already: a damaged checkpoint is moved aside and removed; a complete one is
    replaced such that `newest_complete` finds one of the two at any time; a directory without
    hpctrain's manifest is kept under another name.

    Returns:
        The new path of an existing directory that hpctrain did not write.

    Raises:
        HpctrainError: `saving` is not complete.
        OSError: a rename failed; the existing checkpoint is still there.
    """
    wrong = problems(saving, digests=False)
    if wrong:
        raise HpctrainError(
            f"{saving.name} is not complete: {'; '.join(wrong)}",
            details=(str(saving),),
            fix=f"ls -la {shlex.quote(str(saving))}",
        )
    _heal(final.parent)
    kept = aside = None
    if final.is_symlink() or final.exists():
        unique = uuid.uuid4().hex[:12]
        if not problems(final, digests=False):
            aside = final.with_name(f"{REPLACED}{final.name}.{unique}")
        elif (final / layout.CHECKPOINT_MANIFEST).exists() or (
            final.is_dir() and not _entries(final)
        ):
            aside = final.with_name(f"{REMOVING}{final.name}.{unique}")
        else:
            aside = kept = final.with_name(f"{final.name}.kept-{unique}")
        final.rename(aside)
    try:
        saving.rename(final)
    except OSError:
        if aside is not None:
            aside.rename(final)
        raise
    sync_directory(final.parent)
    if aside is not None and kept is None:
        _remove(aside)
    return kept


def all_of(checkpoints: Path) -> list[Path]:
    """Return every directory that has a checkpoint's name, oldest step first, complete or not.

    Raises:
        HpctrainError: the directory exists but cannot be read; treating it as empty would restart
            the training from scratch.
    """
    entries = [entry for entry in _entries(checkpoints) if entry.is_dir()]
    names = {entry.name for entry in entries}
    found = [
        entry
        for entry in entries
        if CHECKPOINT.match(entry.name)
        # A process is between the two renames of `publish`, or was killed there.
        or (entry.name.startswith(REPLACED) and _name(entry) not in names)
    ]
    return sorted(found, key=lambda entry: (_step(entry), entry.name))


def unfinished_of(checkpoints: Path) -> list[Path]:
    """Return the saves that are in progress or were not finished; errors as in `all_of`."""
    return _entries(checkpoints, SAVING)


def newest_complete(
    checkpoints: Path, *, digests: bool, job: str | None = None
) -> tuple[Checkpoint | None, tuple[Skipped, ...]]:
    """Return the complete checkpoint of the highest step, and the newer ones that were skipped.

    Args:
        checkpoints: the directory of a run's checkpoints; it may be missing.
        digests: also read the files (see manifest.problems), and skip checkpoints that changed.
        job: consider only checkpoints saved by attempts of this job.

    Raises:
        HpctrainError: the directory cannot be read.
    """
    skipped = [
        Skipped(path.name, "its save was not finished") for path in unfinished_of(checkpoints)
    ]
    for path in reversed(all_of(checkpoints)):
        manifest = read_manifest(path)
        if job is not None and (manifest is None or job_of(manifest.attempt) != job):
            continue
        wrong = problems(path, digests=digests)
        if not wrong and manifest is not None:
            return Checkpoint(path, manifest), tuple(skipped)
        if not path.exists():
            # The run may be training: a checkpoint that was removed has a newer successor.
            return newest_complete(checkpoints, digests=digests, job=job)
        skipped.append(Skipped(_name(path), "; ".join(wrong)))
    return None, tuple(skipped)


def job_of(attempt: str | None) -> str | None:
    """Return the job id in an attempt's name (JOB.RESTART); None for other names."""
    job, dot, _ = (attempt or "").partition(".")
    return job if dot and job else None


def rotate(
    checkpoints: Path, keep: int, protect: Collection[str] = (), *, at: int | None = None
) -> tuple[str, ...]:
    """Remove all checkpoints except the `keep` newest complete ones and those in `protect`; also
    remove what crashes left.

    The newest complete one is always kept. Incomplete directories are removed only if they are
    older than that one and hpctrain wrote them: unfinished saves, and directories with a manifest.

    Args:
        checkpoints: the directory.
        keep: how many to keep.
        protect: names of checkpoints to keep.
        at: the current step of the training. Checkpoints of later steps were saved before the run
            went back to an earlier one; they count as older than all others.

    Returns:
        The names of the removed directories.

    Raises:
        HpctrainError: the directory cannot be read.
        OSError: it cannot be changed.
    """
    _heal(checkpoints)
    found = all_of(checkpoints)
    complete = [path for path in found if not problems(path, digests=False)]
    complete.sort(key=lambda path: (at is None or _step(path) <= at, _step(path)))
    going: list[Path] = []
    if complete:
        last = _step(complete[-1])
        kept = {path.name for path in complete[-max(1, keep) :]} | set(protect)
        is_ours = [path for path in found if (path / layout.CHECKPOINT_MANIFEST).exists()]
        damaged = [path for path in is_ours if path not in complete and _step(path) < last]
        going = [path for path in [*complete, *damaged] if path.name not in kept]
        going += [path for path in unfinished_of(checkpoints) if _step(path) <= last]
    for path in going:
        remove(path)
    sweep(checkpoints)
    return tuple(path.name for path in going)


def remove(path: Path) -> Path | None:
    """Remove one directory; it is renamed first, so that it is never visible half deleted.

    Returns:
        The path that could not be deleted, if any; the next `rotate` or `clean` tries again.

    Raises:
        OSError: it cannot be renamed.
    """
    aside = path.with_name(f"{REMOVING}{path.name.lstrip('.')}.{uuid.uuid4().hex[:12]}")
    path.rename(aside)
    _remove(aside)
    return aside if aside.exists() else None


def clean(checkpoints: Path, over: Callable[[Path, str], bool] | None = None) -> tuple[str, ...]:
    """Remove what earlier processes of the run left unfinished; return the names of the unfinished
    saves.

    Args:
        checkpoints: the directory of the checkpoints, or of the run (for its model).
        over: called with the directory of an unfinished save and its attempt; returns whether that
            attempt has ended. By default all have ended.

    Raises:
        HpctrainError: the directory cannot be read.
        OSError: it cannot be changed.
    """
    _heal(checkpoints)
    removed = []
    for path in unfinished_of(checkpoints):
        attempt = path.name.removeprefix(SAVING).partition(".")[2].removesuffix(".writing")
        if over is None or over(path, attempt):
            remove(path)
            removed.append(path.name)
    sweep(checkpoints)
    return tuple(removed)


def sweep(checkpoints: Path) -> None:
    """Delete what earlier removals left; errors as in `all_of`."""
    for path in _entries(checkpoints, REMOVING):
        _remove(path)


def checkpoint_of(word: str, *, runs: Path, tag: str | None) -> Path:
    """Return the checkpoint that `word` names; `stage:NAME` and a run id mean that run's newest
    complete one.

    Args:
        word: also `RUN_ID/checkpoint-40`, or a directory, which is returned unchecked.
        runs: the directory of all runs.
        tag: the tag of the launch, for stages.

    Raises:
        UsageError: the run has no complete checkpoint, or the stage does not exist.
    """
    run, rest = _run_named(word, runs, tag)
    if run is None:
        return Path(word)
    return run / CHECKPOINTS / rest if rest else _newest(run, word)


def weights_of(word: str, *, runs: Path, tag: str | None) -> Path:
    """Return the directory of the weights that `word` names.

    Args:
        word: a directory (a model, a checkpoint or a run); a run id, for its final model or else
            its newest complete checkpoint; `RUN_ID/checkpoint-40`; or `stage:NAME`, the run of an
            earlier stage of the same launch.
        runs: the directory of all runs.
        tag: the tag of the launch, for stages.

    Raises:
        UsageError: it does not exist, or is not complete.
    """
    run, rest = _run_named(word, runs, tag)
    folder, is_own = stored.expanded(word), False
    if run is not None and (rest in ("", MODEL) or CHECKPOINT.match(rest)):
        folder, is_own = run / rest, True
        if rest and (run / CHECKPOINTS / rest).is_dir():
            folder = run / CHECKPOINTS / rest
    if not folder.is_dir():
        raise UsageError(
            f"there are no weights {word!r}",
            details=(f"  looked for {folder}",),
            fix="hpctrain runs list",
        )
    if (folder / "run.json").exists() or (is_own and not rest):
        if not (folder / MODEL).is_dir():
            return _newest(folder, word)
        folder, is_own = folder / MODEL, True
    if (folder / layout.CHECKPOINT_MANIFEST).exists() or is_own:
        if wrong := problems(folder, digests=False):
            raise UsageError(
                f"{word!r} is not complete",
                details=(str(folder), *(f"  {one}" for one in wrong)),
                fix=f"ls -la {shlex.quote(str(folder))}",
            )
    elif not any((folder / name).exists() for name in ("config.json", "adapter_config.json")):
        raise UsageError(
            f"{word!r} is a directory without a model: it has no config.json",
            fix=f"ls {shlex.quote(word)}",
        )
    return folder


def _run_named(word: str, runs: Path, tag: str | None) -> tuple[Path | None, str]:
    """Return the directory of the run that `word` starts with (None if there is none) and the rest
    of `word`.
    """
    if word.startswith("stage:"):
        stage = word.removeprefix("stage:")
        if tag is None or not layout.NAME.match(stage):
            raise UsageError(
                f"{word!r} is not a stage of this submission", fix="hpctrain runs list"
            )
        return runs / layout.run_id(tag, stage=stage), ""
    first, _, rest = word.partition("/")
    is_run = layout.NAME.match(first) and (runs / first).is_dir()
    return (runs / first if is_run else None), rest


def _newest(run: Path, word: str) -> Path:
    newest, skipped = newest_complete(run / CHECKPOINTS, digests=False)
    if newest is None:
        raise UsageError(
            f"{word!r}: run {run.name} has no complete checkpoint",
            details=tuple(f"  {one.name}: {one.why}" for one in skipped),
            fix=f"hpctrain checkpoints list {run.name}",
        )
    return newest.path


def drop_damaged(folders: Iterable[Path]) -> str:
    """Return the command that removes these damaged checkpoints or final weights; only the first of
    many.
    """
    named = [(run_of(folder), folder.name) for folder in folders][:_NAMED]
    drop = layout.in_runs_dir("hpctrain checkpoints delete --damaged", named[0][0].parent)
    return f"{drop} {shlex.join(f'{run.name}/{name}' for run, name in named)}"


def run_of(folder: Path) -> Path:
    """Return the run directory of a checkpoint or of final weights."""
    return folder.parent if folder.name == MODEL else folder.parent.parent


def _entries(checkpoints: Path, prefix: str = "") -> list[Path]:
    try:
        return sorted(path for path in checkpoints.iterdir() if path.name.startswith(prefix))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HpctrainError(
            f"the directory of checkpoints cannot be read: {error.strerror}",
            details=(str(checkpoints),),
            fix=f"ls -ld {shlex.quote(str(checkpoints))}",
        ) from error


def _name(path: Path) -> str:
    """Return the name of a checkpoint, even while another one is replacing it."""
    is_replaced = path.name.startswith(REPLACED)
    return path.name.removeprefix(REPLACED).rpartition(".")[0] if is_replaced else path.name


def _step(path: Path) -> int:
    numbers = _name(path).removeprefix(SAVING).removeprefix("checkpoint-").partition(".")[0]
    return int(numbers) if is_number(numbers) else -1


def _heal(checkpoints: Path) -> None:
    """Finish an interrupted `publish`: restore the old checkpoint's name, or remove it if the new
    one is in place.
    """
    for old in _entries(checkpoints, REPLACED):
        final = old.with_name(_name(old))
        if final.exists():
            remove(old)
        else:
            old.rename(final)


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


_STATE = "trainer_state.json"
#: trainer_state.json has the complete log history; a larger file is not the Trainer's.
_LARGEST_STATE = 1 << 28


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint directory of a run, or its `model`.

    Attributes:
        run: the run's id.
        path: the directory.
        manifest: None if it is missing or damaged.
        wrong: why it is not complete, judged by names, sizes and the last verification of its
            files; empty if complete.
        best: the Trainer's best checkpoint by `metric_for_best_model`.
        unfinished: a save that is in progress or was not finished.
    """

    run: str
    path: Path
    manifest: Manifest | None
    wrong: tuple[str, ...]
    best: bool = False
    unfinished: bool = False

    @property
    def name(self) -> str:
        """Return its name on the command line: `RUN/checkpoint-40`."""
        return f"{self.run}/{self.path.name}"

    @property
    def step(self) -> int | None:
        """Return the optimizer steps done; None without a manifest."""
        return None if self.manifest is None else self.manifest.step

    @property
    def is_checkpoint(self) -> bool:
        """Whether it is a published checkpoint, not the final weights; its files may be damaged."""
        return self.path.name != MODEL and not self.unfinished

    def summary(self) -> dict[str, Any]:
        """Return its name, step and problems as JSON values."""
        return {
            "name": self.path.name,
            "step": self.step,
            "problem": "; ".join(self.wrong) or None,
        }

    def size(self) -> int:
        """Return the size of its files on disk, in bytes."""
        total = 0
        with suppress(OSError):  # being removed, or not readable
            for _, path in walk(self.path):
                total += path.stat().st_size
        return total


def saved_in(run: Path) -> list[Saved]:
    """Return what the run in `run` has saved, oldest step first, final weights last.

    Raises:
        HpctrainError: its checkpoints cannot be listed.
    """
    folder = run / CHECKPOINTS
    published = {path: problems(path, digests=False) for path in all_of(folder)}
    complete = [path for path, wrong in published.items() if not wrong]
    state = stored.read_object(complete[-1] / _STATE, _LARGEST_STATE) if complete else None
    name, step = ((state or {}).get(key) for key in ("best_model_checkpoint", "best_global_step"))
    best = Path(name).name if name and isinstance(name, str) else f"checkpoint-{step or None}"
    found = [
        Saved(run.name, path, read_manifest(path), wrong, not wrong and path.name == best)
        for path, wrong in published.items()
    ]
    found += [
        Saved(run.name, path, None, ("its save was not finished",), unfinished=True)
        for path in unfinished_of(folder)
    ]
    model = run / MODEL
    if model.is_dir():
        found.append(Saved(run.name, model, read_manifest(model), problems(model, digests=False)))
    return found
