"""Readers that yield the examples of data files in bounded memory, each with its location; and
files divided into pieces, each for one process.

Not the loaders of `datasets`: here errors name FILE:LINE, a damaged line is dropped and counted,
and examples may have different columns.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import IO, Any, Final

from hpctrain.data.sources import Source, opened
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.util import shell

MAX_LINE = 256 << 20
"""Maximum bytes per line."""
MAX_JSON = 2 << 30
"""Maximum bytes of a JSON file, which is read into memory as a whole."""
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
        lines = source.kind == "jsonl" or source.unit in ("line", "block")
        if source.kind in ("parquet", "arrow"):
            found += _arrow_pieces(source, target_bytes)
        elif lines and not source.compressed and source.bytes > target_bytes:
            found += _line_pieces(source, target_bytes)
        else:
            found.append(SourcePiece(source=source, bytes=source.bytes))
    return tuple(found)


def _line_pieces(source: Source, target_bytes: int) -> Iterator[SourcePiece]:
    start, first, at = 0, 1, 0
    with source.path.open("rb", buffering=1 << 20) as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), 2):
            at += len(line)
            if at - start >= target_bytes and (source.unit != "block" or not line.strip()):
                size = at - start
                yield SourcePiece(source=source, start=start, stop=at, first=first, bytes=size)
                start, first = at, number
    if start < at:
        yield SourcePiece(source=source, start=start, first=first, bytes=at - start)


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
    with opened(source.path, compressed=source.compressed) as file:
        if source.kind == "json":
            yield from _json_rows(source, file)
        elif source.kind in ("csv", "tsv"):
            yield from _csv_rows(source, file)
        elif source.kind == "jsonl":
            for number, line in _lines(piece, file):
                if line.strip():
                    yield _json_row(line, f"{source.path}:{number}")
        else:
            yield from _text_rows(piece, file)


# -- lines -----------------------------------------------------------------------------------------


def _lines(piece: SourcePiece, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each line of a piece, without line ending and byte order
    mark.

    Raises:
        HpctrainError: a line is too long.
    """
    if piece.start:
        file.seek(piece.start)
    at, number = piece.start, piece.first
    while (piece.stop is None or at < piece.stop) and (line := file.readline(MAX_LINE + 1)):
        if len(line) > MAX_LINE:
            raise HpctrainError(
                f"{piece.source.path}:{number} has more than {MAX_LINE >> 20} MiB in one line",
                hint="divide it into several examples",
            )
        yield number, (line if at else line.removeprefix(_BOM)).rstrip(b"\r\n")
        at, number = at + len(line), number + 1


def _text_rows(piece: SourcePiece, file: IO[bytes]) -> Iterator[SourceRow | Dropped]:
    """Yield the examples of a text file in the column `text`: lines, blocks between empty lines, or
    the whole file.
    """
    lines = _lines(piece, file)
    blocks: Iterable[list[tuple[int, bytes]]] = ([line] for line in lines)
    if piece.source.unit == "file":
        blocks = [list(lines)]
    elif piece.source.unit == "block":
        parts = groupby(lines, key=lambda line: bool(line[1].strip()))
        blocks = (list(block) for _, block in parts)
    for block in blocks:
        content = b"\n".join(line for _, line in block)
        if content.strip():
            where = f"{piece.source.path}:{block[0][0]}"
            try:
                yield SourceRow({"text": content.decode()}, where)
            except UnicodeDecodeError as error:
                yield _not_utf8(error, where)


def _not_utf8(error: UnicodeDecodeError, where: str) -> Dropped:
    return Dropped(NOT_UTF8, where, f"byte 0x{error.object[error.start]:02x} at {error.start}")


# -- JSON ------------------------------------------------------------------------------------------


def _json_row(line: bytes, where: str) -> SourceRow | Dropped:
    try:
        return _row_of(json.loads(line.decode()), where)
    except UnicodeDecodeError as error:
        return _not_utf8(error, where)
    except (ValueError, RecursionError) as error:
        return Dropped("not JSON", where, str(error))


def _row_of(value: Any, where: str) -> SourceRow | Dropped:
    if isinstance(value, dict):
        return SourceRow(value, where)
    if isinstance(value, str):
        return SourceRow({"text": value}, where)
    return Dropped("an example is not an object", where, type(value).__name__)


def _json_rows(source: Source, file: IO[bytes]) -> Iterator[SourceRow | Dropped]:
    """Yield the examples of a JSON file: the items of its array, or its object. Reads the whole file
    into memory.
    """
    name = source.path
    content = file.read(MAX_JSON + 1)
    if len(content) > MAX_JSON:
        raise HpctrainError(
            f"{name} has more than {MAX_JSON >> 30} GiB of JSON, which is read as a whole",
            fix=f"jq -c '.[]' {shell.quote(name)} > rows.jsonl",
        )
    try:
        value = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise HpctrainError(
            f"{name}{line}: not JSON from here on",
            details=(f"json said: {error}",),
            fix=f"python -m json.tool {shell.quote(name)} > /dev/null",
        ) from error
    for number, row in enumerate(value if isinstance(value, list) else [value], 1):
        yield _row_of(row, f"{name}:row {number}")


