"""Removing a run so that nobody ever sees half of it, and so that a job that starts just then loses nothing.

1. The run is renamed to `.dropping-EPOCH-HEX.RUN`, and looked at once more: where anything in it has changed since it was judged, or its
   directory is there again because a job has just started, it is put back.
2. Else it is renamed to `.dropped-HEX.RUN`: that is the decision. Only then is it deleted.

A crash leaves one of these names behind, and the next `clean` undoes the first and finishes the second. No lock; of two that remove the
same run, one renames it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hpctrain.errors import HpctrainError
from hpctrain.runs import store
from hpctrain.runs.store import Run

_UNDECIDED, _DECIDED, _KEPT, _CLOCK = ".dropping-", ".dropped-", ".kept-", ".clock-"
#: Between the two renames lie milliseconds; after this many seconds, whoever was at it is gone.
ABANDONED_S = 600


@dataclass(frozen=True, slots=True)
class Weight:
    """What a run takes up.

    Attributes:
        size: bytes, as `ls` counts them; what links point to is not counted.
        obstacle: what keeps this user from removing it, or None.
    """

    size: int
    obstacle: str | None = None


def weigh(runs: Path, run: str) -> Weight:
    """Return the size of a run, and whether this user may remove it: a removal that ends in the middle would leave half a run."""
    home = runs / run
    if home.is_symlink():
        return Weight(0, f"{home} is a link to {os.readlink(home)}")  # noqa: PTH115 - as it is written
    try:
        obstacle = _closed(str(runs), home.lstat().st_uid)
    except FileNotFoundError:  # somebody else has removed it
        return Weight(0)
    size = 0
    for found in _walk(str(home)):
        size += found.size
        obstacle = obstacle or found.obstacle
    return Weight(size, obstacle)


def _walk(directory: str) -> Iterator[Weight]:
    """Yield the weights of what lies in a directory, however deep."""
    below: list[str] = [directory]
    while below:
        here = below.pop()
        try:
            with os.scandir(here) as entries:
                found = list(entries)
        except OSError as error:
            yield Weight(0, f"{here}: {(error.strerror or str(error)).lower()}")
            continue
        owners = set()
        for entry in found:
            try:
                about = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(about.st_mode):
                below.append(entry.path)
            owners.add(about.st_uid)
            yield Weight(about.st_size, None)
        if owners:
            yield Weight(0, _closed(here, min(owners, key=lambda uid: uid == os.geteuid())))


def _closed(directory: str, theirs: int) -> str | None:
    """Return why nothing of the user `theirs` can be removed from a directory; None where it can."""
    try:
        about = os.stat(directory)  # noqa: PTH116 - as in store
    except OSError as error:
        return f"{directory}: {(error.strerror or str(error)).lower()}"
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        return f"{directory} is not writable for you; it belongs to {owner(about.st_uid)}"
    me = os.geteuid()
    if about.st_mode & stat.S_ISVTX and me not in (0, about.st_uid, theirs):
        return f"{directory} lets only owners remove, and this belongs to {owner(theirs)}"
    return None


def owner(uid: int) -> str:
    """Return the name of a user, or `uid 1234` where it has none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def drop(runs: Path, run: Run) -> None:
    """Remove a run.

    Args:
        runs: the directory of all runs.
        run: as it was read when it was judged.

    Raises:
        HpctrainError: it has changed since, and is back in its place; or it cannot be removed.
    """
    home = runs / run.id
    hex_ = uuid.uuid4().hex[:12]
    aside = runs / f"{_UNDECIDED}{int(_now(runs))}-{hex_}.{run.id}"
    try:
        home.rename(aside)
    except FileNotFoundError:
        return  # somebody else has removed it
    except OSError as error:
        raise _refused(home, error) from error
    try:
        # As it was, or it lives: a job has started, or goes on writing.
        if not _unchanged(run, store.read_run(runs, aside.name)) or home.is_symlink() or home.exists():
            put_back(aside, home)
            raise HpctrainError(
                f"{run.id} has changed while it was being removed, so a job of it may run; it is back in its place",
                fix=f"hpctrain runs show {shlex.quote(run.id)}",
            )
        decided = runs / f"{_DECIDED}{hex_}.{run.id}"
        aside.rename(decided)
    except FileNotFoundError:
        return  # stopped for longer than ABANDONED_S, and put back by somebody else
    except BaseException:
        if aside.exists():
            put_back(aside, home)
        raise
    _delete(decided)


