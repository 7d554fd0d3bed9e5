"""The lines in which the preflight job reports: one JSON object each, behind a mark, short enough to be written in one piece. Pure.

The ranks of a job share a pipe: a write of at most 4096 bytes (PIPE_BUF) is not torn apart by another rank's.
"""

from __future__ import annotations

import json
from typing import Any

MARK = "[doctor] "
_LONGEST = 4000


def line(kind: str, **values: object) -> str:
    """Return one line without its end; text that would make it too long is cut."""
    text = _encode(kind, values)
    cut = 2000
    while len(text.encode()) > _LONGEST and cut > 20:
        values = {key: value[:cut] if isinstance(value, str) else value for key, value in values.items()}
        text, cut = _encode(kind, values), cut // 2
    return text


def read(text: str) -> list[dict[str, Any]]:
    """Return what the lines of a log say, in order; a launcher may have put something in front of the mark, such as `[default0]:`."""
    found = []
    for each in text.splitlines():
        _, mark, rest = each.partition(MARK)
        if not mark:
            continue
        try:
            value = json.loads(rest)
        except ValueError:  # torn, or cut off with the job
            continue
        if isinstance(value, dict) and isinstance(value.get("kind"), str):
            found.append(value)
    return found


def _encode(kind: str, values: dict[str, object]) -> str:
    return MARK + json.dumps({"kind": kind, **values}, ensure_ascii=True, separators=(",", ":"))
