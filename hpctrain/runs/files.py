"""Writing and reading small files so that a reader, or a crash, never meets half of one; no locks."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any


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
    """Return the JSON object in `path`; None where there is no such file, or it holds something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8", errors="surrogateescape"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
