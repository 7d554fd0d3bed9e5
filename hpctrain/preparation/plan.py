"""Which examples of which piece go into which shard, decided from lengths and draws alone, before a token is copied.

The plan does not depend on how many processes work: the same pieces, seed and bounds give the same shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.preparation import split, tokenised

WINDOW_TOKENS = 1 << 22
"""Tokens of one window: examples that are packed, and lie in memory, together (about 100 bytes each, while they do)."""
WINDOW_ROWS = 128
"""A window has tokens for as many full rows at least, so that the last row of each weighs little."""
SHARD_TOKENS = 62_500_000
"""Tokens of one shard, of 8 bytes each: 500 MB, as `save_to_disk` cuts."""


@dataclass(frozen=True, slots=True)
class Part:
    """Examples `start` to `stop` of a piece, of which a window takes those of its split.

    Attributes:
        piece: number of the piece.
        start, stop: its examples.
        first: number of the piece's first example among all examples, for the list of duplicates.
        held_out: True: those whose draw is below the bound; False: the others; None: all.
    """

    piece: int
    start: int
    stop: int
    first: int
    held_out: bool | None


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a split: its windows, in order.

    Attributes:
        split: name.
        number, of: which of how many.
        windows: the parts of each.
        first_window: number of the first window in its split.
    """

    split: str
    number: int
    of: int
    windows: tuple[tuple[Part, ...], ...]
    first_window: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A finished piece: its file, its number of examples, and the split that its source belongs to (None: to be divided)."""

    number: int
    path: Path
    examples: int
    split: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How examples are divided.

    Attributes:
        seed: of the draws.
        bound: see `split.bound`.
        held_out: name of the split of what is held out.
        duplicates: file with the numbers of examples to leave out, rising (int64, as numpy saves it), or None.
    """

    seed: int
    bound: int = 0
    held_out: str = "validation"
    duplicates: str | None = None


def chosen(examples: Any, part: Part, division: Division) -> Any:
    """Return which examples of the part are taken, as a boolean array.

    Args:
        examples: table of the whole piece.
        part: which of them.
        division: how they are divided.
    """
    import numpy as np

    keep = np.ones(part.stop - part.start, dtype=bool)
    if part.held_out is not None and division.bound > 0:
        keys = tokenised.column(examples, "key")[part.start : part.stop]
        below = split.below(split.draws(keys, division.seed), division.bound)
        keep &= below if part.held_out else ~below
    if division.duplicates is not None:
        numbers = np.load(division.duplicates, mmap_mode="r")
        low, high = np.searchsorted(numbers, [part.first + part.start, part.first + part.stop])
        keep[np.asarray(numbers[low:high]) - (part.first + part.start)] = False
    return keep


def shards(pieces: Sequence[Stored], division: Division, *, capacity: int | None) -> tuple[Shard, ...]:
    """Return all shards, split after split; a split without examples has none.

    Args:
        pieces: in order.
        division: how they are divided.
        capacity: tokens of a packed row; None where rows are not packed.
    """
    target = max(WINDOW_TOKENS, WINDOW_ROWS * (capacity or 0))
    growing: dict[str, _Windows] = {}
    first = 0
    for piece in pieces:
        examples = tokenised.table(piece.path)
        lengths = tokenised.lengths(examples)
        for name, held_out in _sides(piece, division):
            whole = Part(piece.number, 0, piece.examples, first, held_out)
            growing.setdefault(name, _Windows(target)).add(whole, lengths * chosen(examples, whole, division))
        first += piece.examples
    return tuple(shard for name, windows in growing.items() for shard in _cut(name, windows.finish()))


def _sides(piece: Stored, division: Division) -> Iterator[tuple[str, bool | None]]:
    if piece.split is not None:
        yield piece.split, None
    elif division.bound == 0:
        yield "train", None
    else:
        yield "train", False
        yield division.held_out, True


class _Windows:
    """Cuts a stream of examples into windows of about equal tokens, each at the first example that fills it."""

    def __init__(self, target: int) -> None:
        self._target, self._tokens = target, 0
        self._open: list[Part] = []
        self._done: list[tuple[tuple[Part, ...], int]] = []

    def add(self, part: Part, lengths: Any) -> None:
        """Take a part; `lengths` has 0 for examples that belong elsewhere."""
        import numpy as np

        reached, start = np.cumsum(lengths, dtype=np.int64), part.start
        before = 0  # tokens of the part that are in windows already
        while start < part.stop:
            stop = int(np.searchsorted(reached, before + self._target - self._tokens)) + 1
            stop = min(stop, part.stop)
            taken = int(reached[stop - 1]) - before
            if taken:
                self._open.append(Part(part.piece, start, stop, part.first, part.held_out))
            self._tokens, before, start = self._tokens + taken, before + taken, stop
            if self._tokens >= self._target:
                self._close()

    def _close(self) -> None:
        if self._open:
            self._done.append((tuple(self._open), self._tokens))
        self._open, self._tokens = [], 0

    def finish(self) -> list[tuple[tuple[Part, ...], int]]:
        """Return the windows, each with its tokens."""
        self._close()
        return self._done


def _cut(name: str, windows: Sequence[tuple[tuple[Part, ...], int]]) -> Iterator[Shard]:
    groups: list[list[tuple[Part, ...]]] = []
    tokens = 0
    for parts, count in windows:
        if not groups or tokens + count > SHARD_TOKENS:
            groups.append([])
            tokens = 0
        groups[-1].append(parts)
        tokens += count
    first = 0
    for number, group in enumerate(groups):
        yield Shard(name, number, len(groups), tuple(group), first)
        first += len(group)
