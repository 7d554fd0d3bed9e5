"""CSV and TSV: cut only where the csv module itself says that a row ends, since a quoted field may hold ends of lines."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import IO, Final

from hpctrain.errors import UsageError
from hpctrain.preparation.rows import Dropped, Row
from hpctrain.preparation.sources_lines import MAX_LINE, NOT_UTF8
from hpctrain.preparation.sources_open import open_bytes, said_where
from hpctrain.preparation.sources_types import Piece, Source

_BOM = "\ufeff"
_DELIMITERS: Final = (",", ";", "\t", "|")


class _Lines:
    """The lines of a stream as text, and how many bytes they were; bytes that are no UTF-8 come through as lone surrogates."""

    def __init__(self, file: IO[bytes], at: int) -> None:
        self._file = file
        self.at = at
        self.count = 0

    def __iter__(self) -> Iterator[str]:
        for line in self._file:
            self.at += len(line)
            self.count += 1
            text = line.decode("utf-8", "surrogateescape")
            yield text.removeprefix(_BOM) if self.at == len(line) else text


def header(source: Source) -> tuple[list[str], str]:
    """Return the names of the columns, and what stands between fields.

    Raises:
        UsageError: the first line names no columns.
    """
    _unlimited()
    with said_where(source.path, source.compression), open_bytes(source.path, source.compression) as file:
        lines = iter(_Lines(file, 0))
        first = next(lines, "")
        delimiter = (
            "\t" if source.kind == "tsv" else max(_DELIMITERS, key=lambda sign: (_outside_quotes(first, sign), -_DELIMITERS.index(sign)))
        )
        names = next(csv.reader(_with(first, lines), delimiter=delimiter), [])
    if not any(names) or len(set(names)) < len(names):
        why = "names no columns" if not any(names) else f"names a column twice: {', '.join(names)}"
        raise UsageError(f"the first line of {source.path} {why}", fix="put the names of the columns into its first line")
    return names, delimiter


def _with(first: str, lines: Iterator[str]) -> Iterator[str]:
    yield first
    yield from lines


def _outside_quotes(line: str, sign: str) -> int:
    return sum(part.count(sign) for part in line.split('"')[::2])


def _unlimited() -> None:
    csv.field_size_limit(MAX_LINE)  # 128 KiB otherwise


def pieces(source: Source, target_bytes: int) -> Iterator[Piece]:
    """Yield the pieces of an uncompressed file; the header is of no piece."""
    _names, delimiter = header(source)
    with source.path.open("rb", buffering=1 << 20) as file:
        lines = _Lines(file, 0)
        reader = csv.reader(iter(lines), delimiter=delimiter)
        next(reader)
        start, first = lines.at, lines.count + 1
        while True:
            try:
                ended = next(reader, None) is None
            except csv.Error:  # a field without an end: what is left is one piece, and its reader says so
                ended = True
            if ended:
                break
            if lines.at - start >= target_bytes:
                yield Piece(source=source, start=start, stop=lines.at, first=first, bytes=lines.at - start)
                start, first = lines.at, lines.count + 1
    if start < source.bytes:
        yield Piece(source=source, start=start, stop=None, first=first, bytes=source.bytes - start)


def read(piece: Piece) -> Iterator[Row | Dropped]:
    """Yield the rows, all values as strings.

    Raises:
        UsageError: the first line names no columns.
        HpctrainError: a compressed file ends early.
    """
    source = piece.source
    names, delimiter = header(source)
    with said_where(source.path, source.compression), open_bytes(source.path, source.compression) as file:
        if piece.start:
            file.seek(piece.start)
        lines = _Lines(file, piece.start)
        reader = csv.reader(iter(lines), delimiter=delimiter)
        if not piece.start:
            next(reader, None)
        while piece.stop is None or lines.at < piece.stop:
            where = f"{source.path}:{lines.count + piece.first if piece.start else lines.count + 1}"
            try:
                values = next(reader, None)
            except csv.Error as error:
                yield Dropped("not CSV", where, str(error))
                continue
            if values is None:
                return
            row = _row(names, values, where)
            if row is not None:
                yield row


def _row(names: list[str], values: list[str], where: str) -> Row | Dropped | None:
    if not values or (len(values) == 1 and len(names) > 1 and not values[0].strip()):
        return None  # a blank line
    if len(values) != len(names):
        return Dropped("another number of fields than the header", where, f"{len(values)} and not {len(names)}")
    try:
        for value in values:
            if not value.isascii():
                value.encode()
    except UnicodeEncodeError:
        return Dropped(NOT_UTF8, where)
    return Row(zip(names, values, strict=True), where)
