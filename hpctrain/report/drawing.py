"""A chart as values: what is drawn, and not how (svg.py draws it on a page, terminal.py in characters). PURE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

XKind = Literal["step", "time", "number"]
Y = float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line.

    Attributes:
        x, y: equally long; None in `y` is a gap in the line, NaN a value that is no number, which is marked.
        colour: 0 to 7, of the page's palette; None draws it thin and grey: one of many.
        dots: single marks, unconnected; dashed: a broken line.
        emphasis: thicker than the others.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[Y, ...]
    colour: int | None = 0
    dots: bool = False
    dashed: bool = False
    emphasis: bool = False

    @property
    def last(self) -> float | None:
        """The last value that is a number."""
        return next((value for value in reversed(self.y) if value is not None and math.isfinite(value)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A line across the chart: at an `x`, such as a restart, or at a `y`, such as a limit; or a stretch of x up to `until`."""

    text: str
    x: float | None = None
    y: float | None = None
    until: float | None = None
    kind: Literal["restart", "limit", "lost"] = "restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart.

    Attributes:
        id: a name that no other chart of the page has.
        unit: of y: `GiB`, `%`, or "".
        x_kind: optimizer steps, seconds, or numbers called `x_name`; of seconds it says what they count.
        zero: y begins at 0; log: None decides by the values.
        top: that y reaches at least.
        words: that stand at the x 0, 1, 2..., where x is no number.
        says: one sentence that says what is to be seen, for those who do not see it.
    """

    id: str
    title: str
    series: tuple[Series, ...]
    unit: str = ""
    x_kind: XKind = "step"
    x_name: str = ""
    rules: tuple[Rule, ...] = ()
    zero: bool = False
    log: bool | None = None
    top: float | None = None
    says: str = ""
    log_x: bool = False
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """Values of many rows over time, as shades: `rows[i][j]` is of `names[i]` at `x[j]`; 0 to `top`, None is not known."""

    id: str
    title: str
    x: tuple[float, ...]
    names: tuple[str, ...]
    rows: tuple[tuple[float | None, ...], ...]
    top: float = 100.0
    unit: str = "%"
    says: str = ""
    x_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a timeline; `kind` is waiting, loading, training, lost or after."""

    first: float
    until: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The starts of a run over time: rows of spans, with a mark for each save and evaluation."""

    id: str
    title: str
    names: tuple[str, ...]
    rows: tuple[tuple[Span, ...], ...]
    saves: tuple[float, ...] = ()
    evaluations: tuple[float, ...] = ()
    low: float = 0.0
    high: float = 1.0
    says: str = ""


Drawn = Chart | Heat | Timeline


def binned(x: Sequence[float], y: Sequence[float | None], edges: Sequence[float], *, lowest: bool = False) -> tuple[float | None, ...]:
    """Return the highest (or lowest) value in each of the bins between `edges`; None where a bin has none.

    Args:
        x: in rising order.
        y: its values.
        edges: one more than bins, in rising order.
        lowest: the lowest in place of the highest.
    """
    found: list[float | None] = [None] * (len(edges) - 1)
    at = 0
    for place, value in zip(x, y, strict=True):
        if value is None:
            continue
        while at < len(found) - 1 and place >= edges[at + 1]:
            at += 1
        old = found[at]
        found[at] = value if old is None else min(old, value) if lowest else max(old, value)
    return tuple(found)
