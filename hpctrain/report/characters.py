"""Lines for a terminal, and bars and curves in characters. A line is a text with one style: rich
paints it on a terminal, elsewhere only the text is written.

PURE except for `paint`. Output has exactly the requested width for any input: NaN, infinities, no
values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hpctrain.util.text import number, printable

if TYPE_CHECKING:
    from rich.text import Text

Line = tuple[str, str]
"""A text and its rich style, or no style."""
Point = tuple[float, float]

_LEVELS = " ▁▂▃▄▅▆▇█"
_LABEL = 8


def bar(part: float | None, width: int) -> str:
    """Draw a bar of `width` characters, including its ends, filled to the fraction `part` (0 to 1);
    if that is unknown or NaN, a bar of `?`.
    """
    inner = max(1, width - 2)
    if part is None or math.isnan(part):
        return f"▕{'?' * inner}▏"
    return f"▕{'█' * round(min(1.0, max(0.0, part)) * inner):{inner}}▏"


def curve(points: Sequence[Point], width: int, height: int) -> list[str]:
    """Draw a curve of `height` lines with its scale at the left and the first and last x below.

    Points in the same column are averaged; a column without points repeats the previous one. A
    column without a finite value is marked `x` at the top.

    Args:
        points: (x, y), sorted by x.
        width: characters of each line, including 10 for the scale; at least 20.
        height: lines, including the x axis; at least 2.

    Returns:
        Lines of exactly `width` characters; one message if no point is finite.
    """
    inner, rows = width - _LABEL - 2, height - 1
    columns: list[list[float]] = [[] for _ in range(inner)]
    first, last = (points[0][0], points[-1][0]) if points else (0.0, 0.0)
    for x, y in points:
        column = round((x - first) / (last - first) * (inner - 1)) if last > first else 0
        columns[column].append(min(1e150, max(-1e150, y)) if math.isfinite(y) else math.nan)
    means = [_mean(column) for column in columns]
    known = [mean for mean in means if mean is not None]
    if not known:
        words = "every loss is NaN or infinite" if points else "no loss yet"
        return [words[:width].ljust(width)]
    low, span = min(known), (max(known) - min(known)) or 1.0
    heights, height_before = [], 0.0
    for mean in means:
        height_before = height_before if mean is None else (mean - low) / span * (rows * 8 - 1) + 1
        heights.append(height_before)
    drawn = []
    for row in reversed(range(rows)):
        label = max(known) if row == rows - 1 else low if row == 0 else None
        name = "" if label is None else number(label, 3)
        body = "".join(_LEVELS[min(8, max(0, math.ceil(each - row * 8)))] for each in heights)
        drawn.append([f"{name:>{_LABEL}} {'│' if label is None else '┤'}", body])
    bad = [bool(column) and mean is None for column, mean in zip(columns, means, strict=True)]
    drawn[0][1] = "".join(
        "x" if is_bad else sign for sign, is_bad in zip(drawn[0][1], bad, strict=True)
    )
    ends = f"{first:.0f}", f"{last:.0f}" if last > first else ""
    axis = f"{'step':>{_LABEL}}  {ends[0]}{ends[1]:>{max(0, inner - len(ends[0]))}}"
    return [each[:width].ljust(width) for each in (*map("".join, drawn), axis)]


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None


# -- lines -----------------------------------------------------------------------------------------


def cut(words: str, width: int) -> str:
    """Truncate a text to `width`, with a mark at the cut."""
    return words if len(words) <= width else words[: width - 1] + "~"


def paint(lines: Iterable[Line]) -> Text:
    """Convert lines to rich text, without characters that control a terminal."""
    from rich.text import Text

    shown = Text(no_wrap=True, overflow="crop", end="")
    for at, (words, style) in enumerate(lines):
        shown.append("\n" * (at > 0)).append(printable(words), style or None)
    return shown
