"""The checkpoints of a run as directories: put in place whole, found again, thinned out; no torch, no lock.

A checkpoint is written as `.saving-STEP.ATTEMPT`, gets its manifest last and is renamed (`publish`); what goes away is renamed first
(`.removing-…`). A process that is killed anywhere in between leaves the names of these two kinds behind, and never half of a
`checkpoint-N`. One process of a run writes here at a time; any number may read.
"""

from __future__ import annotations

import shlex
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.runs import layout
from hpctrain.runs.manifest import CHECKPOINT, FileDigest, Manifest, problems, read_manifest, sync_directory, write_manifest

__all__ = [
    "Checkpoint", "FileDigest", "Manifest", "Skipped", "all_of", "clean", "newest_complete", "problems", "publish", "read_manifest",
    "remove", "rotate", "saving_path", "sweep", "unfinished_of", "weights_of", "write_manifest",
]  # fmt: skip

CHECKPOINTS = "checkpoints"
MODEL = "model"
SAVING, REMOVING, REPLACED = ".saving-", ".removing-", ".replaced-"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint."""

    path: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        """Return its name, such as `checkpoint-40`."""
        return _name(self.path)

    @property
    def step(self) -> int:
        """Return the optimizer steps done."""
        return self.manifest.step


@dataclass(frozen=True, slots=True)
class Skipped:
    """A directory that does not count as a checkpoint, and why."""

    name: str
    why: str


def saving_path(checkpoints: Path, step: int, attempt: str) -> Path:
    """Return where a checkpoint is written before it is published: the same for all processes of an attempt, and for no other's."""
    return checkpoints / f"{SAVING}{step}.{attempt}"


