"""Charts that are no lines: shades of many ranks over time, a run's timeline, bars against a limit, parallel coordinates. PURE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from hpctrain.report import scale
from hpctrain.report.drawing import Heat, Timeline
from hpctrain.report.svg import LEFT, PLOT_W, TOP, WIDTH, plot, shortened, wrap, x_ticks

LEVELS = 8
"""Shades of a heat map."""
NARROW_AXES = 4
"""Parallel coordinates with more axes are as broad as the page."""
_EACH_AXIS = 170


def heat(chart: Heat) -> str:
    """Return the <svg> of a heat map: one path for each shade."""
    count, columns = len(chart.rows), len(chart.x)
    each = max(3.0, min(14.0, round(200 / max(1, count), 2)))
    height = round(each * count, 2)
    paths: list[list[str]] = [[] for _ in range(LEVELS)]
    width = PLOT_W / max(1, columns)
    for number, row in enumerate(chart.rows):
        for first, length, level in _stretches(row, chart.top):
            paths[level].append(f"M{first * width:.1f} {number * each:.1f}h{length * width:.1f}v{each:.1f}h-{length * width:.1f}z")
    drawn = "".join(f'<path class="heat h{level}" d="{"".join(path)}"/>' for level, path in enumerate(paths) if path)
    shown = range(0, count, max(1, math.ceil(count / (height / 14))))
    names = "".join(
        f'<text class="tick" x="{LEFT - 6}" y="{TOP + (number + 0.5) * each + 4:.1f}" text-anchor="end">'
        f"{escape(chart.names[number])}</text>"
        for number in shown
    )
    bottom = round(TOP + height)
    values, unit = scale.time_ticks(chart.x[0], chart.x[-1]) if chart.x[-1] > chart.x[0] else ([chart.x[0]], 1.0)
    span = (chart.x[-1] - chart.x[0]) or 1.0
    places, texts = [(value - chart.x[0]) / span for value in values], scale.labels([value / unit for value in values])
    axis = x_ticks(places, texts, f"{scale.UNITS[unit]} {chart.x_name}".strip(), bottom)
    return wrap(chart.id, chart.title, chart.says, plot(drawn, height) + names + axis + _legend(bottom + 38, chart), bottom + 54)


def _stretches(row: Sequence[float | None], top: float) -> list[tuple[int, int, int]]:
    """Return (first column, columns, shade) of each stretch of one shade; what is not known is left empty."""
    found: list[tuple[int, int, int]] = []
    for at, value in enumerate(row):
        if value is None or not math.isfinite(value):
            continue
        level = min(LEVELS - 1, max(0, int(LEVELS * value / top)))
        if found and found[-1][2] == level and found[-1][0] + found[-1][1] == at:
            found[-1] = (found[-1][0], found[-1][1] + 1, level)
        else:
            found.append((at, 1, level))
    return found


def _legend(y: int, chart: Heat) -> str:
    boxes = "".join(f'<rect class="heat h{level}" x="{LEFT + 30 + 16 * level}" y="{y}" width="16" height="9"/>' for level in range(LEVELS))
    return (
        f'<text class="unit" x="{LEFT + 24}" y="{y + 9}" text-anchor="end">0</text>{boxes}'
        f'<text class="unit" x="{LEFT + 36 + 16 * LEVELS}" y="{y + 9}">{scale.number(chart.top)} {escape(chart.unit)}</text>'
    )


def timeline(chart: Timeline) -> str:
    """Return the <svg> of a timeline: a row for each start, hatched where its work was lost."""
    each = 20 if len(chart.rows) <= 12 else max(6, 240 // len(chart.rows))
    span = (chart.high - chart.low) or 1.0
    drawn = ""

    def place(value: float) -> float:
        return LEFT + PLOT_W * min(1.0, max(0.0, (value - chart.low) / span))

    for number, row in enumerate(chart.rows):
        y = TOP + number * each
        if each >= 14 or number % math.ceil(14 / each) == 0:
            drawn += f'<text class="tick" x="{LEFT - 6}" y="{y + each / 2 + 4:.1f}" text-anchor="end">{escape(chart.names[number])}</text>'
        for part in row:
            x, until = place(part.first), place(part.until)
            drawn += (
                f'<rect class="span {escape(part.kind)}" x="{x:.1f}" y="{y + 2}" width="{max(0.8, until - x):.1f}" height="{each - 4}">'
                f"<title>{escape(part.text)}</title></rect>"
            )
    bottom = TOP + each * len(chart.rows)
    marks = _thin_marks(chart.saves, place, bottom, "save", 5) + _thin_marks(chart.evaluations, place, bottom + 5, "evaluation", 5)
    values, unit = scale.time_ticks(0.0, span)
    axis = x_ticks([value / span for value in values], scale.labels([value / unit for value in values]), scale.UNITS[unit], bottom + 12)
    return wrap(chart.id, chart.title, chart.says, _HATCH + drawn + marks + axis, bottom + 48)


_HATCH = (
    '<defs><pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="5" height="5" class="hatch-ground"/><line x1="0" y1="0" x2="0" y2="5" class="hatch-line"/></pattern></defs>'
)


def _thin_marks(times: Sequence[float], place: object, y: float, kind: str, length: int) -> str:
    """Return a short line for each time, each place once."""
    if not times or not callable(place):
        return ""
    places = dict.fromkeys(f"{place(time):.1f}" for time in times)
    return f'<path class="mark {kind}" d="{"".join(f"M{x} {y}v{length}" for x in places)}"/>'


def bars(name: str, title: str, rows: Sequence[tuple[str, float, str, str]], top: float, says: str) -> str:
    """Return bars: (label, value, text behind it, CSS class) each, 0 to `top`."""
    each = 22
    drawn = ""
    for number, (label, value, text, kind) in enumerate(rows):
        y = TOP + number * each
        width = (PLOT_W - 250) * min(1.0, max(0.0, value / top)) if top > 0 else 0.0
        drawn += (
            f'<text class="tick" x="{LEFT + 40}" y="{y + 14}" text-anchor="end">{escape(label)}</text>'
            f'<rect class="span {escape(kind)}" x="{LEFT + 46}" y="{y + 3}" width="{max(0.8, width):.1f}" height="{each - 7}"/>'
            f'<text class="tick" x="{LEFT + 52 + width:.1f}" y="{y + 14}">{escape(text)}</text>'
        )
    return wrap(name, title, says, _HATCH + drawn, TOP + each * len(rows) + 4)


def parallel(name: str, title: str, axes: Sequence[str], *, lines: Sequence[tuple[Sequence[float | None], int, str]],
             ends: Sequence[Sequence[tuple[float, str]]], says: str) -> str:  # fmt: skip
    """Return parallel coordinates.

    Args:
        name: of the chart.
        title: of it.
        axes: their names.
        lines: of each point: its place on every axis, 0 (below) to 1 (above) or None, its shade 0 to 7, 8 for the best, and its text.
        ends: of each axis: (place, text) of its ticks.
        says: what is to be seen.
    """
    height, top = 260, 46
    inner = height - top - 20
    width = WIDTH if len(axes) <= NARROW_AXES else _EACH_AXIS * len(axes)
    step = (width - 2 * 46) / max(1, len(axes) - 1)
    xs = [46 + step * number for number in range(len(axes))]
    drawn = ""
    for places, shade, text in sorted(lines, key=lambda line: line[1]):
        known = [(x, top + inner * (1 - place)) for x, place in zip(xs, places, strict=True) if place is not None]
        path = "".join(f"{'L' if at else 'M'}{x:.1f} {y:.1f}" for at, (x, y) in enumerate(known))
        drawn += f'<path class="point p{min(8, max(0, shade))}" d="{path}"><title>{escape(text)}</title></path>' if path else ""
    for number, (x, axis) in enumerate(zip(xs, axes, strict=True)):
        drawn += _axis(axis, x, number, len(axes), step=step, top=top, inner=inner, ends=ends[number])
    return wrap(name, title, says, drawn, height, width=width)


def _axis(name: str, x: float, number: int, count: int, *, step: float, top: int, inner: int, ends: Sequence[tuple[float, str]]) -> str:
    """Return an axis with its name, every other one a line lower, and its ticks; names that have no room are cut."""
    last = number == count - 1
    anchor = "start" if number == 0 else "end" if last else "middle"
    edge = x - 40 if number == 0 else x + 40 if last else x
    # Names of one line are two axes apart; that of the last one, and of the one below it, begin or end at the edge.
    room = (2 * step if count > 3 else step + 40) - 12
    drawn = f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + inner}"/>'
    drawn += (
        f'<text class="axis-name" x="{edge:.1f}" y="{14 if number % 2 == 0 else 31}" text-anchor="{anchor}">'
        f"{escape(shortened(name, room * (0.7 if number in (0, count - 1) else 1), letter=8.3))}</text>"
    )
    side = (x - 5, "end") if last else (x + 5, "start")
    return drawn + "".join(
        f'<text class="tick halo" x="{side[0]:.1f}" y="{top + inner * (1 - place) + 4:.1f}" text-anchor="{side[1]}">'
        f"{escape(shortened(text, step * (0.55 if number >= count - 2 else 1)))}</text>"
        for place, text in ends
    )
