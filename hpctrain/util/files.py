"""hpctrain's own files: written atomically, so that a reader or a crash never sees partial content;
locked by the kernel, so that a lock ends with its process. The user's state directory holds past
submissions, and which notes were already printed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpctrain.errors import HpctrainError
from hpctrain.util.stored import open_regular
from hpctrain.util.stored import read_object as read_json

__all__ = [
    "Locked",
    "first_time",
    "json_text",
    "lock",
    "read_json",
    "state_dir",
    "tail",
    "write_all",
    "write_bytes",
    "write_json",
    "write_text",
]

#: Errors from a mount without flock: Lustre without `-o flock`, some FUSE file systems.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)


class Locked(Exception):  # noqa: N818 - a state, not a mistake
    """Another process holds the lock."""


def write_bytes(path: Path, content: bytes, *, mode: int = 0o666, durable: bool = True) -> None:
    """Write `content` to `path` atomically: under a temporary name, synced, renamed.

    A reader sees the old file or the new one, on any file system.

    Args:
        path: of the file; its directory exists.
        content: the complete content.
        mode: permissions, before the umask.
        durable: sync to disk; not needed for a cache.

    Raises:
        OSError: the file system refused; the old file is intact.
    """
    write_all({path: content}, mode=mode, durable=durable)


def write_all(contents: Mapping[Path, bytes], *, mode: int = 0o666, durable: bool = True) -> None:
    """Write each content to its path like `write_bytes`, all or nothing: a full disk leaves no
    partial file, and not only some of the files.

    Raises:
        OSError: the file system refused.
    """
    # Host names and process ids may repeat across nodes; this name does not.
    drafts = {path: path.with_name(f".{path.name}.{uuid.uuid4().hex}") for path in contents}
    try:
        for path, draft in drafts.items():
            number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            with os.fdopen(number, "wb") as stream:
                stream.write(contents[path])
                stream.flush()
                if durable:
                    os.fsync(stream.fileno())
        for path, draft in drafts.items():
            draft.replace(path)
    except BaseException:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str, *, mode: int = 0o666, durable: bool = True) -> None:
    """Write `text` to `path` as UTF-8, like `write_bytes`; surrogate escapes become their original
    bytes.
    """
    write_bytes(path, text.encode("utf-8", "surrogateescape"), mode=mode, durable=durable)


def write_json(
    path: Path, value: dict[str, Any], *, mode: int = 0o666, durable: bool = True
) -> None:
    """Write one JSON object to `path`, like `write_bytes`."""
    write_text(path, json_text(value), mode=mode, durable=durable)


def json_text(value: Mapping[str, Any]) -> str:
    """Return the text of a JSON object as `write_json` writes it."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


@contextmanager
def lock(path: Path, *, timeout_s: float = 0.0, stays: bool = True) -> Iterator[None]:
    """Hold an exclusive lock (flock) on `path`, which is created; the kernel releases it when the
    process ends.

    On a file system without locks, nothing is held; writes are still atomic.

    Args:
        path: of a file for this lock alone.
        timeout_s: how long to wait for another process.
        stays: keep the file; else it is removed at the end.

    Raises:
        Locked: another process still holds it.
        OSError: the file cannot be created.
    """
    until = time.monotonic() + timeout_s
    while True:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            is_locked = _is_locked(number)
            if is_locked and (stays or _is_still(path, number)):
                break
        except OSError:
            os.close(number)
            raise
        os.close(number)
        if not is_locked and time.monotonic() >= until:
            raise Locked(str(path))
        time.sleep(0.0 if is_locked else 0.05)
    try:
        yield
    finally:
        if not stays:
            path.unlink(missing_ok=True)
        os.close(number)


def _is_locked(number: int) -> bool:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _is_still(path: Path, number: int) -> bool:
    """Whether an open file still has that name: the previous holder of the lock may have removed
    it.
    """
    try:
        return os.path.samestat(path.stat(), os.fstat(number))
    except FileNotFoundError:
        return False


def tail(path: Path, most_bytes: int) -> list[bytes]:
    """Return the complete lines, with their newlines, in the last bytes of a file.

    Partial lines at either end are omitted; an unreadable file has none.
    """
    try:
        with open_regular(path) as stream:
            size = stream.seek(0, os.SEEK_END)
            start = max(0, size - most_bytes)
            # One byte earlier, to see whether the first line is complete.
            stream.seek(max(0, start - 1))
            content = stream.read(size - stream.tell())
    except OSError:
        return []
    lines = content.splitlines(keepends=True)
    if start:
        lines = lines[1:]
    return [line for line in lines if line.endswith(b"\n")]


def state_dir() -> Path:
    """Return `$HPCTRAIN_STATE_DIR`, else `$XDG_STATE_HOME/hpctrain`, else
    `~/.local/state/hpctrain`; created if missing.

    Raises:
        HpctrainError: it cannot be created.
    """
    chosen = os.environ.get("HPCTRAIN_STATE_DIR")
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    directory = Path(chosen) if chosen else Path(base) / "hpctrain"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise HpctrainError(
            f"cannot make {directory}: {error.strerror}",
            hint="name a directory that you may write: export HPCTRAIN_STATE_DIR=DIRECTORY",
        ) from error
    return directory


def first_time(text: str, project: Path) -> bool:
    """Whether a recurring note was not printed in a project before; marks it as printed."""
    key = hashlib.sha256(f"{project}\0{text}".encode(errors="surrogateescape")).hexdigest()[:16]
    try:
        told = state_dir() / "told"
        known = told.read_text(encoding="ascii", errors="replace") if told.is_file() else ""
        if key in known:
            return False
        with told.open("a", encoding="ascii") as stream:
            stream.write(f"{key}\n")
    except (HpctrainError, OSError):  # nothing can be stored: print it again
        pass
    return True
