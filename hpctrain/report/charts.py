"""Charts: series, their axes, and SVG for a page. PURE.

A chart is readable without color. All text is escaped here, so the SVG is safe to embed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from hpctrain.util.text import number


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line.

    Attributes:
        x, y: of equal length; None in `y` is a gap, NaN is marked.
        colour: 0 to 7, of the page's palette; None draws it thin and gray: one of many.
        emphasis: thicker than the others.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    colour: int | None = 0
    emphasis: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A line across the chart: at an `x`, a restart; or at a `y`, a limit."""

    text: str
    x: float | None = None
    y: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over steps.

    Attributes:
        id: unique on the page.
        unit: of y: `GiB`, `%`, or "".
        zero: y starts at 0.
        top: minimum upper end of y.
        says: one sentence that describes the chart, for screen readers.
    """

    id: str
    title: str
    series: tuple[Series, ...]
    unit: str = ""
    rules: tuple[Marker, ...] = ()
    zero: bool = False
    top: float | None = None
    says: str = ""


# -- axes ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scale:
    """The range of an axis, from `low` to `high`."""

    low: float
    high: float

    def part(self, value: float) -> float:
        """Return the position of a value: 0 at the lower end, 1 at the upper, clipped."""
        span = self.high - self.low
        return min(1.0, max(0.0, (value - self.low) / span)) if span > 0 else 0.5


def _fitted(
    values: Iterable[float | None], *, zero: bool = False, top: float | None = None
) -> Scale:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return Scale(0.0, top or 1.0)
    low, high = min(finite), max(*finite, top if top is not None else -math.inf)
    low = min(0.0, low) if zero else low
    room = 0.04 * (high - low)
    if room == 0 or not math.isfinite(room):
        room = abs(high) * 0.1 or 1.0
    return Scale(low if zero and low >= 0 else low - room, high + room)


def _scale_of_x(chart: Chart) -> Scale:
    xs = [x for line in chart.series for x in line.x if math.isfinite(x)]
    xs += [rule.x for rule in chart.rules if rule.x is not None]
    low, high = min(xs, default=0.0), max(xs, default=1.0)
    return Scale(low, high) if high > low else Scale(low - 0.5, high + 0.5)


def _ticks(axis: Scale, most: int) -> list[float]:
    """Return at most `most` ticks: 1, 2 or 5 times a power of ten."""
    raw = (axis.high - axis.low) / max(1, most - 1)
    if not (raw > 0 and math.isfinite(raw)):
        return [axis.low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(f * power for f in (1, 2, 5, 10, 20) if f * power >= raw * (1 - 1e-9))
    first = math.ceil(axis.low / step - 1e-9)
    found = [(first + n) * step for n in range(most)]
    return [value for value in found if value <= axis.high + step * 1e-9]


def _labels(values: Sequence[float]) -> list[str]:
    highest = max(map(abs, values), default=0.0)
    for least, factor, suffix in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if highest >= least:
            return [f"{value / factor:.4g}{suffix}" if value else "0" for value in values]
    return [number(value) for value in values]


# -- SVG -------------------------------------------------------------------------------------------

WIDTH, HEIGHT = 520, 240
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 20, 34
PLOT_W, PLOT_H = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM


def _text(words: str, x: float, y: float, kind: str = "tick", anchor: str = "end") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def to_svg(chart: Chart) -> str:
    """Return a chart's <svg>; screen readers read its title and description."""
    over = _scale_of_x(chart)
    ys = [y for line in chart.series for y in line.y] + [rule.y for rule in chart.rules]
    up = _fitted(ys, zero=chart.zero, top=chart.top)
    # Draw gray lines first, emphasized ones on top.
    ordered = sorted(chart.series, key=lambda line: (line.colour is not None, line.emphasis))
    lines = "".join(_line(line, over, up) for line in ordered)
    rules = "".join(_rule(rule, over, up) for rule in chart.rules)
    place = f'x="{LEFT}" y="{TOP}" width="{PLOT_W}" height="{PLOT_H}"'
    area = f'<svg class="plot" {place} viewBox="0 0 {PLOT_W} {PLOT_H}">{rules}{lines}</svg>'
    for rule in chart.rules:
        if rule.y is not None:
            y = TOP + PLOT_H * (1 - up.part(rule.y))
            area += _text(rule.text, LEFT + PLOT_W - 4, y - 4 if y > TOP + 14 else y + 13, "unit")
    name = escape(chart.id)
    return (
        f'<svg class="chart" id="{name}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-labelledby="{name}-t {name}-d"><title id="{name}-t">{escape(chart.title)}</title>'
        f'<desc id="{name}-d">{escape(chart.says or chart.title)}</desc>'
        f"{_y_axis(up, chart.unit)}{_x_axis(over)}{area}</svg>"
    )


def _y_axis(axis: Scale, unit: str) -> str:
    values, drawn = _ticks(axis, 7), ""
    for value, words in zip(values, _labels(values), strict=True):
        y = TOP + PLOT_H * (1 - axis.part(value))
        drawn += f'<line class="grid" x1="{LEFT}" x2="{LEFT + PLOT_W}" y1="{y:.1f}" y2="{y:.1f}"/>'
        drawn += _text(words, LEFT - 6, y + 4)
    return drawn + _text(unit, LEFT, 11, "unit", "start")


def _x_axis(axis: Scale) -> str:
    values = _ticks(axis, 6)
    values = [x for x in values if x == int(x)]
    marks, bottom = "", TOP + PLOT_H
    for value, words in zip(values, _labels(values), strict=True):
        place = axis.part(value)
        x = LEFT + PLOT_W * place
        marks += f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
        marks += _text(words, x, bottom + 16, anchor="end" if place > 0.985 else "middle")
    line = f'<line class="axis" x1="{LEFT}" x2="{LEFT + PLOT_W}" y1="{bottom}" y2="{bottom}"/>'
    return f"{line}{marks}{_text('step', WIDTH - RIGHT, bottom + 30, 'unit')}"


def _line(line: Series, over: Scale, up: Scale) -> str:
    """Draw the segments between gaps; a segment of one point is a dot: a zero-length line with
    round ends.
    """
    pieces: list[list[str]] = [[]]
    bad = ""
    for x, y in zip(line.x, line.y, strict=True):
        at = f"{PLOT_W * over.part(x):.1f}"
        if y is None or not math.isfinite(y):
            pieces.append([])
            bad += "" if y is None else f"M{at} 0v10"
            continue
        pieces[-1].append(f"{at} {PLOT_H * (1 - up.part(y)):.1f}")
    kind = "many" if line.colour is None else f"c{line.colour % 8}"
    kind += " strong" * line.emphasis
    kind += " dots" * (max(map(len, pieces)) == 1)
    path = "".join(f"M{'L'.join(each)}{'h0' * (len(each) == 1)}" for each in pieces if each)
    drawn = f'<path class="line {kind}" d="{path}"/>' if path else ""
    return drawn + (f'<path class="bad" d="{bad}"/>' if bad else "")


def _rule(rule: Marker, over: Scale, up: Scale) -> str:
    if rule.y is not None:
        y = PLOT_H * (1 - up.part(rule.y))
        return f'<path class="rule limit" d="M0 {y:.1f}H{PLOT_W}"/>'
    x = PLOT_W * over.part(rule.x or 0.0)
    title = f"<title>{escape(rule.text)}</title>"
    return f'<path class="rule restart" d="M{x:.1f} 0V{PLOT_H}">{title}</path>'
