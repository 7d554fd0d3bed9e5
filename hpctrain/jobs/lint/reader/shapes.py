"""Lines that are like many before them: in a generated script of megabytes, only numbers differ from line to line.

A *unit* is what stands between two beginnings of lines in the same scope: one line, or a whole loop, or a command with its heredoc.
Its *shape* is its text with every run of digits replaced by one, which bash reads alike. What a rule has to say about a shape it
has said after a few units; the others are skipped without being read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpctrain.jobs.lint.reader.model import Scope

#: Units of one shape that are read.
ENOUGH = 10
#: Texts below this many characters are read whole.
FROM = 200_000
_MAX_LINES = 400
_DIGITS = re.compile(r"[0-9]++")


@dataclass(slots=True)
class _Known:
    shape: str
    lines: int
    count: int = 1


class Shapes:
    """What was read so far, by the shape of its first line."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._on = len(text) >= FROM
        self._known: dict[str, _Known] = {}
        self._open: list[tuple[int, Scope, str]] = []

    def line_start(self, start: int, scope: Scope) -> int:
        """Return where reading goes on: at `start`, or behind the units that are like many before them."""
        if not self._on:
            return start
        self._complete(start, scope)
        while True:
            end = self._text.find("\n", start)
            if end < 0:
                return start
            first = _DIGITS.sub("0", self._text[start:end]) if end - start < 2000 else ""
            known = self._known.get(first)
            behind = self._behind(known, start, end) if known is not None and known.count >= ENOUGH else -1
            if behind < 0:
                break
            start = behind
        if first:
            self._open.append((start, scope, first))
        return start

    def _complete(self, start: int, scope: Scope) -> None:
        """Note the units that end here."""
        while self._open and (self._open[-1][1] is scope or self._open[-1][1].depth >= scope.depth):
            begin, opened, first = self._open.pop()
            if opened is not scope or start - begin > 100_000:
                continue
            unit = self._text[begin:start]
            lines = unit.count("\n")
            if lines > _MAX_LINES:
                continue
            known = self._known.get(first)
            shape = first if lines == 1 else _DIGITS.sub("0", unit)
            if known is None or known.lines != lines or (lines > 1 and known.shape != shape):
                self._known[first] = _Known(shape, lines)
            else:
                known.count += 1

    def _behind(self, known: _Known, start: int, end: int) -> int:
        """Return where the unit at `start` ends, if it has the shape that is known; else -1."""
        if known.lines == 1:
            return end + 1
        for _ in range(known.lines - 1):
            end = self._text.find("\n", end + 1)
            if end < 0:
                return -1
        return end + 1 if _DIGITS.sub("0", self._text[start : end + 1]) == known.shape else -1
