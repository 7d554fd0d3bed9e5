"""Readers that yield the examples of data files in bounded memory, each with its location; and
files divided into pieces, each for one process.

Not the loaders of `datasets`: here errors name FILE:LINE, a damaged line is dropped and counted,
and examples may have different columns.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, groupby, islice
from typing import IO, Any, Final

from hpctrain.data.sources import Source, opened
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.util import shell

NOT_UTF8 = "not UTF-8"
_BOM = b"\xef\xbb\xbf"
_DELIMITERS: Final = (",", ";", "\t", "|")
_ARROW_ROWS = 256


class SourceRow(dict[str, Any]):
    """The values of one example by column, with its location.

    Attributes:
        where: `FILE:LINE`, or `FILE:row N` (from 1) for files without lines.
    """

    __slots__ = ("where",)

    def __init__(self, values: Any = (), where: str = "") -> None:
        super().__init__(values)
        self.where = where


@dataclass(frozen=True, slots=True)
class Dropped:
    """A dropped example.

    Attributes:
        reason: a short text, equal for all examples with the same problem, for counting.
        where: as in `SourceRow`.
        detail: the value or the parser's message; may be empty.
    """

    reason: str
    where: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePiece:
    """A part of one file that one process reads.

    Attributes:
        source: the file.
        start, stop: byte offsets in a file of lines, row groups of Parquet, record batches of
            Arrow; stop None: the end.
        first: number of the first line (in files of lines) or example, from 1.
        bytes: approximate size on disk.
    """

    source: Source
    start: int = 0
    stop: int | None = None
    first: int = 1
    bytes: int = 0


def pieces(sources: Sequence[Source], *, target_bytes: int) -> tuple[SourcePiece, ...]:
    """Return the sources divided into pieces, in order, of about `target_bytes` each.

    JSON Lines, text (both scanned for line offsets), Parquet and Arrow can be divided; other files
    are one piece each.

    Raises:
        HpctrainError: a file is damaged.
    """
    found: list[SourcePiece] = []
    for source in sources:
        if source.kind in ("parquet", "arrow"):
            found += _arrow_pieces(source, target_bytes)
        elif source.kind in ("jsonl", "text") and not source.compressed:
            found += _line_pieces(source, target_bytes)
        else:
            found.append(SourcePiece(source=source, bytes=source.bytes))
    return tuple(found)


def _line_pieces(source: Source, target_bytes: int) -> Iterator[SourcePiece]:
    start, first, at = 0, 1, 0
    with source.path.open("rb", buffering=1 << 20) as file:
        for number, line in enumerate(file, 2):
            at += len(line)
            if at - start >= target_bytes and (not source.blocks or not line.strip()):
                yield SourcePiece(
                    source=source, start=start, stop=at, first=first, bytes=at - start
                )
                start, first = at, number
    if start < at:
        yield SourcePiece(source=source, start=start, first=first, bytes=at - start)


def _arrow_pieces(source: Source, target_bytes: int) -> Iterator[SourcePiece]:
    with _arrow_file(source) as file:
        if source.kind == "parquet":
            sizes = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
        else:
            sizes = [batch.num_rows for batch in file]
    start = rows = first = 0
    for index, count in enumerate(sizes, 1):
        rows += count
        size = (rows - first) * source.bytes // (sum(sizes) or 1)
        if size >= target_bytes or index == len(sizes):
            yield SourcePiece(source=source, start=start, stop=index, first=first + 1, bytes=size)
            start, first = index, rows


def read_rows(
    piece: SourcePiece, *, columns: Sequence[str] | None = None
) -> Iterator[SourceRow | Dropped]:
    """Yield the examples in order, unreadable ones as `Dropped`; memory is that of the longest
    example.

    Args:
        piece: from `pieces`.
        columns: the required columns, where reading fewer is cheaper.

    Raises:
        UsageError: the first line of a CSV names no columns.
        HpctrainError: the rest of the file cannot be read because it is damaged.
        OSError: it cannot be read.
    """
    source = piece.source
    if source.kind in ("parquet", "arrow"):
        yield from _arrow_rows(piece, columns)
        return
    readers = {"json": _json_rows, "csv": _csv_rows, "tsv": _csv_rows}
    with opened(source.path, compressed=source.compressed) as file:
        if source.kind in readers:
            yield from readers[source.kind](source, file)
            return
        parts = ([line] for line in _lines(piece, file))
        if source.blocks:
            parts = (
                list(lines)
                for _, lines in groupby(_lines(piece, file), lambda line: not line[1].strip())
            )
        for part in parts:
            content = b"\n".join(line for _, line in part)
            if content.strip():
                yield _row(content, f"{source.path}:{part[0][0]}", is_json=source.kind == "jsonl")


def _lines(piece: SourcePiece, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each line of a piece, without line ending and byte order
    mark.
    """
    if piece.start:
        file.seek(piece.start)
    at = piece.start
    for number, line in enumerate(file, piece.first):
        yield number, (line if at else line.removeprefix(_BOM)).rstrip(b"\r\n")
        at += len(line)
        if at == piece.stop:
            return


