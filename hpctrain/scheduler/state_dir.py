"""Where hpctrain remembers, for each user, what it submitted: small JSON files, each written whole."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

from hpctrain.errors import HpctrainError


def state_dir() -> Path:
    """Return `$HPCTRAIN_STATE_DIR`, else `$XDG_STATE_HOME/hpctrain`, else `~/.local/state/hpctrain`; made when missing.

    Raises:
        HpctrainError: it cannot be made.
    """
    chosen = os.environ.get("HPCTRAIN_STATE_DIR")
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    directory = Path(chosen) if chosen else Path(base) / "hpctrain"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise HpctrainError(
            f"cannot make {directory}: {error.strerror}", fix="export HPCTRAIN_STATE_DIR=DIRECTORY_THAT_YOU_MAY_WRITE"
        ) from error
    return directory


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write `value` to `path` at once; a reader sees the old file or the new one."""
    # Home directories are shared, and process ids repeat among machines; this name does not.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """Return what `write_json` wrote, or None where there is no such file or it is damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
