"""Charts: series, their axes, and SVG for a page. PURE.

A chart is readable without color. All text is escaped here, so the SVG is safe to embed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from hpctrain.util.text import number


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line.

    Attributes:
        x, y: of equal length; NaN in `y` is marked.
        colour: 0 to 7, of the page's palette; None draws it thin and gray: one of many.
        emphasis: thicker than the others.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
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


Axis = tuple[float, float]
"""The lower and the upper end."""


def _part(axis: Axis, value: float) -> float:
    """Return the position of a value: 0 at the lower end, 1 at the upper, clipped."""
    low, high = axis
    return min(1.0, max(0.0, (value - low) / (high - low)))


def _y_range(chart: Chart) -> Axis:
    values = [y for line in chart.series for y in line.y]
    values += [rule.y for rule in chart.rules if rule.y is not None]
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return 0.0, chart.top or 1.0
    low, high = min(finite), max(*finite, chart.top if chart.top is not None else -math.inf)
    low = min(0.0, low) if chart.zero else low
    room = 0.04 * (high - low)
    if room == 0 or not math.isfinite(room):
        room = abs(high) * 0.1 or 1.0
    return (low if chart.zero and low >= 0 else low - room), high + room


def _x_range(chart: Chart) -> Axis:
    xs = [x for line in chart.series for x in line.x]
    xs += [rule.x for rule in chart.rules if rule.x is not None]
    low, high = min(xs, default=0.0), max(xs, default=1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _ticks(axis: Axis, most: int) -> list[float]:
    """Return at most `most` ticks: 1, 2 or 5 times a power of ten."""
    low, high = axis
    raw = (high - low) / max(1, most - 1)
    if not math.isfinite(raw):
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(f * power for f in (1, 2, 5, 10, 20) if f * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    found = [(first + n) * step for n in range(most)]
    return [value for value in found if value <= high + step * 1e-9]


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
    over, up = _x_range(chart), _y_range(chart)
    right, bottom = LEFT + PLOT_W, TOP + PLOT_H
    axes = _text(chart.unit, LEFT, 11, "unit", "start")
    values = _ticks(up, 7)
    for value, words in zip(values, _labels(values), strict=True):
        y = TOP + PLOT_H * (1 - _part(up, value))
        axes += f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        axes += _text(words, LEFT - 6, y + 4)
    axes += f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
    values = [x for x in _ticks(over, 6) if x == int(x)]
    for value, words in zip(values, _labels(values), strict=True):
        place = _part(over, value)
        x = LEFT + PLOT_W * place
        axes += f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
        axes += _text(words, x, bottom + 16, anchor="end" if place > 0.985 else "middle")
    axes += _text("step", WIDTH - RIGHT, bottom + 30, "unit")
    rules, labels = "", ""
    for rule in chart.rules:
        if rule.y is None:
            x, title = PLOT_W * _part(over, rule.x or 0.0), f"<title>{escape(rule.text)}</title>"
            rules += f'<path class="rule restart" d="M{x:.1f} 0V{PLOT_H}">{title}</path>'
            continue
        y = PLOT_H * (1 - _part(up, rule.y))
        rules += f'<path class="rule limit" d="M0 {y:.1f}H{PLOT_W}"/>'
        labels += _text(rule.text, right - 4, TOP + (y - 4 if y > 14 else y + 13), "unit")
    # Draw gray lines first, emphasized ones on top.
    ordered = sorted(chart.series, key=lambda line: (line.colour is not None, line.emphasis))
    lines = "".join(_line(line, over, up) for line in ordered)
    place = f'x="{LEFT}" y="{TOP}" width="{PLOT_W}" height="{PLOT_H}"'
    name = escape(chart.id)
    return (
        f'<svg class="chart" id="{name}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-labelledby="{name}-t {name}-d"><title id="{name}-t">{escape(chart.title)}</title>'
        f'<desc id="{name}-d">{escape(chart.says or chart.title)}</desc>{axes}'
        f'<svg class="plot" {place} viewBox="0 0 {PLOT_W} {PLOT_H}">{rules}{lines}</svg>'
        f"{labels}</svg>"
    )


def _line(line: Series, over: Axis, up: Axis) -> str:
    """Draw the segments between values that are not finite; a segment of one point is a dot: a
    zero-length line with round ends.
    """
    pieces: list[list[str]] = [[]]
    bad = ""
    for x, y in zip(line.x, line.y, strict=True):
        at = f"{PLOT_W * _part(over, x):.1f}"
        if math.isfinite(y):
            pieces[-1].append(f"{at} {PLOT_H * (1 - _part(up, y)):.1f}")
        else:
            pieces.append([])
            bad += f"M{at} 0v10"
    kind = "many" if line.colour is None else f"c{line.colour % 8}"
    kind += " strong" * line.emphasis + " dots" * (max(map(len, pieces)) == 1)
    path = "".join(f"M{'L'.join(each)}{'h0' * (len(each) == 1)}" for each in pieces if each)
    drawn = f'<path class="line {kind}" d="{path}"/>' if path else ""
    return drawn + (f'<path class="bad" d="{bad}"/>' if bad else "")
