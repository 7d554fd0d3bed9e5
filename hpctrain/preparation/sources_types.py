"""What a file of data is, and a part of one; a leaf."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

Kind = Literal["jsonl", "json", "csv", "tsv", "parquet", "text", "arrow"]
TextUnit = Literal["line", "block", "file"]

KINDS: Final[tuple[str, ...]] = get_args(Kind)
SPLITS: Final = ("train", "validation", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file.

    Attributes:
        path: as it was found.
        kind: how it is read.
        bytes: its size on the disk.
        split: `train`, `validation` or `test`, where the files have splits of their own.
        compression: `gz`, `bz2`, `xz` or `zst`.
        unit: of text: what one example is, a line, a block between blank lines, or the whole file.
    """

    path: Path
    kind: Kind
    bytes: int
    split: str | None = None
    compression: str | None = None
    unit: TextUnit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of one file that one process reads.

    Attributes:
        source: the file.
        start, stop: bytes of a file of lines, row groups of parquet, record batches of arrow; stop None: to the end.
        first: number of the first line (of files of lines) or row, from 1.
        bytes: about how much is read, of the file as it is on the disk.
    """

    source: Source
    start: int = 0
    stop: int | None = None
    first: int = 1
    bytes: int = 0
