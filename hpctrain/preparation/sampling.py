"""Examples to look at, drawn by a seed from all over the data: the first ones of a file are often alike. Reads little, writes nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from hpctrain.errors import HpctrainError
from hpctrain.jobs import shell
from hpctrain.preparation import sources
from hpctrain.preparation.rows import Dropped, Row

_CUT_BYTES = 256 << 20
"""A file of lines or a CSV that is larger is not cut, because that reads all of it: its rows are drawn from its beginning."""
_READ, _KEPT = 1000, 100
"""Of a piece so many rows are read, from its beginning, and so many of these are kept to be drawn."""
_TRIES = 400


@dataclass(frozen=True, slots=True)
class Example:
    """One example: where it is, its tokens, and the labels."""

    where: str
    ids: Sequence[int]
    labels: Sequence[int]


# -- raw data ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a drawn row is: the number of its file, the first line or row of its piece, and its number in that."""

    file: int
    piece: int
    row: int


def rows(found: Sequence[sources.Source], *, target_bytes: int, count: int, seed: int) -> Iterator[tuple[Place, Row | Dropped]]:
    """Yield rows of the files in an order drawn by the seed, each once, some hundreds where `count` are wanted; large files give more.

    A compressed file, a JSON array and a large file of lines give rows of their beginning alone.

    Raises:
        HpctrainError: a file is damaged.
        OSError: it cannot be read.
    """
    draw = random.Random(seed)  # noqa: S311 - a sample, no secret
    cut: dict[int, tuple[sources.Piece, ...]] = {}
    waiting: dict[sources.Piece, list[tuple[int, Row | Dropped]]] = {}
    for _ in range(_TRIES + 2 * count):
        (file,) = draw.choices(range(len(found)), [source.bytes + 1 for source in found])
        if file not in cut:
            cut[file] = _cut(found[file], target_bytes)
        (piece,) = draw.choices(cut[file], [each.bytes + 1 for each in cut[file]])
        if piece not in waiting:
            read = list(enumerate(islice(sources.read(piece), max(_READ, count))))
            waiting[piece] = draw.sample(read, min(len(read), max(_KEPT, count)))
        if waiting[piece]:
            number, row = waiting[piece].pop()
            yield Place(file, max(piece.first, piece.start), number), row


def _cut(source: sources.Source, target_bytes: int) -> tuple[sources.Piece, ...]:
    cheap = source.kind in ("parquet", "arrow") or source.bytes <= _CUT_BYTES
    return sources.pieces([source], target_bytes=target_bytes if cheap else source.bytes)


# -- a dataset -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Batch:
    """A record batch of a shard: its number in the file, and of its rows the split's number of the first, and how many."""

    split: str
    path: Path
    number: int
    first: int
    rows: int


def stored(folder: Path, splits: Sequence[str], count: int, *, seed: int) -> list[Example]:
    """Return `count` examples of a tokenised dataset, or all where it has fewer: of rows drawn by the seed, in their order.

    A row of several examples gives one of them, or more where there are fewer rows than examples are wanted.

    Raises:
        HpctrainError: a shard is damaged.
    """
    draw = random.Random(seed)  # noqa: S311 - a sample, no secret
    batches = [batch for split in splits for batch in _batches(folder, split)]
    total = sum(batch.rows for batch in batches)
    chosen = sorted(draw.sample(range(total), min(count, total)))
    of_rows = [_examples(batch, row) for batch, row in _located(batches, chosen)]
    if total >= count:
        return [draw.choice(examples) for examples in of_rows]
    every = [example for examples in of_rows for example in examples]
    return [every[place] for place in sorted(draw.sample(range(len(every)), min(count, len(every))))]


def _batches(folder: Path, split: str) -> Iterator[_Batch]:
    """Yield the batches of a split; only their headers are read."""
    first = 0
    for path in sorted((folder / split).glob("data-*.arrow")):  # others are caches of datasets.map
        for number, batch in enumerate(_read(path)):
            yield _Batch(split, path, number, first, batch.num_rows)
            first += batch.num_rows


def _read(path: Path) -> Iterator[Any]:
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
            yield from reader
    except (pa.ArrowInvalid, OSError) as error:
        raise HpctrainError(f"{path} cannot be read: {error}", fix=f"ls -l {shell.quote(path)}") from error


def _located(batches: Sequence[_Batch], chosen: Sequence[int]) -> Iterator[tuple[_Batch, int]]:
    """Yield the batch of each of the rising numbers of rows, and the row's number in it."""
    before = 0
    waiting = iter(batches)
    batch = next(waiting, None)
    for number in chosen:
        while batch is not None and number >= before + batch.rows:
            before, batch = before + batch.rows, next(waiting, None)
        if batch is not None:
            yield batch, number - before


def _examples(batch: _Batch, row: int) -> list[Example]:
    """Return the examples of a row."""
    values = _row(batch, row)
    ids = values["input_ids"]
    labels, sizes = values.get("labels", ids), values.get("seq_lengths", [len(ids)])
    found: list[Example] = []
    start = 0
    for place, size in enumerate(sizes):
        where = f"{batch.split}[{batch.first + row}]" + (f", example {place + 1} of {len(sizes)}" if len(sizes) > 1 else "")
        found.append(Example(where, ids[start : start + size], labels[start : start + size]))
        start += size
    return found


def _row(batch: _Batch, row: int) -> Mapping[str, list[int]]:
    table = next(islice(_read(batch.path), batch.number, None))
    return {name: table[name][row].as_py() for name in ("input_ids", "labels", "seq_lengths") if name in table.schema.names}