def _unchanged(run: Run, now: Run | None) -> bool:
    """Whether a run reads as it did; its id, and the tag that stands for one, follow the name of its directory."""
    return repr(run) == repr(None if now is None else replace(now, id=run.id, tag=run.tag))  # a loss may be NaN, which equals nothing


def put_back(aside: Path, home: Path) -> None:
    """Put a run back in its place; where a job has made the directory anew, into what that one has: its files are left alone.

    Raises:
        HpctrainError: of some files there are two; the older ones are kept.
    """
    try:
        aside.rename(home)
    except FileNotFoundError:
        return
    except OSError:
        _merge(aside, home)
        if aside.exists():
            kept = aside.with_name(f"{_KEPT}{uuid.uuid4().hex[:12]}.{home.name}")
            aside.rename(kept)
            raise HpctrainError(
                f"a job has written files anew that {home.name} had; the older ones are in {kept}",
                fix=f"diff -r {shlex.quote(str(kept))} {shlex.quote(str(home))}",
            ) from None


def _merge(source: Path, target: Path) -> None:
    for entry in list(source.iterdir()):
        other = target / entry.name
        if entry.is_dir() and not entry.is_symlink():
            try:
                entry.rename(other)
            except OSError:
                if other.is_dir():
                    _merge(entry, other)
        elif not other.exists() and not other.is_symlink():
            try:
                other.hardlink_to(entry)  # unlike a rename, it never replaces what a job has written a moment ago
                entry.unlink()
            except FileExistsError:
                continue
            except OSError:
                entry.rename(other)
    try:
        source.rmdir()
    except OSError:
        return


def clean(runs: Path) -> list[str]:
    """Finish what a crash left: what was decided is deleted, what was not is put back after a while. Return the ids put back.

    Raises:
        OSError: `runs` cannot be read.
    """
    back = []
    for left in sorted(runs.glob(f"{_DECIDED}*")):
        shutil.rmtree(left, ignore_errors=True)
    for left in runs.glob(f"{_CLOCK}*"):
        left.unlink(missing_ok=True)
    for left in sorted(runs.glob(f"{_UNDECIDED}*")):
        since, _, rest = left.name.removeprefix(_UNDECIDED).partition("-")
        run = rest.partition(".")[2]
        if since.isdigit() and run and _now(runs) - int(since) > ABANDONED_S:
            put_back(left, runs / run)
            back.append(run)
    return back


def _now(runs: Path) -> float:
    """Return seconds since the epoch of the file system's clock, which is one for all nodes; else of this node's."""
    probe = runs / f"{_CLOCK}{uuid.uuid4().hex}"
    try:
        probe.touch(exist_ok=False)
        now = probe.stat().st_mtime
        probe.unlink()
    except OSError:
        import time

        return time.time()
    return now


def _delete(decided: Path) -> None:
    problems: list[OSError] = []

    def note(_function: object, _path: str, error: tuple[type[BaseException], BaseException, object]) -> None:
        if isinstance(error[1], OSError) and not isinstance(error[1], FileNotFoundError):
            problems.append(error[1])

    for _ in range(3):  # a job that was about to make a directory here, when it got its new name, has made it by the second time
        problems.clear()
        shutil.rmtree(decided, onerror=note)
        if not problems:
            return
    raise HpctrainError(
        f"{decided.name.partition('.')[2]} is removed from the runs, and {len(problems)} files of it are left in {decided}",
        details=(str(problems[0]),),
        fix=f"rm -r {shlex.quote(str(decided))}",
    )


def _refused(home: Path, error: OSError) -> HpctrainError:
    return HpctrainError(f"cannot remove {home}: {(error.strerror or str(error)).lower()}", fix=f"ls -ld {shlex.quote(str(home.parent))}")
