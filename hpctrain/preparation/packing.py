"""Best-fit decreasing: examples laid into rows of at most a given number of tokens, so that few places stay empty. Pure.

The longest example goes first, each into the fullest row that still has room for it (Johnson 1974; for language models Ding et al. 2024,
https://huggingface.co/papers/2404.10830). TRL's `bfd` lays out as many rows for the same examples; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_WORD = 1024
"""Bits of one word of `_Spaces`: Python's integers of this size are compared and shifted in some ten nanoseconds."""


class _Spaces:
    """The set of spaces that open rows have left, which finds its smallest member of at least a given size in constant time.

    One bit for each size, in words, and one bit above for each word that is not empty.
    """

    __slots__ = ("_top", "_words")

    def __init__(self, largest: int) -> None:
        self._words = [0] * (largest // _WORD + 1)
        self._top = 0

    def add(self, space: int) -> None:
        word, bit = divmod(space, _WORD)
        self._words[word] |= 1 << bit
        self._top |= 1 << word

    def remove(self, space: int) -> None:
        word, bit = divmod(space, _WORD)
        self._words[word] &= ~(1 << bit)
        if not self._words[word]:
            self._top &= ~(1 << word)

    def at_least(self, space: int) -> int | None:
        word, bit = divmod(space, _WORD)
        found = self._words[word] >> bit
        if found:
            return space + _lowest(found)
        above = self._top >> (word + 1)
        if not above:
            return None
        word += 1 + _lowest(above)
        return word * _WORD + _lowest(self._words[word])


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def best_fit(lengths: Sequence[int] | Any, capacity: int) -> list[list[int]]:
    """Return rows of positions in `lengths`; each position is in one row, and no row holds more than `capacity` tokens.

    Equal lengths are taken in their order, so that the same lengths always give the same rows. O(n log n) for n examples.

    Args:
        lengths: tokens of each example, from 1 to `capacity`; a list, or a numpy array of integers.
        capacity: tokens of a row at most.

    Raises:
        ValueError: a length is less than 1 or more than `capacity`.
    """
    sizes: list[int] = lengths.tolist() if hasattr(lengths, "tolist") else list(lengths)
    if sizes and not 0 < min(sizes) <= max(sizes) <= capacity:
        raise ValueError(f"lengths from {min(sizes)} to {max(sizes)} for rows of {capacity}")
    rows: list[list[int]] = []
    spaces, with_space = _Spaces(capacity), {0: []}  # type: tuple[_Spaces, dict[int, list[int]]]
    for position in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        size = sizes[position]
        space = spaces.at_least(size)
        if space is None:
            space, row = capacity, len(rows)
            rows.append([position])
        else:
            fitting = with_space[space]
            row = fitting.pop()
            rows[row].append(position)
            if not fitting:
                spaces.remove(space)
        left = space - size
        if left:
            with_space.setdefault(left, []).append(row)
            spaces.add(left)
    return rows
