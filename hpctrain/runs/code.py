"""Snapshots of the code: a queued job runs the code as submitted, even if the project changes.

A snapshot is `runs/.code/DIGEST/`, with a digest of all paths, modes and contents: read-only copies
of the project's files, and MANIFEST. It is created under a temporary name and renamed, so that any
number of processes may store it at once. hpctrain.jobs.project_code selects the project's files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hpctrain.errors import UsageError
from hpctrain.runs import layout
from hpctrain.util import files, shell, text

#: In each snapshot: the list of its files, with mode, size and digest.
MANIFEST = ".hpctrain-json"
SCHEMA = 1
#: More than any project's code needs: data and checkpoints do not belong in a snapshot.
LIMIT_BYTES, FILE_LIMIT_BYTES, LIMIT_FILES = 100 << 20, 20 << 20, 20_000
#: Modes, as git writes them.
PLAIN, EXECUTABLE, LINK = "100644", "100755", "120000"
#: Seconds for which an unreferenced snapshot is kept: its submission may not be written yet.
_SPARED_S = 86_400.0
#: On a network file system, reading is limited by latency, not by the CPU.
_THREADS = 8
_SHOWN, _LISTED = 5, 200


class Entry(NamedTuple):
    """One file of a snapshot.

    Attributes:
        path: relative to the project, with `/`; bytes that are not UTF-8 are surrogates, as in the
            os module.
        mode: PLAIN, EXECUTABLE or LINK.
        size: bytes; 0 for a link.
        digest: SHA-256 of its content (64 hex digits); the target, for a link.
    """

    path: str
    mode: str
    size: int
    digest: str


class SkippedPath(NamedTuple):
    """A path that is missing from a snapshot or changed in it, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """The git state of a project; empty without git, or if git fails.

    Attributes:
        commit: 40 or 64 hex digits; None without git, or before the first commit.
        branch: None if no branch is checked out.
        diff: `git diff HEAD` without the content of binary files and without what looks like a
            secret; None if there are no changes or git failed.
        untracked: files that git neither tracks nor ignores.
        notes: why something is unknown.
    """

    commit: str | None = None
    branch: str | None = None
    diff: str | None = None
    untracked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The code of a project at one time.

    Attributes:
        digest: 20 hex digits.
        path: where it is stored.
        entries: its files by path.
        version: the git state.
        skipped: paths that are missing or changed in it, and why.
    """

    digest: str
    path: Path
    entries: dict[str, Entry]
    version: Version
    skipped: tuple[SkippedPath, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the content of code.json."""
        version = self.version
        return {
            "schema": SCHEMA,
            "digest": self.digest,
            "commit": version.commit,
            "branch": version.branch,
            "dirty": bool(version.diff or version.untracked),
            "untracked": list(version.untracked[:_LISTED]),
            "notes": list(version.notes),
            "snapshot": True,
            "files": len(self.entries),
            "bytes": sum(entry.size for entry in self.entries.values()),
            "skipped": [list(one) for one in self.skipped[:_LISTED]],
        }


def take(
    project: Path,
    runs: Path,
    paths: Iterable[str],
    version: Version,
    *,
    skipped: Iterable[SkippedPath] = (),
    limit_bytes: int = LIMIT_BYTES,
) -> Snapshot:
    """Take a snapshot and store it, or reuse an identical stored one.

    Args:
        project: absolute path without symlinks.
        runs: the directory `runs`.
        paths: the files, relative to the project.
        version: the git state.
        skipped: paths that were excluded before.
        limit_bytes: limit for all files together.

    Raises:
        UsageError: a limit is exceeded.
        OSError: reading or writing failed; nothing incomplete is left.
    """
    notes = list(skipped)
    links: list[str] = []
    sizes: dict[str, int] = {}
    for path in dict.fromkeys(paths):
        try:
            found = (project / path).lstat()
        except (FileNotFoundError, NotADirectoryError):  # tracked by git, but deleted
            continue
        if stat.S_ISLNK(found.st_mode):
            links.append(path)
        elif stat.S_ISREG(found.st_mode):
            sizes[path] = found.st_size
        elif not stat.S_ISDIR(found.st_mode):  # a submodule without files
            notes.append(SkippedPath(path, "is not a regular file"))
    _check_limits(sizes, limit_bytes)
    contents: dict[str, bytes] = {}
    entries: dict[str, Entry] = {}

    def read(path: str) -> None:
        try:
            content = (project / path).read_bytes()
            executable = (project / path).stat().st_mode & stat.S_IXUSR
        except OSError as error:
            notes.append(SkippedPath(path, f"cannot be read: {error.strerror}"))
            return
        contents[path] = content
        entries[path] = Entry(
            path,
            EXECUTABLE if executable else PLAIN,
            len(content),
            hashlib.sha256(content).hexdigest(),
        )

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(read, sizes))
    members = {".", *entries, *links}
    members |= {str(parent) for path in members for parent in Path(path).parents}
    for path in links:
        # In the snapshot `..` would lead elsewhere, and an absolute path back to the project.
        target = os.path.realpath(project / path)
        if os.path.relpath(target, project) in members:
            target = os.path.relpath(target, (project / path).parent)
        else:
            reason = f"is a link to {target}, which is not part of the snapshot: the job finds it"
            notes.append(SkippedPath(path, f"{reason} as it is then"))
        entries[path] = Entry(path, LINK, 0, target)
    entries = dict(sorted(entries.items()))
    sums = hashlib.sha256()
    for entry in entries.values():
        sums.update(
            f"{entry.mode} {entry.digest} {entry.path}\0".encode("utf-8", "surrogateescape")
        )
    digest = sums.hexdigest()[:20]
    place = runs / layout.CODE / digest
    _store(place, entries, contents)
    return Snapshot(
        digest=digest, path=place, entries=entries, version=version, skipped=tuple(notes)
    )