# -- CSV -------------------------------------------------------------------------------------------


def _csv_rows(source: Source, file: IO[bytes]) -> Iterator[SourceRow | Dropped]:
    """Yield the examples, all values as strings.

    Raises:
        UsageError: the first line names no columns.
    """
    csv.field_size_limit(MAX_LINE)  # 128 KiB otherwise
    lines = (line.decode("utf-8", "surrogateescape") for line in file)
    header = next(lines, "").removeprefix("\ufeff")
    unquoted = "".join(header.split('"')[::2])
    # max() returns the first of several equally frequent ones.
    delimiter = "\t" if source.kind == "tsv" else max(_DELIMITERS, key=unquoted.count)
    reader = csv.reader(chain([header], lines), delimiter=delimiter)
    names = next(reader, [])
    if not any(names) or len(set(names)) < len(names):
        why = "names no columns" if not any(names) else f"names a column twice: {', '.join(names)}"
        raise UsageError(
            f"the first line of {source.path} {why}",
            hint="put the names of the columns into its first line",
        )
    while True:
        where = f"{source.path}:{reader.line_num + 1}"
        try:
            values = next(reader, None)
        except csv.Error as error:
            yield Dropped("not CSV", where, str(error))
            continue
        if values is None:
            return
        if any(value.strip() for value in values):
            yield _csv_row(names, values, where)


def _csv_row(names: list[str], values: list[str], where: str) -> SourceRow | Dropped:
    if len(values) != len(names):
        detail = f"{len(values)} and not {len(names)}"
        return Dropped("another number of fields than the header", where, detail)
    try:
        "".join(values).encode()
    except UnicodeEncodeError:
        return Dropped(NOT_UTF8, where)
    return SourceRow(zip(names, values, strict=True), where)


# -- Parquet and Arrow -----------------------------------------------------------------------------


def _arrow_pieces(source: Source, target_bytes: int) -> Iterator[SourcePiece]:
    """Yield runs of row groups or record batches of about `target_bytes`."""
    if source.kind == "parquet":
        with _parquet(source.path) as file:
            groups = [file.metadata.row_group(at) for at in range(file.metadata.num_row_groups)]
        sizes = [(group.num_rows, group.total_byte_size) for group in groups]
    else:
        sizes = [(batch.num_rows, batch.num_rows) for batch in _record_batches(source.path)]
    whole = sum(size for _, size in sizes) or 1
    start = rows = first = size = 0
    for index, (count, weight) in enumerate(sizes):
        rows += count
        size += weight * source.bytes // whole
        if size >= target_bytes or index == len(sizes) - 1:
            yield SourcePiece(
                source=source, start=start, stop=index + 1, first=first + 1, bytes=size
            )
            start, first, size = index + 1, rows, 0


def _arrow_rows(piece: SourcePiece, wanted: Sequence[str] | None) -> Iterator[SourceRow]:
    batches = _parquet_batches if piece.source.kind == "parquet" else _arrow_batches
    number = piece.first
    for batch in batches(piece, wanted):
        for at in range(0, batch.num_rows, _ARROW_ROWS):
            for values in batch.slice(at, _ARROW_ROWS).to_pylist():
                yield SourceRow(values, f"{piece.source.path}:row {number}")
                number += 1


def _parquet_batches(piece: SourcePiece, wanted: Sequence[str] | None) -> Iterator[Any]:
    with _parquet(piece.source.path) as file, _damage(piece.source.path, "Parquet"):
        every = file.schema_arrow.names
        names = None if wanted is None else [name for name in every if name in wanted]
        stop = file.metadata.num_row_groups if piece.stop is None else piece.stop
        if groups := list(range(piece.start, stop)):
            yield from file.iter_batches(_ARROW_ROWS, row_groups=groups, columns=names)


def _arrow_batches(piece: SourcePiece, wanted: Sequence[str] | None) -> Iterator[Any]:
    for index, batch in enumerate(_record_batches(piece.source.path)):
        if piece.stop is not None and index >= piece.stop:
            return
        if index >= piece.start:
            every = batch.schema.names
            names = every if wanted is None else [name for name in every if name in wanted]
            yield batch.select(names)


def _parquet(path: Path) -> Any:
    from pyarrow.parquet import ParquetFile

    with _damage(path, "Parquet"):
        return ParquetFile(path, memory_map=True)


def _record_batches(path: Path) -> Iterator[Any]:
    """Yield the batches of an Arrow stream file, the format of `datasets`."""
    import pyarrow

    with _damage(path, "Arrow"):
        mapped = pyarrow.memory_map(str(path))
        try:
            yield from pyarrow.ipc.open_stream(mapped)
        except pyarrow.ArrowInvalid:
            file = pyarrow.ipc.open_file(mapped)
            yield from (file.get_batch(index) for index in range(file.num_record_batches))


@contextmanager
def _damage(path: Path, kind: str) -> Iterator[None]:
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise HpctrainError(
            f"{path} is damaged, or not a {kind} file",
            details=(f"pyarrow said: {error}",),
            hint="copy or write it again",
        ) from error
