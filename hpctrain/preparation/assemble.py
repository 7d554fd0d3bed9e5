"""Finished pieces to one shard of the dataset: examples chosen, packed where asked, labels made, written, counted.

Runs in a worker, one window in memory at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpctrain.preparation import packing, plan, shards, split, tokenised


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One shard to be written.

    Attributes:
        shard: which examples.
        division: how they are divided.
        pieces: file of each piece that the shard needs.
        path: of the shard.
        capacity: tokens of a packed row; None where rows are not packed.
    """

    shard: plan.Shard
    division: plan.Division
    pieces: Mapping[int, Path]
    path: Path
    capacity: int | None


@dataclass(slots=True, kw_only=True)
class Counts:
    """What is in a shard, or in a split: see `manifest.Split`; `lengths` has the examples of each length."""

    rows: int = 0
    examples: int = 0
    tokens: int = 0
    trained: int = 0
    longest: int = 0
    lengths: dict[int, int] = field(default_factory=dict)

    def add(self, other: Counts) -> None:
        """Count another shard in."""
        self.rows += other.rows
        self.examples += other.examples
        self.tokens += other.tokens
        self.trained += other.trained
        self.longest = max(self.longest, other.longest)
        for length, count in other.lengths.items():
            self.lengths[length] = self.lengths.get(length, 0) + count


@dataclass(frozen=True, slots=True)
class _Window:
    """Examples that lie one after the other: ids, labels, and the tokens of each."""

    ids: Any
    labels: Any
    lengths: Any


def write_shard(job: Job) -> tuple[Counts, str]:
    """Write the shard; return what is in it, and the digest of its rows.

    Raises:
        OSError: the file system refuses.
    """
    counts, digest = Counts(), hashlib.sha256()
    with shards.stream_to(job.path, shards.schema(packed=job.capacity is not None)) as writer:
        for number, parts in enumerate(job.shard.windows, start=job.shard.first_window):
            window = _read(parts, job)
            rows = _packed(window, job.capacity, job.division.seed + number) if job.capacity is not None else _unpacked(window)
            shards.hash_rows(digest, *rows.values())
            table = shards.table_of(**rows)
            writer.write_table(table, max_chunksize=shards.ROWS_PER_BATCH)
            _count(counts, window, rows["sizes"])
    return counts, digest.hexdigest()


def _read(parts: tuple[plan.Part, ...], job: Job) -> _Window:
    """Return the chosen examples of all parts."""
    import numpy as np

    found = [_read_part(part, job) for part in parts]
    ids, labels, lengths = (np.concatenate(column) for column in zip(*found, strict=True))
    return _Window(ids, labels, lengths)


def _read_part(part: plan.Part, job: Job) -> tuple[Any, Any, Any]:
    import numpy as np
    import pyarrow as pa

    examples = tokenised.table(job.pieces[part.piece])
    keep = plan.chosen(examples, part, job.division)
    rows = examples.slice(part.start, part.stop - part.start).select(["input_ids", "spans"])
    if not keep.all():
        rows = rows.filter(pa.array(keep))
    lists = [(chunk.flatten().to_numpy(), chunk.value_lengths().to_numpy()) for chunk in rows.column("input_ids").chunks]
    marks = [(chunk.flatten().to_numpy(), chunk.value_lengths().to_numpy()) for chunk in rows.column("spans").chunks]
    ids, lengths = (np.concatenate(column) for column in zip(*lists, strict=True))
    spans, span_counts = (np.concatenate(column) for column in zip(*marks, strict=True))
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    return ids, tokenised.labels(ids, starts, spans, span_counts), lengths


def _unpacked(window: _Window) -> dict[str, Any]:
    return {"ids": window.ids, "labels": window.labels, "sizes": window.lengths}


def _packed(window: _Window, capacity: int, seed: int) -> dict[str, Any]:
    """Return rows of several examples each, in an order drawn by the seed: best fit puts the long examples first."""
    import numpy as np

    rows = packing.best_fit(window.lengths, capacity)
    places = np.argsort(split.draws(np.arange(len(rows), dtype=np.uint64), seed), kind="stable")
    rows = [rows[place] for place in places.tolist()]
    order = np.array([position for row in rows for position in row], dtype=np.int64)
    lengths = window.lengths[order]
    per_row = np.array([len(row) for row in rows], dtype=np.int32)
    sizes = np.add.reduceat(lengths, np.cumsum(per_row) - per_row)
    starts = np.cumsum(window.lengths, dtype=np.int64) - window.lengths
    into = np.cumsum(lengths, dtype=np.int64) - lengths
    taken = np.arange(len(window.ids), dtype=np.int64) + np.repeat(starts[order] - into, lengths)
    return {"ids": window.ids[taken], "labels": window.labels[taken], "sizes": sizes, "seq_lengths": lengths, "per_row": per_row}


def _count(counts: Counts, window: _Window, sizes: Any) -> None:
    import numpy as np

    values, times = np.unique(window.lengths, return_counts=True)
    counts.add(
        Counts(
            rows=len(sizes),
            examples=len(window.lengths),
            tokens=len(window.ids),
            trained=int(np.count_nonzero(window.labels != -100)),
            longest=int(sizes.max()),
            lengths=dict(zip(values.tolist(), times.tolist(), strict=True)),
        )
    )