def _store(target: Path, entries: Mapping[str, Entry], contents: Mapping[str, bytes]) -> None:
    """Store a snapshot, unless there is one with this digest."""
    record = {"schema": SCHEMA, "files": [list(entry) for entry in entries.values()]}
    if target.is_dir():
        files.write_json(target / MANIFEST, record)  # it is in use, see `remove_unused`
        return
    making = target.with_name(f".making-{uuid.uuid4().hex}")
    try:
        for path, entry in entries.items():
            made = making / path
            made.parent.mkdir(parents=True, exist_ok=True)
            if entry.mode == LINK:
                made.symlink_to(entry.digest)
            else:
                made.write_bytes(contents[path])
                made.chmod(0o555 if entry.mode == EXECUTABLE else 0o444)
        making.mkdir(parents=True, exist_ok=True)
        files.write_json(making / MANIFEST, record)
        making.rename(target)
    except OSError:
        if not target.is_dir():  # else another process has stored the same
            raise
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _check_limits(sizes: Mapping[str, int], limit_bytes: int) -> None:
    total = sum(sizes.values())
    largest = sorted(sizes, key=lambda path: -sizes[path])[:_SHOWN]
    too_large = bool(largest) and sizes[largest[0]] > FILE_LIMIT_BYTES
    if not too_large and len(sizes) <= LIMIT_FILES and total <= limit_bytes:
        return
    weights: Counter[str] = Counter()
    for path, size in sizes.items():
        weights["".join(path.partition("/")[:2])] += size
    heaviest = largest[0] if too_large else weights.most_common(1)[0][0]
    raise UsageError(
        f"the project's code is {text.size(total)} in {len(sizes):,} files",
        details=(
            f"a snapshot of the code has at most {text.size(limit_bytes)},"
            f" {text.size(FILE_LIMIT_BYTES)} in each file, and {LIMIT_FILES:,} files",
            *(f"  {text.size(sizes[path]):>8}  {path}" for path in largest),
            f"most of it is {heaviest}; what .gitignore or .hpctrainignore names is left out, and"
            " jobs find it in the project all the same",
        ),
        fix=f"echo {shell.quote(f'/{heaviest}')} >>.hpctrainignore",
        hint="or submit without a snapshot: hpctrain submit --no-snapshot",
    )


def remove_unused(runs: Path, *, now: float) -> list[str]:
    """Remove snapshots that no submission or run refers to and that were not used for a day, and
    what killed processes left; return the removed names.

    Args:
        runs: the directory `runs`.
        now: seconds since the epoch, by the file server's clock.
    """
    used = {
        str((files.read_json(record) or {}).get("digest"))
        for record in (runs / layout.LAUNCHES).glob("*/code*.json")
    }
    for pattern in (f"{layout.LAUNCHES}/*/code", "*/code"):
        used |= {link.readlink().name for link in runs.glob(pattern) if link.is_symlink()}
    removed = []
    for path in (runs / layout.CODE).glob("*"):
        with contextlib.suppress(FileNotFoundError):
            stamp = path if path.name.startswith(".") else path / MANIFEST
            if path.name not in used and now - stamp.stat().st_mtime > _SPARED_S:
                away = path.with_name(f".removing-{uuid.uuid4().hex}")
                path.rename(away)
                shutil.rmtree(away, ignore_errors=True)
                removed.append(path.name)
    return removed
