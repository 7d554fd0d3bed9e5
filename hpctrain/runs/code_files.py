"""The files of a project that a snapshot of the code is made of: found, weighed, and read so that what changes meanwhile is noticed."""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from hpctrain.errors import HpctrainError
from hpctrain.jobs import shell
from hpctrain.runs.code_ignore import Patterns

PLAIN, EXECUTABLE, LINK = "100644", "100755", "120000"
"""Modes, as git writes them."""
#: What says that a directory is a Python or conda environment, whatever its name.
ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
#: A file that is written to all the time is no code.
_TRIES = 5
#: Seconds; the clock that dates files moves in steps of up to 10 ms (CONFIG_HZ=100), so that a file which is younger may be amid
#: a write that its times do not show yet.
_SETTLED_S = 0.02
#: Reading waits for the file system more than for the processor, where that is a network's.
_THREADS, _CHUNK = 8, 64
_T = TypeVar("_T")
_R = TypeVar("_R")


class Entry(NamedTuple):
    """One file of a snapshot.

    Attributes:
        path: relative to the project, with `/`; bytes that are no UTF-8 are surrogates, as the os module has them.
        mode: PLAIN, EXECUTABLE or LINK.
        size: bytes; of a link, 0.
        digest: SHA-256 of its content (64 hex digits); of a link, its target.
    """

    path: str
    mode: str
    size: int
    digest: str


class Skipped(NamedTuple):
    """A path that is not in a snapshot, or not as it is in the project, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Weighed:
    """What is to be read (`files`: path to size in bytes), the links among it as they will be, and what is not taken."""

    files: dict[str, int]
    links: tuple[Entry, ...]
    skipped: tuple[Skipped, ...]


class ChangedError(Exception):
    """A file is not what it was a moment ago; args[0] is its path."""


def walk(project: Path, patterns: Patterns, *, most: int) -> tuple[list[str], list[Skipped]]:
    """Return the paths of a project that no git knows, at most `most` + 1 of them, and directories that nobody may read.

    Without what `patterns` leave out, .git and environments.
    """
    found: list[str] = []
    skipped: list[Skipped] = []
    open_: list[str] = [""]
    while open_ and len(found) <= most:
        directory = open_.pop()
        try:
            with os.scandir(project / directory) as entries:
                here = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            skipped.append(Skipped(directory, f"cannot be read: {error.strerror}"))
            continue
        if directory and any(entry.name in ENVIRONMENTS for entry in here):
            continue
        for entry in here:
            path = f"{directory}/{entry.name}" if directory else entry.name
            is_directory = entry.is_dir(follow_symlinks=False)
            if entry.name != ".git" and not patterns.matches(path, directory=is_directory):
                (open_ if is_directory else found).append(path)
    return found[: most + 1], skipped


def without_environments(paths: Iterable[str]) -> list[str]:
    """Return `paths` without .git and what lies in an environment."""
    known = list(paths)
    roots = set()
    for path in known:
        parts = path.split("/")
        roots |= {"/".join(parts[:at]) + "/" for at, part in enumerate(parts) if at and part in ENVIRONMENTS}
    beginnings = tuple(roots)
    return [path for path in known if not path.startswith(beginnings) and ".git" not in path.split("/")]


def weigh(project: Path, paths: Iterable[str]) -> Weighed:
    """Look at each path once; what was deleted in the work tree is left out without a word.

    Args:
        project: absolute, without symlinks in it: links that lead out of it are written as absolute paths.
        paths: relative to it.
    """
    files: dict[str, int] = {}
    raw: dict[str, str] = {}
    skipped: list[Skipped] = []
    for path in dict.fromkeys(paths):
        try:
            found = os.lstat(project / path)
            if stat.S_ISLNK(found.st_mode):
                raw[path] = os.readlink(project / path)  # noqa: PTH115 - a Path would lose `./` and a final `/`
            elif stat.S_ISREG(found.st_mode):
                files[path] = found.st_size
            elif not stat.S_ISDIR(found.st_mode):  # a directory is a submodule without files
                skipped.append(Skipped(path, "is no plain file"))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            skipped.append(Skipped(path, f"cannot be read: {error.strerror}"))
    members = {posixpath.normpath(path) for path in (*files, *raw)}
    members |= {parent for path in members for parent in _parents(path)}
    links = [_link(project, path, target, members) for path, target in sorted(raw.items())]
    return Weighed(files, tuple(entry for entry, _ in links), (*skipped, *(note for _, note in links if note is not None)))


def _link(project: Path, path: str, target: str, members: set[str]) -> tuple[Entry, Skipped | None]:
    """Return a link as it stands in the snapshot, where `..` would lead elsewhere and the project's own path would lead back to it."""
    written = posixpath.join(project, posixpath.dirname(path), target)
    absolute = posixpath.normpath(written)
    if not f"{absolute}/".startswith(f"{project}/"):  # the project under another name of it is no other place
        real = os.path.realpath(written)
        absolute = real if f"{real}/".startswith(f"{project}/") else absolute
    landing = posixpath.relpath(absolute, project)
    note = None
    if landing == ".." or landing.startswith("../"):
        note = Skipped(path, f"is a link out of the project, to {absolute}: the job finds what is there then")
        target = absolute
    elif landing in members or landing == ".":
        relative = posixpath.relpath(absolute, project / posixpath.dirname(path))
        target = target if posixpath.normpath(target) == relative else relative
    elif os.path.lexists(absolute):  # it is there, and no part of the snapshot: data that git ignores
        note = Skipped(path, f"is a link to {landing}, which is not part of the snapshot: the job finds what is there then")
        target = absolute
    return Entry(path, LINK, 0, target), note


