"""The search for many words at once, by an Aho-Corasick automaton of Rust (ahocorasick_rs) or, where that is not installed, one by one.

Both find the same; the second takes a hundred times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

#: (index of the word, start, end) of every word in lower-case bytes, in the order of the ends.
Finder = Callable[[bytes], list[tuple[int, int, int]]]


def finder(words: Sequence[bytes], *, compiled: bool = True) -> Finder:
    """Return what finds the words in bytes of lower case.

    Args:
        words: none is there twice.
        compiled: False: the slower search, though the other is there.
    """
    if not words:
        return lambda _: []
    automaton_of = _automaton() if compiled else None
    if automaton_of is None:
        return lambda low: _one_by_one(words, low)
    # All of them, overlapping ones too: one rule's word may be a part of another's.
    return partial(automaton_of(words).find_matches_as_indexes, overlapping=True)


def _automaton() -> Any:
    """Return the class of Rust, or None."""
    try:
        from ahocorasick_rs import BytesAhoCorasick
    except ImportError:
        return None
    return BytesAhoCorasick


def _one_by_one(words: Sequence[bytes], low: bytes) -> list[tuple[int, int, int]]:
    found = []
    for index, word in enumerate(words):
        at = low.find(word)
        while at >= 0:
            found.append((index, at, at + len(word)))
            at = low.find(word, at + 1)
    return sorted(found, key=lambda each: each[2])
