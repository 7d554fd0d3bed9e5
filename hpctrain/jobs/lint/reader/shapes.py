"""Lines that are like many before them: in a generated script of megabytes, only numbers differ from line to line.

A *unit* is what stands between two beginnings of lines in the same scope: one line, or a whole loop, or a command with its heredoc.
Its *shape* is its text with every run of digits replaced by one, which bash reads alike. Where a rule asks about numbers (a launcher,
srun, a port, a directive, `-n`), the shape is the text itself. What a rule has to say about a shape it has said after a few units;
the others are skipped without being read, and counted.
"""

from __future__ import annotations

import re

from hpctrain.jobs.lint.reader.model import Scope

#: Units of one shape that are read.
ENOUGH = 10
#: Texts below this many characters are read whole.
FROM = 200_000
_MAX_LINES = 400
_MAX_LENGTH = 100_000
_DIGITS = re.compile(r"[0-9]++")
#: A unit that holds one of these is another one when a number in it is another one.
_COUNTED = re.compile(
    r"run\b|RUN\b|torch|accelerate|deepspeed|mpi|SBATCH|sbatch|LAUNCH|[Pp]ort|PORT|[Rr]ank|RANK|[Nn]odes|NODES|[Tt]asks|TASKS|[Nn]proc|NPROC"
    r"|[Gg]pus|GPUS|[ \t]-[nNK]|\$\(\("
)


class Shapes:
    """What was read so far, by the shape of its first line."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._on = len(text) >= FROM
        #: Shape of the first line → number of lines → hash of the whole shape → how many were read.
        self._known: dict[str, dict[int, dict[int, int]]] = {}
        self._open: list[tuple[int, Scope, str]] = []
        #: Units that were not read.
        self.skipped = 0

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
            behind = self._behind(self._known.get(first, {}), start, end)
            if behind < 0:
                break
            self.skipped += 1
            start = behind
        if first:
            self._open.append((start, scope, first))
        return start

    def _complete(self, start: int, scope: Scope) -> None:
        """Note the units that end here."""
        while self._open and (self._open[-1][1] is scope or self._open[-1][1].depth >= scope.depth):
            begin, opened, first = self._open.pop()
            lines = self._text.count("\n", begin, start) if opened is scope and start - begin <= _MAX_LENGTH else 0
            if not 0 < lines <= _MAX_LINES:
                continue
            shape = _shape(self._text[begin:start])
            counts = self._known.setdefault(first, {}).setdefault(lines, {})
            counts[shape] = counts.get(shape, 0) + 1

    def _behind(self, known: dict[int, dict[int, int]], start: int, end: int) -> int:
        """Return where the unit at `start` ends, if enough units of its shape were read; else -1."""
        for lines, counts in known.items():
            last = end
            for _ in range(lines - 1):
                last = self._text.find("\n", last + 1)
                if last < 0:
                    break
            if last > 0 and counts.get(_shape(self._text[start : last + 1]), 0) >= ENOUGH:
                return last + 1
        return -1


def _shape(unit: str) -> int:
    """Return a number for the text of a unit, equal for those that are read alike."""
    return hash(unit if _COUNTED.search(unit) else _DIGITS.sub("0", unit))