def publish(saving: Path, final: Path) -> Path | None:
    """Put the checkpoint that was written as `saving` in its place, by renaming it; both lie in one directory.

    What has that name already: damaged, it is moved aside and removed; complete, it gives way to the new one in such a manner that
    `newest_complete` finds the one or the other at any moment; a directory without a manifest of ours is kept under another name.

    Returns:
        Where a directory that was in the way, and not ours, is now.

    Raises:
        HpctrainError: `saving` is not complete.
        OSError: the file system refuses; what was there is there still.
    """
    wrong = problems(saving, digests=False)
    if wrong:
        raise HpctrainError(
            f"{saving.name} is not complete: {'; '.join(wrong)}", details=(str(saving),), fix=f"ls -la {shlex.quote(str(saving))}"
        )
    _heal(final.parent)
    kept = aside = None
    if final.is_symlink() or final.exists():
        unique = uuid.uuid4().hex[:12]
        if not problems(final, digests=False, extra=False):
            aside = final.with_name(f"{REPLACED}{final.name}.{unique}")
        elif (final / layout.CHECKPOINT_MANIFEST).exists() or _is_empty(final):
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
        HpctrainError: the directory is there and cannot be read; to take it for an empty one would start the training anew.
    """
    entries = _entries(checkpoints)
    names = {entry.name for entry in entries}
    found = [entry for entry in entries if CHECKPOINT.match(entry.name)]
    # A process is, or was killed, between the two renames of `publish`.
    found += [entry for entry in entries if entry.name.startswith(REPLACED) and _name(entry) not in names]
    return sorted((entry for entry in found if entry.is_dir()), key=lambda entry: (_step(entry), entry.name))


def unfinished_of(checkpoints: Path) -> list[Path]:
    """Return the saves that are under way, or were not finished; errors as in `all_of`."""
    return [entry for entry in _entries(checkpoints) if entry.name.startswith(SAVING)]


def newest_complete(checkpoints: Path, *, digests: bool, job: str | None = None) -> tuple[Checkpoint | None, tuple[Skipped, ...]]:
    """Return the complete checkpoint of the highest step, and what was passed over on the way to it.

    Args:
        checkpoints: the directory of a run's checkpoints; it need not exist.
        digests: read the files, too (see manifest.problems); what is found wrong only so is passed over.
        job: look only at what attempts of this job have saved.

    Raises:
        HpctrainError: the directory cannot be read.
    """
    while True:
        skipped = [Skipped(path.name, "its save was not finished") for path in unfinished_of(checkpoints)]
        gone = False
        for path in reversed(all_of(checkpoints)):
            manifest = read_manifest(path)
            if job is not None and (manifest is None or job_of(manifest.attempt) != job):
                continue
            wrong = problems(path, digests=digests, extra=False)
            manifest = read_manifest(path)
            if not wrong and manifest is not None:
                return Checkpoint(path, manifest), tuple(skipped)
            skipped.append(Skipped(_name(path), "; ".join(wrong) or "it went away"))
            gone = gone or not path.exists()
        # The run goes on meanwhile: what was removed under our eyes made room for a newer one.
        if not gone:
            return None, tuple(skipped)


def job_of(attempt: str | None) -> str | None:
    """Return the job of an attempt, see layout.attempt_name; None where it is no name of that form."""
    job, dot, _ = (attempt or "").partition(".")
    return job if dot and job else None


def rotate(checkpoints: Path, keep: int, protect: Collection[str] = (), *, at: int | None = None) -> tuple[str, ...]:
    """Remove checkpoints but the `keep` newest complete ones and those named in `protect`; also what crashes left.

    The newest complete one stays, whatever `keep` is. Of what is not complete, only what is older than that one goes, and only what
    this package wrote: unfinished saves, and directories with a manifest.

    Args:
        checkpoints: the directory.
        keep: how many stay.
        protect: names.
        at: the step where the training is. What has a later one was saved before the run went back to an earlier checkpoint: it counts
            as older than all others.

    Returns:
        The names of what was removed.

    Raises:
        HpctrainError: the directory cannot be read.
        OSError: it cannot be changed.
    """
    _heal(checkpoints)
    complete = [path for path in all_of(checkpoints) if not problems(path, digests=False, extra=False)]
    if at is not None:
        complete.sort(key=lambda path: (_step(path) <= at, _step(path)))
    removed = []
    if complete:
        newest = complete[-1]
        kept = {path.name for path in complete[-max(1, keep) :]} | set(protect)
        going = [path for path in complete if path.name not in kept]
        damaged = [path for path in all_of(checkpoints) if path not in complete and (path / layout.CHECKPOINT_MANIFEST).exists()]
        going += [path for path in damaged if _step(path) < _step(newest) and path.name not in protect]
        going += [path for path in unfinished_of(checkpoints) if _step(path) <= _step(newest)]
        for path in going:
            removed.append(path.name)
            remove(path)
    sweep(checkpoints)
    return tuple(removed)


def remove(path: Path) -> Path | None:
    """Remove one directory: it loses its name first, so that nobody meets half of it.

    Returns:
        What could not be deleted, if anything; the next `rotate` or `clean` tries again.

    Raises:
        OSError: the name cannot be changed.
    """
    aside = path.with_name(f"{REMOVING}{path.name.lstrip('.')}.{uuid.uuid4().hex[:12]}")
    path.rename(aside)
    _remove(aside)
    return aside if aside.exists() else None


def clean(checkpoints: Path, over: Callable[[Path, str], bool] | None = None) -> tuple[str, ...]:
    """Remove what earlier processes of the run left unfinished, and return the names of unfinished saves.

    Args:
        checkpoints: the directory; also that of the run, for its model.
        over: told the directory of an unfinished save and the attempt that began it, says whether that one saves no more; by default
            all are over.

    Raises:
        HpctrainError: the directory cannot be read.
        OSError: it cannot be changed.
    """
    _heal(checkpoints)
    unfinished = [path for path in unfinished_of(checkpoints) if over is None or over(path, _attempt(path))]
    for path in unfinished:
        remove(path)
    sweep(checkpoints)
    return tuple(path.name for path in unfinished)


def sweep(checkpoints: Path) -> None:
    """Delete what earlier removals left; errors as in `all_of`."""
    for path in _leftovers(checkpoints, REMOVING):
        _remove(path)


def checkpoint_of(word: str, *, runs: Path, tag: str | None) -> Path:
    """Return the checkpoint that `word` stands for: `stage:NAME` and a run's id are the newest complete one of that run.

    Args:
        word: also `RUN_ID/checkpoint-40`, or a directory, which is not looked at here.
        runs: the directory of all runs.
        tag: the tag of the launch, for stages.

    Raises:
        UsageError: there is no complete one.
    """
    stage = word.removeprefix("stage:") if word.startswith("stage:") else None
    if stage is not None and (tag is None or not layout.NAME.match(stage)):
        raise UsageError(f"{word!r} is no stage of this launch", fix="--resume_from_checkpoint DIRECTORY")
    first, _, rest = (layout.run_id(tag or "", stage=stage) if stage is not None else word).partition("/")
    run = runs / first
    if stage is None and (not layout.NAME.match(first) or not run.is_dir()):
        return Path(word)
    if rest:
        return run / CHECKPOINTS / rest
    newest, skipped = newest_complete(run / CHECKPOINTS, digests=False)
    if newest is None:
        raise UsageError(
            f"{word!r}: run {first} has no complete checkpoint", details=tuple(f"  {one.name}: {one.why}" for one in skipped),
            fix=f"hpctrain checkpoints list {first}",
        )  # fmt: skip
    return newest.path


def weights_of(word: str, *, runs: Path, tag: str | None) -> Path:
    """Return the directory of the weights that `word` stands for.

    Args:
        word: a directory (a model folder, a checkpoint, a run's directory); a run's id: its model, else its newest complete
            checkpoint; `RUN_ID/checkpoint-40`; or `stage:NAME`, the run of an earlier stage of the same launch.
        runs: the directory of all runs.
        tag: the tag of the launch, for stages.

    Raises:
        UsageError: there is no such thing, or it is not complete.
    """
    if word.startswith("stage:"):
        if tag is None:
            raise UsageError(f"{word!r} is a stage of a launch, and this is none", fix="--init_from RUN_ID, from: hpctrain runs list")
        stage = word.removeprefix("stage:")
        if not layout.NAME.match(stage):
            raise UsageError(f"{word!r}: a stage's name is made of letters, digits, '.', '_' and '-'", fix="--init_from stage:NAME")
        return _weights_of_run(runs / layout.run_id(tag, stage=stage), word)
    first, _, rest = word.partition("/")
    if layout.NAME.match(first) and (runs / first).is_dir():
        if not rest:
            return _weights_of_run(runs / first, word)
        for inside in (runs / first / CHECKPOINTS / rest, runs / first / rest):
            if (CHECKPOINT.match(rest) or rest == MODEL) and inside.is_dir():
                return _complete(inside, word)
    folder = Path(word).expanduser()
    if folder.is_dir():
        return _weights_of_folder(folder, word)
    inside = runs / first / CHECKPOINTS / rest if rest else runs / first
    raise _nothing(word, [*([str(inside)] if layout.NAME.match(first) else []), str(folder)], runs)


def _weights_of_folder(folder: Path, word: str) -> Path:
    if (folder / layout.CHECKPOINT_MANIFEST).exists():
        return _complete(folder, word)
    if (folder / "run.json").exists():
        return _weights_of_run(folder, word)
    if any((folder / name).exists() for name in ("config.json", "adapter_config.json")):
        return folder
    raise UsageError(f"{word!r} is a directory without a model: it has no config.json", fix=f"ls {shlex.quote(word)}")


def _weights_of_run(run: Path, word: str) -> Path:
    if not run.is_dir():
        raise _nothing(word, [str(run)], run.parent)
    if (run / MODEL).is_dir():
        return _complete(run / MODEL, word)
    newest, skipped = newest_complete(run / CHECKPOINTS, digests=False)
    if newest is not None:
        return newest.path
    raise UsageError(
        f"{word!r}: run {run.name} has neither a model nor a complete checkpoint",
        details=tuple(f"  {one.name}: {one.why}" for one in skipped),
        fix=f"hpctrain checkpoints list {run.name}",
    )


def _complete(folder: Path, word: str) -> Path:
    wrong = problems(folder, digests=False, extra=False)
    if wrong:
        raise UsageError(
            f"{word!r} is not complete", details=(str(folder), *(f"  {one}" for one in wrong)), fix="hpctrain checkpoints list"
        )
    return folder


def _nothing(word: str, looked: list[str], runs: Path) -> UsageError:
    import difflib

    known = [entry.name for entry in runs.iterdir() if layout.NAME.match(entry.name)] if runs.is_dir() else []
    close = difflib.get_close_matches(word.partition("/")[0], known, n=1)
    return UsageError(
        f"there are no weights {word!r}",
        details=("  looked for " + " and ".join(looked),),
        fix=f"hpctrain checkpoints list {close[0]}" if close else "hpctrain runs list",
    )


def _entries(checkpoints: Path) -> list[Path]:
    try:
        return sorted(checkpoints.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HpctrainError(
            f"the directory of checkpoints cannot be read: {error.strerror}",
            details=(str(checkpoints),),
            fix=f"ls -ld {shlex.quote(str(checkpoints))}",
        ) from error


def _name(path: Path) -> str:
    """Return the name of a checkpoint, also while another one takes its place."""
    return path.name.removeprefix(REPLACED).rpartition(".")[0] if path.name.startswith(REPLACED) else path.name


def _step(path: Path) -> int:
    """Return the step that a directory's name says; -1 where it says none."""
    numbers = _name(path).removeprefix(SAVING).removeprefix("checkpoint-").partition(".")[0]
    return int(numbers) if numbers.isascii() and numbers.isdigit() else -1


def _attempt(path: Path) -> str:
    """Return the attempt that the name of an unfinished save says (see saving_path)."""
    return path.name.removeprefix(SAVING).partition(".")[2].removesuffix(".writing")


def _is_empty(path: Path) -> bool:
    return path.is_dir() and next(path.iterdir(), None) is None


def _leftovers(checkpoints: Path, prefix: str) -> Iterator[Path]:
    return (entry for entry in _entries(checkpoints) if entry.name.startswith(prefix))


def _heal(checkpoints: Path) -> None:
    """Finish what a killed `publish` began: the old one gets its name back, or goes where the new one is in place."""
    for old in _leftovers(checkpoints, REPLACED):
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
