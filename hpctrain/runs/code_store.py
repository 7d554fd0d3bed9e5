"""Where snapshots of the code lie: `runs/.code/DIGEST/`, made of hard links to `runs/.code/objects/`, which hold each content once.

    DIGEST/                  the project's files, for reading; MANIFEST says what belongs to it
    objects/ab/cdef…         a content by its SHA-256; `.x` behind it where it is executable, because hard links share their mode
    .making-…, .removing-…   of a process that is at it, or was killed

Everything is made under another name and renamed, so that any number of processes may store the same at once. A file system without hard
links gets copies. Nothing is synced to the disk one by one, which would take minutes: what a crash has cut short is found by its size
and made again at the next submission.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from hpctrain.runs import code_files, files, layout
from hpctrain.runs.code_files import EXECUTABLE, LINK, ChangedError, Entry

MANIFEST = ".hpctrain-code.json"
"""In each snapshot: its files, with mode, size and digest."""
OBJECTS = "objects"
SCHEMA = 1


def digest_of(entries: Iterable[Entry]) -> str:
    """Return the digest of a snapshot: 20 hex digits, over path, mode and content of every file."""
    sums = hashlib.sha256()
    for entry in sorted(entries):
        sums.update(f"{entry.mode} {entry.digest} {entry.path}\0".encode("utf-8", "surrogateescape"))
    return sums.hexdigest()[:20]


def object_name(entry: Entry) -> str:
    """Return the path of a file's content below `objects/`."""
    return f"{entry.digest[:2]}/{entry.digest[2:]}" + (".x" if entry.mode == EXECUTABLE else "")


def read(runs: Path, digest: str) -> dict[str, Entry] | None:
    """Return the files of a snapshot by path; None where there is no such snapshot."""
    said = files.read_json(runs / layout.CODE / digest / MANIFEST)
    if said is None:
        return None
    try:
        return {str(path): Entry(str(path), str(mode), int(size), str(sums)) for path, mode, size, sums in said["files"]}
    except (KeyError, TypeError, ValueError):
        return None


def store(project: Path, runs: Path, entries: Sequence[Entry]) -> Path:
    """Store the snapshot that `entries` describe, and return its directory; what is there already is used, and mended where it is damaged.

    Raises:
        ChangedError: a file of the project is not any more what its entry says.
        OSError: the file system refuses; no half snapshot is left.
    """
    store_ = runs / layout.CODE
    target = store_ / digest_of(entries)
    record = {"schema": SCHEMA, "files": [list(entry) for entry in sorted(entries)]}
    if target.is_dir():
        _touch(target / MANIFEST)
        _put(project, store_, target, [entry for entry in entries if not _is_whole(target / entry.path, entry)])
        if read(runs, target.name) is None:
            files.write_json(target / MANIFEST, record)
        return target
    making = store_ / f".making-{uuid.uuid4().hex}"
    try:
        making.mkdir(parents=True)
        for directory in sorted({parent for entry in entries for parent in Path(entry.path).parents}):
            (making / directory).mkdir(exist_ok=True)
        _put(project, store_, making, entries)
        files.write_json(making / MANIFEST, record)
        making.rename(target)
    except OSError as error:
        # Another process was faster, with the same.
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) or not target.is_dir():
            raise
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return target


def _touch(path: Path) -> None:
    """Give a snapshot the time of its last use: who removes what nobody refers to leaves alone what was used just now."""
    try:
        os.utime(path)
    except (FileNotFoundError, PermissionError):  # it is made again; a colleague's, in a directory that is shared
        pass


def _put(project: Path, store_: Path, directory: Path, entries: Sequence[Entry]) -> None:
    """Put files into a snapshot's directory, each in one step, over what is there."""
    code_files.each(entries, lambda entry: _put_one(project, store_, directory / entry.path, entry))


def _put_one(project: Path, store_: Path, path: Path, entry: Entry) -> None:
    if not path.parent.is_dir():  # somebody has removed it from the snapshot
        path.parent.mkdir(parents=True, exist_ok=True)
    if entry.mode == LINK:
        _renamed(path, lambda temporary: temporary.symlink_to(entry.digest))
        return
    object_ = store_ / OBJECTS / object_name(entry)
    for _ in range(2):
        if not _is_whole(object_, entry):
            _make_object(project, object_, entry)
        try:
            _link(object_, path)
        except FileNotFoundError:  # whoever removes what is not used was faster
            continue
        except OSError as error:
            # A file system, or a file, that takes no (more) hard links.
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV, errno.ENOSYS, errno.EACCES):
                raise
            _copy(object_, path, entry)
        return
    raise ChangedError(entry.path)


def _link(object_: Path, path: Path) -> None:
    try:
        path.hardlink_to(object_)
    except FileExistsError:
        _renamed(path, lambda temporary: temporary.hardlink_to(object_))


def _copy(object_: Path, path: Path, entry: Entry) -> None:
    content = object_.read_bytes()
    _renamed(path, lambda temporary: _write(temporary, content, entry))


def _make_object(project: Path, object_: Path, entry: Entry) -> None:
    try:
        mode, content = code_files.read(project, entry.path)
    except FileNotFoundError as error:
        raise ChangedError(entry.path) from error
    if mode != entry.mode or hashlib.sha256(content).hexdigest() != entry.digest:
        raise ChangedError(entry.path)
    object_.parent.mkdir(parents=True, exist_ok=True)
    _renamed(object_, lambda temporary: _write(temporary, content, entry))


def _renamed(path: Path, make: Callable[[Path], object]) -> None:
    """Make a file under another name, and rename it to `path`."""
    temporary = path.with_name(f".{uuid.uuid4().hex}")
    try:
        make(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # there still where both names are links to the same file: rename(2)


def _write(path: Path, content: bytes, entry: Entry) -> None:
    # Read-only from the beginning; what is open for writing stays so.
    mode = 0o555 if entry.mode == EXECUTABLE else 0o444
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as stream:  # noqa: PTH123 - of a descriptor
        stream.write(content)
    marked = _marked(entry, int(time.time()))
    os.utime(path, (marked, marked))


def _marked(entry: Entry, moment: int) -> int:
    """Return the last time up to `moment` that carries the mark of a content in its lowest 16 bits, at most 18 hours ago.

    A file of a snapshot has such a time, so that one look tells whether somebody has written to it since: no second digest is needed.
    Whole seconds, because some file systems have no others; recent ones, because some sites remove what is old.
    """
    return moment - ((moment - int(entry.digest[:4], 16)) & 0xFFFF)


def _is_whole(path: Path, entry: Entry) -> bool:
    """Say whether a file of the store is what its entry says; its content is read only where its time says that somebody wrote to it."""
    try:
        found = os.lstat(path)
        if entry.mode == LINK:
            return stat.S_ISLNK(found.st_mode) and os.readlink(path) == entry.digest  # noqa: PTH115 - a Path would normalise it
        executable = bool(found.st_mode & stat.S_IXUSR)
        if not stat.S_ISREG(found.st_mode) or found.st_size != entry.size or executable != (entry.mode == EXECUTABLE):
            return False
        if int(found.st_mtime) & 0xFFFF == int(entry.digest[:4], 16):
            return True
        return hashlib.sha256(path.read_bytes()).hexdigest() == entry.digest
    except OSError:
        return False
