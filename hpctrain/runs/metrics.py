"""The values that a training logged over all of its starts: `attempts/*/metrics.jsonl`, written by
hpctrain/training/monitoring/run_files.py.

One JSON object per line (wrapped here):

    {"event": "log", "step": 10, "epoch": 0.33, "at": 1795232331.6, "loss": 5.1234,
     "grad_norm": null, "nonfinite": {"grad_norm": "nan"}}

    event       begin | log | evaluate | save | speed | end; `evaluate` has the values whose names
                begin with eval_, `speed` those of hpctrain.runs.progress.Speed
    step        optimizer steps done; in `begin` the step resumed from, 0 from scratch
    epoch       or null
    at          seconds since the epoch
    nonfinite   values that JSON cannot represent ("nan", "inf", "-inf"); their own keys are null

The start after a killed one repeats some steps (hpctrain.runs.history). An incomplete line at the
end of a file is ignored.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Generic, TypeVar

from hpctrain.util import stored

ATTEMPTS = "attempts"
FILE = "metrics.jsonl"
#: The keys of a row that are not values of the Trainer.
OWN = ("event", "step", "epoch", "at", "nonfinite")
EVENTS = ("begin", "log", "evaluate", "save", "speed", "end")

_TAIL_BYTES = 65536
#: In seconds since the epoch, the year 5138: a later time is not valid.
_LATEST = 1e11

Row = dict[str, Any]


T = TypeVar("T")
Weight = Callable[[T], float | None]
#: Index, item, and its weights.
_Kept = tuple[int, T, list[float]]


class Thinned(Generic[T]):
    """Keeps the first and the last item, and from each stretch between them the last and those with
    the highest values.

    All stretches have the same number of items, which grows as items are added; up to `most` items,
    all are kept.

    Args:
        most: the most items to keep; at least 8, and at least twice the number of weights plus 4.
        weights: for each, the item of a stretch with the highest value is kept; None is lowest, NaN
            is highest.
    """

    def __init__(self, most: int, weights: Sequence[Weight[T]] = ()) -> None:
        self.most = max(8, most, 2 * len(weights) + 4)
        self.count = 0
        self._weights = weights
        self._length = 1
        self._kept: list[_Kept[T]] = []

    def add(self, item: T) -> None:
        """Add the next item."""
        found = [weight(item) for weight in self._weights]
        weights = [
            -math.inf if value is None else math.inf if math.isnan(value) else value
            for value in found
        ]
        self._kept.append((self.count, item, weights))
        self.count += 1
        if len(self._kept) > 2 * self.most:
            self.items()

    def items(self) -> list[T]:
        """Return the kept items, in the order in which they were added."""
        while len(self._kept) > self.most:
            kept = self._kept[:1]
            for _, group in groupby(self._kept[1:], lambda kept: kept[0] // self._length):
                stretch = list(group)
                for at in range(len(self._weights)):
                    highest = max(one[2][at] for one in stretch)
                    kept.append(next(one for one in stretch if one[2][at] == highest))
                kept.append(stretch[-1])
            self._kept = sorted({one[0]: one for one in kept}.values(), key=lambda one: one[0])
            self._length *= 2
        return [item for _, item, _ in self._kept]


def values(row: Row) -> dict[str, float]:
    """Return the values that the Trainer logged in a row, by name, with NaN and infinities
    restored.
    """
    found = {
        name: value
        for name, value in row.items()
        if name not in OWN and isinstance(value, int | float)
    }
    nonfinite = row.get("nonfinite")
    for name, text in nonfinite.items() if isinstance(nonfinite, dict) else ():
        if text in ("nan", "inf", "-inf"):
            found[name] = float(text)
    return found


def rows(path: Path) -> Iterator[Row]:
    """Yield the rows of one metrics.jsonl."""
    yield from filter(None, map(row_of, lines(path)))


def begins(path: Path) -> list[int]:
    """Return the steps at which the starts in a metrics.jsonl began."""
    found = filter(None, map(row_of, (line for line in lines(path) if b'"begin"' in line)))
    return [row["step"] for row in found if row["event"] == "begin"]


def lines(path: Path) -> Iterator[bytes]:
    """Yield the lines that a regular file had when it was opened, very long ones in pieces; nothing
    if it cannot be read.
    """
    try:
        with stored.open_regular(path) as stream:
            left = os.fstat(stream.fileno()).st_size
            while left > 0 and (line := stream.readline(_TAIL_BYTES)):
                left -= len(line)
                yield line
    except OSError:
        return


def row_of(line: bytes) -> Row | None:
    """Return a line's row; None if it is truncated, or not a row."""
    try:
        row = stored.value_of(line)
    except ValueError:
        return None
    known = (
        line.endswith(b"\n")
        and isinstance(row, dict)
        and row.get("event") in EVENTS
        and stored.fits(row.get("step"), int)
        and row["step"] >= 0
        and stored.fits(row.get("at"), float)
        and 0 <= row["at"] < _LATEST
    )
    return row if known else None
