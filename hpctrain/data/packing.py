"""Examples as arrays: the tables of the pieces, packing of windows into rows, and statistics. Pure.

Packing is best-fit decreasing: examples from longest to shortest, each into the fullest row that
has room for it (Johnson 1974; for language models Ding et al. 2024,
https://huggingface.co/papers/2404.10830). TRL's `bfd` gives the same number of rows.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from hpctrain.data.encode import Encoded

_GOLDEN = 0x9E3779B97F4A7C15


def best_fit(lengths: Sequence[int] | Any, capacity: int) -> list[list[int]]:
    """Return rows of positions in `lengths`: each position in one row, no row with more than
    `capacity` tokens.

    Equal lengths keep their order, so the result is deterministic.

    Args:
        lengths: tokens of each example, from 1 to `capacity`; a list, or a numpy array of integers.
        capacity: maximum tokens per row.
    """
    sizes: list[int] = lengths.tolist() if hasattr(lengths, "tolist") else list(lengths)
    rows: list[list[int]] = []
    # Rows with free space, ascending; of equal ones, the last used first.
    open_rows: list[tuple[int, int, int]] = []
    by_length = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
    for count, position in enumerate(by_length):
        at = bisect_left(open_rows, (sizes[position],))
        if at == len(open_rows):
            space, row = capacity, len(rows)
            rows.append([])
        else:
            space, _, row = open_rows.pop(at)
        rows[row].append(position)
        if left := space - sizes[position]:
            insort(open_rows, (left, -count, row))
    return rows


# -- arrays ----------------------------------------------------------------------------------------


def example_schema() -> Any:
    """Return the Arrow schema of a piece: tokens, mask, and a key that equal examples share."""
    ids, mask = pa.list_(pa.int32()), pa.list_(pa.bool_())
    return pa.schema([("input_ids", ids), ("trained", mask), ("key", pa.uint64())])


def example_table(examples: Sequence[Encoded]) -> Any:
    """Return examples as a table of `example_schema`.

    The first token of each example is masked, because no token before it can predict it. In a
    single row the label shift excludes it; in a packed row the last token of the previous example
    would predict it. TRL's collator masks it there too (DataCollatorForLanguageModeling,
    position_ids == 0).
    """
    arrays = [np.frombuffer(example.input_ids, dtype=np.int32) for example in examples]
    sizes = [len(ids) for ids in arrays]
    mask = np.zeros(sum(sizes), dtype=bool)
    keys, at = [], 0
    for example, ids in zip(examples, arrays, strict=True):
        for start, stop in example.trained:
            mask[at + max(start, 1) : at + stop] = True
        content = ids.tobytes() + np.packbits(mask[at : at + len(ids)]).tobytes()
        keys.append(int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little"))
        at += len(ids)
    columns = [_lists(np.concatenate(arrays), sizes), _lists(mask, sizes)]
    return pa.table([*columns, pa.array(keys, type=pa.uint64())], schema=example_schema())


def lengths_of(lists: Any) -> Any:
    """Return the list lengths in a pyarrow column, as a numpy array."""
    return pc.list_value_length(lists).to_numpy()


def single_rows(examples: Any) -> Any:
    """Return one row per example of a piece's table: `input_ids`, `labels` and `length`."""
    ids, trained = (pc.list_flatten(examples[name]).to_numpy() for name in ("input_ids", "trained"))
    sizes = lengths_of(examples["input_ids"])
    labels = _lists(np.where(trained, ids, np.int32(-100)), sizes)
    return pa.table(
        {
            "input_ids": _lists(ids, sizes),
            "labels": labels,
            "length": pa.array(sizes, type=pa.int32()),
        }
    )


def packed_rows(examples: Any, capacity: int, seed: int) -> Any:
    """Return packed rows (`input_ids`, `labels`, `seq_lengths`) in an order shuffled by the seed,
    because best fit puts the long examples first.
    """
    single = single_rows(examples)
    rows = best_fit(single["length"].to_numpy(), capacity)
    places = np.argsort(draws(np.arange(len(rows), dtype=np.uint64), seed), kind="stable")
    rows = [rows[place] for place in places.tolist()]
    taken = single.take(pa.array([position for row in rows for position in row]))
    lengths = taken["length"].to_numpy()
    per_row = np.array([len(row) for row in rows], dtype=np.int32)
    sizes = np.add.reduceat(lengths, np.cumsum(per_row) - per_row)
    columns = {
        name: _lists(pc.list_flatten(taken[name]).to_numpy(), sizes)
        for name in ("input_ids", "labels")
    }
    return pa.table({**columns, "seq_lengths": _lists(lengths, per_row)})


def update(digest: Any, rows: Any) -> int:
    """Update a hashlib digest with all numbers of the rows, and return how many tokens are
    unmasked.
    """
    flat = {
        name: pc.list_flatten(rows[name]) if name != "length" else rows[name]
        for name in rows.column_names
    }
    for numbers in (lengths_of(rows["input_ids"]), *flat.values()):
        digest.update(np.asarray(numbers, dtype="<i4").tobytes())
    return int((flat["labels"].to_numpy() != -100).sum())


def draws(keys: Any, seed: int) -> Any:
    """Return a pseudorandom number from 0 to 2**64 - 1 for each key: the finalizer of splitmix64
    (Steele et al. 2014), with the seed added first.

    The number depends on an example's tokens, not on its position. So equal examples are always in
    the same split, and an example keeps its split when the file grows or is reordered.

    Args:
        keys: numpy array of uint64, hashes of the examples.
        seed: any integer; only the lowest 64 bits are used.
    """
    with np.errstate(over="ignore"):
        mixed = keys + np.uint64((seed + 1) * _GOLDEN & 0xFFFFFFFFFFFFFFFF)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))


def _lists(values: Any, counts: Any) -> Any:
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(offsets, pa.array(values))
