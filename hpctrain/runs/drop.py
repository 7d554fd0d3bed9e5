"""Removing a run: it is renamed, checked once more, and put back if a job has written to it
meanwhile. It is never visible half deleted, and a job that is just starting loses nothing.

The next `clean` deletes what a crash leaves under the temporary name.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hpctrain.errors import HpctrainError
from hpctrain.runs import launch, store
from hpctrain.runs.store import Run

_DROPPED, _KEPT = ".dropped-", ".kept-"


def weigh(runs: Path, run: str) -> tuple[int, str | None]:
    """Return the size of a run in bytes, as shown by `ls` and without link targets, and why this
    user cannot remove all of it, or None: a failed removal would leave half a run.
    """
    home = runs / run
    if home.is_symlink():
        return 0, f"{home} is a link to {home.readlink()}"
    size = 0
    closed = [] if os.access(runs, os.W_OK | os.X_OK) else [str(runs)]
    for directory, folders, names in os.walk(home):
        if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
            closed.append(directory)
        for name in (*folders, *names):
            with suppress(FileNotFoundError):
                size += Path(directory, name).lstat().st_size
    if not closed:
        return size, None
    theirs = owner(Path(closed[0]).stat().st_uid)
    return size, f"{closed[0]} is not writable for you; it belongs to {theirs}"


def owner(uid: int) -> str:
    """Return the name of a user, or `uid 1234` if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def drop(runs: Path, run: Run) -> None:
    """Remove a run.

    Args:
        runs: the directory of all runs.
        run: as it was read when its state was determined.

    Raises:
        HpctrainError: it has changed since and was put back, or it cannot be removed.
    """
    home = runs / run.id
    aside = runs / f"{_DROPPED}{uuid.uuid4().hex[:12]}.{run.id}"
    try:
        home.rename(aside)
    except FileNotFoundError:
        return  # another process has removed it
    except OSError as error:
        raise HpctrainError(
            f"cannot remove {home}: {(error.strerror or str(error)).lower()}",
            fix=f"ls -ld {shlex.quote(str(runs))}",
        ) from error
    now = store.read_run(runs, aside.name)
    # Its id and tag come from the directory's name; a loss may be NaN, not equal to itself.
    is_unchanged = now is not None and repr(run) == repr(replace(now, id=run.id, tag=run.tag))
    if os.path.lexists(home) or not is_unchanged:
        _put_back(aside, home)
        raise HpctrainError(
            f"{run.id} has changed while it was being removed, so a job of it may run; it"
            " was restored",
            fix=f"hpctrain runs show {shlex.quote(run.id)}",
        )
    recorded = launch.deletion_path(runs, run.tag, run.id)
    for _ in range(3):  # a job may be about to make a directory in it
        with suppress(OSError):  # a full disk has room again once the run is gone
            if recorded.parents[1].is_dir():  # its launch has a record
                recorded.parent.mkdir(exist_ok=True)
                recorded.touch()
        shutil.rmtree(aside, ignore_errors=True)
    if aside.exists():
        raise HpctrainError(
            f"{run.id} is removed from the runs, and files of it are left in {aside}",
            fix=f"rm -r {shlex.quote(str(aside))}",
        )


def _put_back(aside: Path, home: Path) -> None:
    """Put a run back.

    Raises:
        HpctrainError: a job has created the directory again; the older files are kept beside it.
    """
    try:
        aside.rename(home)
    except OSError:
        kept = aside.with_name(aside.name.replace(_DROPPED, _KEPT, 1))
        aside.rename(kept)
        raise HpctrainError(
            f"a job has written {home.name} again; its older files are in {kept}",
            fix=f"diff -r {shlex.quote(str(kept))} {shlex.quote(str(home))}",
        ) from None


def clean(runs: Path) -> None:
    """Delete what an interrupted removal left."""
    for left in runs.glob(f"{_DROPPED}*"):
        shutil.rmtree(left, ignore_errors=True)
