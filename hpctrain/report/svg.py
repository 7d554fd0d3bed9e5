"""Charts as SVG for a page: no script is needed to read them, and no colour alone says anything. PURE.

What a chart shows is escaped here; the result is safe to put on a page as it is. The page's script reads `data_of` for values under the
mouse and for zooming: the lines are drawn in an inner <svg>, whose viewBox it changes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from html import escape

from hpctrain.report import scale
from hpctrain.report.drawing import Chart, Heat, Rule, Series
from hpctrain.report.scale import Scale

WIDTH, HEIGHT = 520, 240
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 20, 34
PLOT_W, PLOT_H = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
_MOST_WORDS = 8
MOST = 700
"""Points of one line; more than a screen can tell apart."""


def draw(chart: Chart) -> str:
    """Return the <svg> of a chart."""
    axis_y = scale.scale(_all_y(chart), zero=chart.zero, log=chart.log, top=chart.top)
    axis_x = x_scale(chart)
    parts = [
        *_y_axis(axis_y, chart.unit),
        *x_axis(chart, axis_x),
        plot(_rules(chart.rules, axis_x, axis_y) + _lines(chart, axis_x, axis_y)),
    ]
    parts += _rule_texts(chart.rules, axis_x, axis_y)
    return wrap(chart.id, chart.title, chart.says, "".join(parts))


def shortened(text: str, room: float, *, letter: float = 7.6) -> str:
    """Return a text that fits so many units of a drawing, on the page of a phone too; of `org/model` the model is kept."""
    most = max(3, int(room / letter) - 1)
    if len(text) > most:
        text = text.rpartition("/")[2] or text
    return text if len(text) <= most else f"{text[: most - 1]}…"


def wrap(name: str, title: str, says: str, inner: str, height: int = HEIGHT, *, width: int = WIDTH) -> str:
    """Return an <svg> that is read aloud by its title and its sentence."""
    return (
        f'<svg class="chart" id="{escape(name)}" viewBox="0 0 {width} {height}" role="img"'
        f' aria-labelledby="{escape(name)}-t {escape(name)}-d"><title id="{escape(name)}-t">{escape(title)}</title>'
        f'<desc id="{escape(name)}-d">{escape(says or title)}</desc>{inner}</svg>'
    )


def data_of(chart: Chart | Heat) -> str:
    """Return what the script of the page needs of a chart, as JSON that cannot end its <script> element."""
    if isinstance(chart, Heat):
        value: dict[str, object] = {"k": "time", "x": [_rounded(x) for x in chart.x], "n": chart.names, "rows": chart.rows, "u": chart.unit}
    else:
        axis = x_scale(chart)
        shared: dict[tuple[float, ...], int] = {}
        series = []
        for line in chart.series:
            drawn = thinned(line)
            number = shared.setdefault(drawn.x, len(shared))
            series.append({"n": drawn.name, "x": number, "y": [_rounded(y) for y in drawn.y]})
        value = {
            "k": chart.x_kind, "n": chart.x_name, "u": chart.unit, "lo": axis.low, "hi": axis.high, "log": axis.log,
            "w": chart.words, "xs": [[_rounded(x) for x in xs] for xs in shared], "s": series,
        }  # fmt: skip
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def thinned(line: Series) -> Series:
    """Return a line with at most MOST points, highest and lowest of each stretch among them."""
    if len(line.x) <= MOST:
        return line
    each = math.ceil(2 * len(line.x) / MOST)
    kept: list[int] = []
    for first in range(0, len(line.x), each):
        span = range(first, min(first + each, len(line.x)))
        known = [at for at in span if (y := line.y[at]) is not None and math.isfinite(y)]
        gaps = [at for at in span if (y := line.y[at]) is None or not math.isfinite(y)][:1]
        chosen = {min(known, key=lambda at: line.y[at] or 0.0), max(known, key=lambda at: line.y[at] or 0.0)} if known else set()
        kept += sorted({*chosen, *gaps})
    return Series(
        name=line.name, x=tuple(line.x[at] for at in kept), y=tuple(line.y[at] for at in kept), colour=line.colour, dots=line.dots,
        dashed=line.dashed, emphasis=line.emphasis,
    )  # fmt: skip


def x_scale(chart: Chart) -> Scale:
    """Return the scale of x, without room at its ends: a training begins where it begins."""
    xs = [x for line in chart.series for x in line.x if math.isfinite(x)] + [rule.x for rule in chart.rules if rule.x is not None]
    if not xs:
        return Scale(0.0, 1.0)
    low, high = min(xs), max(xs)
    if chart.words:
        return Scale(-0.5, max(0.5, len(chart.words) - 0.5))
    if chart.log_x and low > 0 and high > low:
        return Scale(low / 1.2, high * 1.2, log=True)
    if chart.x_kind == "number":
        return scale.scale(xs, log=False)
    return Scale(low, high) if high > low else Scale(low - 0.5, high + 0.5)


# -- axes ---------------------------------------------------------------------------------------------------------------


def _y_axis(axis: Scale, unit: str) -> Iterable[str]:
    values = scale.ticks(axis, 7)
    for value, text in zip(values, scale.labels(values, log=axis.log), strict=True):
        y = TOP + PLOT_H * (1 - axis.part(value))
        yield f'<line class="grid" x1="{LEFT}" x2="{LEFT + PLOT_W}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'
    if axis.log:
        unit = f"{unit}, log scale".removeprefix(", ")
    if unit:
        yield f'<text class="unit" x="{LEFT}" y="11">{escape(unit)}</text>'


def x_axis(chart: Chart, axis: Scale) -> Iterable[str]:
    """Yield the ticks of x, in a group that the script replaces where it zooms."""
    if chart.x_kind == "time":
        values, unit = scale.time_ticks(axis.low, axis.high)
        name = f"{scale.UNITS[unit]} {chart.x_name}".strip()
        texts = scale.labels([value / unit for value in values])
    elif chart.words:
        each = math.ceil(len(chart.words) / _MOST_WORDS)
        values = [float(at) for at in range(0, len(chart.words), each)]
        room = PLOT_W / len(chart.words) * each
        texts, name = [shortened(word, room) for word in chart.words[::each]], chart.x_name
    else:
        values = [value for value in scale.ticks(axis, 6) if chart.x_kind != "step" or value == int(value)]
        texts, name = scale.labels(values, log=axis.log), "step" if chart.x_kind == "step" else chart.x_name
    yield x_ticks([axis.part(value) for value in values], texts, name)


def x_ticks(places: Sequence[float], texts: Sequence[str], name: str, bottom: int = HEIGHT - BOTTOM) -> str:
    """Return ticks at parts of the width, and what they count behind the last."""
    marks = "".join(
        f'<line class="axis" x1="{LEFT + PLOT_W * place:.1f}" x2="{LEFT + PLOT_W * place:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
        f'<text class="tick" x="{LEFT + PLOT_W * place:.1f}" y="{bottom + 16}" text-anchor="{"end" if place > 0.985 else "middle"}">'
        f"{escape(text)}</text>"
        for place, text in zip(places, texts, strict=True)
    )
    line = f'<line class="axis" x1="{LEFT}" x2="{LEFT + PLOT_W}" y1="{bottom}" y2="{bottom}"/>'
    unit = f'<text class="unit" x="{WIDTH - RIGHT}" y="{bottom + 30}" text-anchor="end">{escape(name)}</text>'
    return f'{line}<g class="xticks">{marks}</g>{unit}'


# -- what is drawn ------------------------------------------------------------------------------------------------------


def plot(inner: str, height: float = PLOT_H) -> str:
    """Return the area of the lines; the rectangle is what the script of the page finds the mouse over."""
    place = f'x="{LEFT}" y="{TOP}" width="{PLOT_W}" height="{height:g}"'
    return (
        f'<g class="area"><rect class="hit" {place}/><svg class="plot" {place} viewBox="0 0 {PLOT_W} {height:g}"'
        f' preserveAspectRatio="none">{inner}</svg></g>'
    )


def _all_y(chart: Chart) -> list[float | None]:
    found = [y for line in chart.series for y in line.y]
    return [*found, *(rule.y for rule in chart.rules if rule.y is not None)]


def _lines(chart: Chart, axis_x: Scale, axis_y: Scale) -> str:
    # The many first, what stands out over them.
    ordered = sorted(chart.series, key=lambda line: (line.colour is not None, line.emphasis))
    return "".join(_line(thinned(line), axis_x, axis_y) for line in ordered)


def _line(line: Series, axis_x: Scale, axis_y: Scale) -> str:
    path, bad, pen = [], [], False
    places = {x for x, y in zip(line.x, line.y, strict=True) if y is not None and math.isfinite(y)}
    dots = line.dots or len(places) == 1  # a line of one point is too fine to see
    for x, y in zip(line.x, line.y, strict=True):
        px = PLOT_W * axis_x.part(x)
        if y is None or not math.isfinite(y):
            pen = False
            if y is not None:
                bad.append(f"M{px:.1f} 0v10")
            continue
        py = PLOT_H * (1 - axis_y.part(y))
        if dots:
            path.append(f"M{px:.1f} {py:.1f}h0")
        else:
            path.append(f"{'L' if pen else 'M'}{px:.1f} {py:.1f}")
            pen = True
    path, lone = _lone_points(path)
    kind = "many" if line.colour is None else f"c{line.colour % 8}"
    more = "".join(f" {word}" for word, on in (("dots", dots), ("dashed", line.dashed and not dots), ("strong", line.emphasis)) if on)
    drawn = f'<path class="line {kind}{more}" d="{"".join(path)}"/>' if path else ""
    drawn += f'<path class="line {kind} dots" d="{"".join(lone)}"/>' if lone else ""
    return drawn + (f'<path class="bad" d="{"".join(bad)}"/>' if bad else "")


def _lone_points(path: list[str]) -> tuple[list[str], list[str]]:
    """Return a path without the points that stand alone between two gaps, and those, as lines of no length that round ends make dots."""
    lone = {at for at, part in enumerate(path) if part[0] == "M" and "h" not in part and (at + 1 == len(path) or path[at + 1][0] == "M")}
    return [part for at, part in enumerate(path) if at not in lone], [f"{path[at]}h0" for at in sorted(lone)]


def _rules(rules: Iterable[Rule], axis_x: Scale, axis_y: Scale) -> str:
    drawn = ""
    for rule in rules:
        if rule.y is not None:
            y = PLOT_H * (1 - axis_y.part(rule.y))
            drawn += f'<path class="rule {rule.kind}" d="M0 {y:.1f}H{PLOT_W}"/>'
        elif rule.x is not None and rule.until is not None:
            x, until = (PLOT_W * axis_x.part(value) for value in (rule.x, rule.until))
            drawn += f'<rect class="{rule.kind}" x="{x:.1f}" width="{max(0.5, until - x):.1f}" y="0" height="{PLOT_H}"/>'
        elif rule.x is not None:
            x = PLOT_W * axis_x.part(rule.x)
            drawn += f'<path class="rule {rule.kind}" d="M{x:.1f} 0V{PLOT_H}"><title>{escape(rule.text)}</title></path>'
    return drawn


def _rule_texts(rules: Iterable[Rule], axis_x: Scale, axis_y: Scale) -> Iterable[str]:
    del axis_x
    for rule in rules:
        if rule.y is not None and rule.text:
            y = TOP + PLOT_H * (1 - axis_y.part(rule.y))
            up = y - 4 if y > TOP + 14 else y + 13
            yield f'<text class="unit" x="{LEFT + PLOT_W - 4}" y="{up:.1f}" text-anchor="end">{escape(rule.text)}</text>'


def _rounded(value: float | None) -> float | int | None:
    """Return a value with six digits: more than anybody reads off a chart."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.6g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short
