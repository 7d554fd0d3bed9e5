"""Examples that are equal, token for token and mask for mask, to an earlier one: found by their hashes of 128 bits, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from hpctrain.preparation import plan, tokenised

AT_ONCE = 1 << 22
"""Hashes that are sorted together: about 200 MB."""


def find(pieces: Sequence[plan.Stored], file: Path, *, at_once: int = AT_ONCE) -> int:
    """Write the numbers of all but the first of equal examples, rising, into `file` (int64, numpy's format); return how many.

    Raises:
        OSError: the file system refuses.
    """
    import numpy as np

    total = sum(piece.examples for piece in pieces)
    # Hashes are spread evenly, so that a range of them has its share of the examples.
    parts = max(1, -(-total // at_once))
    bounds = [(1 << 64) * number // parts for number in range(parts + 1)]
    found = [_among(pieces, low, high - 1) for low, high in pairwise(bounds)]
    numbers = np.sort(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64)
    with file.open("wb") as stream:
        np.save(stream, numbers)
    return len(numbers)


def _among(pieces: Sequence[plan.Stored], low: int, high: int) -> Any:
    """Return the numbers of the repetitions among examples whose key is from `low` to `high`."""
    import numpy as np

    keys, checks, numbers = [np.zeros(0, dtype=np.uint64)], [np.zeros(0, dtype=np.uint64)], [np.zeros(0, dtype=np.int64)]
    first = 0
    for piece in pieces:
        examples = tokenised.table(piece.path)
        key, check = tokenised.column(examples, "key"), tokenised.column(examples, "check")
        inside = np.nonzero((key >= np.uint64(low)) & (key <= np.uint64(high)))[0]
        keys.append(key[inside])
        checks.append(check[inside])
        numbers.append(inside + first)
        first += piece.examples
    key, check, number = np.concatenate(keys), np.concatenate(checks), np.concatenate(numbers)
    order = np.lexsort((number, check, key))
    key, check, number = key[order], check[order], number[order]
    return number[1:][(key[1:] == key[:-1]) & (check[1:] == check[:-1])]
