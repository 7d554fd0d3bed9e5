"""Putting frames on a terminal, one after another in the same place, by writing the cells that differ: few bytes over a slow ssh. PURE.

A frame is lines of spans; a painter returns what is to be written. No alternate screen: what was on the terminal stays above the frame,
and the last frame stays when the program ends. The cursor rests below the frame. A frame is never higher than the terminal less one line,
nor wider than the terminal less one column, so that nothing scrolls or wraps.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

Span = tuple[str, str]
"""Text, and its style: one of STYLES, or nothing."""
Line = list[Span]
Cell = tuple[str, str]

STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36", "bad": "1;31"}
_UP, _TO_COLUMN, _TO_END, _BELOW = "\x1b[{}A", "\x1b[{}G", "\x1b[K", "\x1b[J"
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
_CLEAR = "\x1b[2J\x1b[H"
#: Unchanged cells between two changed ones that cost less to write again than to jump over.
_GAP = 5


def text(line: Line) -> str:
    """Return a line without its styles."""
    return "".join(part for part, _ in line)


def cells(line: Line, width: int) -> list[Cell]:
    """Return a line's cells, cut at `width`; a wide character is a cell with it and an empty one behind. What is no character has none."""
    found: list[Cell] = []
    for part, style in line:
        for sign in part:
            if unicodedata.combining(sign) or not sign.isprintable():
                continue
            wide = unicodedata.east_asian_width(sign) in "WF"
            if len(found) + 1 + wide > width:
                if found and len(found) == width and width > 3:
                    if not found[-1][0]:  # the second half of a wide character: the first goes too
                        found[-2] = (" ", found[-2][1])
                    found[-1] = ("~", found[-1][1])
                return found
            found.append((sign, style))
            if wide:
                found.append(("", style))
    while found and found[-1] == (" ", ""):
        found.pop()
    return found


class Painter:
    """What is on the terminal, and how it becomes the next frame.

    Args:
        colour: whether styles are written.
    """

    def __init__(self, *, colour: bool) -> None:
        self.colour = colour
        self._shown: list[list[Cell]] = []
        self._size: tuple[int, int] | None = None

    def frame(self, lines: Sequence[Line], columns: int, rows: int) -> str:
        """Return what is to be written so that `lines` stand where the last frame stood.

        After the terminal has changed its size, it has wrapped the lines that stood there in its own way: the screen is cleared.
        """
        wanted = [cells(line, max(1, columns - 1)) for line in lines[: max(1, rows - 1)]]
        if not self.colour:
            wanted = [[(sign, "") for sign, _ in line] for line in wanted]
        resized = self._size is not None and self._size != (columns, rows)
        self._size = (columns, rows)
        if resized:
            self._shown = []
            return _CLEAR + self._whole(wanted)
        if not self._shown:
            return HIDE + self._whole(wanted)
        return self._changed(wanted)

    def end(self) -> str:
        """Return what gives the terminal back; the last frame stays."""
        return SHOW if self._shown else ""

    def _whole(self, wanted: list[list[Cell]]) -> str:
        self._shown = wanted
        return "".join(self._painted(line) + "\r\n" for line in wanted)

    def _changed(self, wanted: list[list[Cell]]) -> str:
        before, self._shown = self._shown, wanted
        changed = [index for index, line in enumerate(wanted) if index >= len(before) or before[index] != line]
        if not changed and len(before) == len(wanted):
            return ""
        out: list[str] = []
        at = len(before)  # the line that the cursor is on
        for index in changed:
            out.append(_moved(at, index))
            out.append(self._difference(before[index] if index < len(before) else [], wanted[index]))
            at = index
        if len(wanted) < len(before):
            out += [_moved(at, len(wanted)), "\r", _BELOW]
            at = len(wanted)
        out.append(_moved(at, len(wanted)))
        return "".join(out) + "\r"

    def _difference(self, before: list[Cell], after: list[Cell]) -> str:
        """Return what turns one line into another; the cursor is somewhere in it."""
        out: list[str] = []
        index = 0
        while index < len(after):
            if index < len(before) and before[index] == after[index]:
                index += 1
                continue
            end = last = index + 1
            while end < len(after) and end - last < _GAP:
                if end >= len(before) or before[end] != after[end]:
                    last = end + 1
                end += 1
            while index and after[index][0] == "":  # the second half of a wide character is not written alone
                index -= 1
            out += [_TO_COLUMN.format(index + 1), self._painted(after[index:last])]
            index = last
        if len(before) > len(after):
            out += [_TO_COLUMN.format(len(after) + 1), _TO_END]
        return "".join(out)

    def _painted(self, line: Sequence[Cell]) -> str:
        out: list[str] = []
        style = ""
        for sign, wanted in line:
            if wanted != style:
                out.append(f"\x1b[0;{STYLES[wanted]}m" if wanted in STYLES else "\x1b[0m")
                style = wanted
            out.append(sign)
        if style:
            out.append("\x1b[0m")
        return "".join(out)


def _moved(line: int, to: int) -> str:
    """Return what moves the cursor between lines; downwards by line feeds, which make a line where there is none yet."""
    return _UP.format(line - to) if to < line else "\n" * (to - line)
