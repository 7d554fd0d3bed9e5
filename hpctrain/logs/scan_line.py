"""The line around a place in a piece of a log, cleaned when it is first asked for; of a long line, the part around that place."""

from __future__ import annotations

from hpctrain.logs import text

#: What is cleaned and looked at around a word of a long line.
_BEFORE, _BEHIND = 2000, 3000


class Here:
    """The line that is looked at.

    Attributes:
        number: of the line, once `count` was called.
        begin, end: of it, or of the part of it that is looked at, in the piece; `around`: that part in lower case.
        done: words that were looked at in it.
        stands: for how many lines of its shape, where it was chosen of them (hpctrain.logs.scan_shapes).
    """

    __slots__ = ("_cleaned", "_counted", "_low", "_stands", "around", "begin", "done", "end", "number", "piece", "stands")

    def __init__(self, piece: bytes, low: bytes, number: int, stands: dict[int, int]) -> None:
        self.piece, self._low, self.number = piece, low, number
        self.begin, self.end, self.around, self._counted = 0, -1, b"", 0
        self.done: set[int] = set()
        self._cleaned: str | None = None
        self._stands, self.stands = stands, stands.get(-1)

    def move(self, at: int) -> None:
        """Go to the line around a place."""
        self.begin, self.end = _bounds(self.piece, at)
        self.around, self._cleaned, self.done = self._low[self.begin : self.end], None, set()
        self.stands = self._stands.get(self.begin)

    @property
    def line(self) -> str:
        """The line, cleaned."""
        if self._cleaned is None:
            self._cleaned = text.clean(self.piece[self.begin : self.end])
        return self._cleaned

    def count(self) -> None:
        """Find out the line's number."""
        self.number += self.piece.count(b"\n", self._counted, self.begin)
        self._counted = self.begin


def _bounds(piece: bytes, at: int) -> tuple[int, int]:
    """Return where the line around a place begins and ends; of a long one, a part of it that no carriage return ends."""
    low, high = max(0, at - _BEFORE), at + _BEHIND
    begin = max(piece.rfind(b"\n", low, at), piece.rfind(b"\r", low, at)) + 1 or low
    end = piece.find(b"\n", at, high)
    back = piece.find(b"\r", at, high if end < 0 else end)
    if back >= 0:
        end = back
    return begin, (end if end >= 0 else min(high, len(piece)))
