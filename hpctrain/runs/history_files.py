"""Lines of files that only ever grow, read in bounded memory, whatever somebody has put there: the files that a history is read from."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from hpctrain.runs import metrics
from hpctrain.runs.metrics import Row

_BLOCK = 1 << 20
_EARLIEST, _LATEST = 1e8, 1e11
"""Seconds since the epoch, in the years 1973 and 5138: what says to be earlier or later is no time."""
_MOST_STEPS = 10**15
LONGEST = 1 << 16
"""Bytes of the longest line that is read; none of ours comes near it."""


def lines(path: Path) -> Iterator[bytes]:
    """Yield the whole lines that a regular file had when it was opened, without their ends; too long ones and half ones are left out."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a FIFO would keep the reader waiting
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    with os.fdopen(descriptor, "rb") as stream:
        left = os.fstat(descriptor).st_size  # what grows while it is read has an end all the same
        rest, skipping = b"", False
        try:
            while left > 0 and (block := stream.read(min(_BLOCK, left))):
                left -= len(block)
                first, *others = block.split(b"\n")
                rest += first if not skipping else b""
                if others:
                    if not skipping and len(rest) <= LONGEST:
                        yield rest
                    yield from (line for line in others[:-1] if len(line) <= LONGEST)
                    rest, skipping = others[-1], False
                if len(rest) > LONGEST:
                    rest, skipping = b"", True
        except OSError:  # a stale handle, a disk that fails: what was read counts
            return


def rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a metrics.jsonl."""
    for line in lines(path):
        row = metrics.row_of(line + b"\n")
        if row is not None and _is_sound(row):
            yield row


def _is_sound(row: Row) -> bool:
    """Whether a row has a step and a time: Python's JSON has NaN, infinities, and whole numbers of any length."""
    return type(row["step"]) is int and 0 <= row["step"] < _MOST_STEPS and _EARLIEST < row["at"] < _LATEST


def begins(path: Path) -> list[int]:
    """Return the steps at which the trainings of a metrics.jsonl began; cheaper than reading its rows."""
    found = []
    for line in lines(path):
        if b'"begin"' in line:
            row = metrics.row_of(line + b"\n")
            if row is not None and row["event"] == "begin" and _is_sound(row):
                found.append(row["step"])
    return found