def _parents(path: str) -> Iterable[str]:
    while path := posixpath.dirname(path):
        yield path


def digests(project: Path, files: Iterable[str]) -> tuple[list[Entry], list[Skipped]]:
    """Return the entries of plain files, and those that nobody may read.

    Raises:
        HpctrainError: a file does not stay the same for long enough to be read.
    """

    def one(path: str) -> Entry | Skipped | None:
        return _digest(project, path)

    found = each(sorted(files), one)
    return [entry for entry in found if isinstance(entry, Entry)], [note for note in found if isinstance(note, Skipped)]


def _digest(project: Path, path: str) -> Entry | Skipped | None:
    for _ in range(_TRIES):
        try:
            mode, content = read(project, path)
        except ChangedError:
            time.sleep(_SETTLED_S)
            continue
        except FileNotFoundError:
            return None
        except OSError as error:
            return Skipped(path, f"cannot be read: {error.strerror}")
        return Entry(path, mode, len(content), hashlib.sha256(content).hexdigest())
    raise unsteady(path)


def unsteady(path: str) -> HpctrainError:
    """Return the error on a file that somebody writes to all the time."""
    return HpctrainError(
        f"{path} changes while it is read", details=("a snapshot of the code holds each file as it was at one time",),
        fix=f"echo {shell.quote(path)} >>.hpctrainignore, if it is no code; or hpctrain submit --no-snapshot",
    )  # fmt: skip


def read(project: Path, path: str) -> tuple[str, bytes]:
    """Return mode and content of a file.

    Raises:
        ChangedError: somebody wrote to it meanwhile, or it became something else.
        OSError: it cannot be read.
    """
    # A fifo in its place would wait for a writer.
    descriptor = os.open(project / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as stream:  # noqa: PTH123 - of a descriptor
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise ChangedError(path)
        content = stream.read(before.st_size + 1)  # of a log that grows and grows, no more
        after = os.fstat(descriptor)
    # A time in the future is that of another clock, or of somebody who set it.
    fresh = 0 <= time.time() - after.st_mtime < _SETTLED_S
    if fresh or _version(before) != _version(after) or len(content) != after.st_size:
        raise ChangedError(path)
    return (EXECUTABLE if before.st_mode & stat.S_IXUSR else PLAIN), content


def _version(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def each(items: Sequence[_T], work: Callable[[_T], _R]) -> list[_R]:
    """Return what `work` returns for each of `items`, done by several threads."""
    chunks = [items[at : at + _CHUNK] for at in range(0, len(items), _CHUNK)]
    if len(chunks) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(_THREADS) as pool:
        return [done for chunk in pool.map(lambda chunk: [work(item) for item in chunk], chunks) for done in chunk]