def _row(content: bytes, where: str, *, is_json: bool) -> SourceRow | Dropped:
    try:
        text = content.decode()
        return _row_of(json.loads(text) if is_json else text, where)
    except UnicodeDecodeError as error:
        return Dropped(NOT_UTF8, where, f"byte 0x{error.object[error.start]:02x} at {error.start}")
    except (ValueError, RecursionError) as error:
        return Dropped("not JSON", where, str(error))


def _row_of(value: Any, where: str) -> SourceRow | Dropped:
    if isinstance(value, dict | str):
        return SourceRow({"text": value} if isinstance(value, str) else value, where)
    return Dropped("an example is not an object", where, type(value).__name__)


def _json_rows(source: Source, file: IO[bytes]) -> Iterator[SourceRow | Dropped]:
    """Yield the examples of a JSON file: the items of its array, or its object. Reads the whole file
    into memory.
    """
    try:
        value = json.loads(file.read().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise HpctrainError(
            f"{source.path} is not JSON",
            details=(f"json said: {error}",),
            fix=f"python -m json.tool {shell.quote(source.path)} > /dev/null",
        ) from error
    for number, row in enumerate(value if isinstance(value, list) else [value], 1):
        yield _row_of(row, f"{source.path}:row {number}")


def _csv_rows(source: Source, file: IO[bytes]) -> Iterator[SourceRow | Dropped]:
    csv.field_size_limit(1 << 30)  # 128 KiB otherwise
    lines = (line.decode("utf-8", "surrogateescape") for line in file)
    header = next(lines, "").removeprefix("\ufeff")
    unquoted = "".join(header.split('"')[::2])
    # max() returns the first of several equally frequent ones.
    delimiter = "\t" if source.kind == "tsv" else max(_DELIMITERS, key=unquoted.count)
    reader = csv.DictReader(chain([header], lines), delimiter=delimiter)
    names = list(reader.fieldnames or [])
    if not any(names) or len(set(names)) < len(names):
        raise UsageError(
            f"the first line of {source.path} does not name each column once: {', '.join(names)}",
            hint="put the names of the columns into its first line",
        )
    while True:
        where = f"{source.path}:{reader.line_num + 1}"
        try:
            row = next(reader, None)
        except csv.Error as error:
            yield Dropped("not CSV", where, str(error))
            continue
        if row is None:
            return
        if None in row or None in row.values():
            yield Dropped("another number of fields than the header", where)
        elif any("\udc80" <= character <= "\udcff" for character in "".join(row.values())):
            yield Dropped(NOT_UTF8, where)
        else:
            yield SourceRow(row, where)


def _arrow_rows(piece: SourcePiece, wanted: Sequence[str] | None) -> Iterator[SourceRow]:
    number = piece.first
    with _arrow_file(piece.source) as file:
        schema = file.schema if piece.source.kind == "arrow" else file.schema_arrow
        names = [name for name in schema.names if wanted is None or name in wanted]
        batches = islice(file, piece.start, piece.stop) if piece.source.kind == "arrow" else None
        if batches is None:
            groups = range(file.num_row_groups)[piece.start : piece.stop]
            batches = file.iter_batches(_ARROW_ROWS, row_groups=groups, columns=names)
        for batch in batches:
            for at in range(0, batch.num_rows, _ARROW_ROWS):
                for values in batch.select(names).slice(at, _ARROW_ROWS).to_pylist():
                    yield SourceRow(values, f"{piece.source.path}:row {number}")
                    number += 1


@contextmanager
def _arrow_file(source: Source) -> Iterator[Any]:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    kind = source.kind.title()
    try:
        if source.kind == "parquet":
            with ParquetFile(source.path, memory_map=True) as file:
                yield file
        else:
            yield pyarrow.ipc.open_stream(pyarrow.memory_map(str(source.path)))
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise HpctrainError(
            f"{source.path} is damaged, or not a {kind} file",
            details=(f"pyarrow said: {error}",),
            hint="copy or write it again",
        ) from error
