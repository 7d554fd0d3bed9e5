"""A report as one self-contained HTML file: no network, and no external font, script or style.

The template escapes all values from a run. The page's content security policy forbids requests and
scripts.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

import jinja2
from markupsafe import Markup

from hpctrain.report.document import Block, Chart, Document, Series
from hpctrain.util import text

#: Generator tag at the start of a page, by which it is recognized.
MARK = "hpctrain report"
#: Control characters, bidirectional overrides and lone surrogates; none may be in a page.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def page(document: Document) -> str:
    """Render the page."""
    here = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(here),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"groups": _groups, "keys": keys, "svg": _svg}
    style = (here / "page.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    html = environment.get_template("page.html.j2").render(
        document=document,
        mark=MARK,
        style=Markup(style),  # noqa: S704 - our own file
        style_hash=f"sha256-{digest}",
        footer=(
            f"hpctrain {importlib.metadata.version('hpctrain')}, {text.date(document.at)}. Times are in"
            " the time zone of the machine that wrote this page."
        ),
    )
    return _CONTROL.sub("\ufffd", html)


def _groups(blocks: Iterable[Block]) -> Iterable[tuple[bool, list[Block]]]:
    # Charts are placed side by side.
    for drawn, found in itertools.groupby(blocks, key=lambda block: isinstance(block, Chart)):
        yield drawn, list(found)


def keys(chart: Chart) -> list[tuple[str, str]]:
    """Return (class of the line, name) for each colored line, and a label for the others."""
    coloured = [line for line in chart.series if line.colour is not None]
    found = [
        (f"line c{(line.colour or 0) % 8}{' strong' * line.emphasis}", line.name)
        for line in coloured
        if len(chart.series) > 1
    ]
    if others := len(chart.series) - len(coloured):
        found.append(("line many", f"{others} others"))
    if not all(math.isfinite(y) for line in chart.series for y in line.y):
        found.append(("bad", "NaN or infinite"))
    kinds = dict.fromkeys("restart" if rule.y is None else "limit" for rule in chart.rules)
    return found + [(f"rule {kind}", kind) for kind in kinds]


# -- SVG -------------------------------------------------------------------------------------------
# A chart is readable without color. All text is escaped here.

#: The lower and the upper end.
Axis = tuple[float, float]


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
    has_thousands = max(map(abs, values), default=0.0) >= 1e4
    return [
        f"{value / 1000:.4g}k" if has_thousands and value else text.number(value)
        for value in values
    ]


WIDTH, HEIGHT = 520, 240
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 20, 34
PLOT_W, PLOT_H = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM


def _text(words: str, x: float, y: float, kind: str = "tick", anchor: str = "end") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _svg(chart: Chart) -> Markup:
    """Return a chart's <svg>; screen readers read its title and description."""
    xs = [x for line in chart.series for x in line.x]
    xs += [rule.x for rule in chart.rules if rule.x is not None]
    low, high = min(xs, default=0.0), max(xs, default=1.0)
    over = (low, high) if high > low else (low - 0.5, high + 0.5)
    up = _y_range(chart)
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
    area = f'x="{LEFT}" y="{TOP}" width="{PLOT_W}" height="{PLOT_H}"'
    name = escape(chart.id)
    return Markup(  # noqa: S704 - drawn here, with all external text escaped
        f'<svg class="chart" id="{name}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-labelledby="{name}-t {name}-d"><title id="{name}-t">{escape(chart.title)}</title>'
        f'<desc id="{name}-d">{escape(chart.says or chart.title)}</desc>{axes}'
        f'<svg class="plot" {area} viewBox="0 0 {PLOT_W} {PLOT_H}">{rules}{lines}</svg>'
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
