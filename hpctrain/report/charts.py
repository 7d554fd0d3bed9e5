"""Bars and curves in characters. PURE: the same values give the same characters; nothing is asked of the terminal.

Two sets of characters: Unicode's block elements and braille patterns, and `plain`, which is ASCII. Every function returns exactly the
width that was asked for, for any numbers: NaN, infinities, none at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

#: Characters of all that is drawn here; where one cannot be encoded, `plain` is the choice.
USED = "█▏▕▁⠁⣿┤│"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS, _PLAIN_LEVELS = " ▁▂▃▄▅▆▇█", " .:-=+*%#"
#: Bits of a braille character's dots: column by column, from the top.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_LABEL = 8

Point = tuple[float, float]


def encodable(encoding: str | None, terminal: str = "") -> bool:
    """Whether an output of this encoding, on a terminal of this name (TERM), shows the characters that are not ASCII."""
    if terminal in ("linux", "vt100", "vt102", "vt220", "dumb"):  # their fonts lack braille
        return False
    try:
        USED.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def bar(part: float | None, width: int, *, plain: bool = False) -> str:
    """Return a bar between two ends that is full by `part`, 0 to 1; of an unknown one a bar of `?`.

    Args:
        part: cut at 0 and 1; None and NaN are unknown. Anything above nothing shows, and only all of it is full.
        width: characters, the ends included; at least 3.
        plain: in ASCII.
    """
    inner = max(1, width - 2)
    left, right = ("[", "]") if plain else ("▕", "▏")
    if part is None or math.isnan(part):
        return f"{left}{'?' * inner}{right}"
    part = min(1.0, max(0.0, part))
    fine = 1 if plain else 8
    filled = round(part * inner * fine)
    if part > 0:
        filled = max(1, filled)
    if part < 1:
        filled = min(inner * fine - 1, filled)
    whole, rest = divmod(filled, fine)
    body = "#" * whole if plain else "█" * whole + (_EIGHTHS[rest] if rest else "")
    return f"{left}{body.ljust(inner, '-' if plain else ' ')}{right}"


def levels(parts: Iterable[float | None], *, plain: bool = False) -> str:
    """Return one character for each part, 0 to 1, as high as it is; `?` for an unknown one."""
    signs = _PLAIN_LEVELS if plain else _LEVELS
    return "".join("?" if part is None or math.isnan(part) else signs[_level(part)] for part in parts)


def _level(part: float) -> int:
    """Return 1 to 8: even nothing has a mark, because the rank is there."""
    return min(8, max(1, math.ceil(min(1.0, max(0.0, part)) * 8)))


def spark(values: Sequence[float], width: int, *, plain: bool = False) -> str:
    """Return the course of values in one line, at most `width` characters: the least is the lowest mark, the most the highest."""
    means = _columns([(float(index), _drawable(value)) for index, value in enumerate(values)], min(width, len(values)))
    known = [value for value in means if value is not None]
    if not known:
        return "?" * min(width, len(values))
    low, span = min(known), max(known) - min(known)
    return levels((None if value is None else (value - low) / span if span else 0.5 for value in means), plain=plain)


def curve(points: Sequence[Point], width: int, height: int, *, plain: bool = False) -> list[str]:
    """Return `height` lines of a curve with its scale at the left and the first and last x below.

    Several points of one column are drawn as their mean; columns without any are bridged by a line. A column whose values are none of them
    finite is marked `x` at the top.

    Args:
        points: (x, y), in the order of x.
        width: characters of each line, the scale of 10 included; at least 20.
        height: lines, that of the x axis included; at least 3.
        plain: in ASCII.

    Returns:
        Lines of exactly `width` characters; without points, or with none finite, one that says so.
    """
    inner, rows = max(8, width - _LABEL - 2), max(2, height - 1)
    points = [(x, _drawable(y)) for x, y in points]
    known = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if not known:
        said = "no loss yet" if not points else "every loss is NaN or infinite"
        return [said[:width].ljust(width)]
    low, high = min(y for _, y in known), max(y for _, y in known)
    bottom, top = (low - 0.5 * abs(low or 1), high + 0.5 * abs(high or 1)) if low == high else (low, high)
    across = inner * (1 if plain else 2)
    fine = 2 if plain else 4
    heights = [None if mean is None else (mean - bottom) / (top - bottom) * (rows * fine - 1) for mean in _columns(points, across)]
    body = (_plain if plain else _braille)(_bridged(heights), inner, rows)
    body[0] = _marked(body[0], points)
    return [*_with_scale(body, top, bottom, plain=plain), _axis(points, inner)]


def _drawable(value: float) -> float:
    """Return a value whose sums and differences are no infinities, and no zeros that are none."""
    if not math.isfinite(value):
        return value
    return 0.0 if abs(value) < 1e-150 else min(1e150, max(-1e150, value))


def number(value: float) -> str:
    """Return a number in at most 7 characters: `8.2448`, `0.00012`, `12400`, `1.2e+09`."""
    for digits in (5, 4, 3, 2):
        text = f"{value:.{digits}g}"
        if len(text) <= 7:
            return text
    return f"{value:.0e}"


def _columns(points: Sequence[Point], across: int) -> list[float | None]:
    """Return the mean of the finite values in each of `across` columns; None where there is none."""
    if not points or across < 1:
        return []
    first, last = points[0][0], points[-1][0]
    sums, counts = [0.0] * across, [0] * across
    for x, y in points:
        if math.isfinite(y):
            column = _column(x, first, last, across)
            sums[column] += y
            counts[column] += 1
    return [total / count if count else None for total, count in zip(sums, counts, strict=True)]


def _column(x: float, first: float, last: float, across: int) -> int:
    return 0 if last <= first else min(across - 1, max(0, round((x - first) / (last - first) * (across - 1))))


def _bridged(heights: list[float | None]) -> list[float | None]:
    """Return the heights with a line through what is not known between two that are."""
    found = list(heights)
    before: int | None = None
    for index, value in enumerate(heights):
        if value is None:
            continue
        start = None if before is None else heights[before]
        if before is not None and start is not None:
            for between in range(before + 1, index):
                found[between] = start + (value - start) * (between - before) / (index - before)
        before = index
    return found


def _braille(heights: Sequence[float | None], inner: int, rows: int) -> list[str]:
    """Return rows of braille: two columns and four heights in each character, neighbours joined by what is between them."""
    cells = [[0] * inner for _ in range(rows)]
    before: int | None = None
    for column, value in enumerate(heights):
        if value is None:
            before = None
            continue
        dot = round(value)
        near = dot if before is None else before + (1 if dot > before else -1 if dot < before else 0)
        for each in range(min(dot, near), max(dot, near) + 1):
            down = rows * 4 - 1 - each
            cells[down // 4][column // 2] |= _DOTS[column % 2][down % 4]
        before = dot
    return ["".join(chr(0x2800 + cell) if cell else " " for cell in row) for row in cells]


def _plain(heights: Sequence[float | None], inner: int, rows: int) -> list[str]:
    """Return rows of ASCII: `'` is the upper half of a character, `.` the lower, `|` what joins two columns."""
    cells = [[" "] * inner for _ in range(rows)]
    before: int | None = None
    for column, value in enumerate(heights):
        if value is None:
            before = None
            continue
        dot = round(value)
        row = rows - 1 - dot // 2
        if before is not None:
            for between in range(min(before, row) + 1, max(before, row)):
                cells[between][column] = "|"
        cells[row][column] = "'" if dot % 2 else "."
        before = row
    return ["".join(row) for row in cells]


def _marked(line: str, points: Sequence[Point]) -> str:
    """Mark in the top line the columns that hold no finite value, but another."""
    first, last = points[0][0], points[-1][0]
    columns: dict[int, bool] = {}
    for x, y in points:
        column = _column(x, first, last, len(line))
        columns[column] = columns.get(column, False) or math.isfinite(y)
    return "".join("x" if columns.get(index) is False else each for index, each in enumerate(line))


def _with_scale(body: list[str], top: float, bottom: float, *, plain: bool) -> list[str]:
    tick, line = ("+", "|") if plain else ("┤", "│")
    labels = {0: number(top), len(body) - 1: number(bottom)}
    return [f"{labels.get(index, ''):>{_LABEL}} {tick if index in labels else line}{row}" for index, row in enumerate(body)]


def _axis(points: Sequence[Point], inner: int) -> str:
    first, last = f"{points[0][0]:.0f}", f"{points[-1][0]:.0f}"
    gap = inner - len(first) - len(last)
    text = last.rjust(inner) if first == last else f"{first}{' ' * gap}{last}" if gap > 0 else last.rjust(inner)
    return f"{'step':>{_LABEL}}  {text}"[: inner + _LABEL + 2]
