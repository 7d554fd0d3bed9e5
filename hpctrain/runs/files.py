"""Writing and reading small files so that a reader, or a crash, never meets half of one; no locks."""

from __future__ import annotations

import json
import os
import stat
import uuid
from pathlib import Path
from typing import Any

#: More than any file that `read_json` is for; a larger one is not read.
MAX_BYTES = 16_000_000


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`: under another name, synced, renamed. A reader sees the old file or the new one, on any file system.

    Raises:
        OSError: the file system refuses; the old file is whole then.
    """
    # Host names and process ids repeat among nodes; this name does not.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("x", encoding="utf-8", errors="surrogateescape") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write one JSON object to `path`, as `write_text` does."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in `path`; None where there is no such file, or it holds something else.

    Only a regular file of at most MAX_BYTES is read: a FIFO would keep the reader waiting, and a device has no end.
    """
    try:
        content = _regular(path)
        value = None if content is None else json.loads(content.decode("utf-8", "surrogateescape"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _regular(path: Path) -> bytes | None:
    """Return what a regular file of at most MAX_BYTES holds; None for anything else."""
    if not stat.S_ISREG(path.stat().st_mode):  # first, as opening a device may already do something
        return None
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        status = os.fstat(stream.fileno())  # it may be another one than a moment ago
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            return None
        content = stream.read(MAX_BYTES + 1)
    return content if len(content) <= MAX_BYTES else None
