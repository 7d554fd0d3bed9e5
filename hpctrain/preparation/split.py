"""Which examples are held out for validation: a draw of each, from the seed and what the example holds. Arithmetic on arrays alone.

An example draws by its tokens, not by its place. So equal examples are never on both sides, and an example stays on its side when others
are added to the file, or the file's order changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

_GOLDEN = 0x9E3779B97F4A7C15
_COARSE_BITS = 16


def draws(keys: Any, seed: int) -> Any:
    """Return a draw from 0 to 2**64 - 1 for each key: the finaliser of splitmix64 (Steele et al. 2014), the seed added before it.

    Args:
        keys: numpy array of uint64, hashes of the examples.
        seed: any integer; of larger ones the lowest 64 bits.
    """
    import numpy as np

    with np.errstate(over="ignore"):
        mixed = keys + np.uint64((seed + 1) * _GOLDEN & 0xFFFFFFFFFFFFFFFF)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))


def bound(batches: Callable[[], Iterable[Any]], held_out: int) -> int:
    """Return the smallest bound for which at least `held_out` draws are below it: more only where draws are equal.

    Memory does not grow with the number of draws: they are counted by their upper bits first, then looked at where it matters.

    Args:
        batches: gives the draws, as numpy arrays of uint64; called twice.
        held_out: how many are wanted; with 0 the bound is 0, with more than there are it is 2**64.
    """
    import numpy as np

    if held_out <= 0:
        return 0
    shift = np.uint64(64 - _COARSE_BITS)
    counts = np.zeros(1 << _COARSE_BITS, dtype=np.int64)
    for batch in batches():
        counts += np.bincount((batch >> shift).astype(np.int64), minlength=len(counts))
    reached = np.cumsum(counts)
    if reached[-1] < held_out:
        return 1 << 64
    coarse = int(np.searchsorted(reached, held_out))
    before = int(reached[coarse - 1]) if coarse else 0
    close = np.concatenate([batch[(batch >> shift) == np.uint64(coarse)] for batch in batches()])
    close.sort()
    return int(close[held_out - before - 1]) + 1


def below(drawn: Any, limit: int) -> Any:
    """Return a boolean array: which draws are below the bound."""
    import numpy as np

    if limit >= 1 << 64:
        return np.ones(len(drawn), dtype=bool)
    return drawn < np.uint64(limit)
