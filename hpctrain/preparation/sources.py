"""The files that data comes from: found, cut into pieces that one process reads, and read row by row in bounded memory.

What is wrong with a file is known before anything is read, all of it at once; what is wrong with a row is a `Dropped`. The readers of
each kind are in sources_lines.py, sources_json.py, sources_csv.py and sources_arrow.py.

A text file has no marks of where an example ends. A file with blank lines is read block by block, another one line by line; `unit` says
it otherwise, and `sentence` says aloud what was done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hpctrain.preparation import sources_arrow, sources_csv, sources_json, sources_lines
from hpctrain.preparation.rows import Dropped, Row
from hpctrain.preparation.sources_found import found
from hpctrain.preparation.sources_types import KINDS, SPLITS, Kind, Piece, Source, TextUnit

__all__ = ["KINDS", "SPLITS", "Kind", "Piece", "Source", "TextUnit", "find", "pieces", "read", "sentence"]


def find(paths: Sequence[Path], *, unit: TextUnit | None = None) -> tuple[Source, ...]:
    """Return the files that the paths mean, in the order of the paths, and of the names in a folder.

    Args:
        paths: files, folders of files, folders that `save_to_disk` wrote.
        unit: what one example of a text file is; seen from the file where it is not said.

    Raises:
        UsageError: all that is wrong with the paths.
    """
    return found([Path(path) for path in paths], unit)


def sentence(sources: Sequence[Source]) -> str:
    """Return what was found, in one line."""
    parts = []
    for kind in dict.fromkeys((source.kind, source.compression, source.unit) for source in sources):
        count = sum((source.kind, source.compression, source.unit) == kind for source in sources)
        name, compression, unit = kind
        words = f"{count} file{'s' if count > 1 else ''} of {name}{f' ({compression})' if compression else ''}"
        words += {None: "", "line": ", one example a line", "block": ", one example between blank lines", "file": ", one example a file"}[
            unit
        ]
        parts.append(words)
    size = sum(source.bytes for source in sources)
    by_split = {name: sum(source.split == name for source in sources) for name in SPLITS}
    splits = ", ".join(f"{name} {count}" for name, count in by_split.items() if count)
    return f"data: {'; '.join(parts)}; {size:,} bytes" + (f"; splits of their own: {splits}" if splits else "")


def pieces(sources: Sequence[Source], *, target_bytes: int) -> tuple[Piece, ...]:
    """Return the sources cut into pieces, in order; each is about `target_bytes` where its file can be cut.

    Files of lines are read through once for the places of their lines; compressed files, JSON arrays and whole texts are not cut.
    """
    cut: list[Piece] = []
    for source in sources:
        if source.kind in ("parquet", "arrow"):
            cut += sources_arrow.pieces(source, target_bytes)
        elif source.compression is not None or source.bytes <= target_bytes or source.kind == "json" or source.unit == "file":
            cut.append(Piece(source=source, bytes=source.bytes))
        elif source.kind in ("csv", "tsv"):
            cut += sources_csv.pieces(source, target_bytes)
        else:
            cut += sources_lines.pieces(source, target_bytes)
    return tuple(replace(piece) for piece in cut)


def read(piece: Piece, *, columns: Sequence[str] | None = None) -> Iterator[Row | Dropped]:
    """Yield the rows in order, what cannot be read as `Dropped`; memory is that of the longest row.

    Args:
        piece: of `pieces`.
        columns: the only ones that are needed, where leaving out the others saves work.

    Raises:
        HpctrainError: the file ends in the middle (a truncated gzip), or is damaged so that nothing after that place can be read.
        OSError: it cannot be read.
    """
    kind = piece.source.kind
    if kind == "jsonl":
        return sources_json.read_lines(piece)
    if kind == "json":
        return sources_json.read_array(piece)
    if kind in ("csv", "tsv"):
        return sources_csv.read(piece)
    if kind == "text":
        return sources_lines.read_text(piece)
    return sources_arrow.read(piece, columns)
