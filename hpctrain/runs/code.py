"""Snapshots of the code: what was queued is what runs, whatever becomes of the project meanwhile.

A snapshot is `runs/.code/DIGEST/`, the digest being one of all paths, modes and contents. Which files belong to the project is found out
above this room, because git is asked (hpctrain.cli.code).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.errors import UsageError
from hpctrain.jobs import shell
from hpctrain.runs import code_files, code_store
from hpctrain.runs.code_files import ChangedError, Entry, Skipped, Weighed

#: More than any project's code: data and checkpoints do not belong into a snapshot.
LIMIT_BYTES, FILE_LIMIT_BYTES, LIMIT_FILES = 100_000_000, 20_000_000, 20_000
_TRIES = 3
#: Names that a record lists, of those that git does not know.
_LISTED = 200
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """What git says of a project; with no git, or none that answers, nothing.

    Attributes:
        commit: 40 or 64 hex digits; None without git, or before the first commit.
        branch: None where no branch is checked out.
        diff: what differs from the commit, as `git diff HEAD` shows it: without the content of binary files, without what looks like a
            secret, cut at a size; None where nothing does, or git cannot say.
        untracked: files that git does not know and does not ignore.
        notes: why something is not known.
    """

    commit: str | None = None
    branch: str | None = None
    diff: str | None = None
    untracked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def dirty(self) -> bool:
        """Whether the project is not what the commit says."""
        return bool(self.diff or self.untracked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The code of a project at one time.

    Attributes:
        digest: 20 hex digits.
        path: where it is stored; None where it was only looked at.
        entries: its files.
        bytes: their sizes together.
        version: what git says.
        skipped: what is not in it, or not as it is in the project, and why.
    """

    digest: str
    path: Path | None
    entries: tuple[Entry, ...]
    version: Version
    skipped: tuple[Skipped, ...]

    @property
    def files(self) -> int:
        """How many files it has."""
        return len(self.entries)

    @property
    def bytes(self) -> int:
        """The sizes of its files together."""
        return sum(entry.size for entry in self.entries)

    @property
    def commit(self) -> str | None:
        """See Version."""
        return self.version.commit

    @property
    def dirty(self) -> bool:
        """See Version."""
        return self.version.dirty

    @property
    def diff(self) -> str | None:
        """See Version."""
        return self.version.diff

    def as_json(self) -> dict[str, Any]:
        """Return what becomes code.json."""
        return {
            **as_json(self.version), "digest": self.digest, "files": self.files, "bytes": self.bytes,
            "snapshot": self.path is not None, "skipped": [list(one) for one in self.skipped[:_LISTED]],
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Differences:
    """Names of the files that differ between two snapshots."""

    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changed or self.added or self.removed)


def as_json(version: Version) -> dict[str, Any]:
    """Return what becomes code.json of a project that no snapshot was made of."""
    return {
        "schema": 1, "digest": None, "commit": version.commit, "branch": version.branch, "dirty": version.dirty,
        "untracked": list(version.untracked[:_LISTED]), "notes": list(version.notes), "snapshot": False,
    }  # fmt: skip


def take(
    project: Path, runs: Path | None, paths: Iterable[str], version: Version, *, skipped: Iterable[Skipped] = (),
    limit_bytes: int = LIMIT_BYTES, file_limit_bytes: int = FILE_LIMIT_BYTES, limit_files: int = LIMIT_FILES,
) -> Snapshot:  # fmt: skip
    """Take a snapshot and store it, or use the equal one that is stored.

    Args:
        project: absolute, without symlinks in it.
        runs: the directory `runs`; None stores nothing.
        paths: of the files, relative to the project.
        version: what git says.
        skipped: what was left out before.
        limit_bytes: of all files together.
        file_limit_bytes: of each file.
        limit_files: how many there may be.

    Raises:
        UsageError: a limit is passed.
        HpctrainError: a file does not stay the same for long enough to be read.
        OSError: the file system refuses; nothing half is left.
    """
    known = list(paths)
    for left in reversed(range(_TRIES)):
        weighed = code_files.weigh(project, known)
        _check(weighed, limit_bytes, file_limit_bytes, limit_files)
        plain, unread = code_files.digests(project, weighed.files)
        _check(Weighed({entry.path: entry.size for entry in plain}, weighed.links, ()), limit_bytes, file_limit_bytes, limit_files)
        entries = tuple(sorted((*plain, *weighed.links)))
        try:
            path = code_store.store(project, runs, entries) if runs is not None else None
        except ChangedError as changed:
            if left:
                continue
            raise code_files.unsteady(str(changed.args[0])) from changed
        break
    return Snapshot(
        digest=code_store.digest_of(entries), path=path, entries=entries, version=version, skipped=(*skipped, *weighed.skipped, *unread)
    )


def stored(runs: Path, digest: str) -> dict[str, Entry] | None:
    """Return the files of a stored snapshot by path; None where there is none of that digest."""
    return code_store.read(runs, digest)


def differences(old: Mapping[str, Entry], new: Mapping[str, Entry]) -> Differences:
    """Return what has changed from one snapshot to another, as `stored` or `by_path` give them."""
    both = old.keys() & new.keys()
    return Differences(
        changed=tuple(sorted(path for path in both if old[path] != new[path])),
        added=tuple(sorted(new.keys() - old.keys())),
        removed=tuple(sorted(old.keys() - new.keys())),
    )


def by_path(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Return the files of a snapshot by path."""
    return {entry.path: entry for entry in entries}


def _check(weighed: Weighed, limit_bytes: int, file_limit_bytes: int, limit_files: int) -> None:
    """Refuse what is too large for code."""
    files = weighed.files
    total, count = sum(files.values()), len(files) + len(weighed.links)
    heavy = [path for path, size in files.items() if size > file_limit_bytes]
    if not heavy and total <= limit_bytes and count <= limit_files:
        return
    tops = _tops(files, by_count=count > limit_files)
    if heavy:
        number = f"{len(heavy)} file{'' if len(heavy) == 1 else 's'}"
        what = f"{number} above {_size(file_limit_bytes)}, which is no code and does not go into a snapshot"
        largest = max(heavy, key=lambda path: files[path])
    elif total > limit_bytes:
        what = f"the project's files are {_size(total)} in {count:,} files, and a snapshot of the code has at most {_size(limit_bytes)}"
        largest = tops[0]
    else:
        what = f"the project has more than {limit_files:,} files, and a snapshot of the code has at most as many"
        largest = tops[0]
    shown = sorted(heavy or files, key=lambda path: -files[path])
    details = [f"  {_size(files[path]):>8}  {path}" for path in shown[:_SHOWN]]
    details += [f"  and {len(heavy) - _SHOWN:,} more"] if len(heavy) > _SHOWN else []
    if not heavy:
        details.append(f"  most of it is in {tops[0]}")
    ignore = shell.quote(f"/{largest}")
    raise UsageError(
        what, details=(*details, "what .gitignore or .hpctrainignore names is left out; jobs find it in the project all the same"),
        fix=f"echo {ignore} >>.hpctrainignore; or, without a snapshot: hpctrain submit --no-snapshot",
    )  # fmt: skip


def _tops(files: Mapping[str, int], *, by_count: bool) -> list[str]:
    """Return what lies at the top of the project, the heaviest first; directories end with `/`."""
    weights: dict[str, int] = {}
    for path, size in files.items():
        top, slash, _ = path.partition(posixpath.sep)
        weights[top + slash] = weights.get(top + slash, 0) + (1 if by_count else size)
    return sorted(weights, key=lambda top: -weights[top])


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 100_000 else f"{count / 1e3:,.1f} kB"
