"""Rows written to a file, and what is read of it again."""

import json
import pickle
from pathlib import Path
from typing import Any

from hpctrain.data import readers, sources
from hpctrain.data.readers import Dropped, SourceRow

ROWS = [
    {"text": f'row {number} {"ü" * (number % 7)}\n"quoted", and; more', "n": number}
    for number in range(200)
]


def read(path: Path, target: int = 10**9) -> list[SourceRow | Dropped]:
    pieces = readers.pieces(sources.find([path]), target_bytes=target)
    assert pickle.loads(pickle.dumps(pieces)) == pieces  # noqa: S301 - our own bytes
    return [row for piece in pieces for row in readers.read_rows(piece)]


def values(rows: list[SourceRow | Dropped]) -> list[Any]:
    return [dict(row) if isinstance(row, SourceRow) else row.reason for row in rows]


def jsonl(path: Path, rows: Any = ROWS) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path
