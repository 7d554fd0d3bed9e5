"""Rows written to a file, and what is read of it again."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

from hpctrain.preparation import sources
from hpctrain.preparation.rows import Dropped, Row

ROWS = [{"text": f'row {number} {"ü" * (number % 7)}\n"quoted", and; more', "n": number} for number in range(200)]


def read(path: Path, target: int = 10**9, **options: Any) -> list[Row | Dropped]:
    found = sources.find([path], **options)
    pieces = sources.pieces(found, target_bytes=target)
    assert pickle.loads(pickle.dumps(pieces)) == pieces  # noqa: S301 - our own bytes
    return [row for piece in pieces for row in sources.read(piece)]


def values(rows: list[Row | Dropped]) -> list[Any]:
    return [dict(row) if isinstance(row, Row) else row.reason for row in rows]


def jsonl(path: Path, rows: Any = ROWS) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path
