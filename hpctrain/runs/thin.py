"""Rows that come one after the other, thinned as they come to what fits a chart: memory is bounded, and peaks stay. PURE."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Thinned(Generic[T]):
    """Keeps the first and the last item of all, and of each stretch between them its last and those with the highest values.

    Stretches are equally many items long, and become longer as items come; as long as fewer than `most` have come, all are kept.

    Args:
        most: items that are kept, at most; at least 8, and twice the weights and 4.
        weights: of each, the item with the highest value of a stretch is kept; None is lower than all, NaN higher than all.
    """

    def __init__(self, most: int, weights: Sequence[Callable[[T], float | None]] = ()) -> None:
        self.most = max(8, most, 2 * len(weights) + 4)
        self.count = 0
        self._weights = weights
        self._length = 1
        self._closed: list[list[T]] = []
        self._kept = 0
        self._first: list[T] = []
        self._open: _Stretch[T] = _Stretch(weights)

    def add(self, item: T) -> None:
        """Take the next item."""
        if self.count == 0:
            self._first = [item]
        self.count += 1
        self._open.add(item)
        if self._open.count < self._length:
            return
        self._close()
        # One is the first of all; the open stretch will have some.
        while self._kept > self.most - (1 if self._length == 1 else 2 + len(self._weights)):
            self._merge()

    def items(self) -> list[T]:
        """Return what is kept, in the order in which it came."""
        found = [item for stretch in (*self._closed, self._open.items()) for item in stretch]
        return [*self._first, *found] if found and found[0] is not self._first[0] else found

    def _close(self) -> None:
        self._closed.append(self._open.items())
        self._kept += len(self._closed[-1])
        self._open = _Stretch(self._weights)

    def _merge(self) -> None:
        """Make one stretch of each two; the last may have no partner yet, and is opened again, before what is open."""
        alone = self._closed.pop() if len(self._closed) % 2 else []
        pairs = zip(self._closed[::2], self._closed[1::2], strict=True)
        self._closed = [_reduced([*first, *second], self._weights) for first, second in pairs]
        self._kept = sum(map(len, self._closed))
        if alone:
            behind = self._open
            self._open = _Stretch(self._weights)
            for item in (*alone, *behind.items()):
                self._open.add(item)
            self._open.count = self._length + behind.count
        self._length *= 2


class _Stretch(Generic[T]):
    """The stretch that items come into: its last one, and the best by each weight, so that an item costs one look at each weight."""

    __slots__ = ("_best", "_last", "_number", "_weights", "count")

    def __init__(self, weights: Sequence[Callable[[T], float | None]]) -> None:
        self.count = 0
        self._number = 0
        self._weights = weights
        self._best: list[tuple[float, int, T] | None] = [None] * len(weights)
        self._last: tuple[int, T] | None = None

    def add(self, item: T) -> None:
        self.count += 1
        self._number += 1
        self._last = (self._number, item)
        for at, weight in enumerate(self._weights):
            value = weight(item)
            if value is None:
                continue
            if value != value:  # noqa: PLR0124 - NaN
                value = math.inf
            best = self._best[at]
            if best is None or value > best[0]:
                self._best[at] = (value, self._number, item)

    def items(self) -> list[T]:
        """Return what stays, in its order."""
        chosen = {best[1]: best[2] for best in self._best if best is not None}
        if self._last is not None:
            chosen[self._last[0]] = self._last[1]
        return [chosen[number] for number in sorted(chosen)]


def _reduced(items: Sequence[T], weights: Sequence[Callable[[T], float | None]]) -> list[T]:
    stretch: _Stretch[T] = _Stretch(weights)
    for item in items:
        stretch.add(item)
    return stretch.items()
