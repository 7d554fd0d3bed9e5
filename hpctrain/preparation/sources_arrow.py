"""Parquet files by row groups, and the Arrow files of a `save_to_disk` folder by record batches; a few thousand rows in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hpctrain.errors import HpctrainError
from hpctrain.preparation.rows import Dropped, Row
from hpctrain.preparation.sources_types import Piece, Source

_ROWS = 256


def pieces(source: Source, target_bytes: int) -> Iterator[Piece]:
    """Yield the pieces: row groups or record batches that together have about `target_bytes`.

    Raises:
        HpctrainError: the file is damaged.
    """
    sizes = list(_sizes(source))
    whole = sum(size for _, size in sizes) or 1
    start = rows = first = size = 0
    for index, (count, weight) in enumerate(sizes):
        rows += count
        size += weight * source.bytes // whole
        if size >= target_bytes or index == len(sizes) - 1:
            yield Piece(source=source, start=start, stop=index + 1, first=first + 1, bytes=size)
            start, first, size = index + 1, rows, 0


def _sizes(source: Source) -> Iterator[tuple[int, int]]:
    """Yield rows and weight of each row group or record batch."""
    if source.kind == "parquet":
        with _opened(source.path) as file:
            groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
        yield from ((group.num_rows, group.total_byte_size) for group in groups)
    else:
        yield from ((batch.num_rows, batch.num_rows) for batch in _batches(source.path))


def columns(source: Source) -> list[str]:
    """Return the names of the columns.

    Raises:
        HpctrainError: the file is damaged.
    """
    if source.kind == "parquet":
        with _opened(source.path) as file:
            return [str(name) for name in file.schema_arrow.names]
    return [str(name) for name in _stream(source.path).schema.names]


def read(piece: Piece, wanted: Sequence[str] | None) -> Iterator[Row | Dropped]:
    """Yield the rows of a piece; `wanted`: the columns, all of them for None.

    Raises:
        HpctrainError: the file is damaged.
    """
    source, number = piece.source, piece.first
    for batch in _of_piece(piece, wanted):
        for at in range(0, batch.num_rows, _ROWS):
            for values in _values(batch.slice(at, _ROWS)):
                where = f"{source.path}:row {number}"
                yield Row(values, where) if isinstance(values, dict) else Dropped("a value that cannot be read", where, values)
                number += 1


def _of_piece(piece: Piece, wanted: Sequence[str] | None) -> Iterator[Any]:
    source, stop = piece.source, piece.stop
    if source.kind == "parquet":
        with _opened(source.path) as file:
            names = None if wanted is None else [name for name in file.schema_arrow.names if name in wanted]
            groups = list(range(piece.start, file.metadata.num_row_groups if stop is None else stop))
            if groups:
                yield from _damage_said(source.path, file.iter_batches(_ROWS, row_groups=groups, columns=names))
        return
    for index, batch in enumerate(_batches(source.path)):
        if stop is not None and index >= stop:
            return
        if index >= piece.start:
            yield batch if wanted is None else batch.select([name for name in batch.schema.names if name in wanted])


def _values(batch: Any) -> list[dict[str, Any] | str]:
    """Return the rows of a batch; the words of the error for one that Python cannot hold (a date of the year 20000)."""
    try:
        return list(batch.to_pylist())
    except (ValueError, OverflowError, UnicodeDecodeError) as error:
        if batch.num_rows == 1:
            return [str(error)]
        return [row for at in range(batch.num_rows) for row in _values(batch.slice(at, 1))]


def _opened(path: Path) -> Any:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        return ParquetFile(path, memory_map=True)
    except ArrowException as error:
        raise _damaged(path, "parquet", error) from error


def _stream(path: Path) -> Any:
    """Return a reader of an Arrow file, which datasets writes as a stream."""
    import pyarrow

    mapped = pyarrow.memory_map(str(path))
    try:
        return pyarrow.ipc.open_stream(mapped)
    except pyarrow.ArrowException:
        try:
            return pyarrow.ipc.open_file(mapped)
        except pyarrow.ArrowException as error:
            raise _damaged(path, "Arrow", error) from error


def _batches(path: Path) -> Iterator[Any]:
    stream = _stream(path)
    batches = stream if hasattr(stream, "__iter__") else (stream.get_batch(index) for index in range(stream.num_record_batches))
    yield from _damage_said(path, batches)


def _damage_said(path: Path, batches: Any) -> Iterator[Any]:
    from pyarrow import ArrowException

    try:
        yield from batches
    except (ArrowException, OSError) as error:
        raise _damaged(path, "Arrow or parquet", error) from error


def _damaged(path: Path, kind: str, error: Exception) -> HpctrainError:
    return HpctrainError(f"{path} is no {kind} file, or is damaged", details=(f"pyarrow said: {error}",), fix="fetch or write it again")
