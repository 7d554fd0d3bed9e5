"""The page that compares runs: table, parallel coordinates or scatter, and loss curves over each other. PURE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpctrain.report import compare_text, page, scale, svg_more
from hpctrain.report.compare import CURVES, Comparison, Row, Scalar
from hpctrain.report.drawing import Chart, Series
from hpctrain.report.failures import names

_AXES = 7
_APART = 0.075
"""Parameters that parallel coordinates show."""


def comparison_page(found: Comparison) -> str:
    """Return the page."""
    best = found.best
    failed = [
        {"count": len(each.runs), "id": each.id, "certainty": each.certainty, "cause": each.cause, "fix": each.fix,
         "names": names(each.runs, 12), "first": each.first}
        for each in found.failures
    ]  # fmt: skip
    charts = [chart for chart in (_parameters(found), *_scatters(found), _curves(found)) if chart is not None]
    context: dict[str, Any] = {
        "heading": found.title, "summary": compare_text.summary(found), "best": compare_text.best_words(found), "next": found.next,
        "charts": charts, "head": compare_text.head(found), "rows": [compare_text.cells(row, found) for row in found.rows],
        "numbers": _numeric(found), "classes": ["best" if row is best else "" for row in found.rows], "failed": failed,
    }  # fmt: skip
    return page.render("page_compare.html.j2", title=f"{found.title}: {len(found.rows)} runs", context=context, at=found.now)


def _numeric(found: Comparison) -> list[int]:
    keys = [
        number for number, key in enumerate(found.keys) if all(_is_number(row.values.get(key)) for row in found.rows if key in row.values)
    ]
    return [2, 3, 4, 5, *(6 + number for number in keys)]


def _is_number(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _known(found: Comparison) -> list[Row]:
    return [row for row in found.rows if row.metric is not None and math.isfinite(row.metric)]


# -- parameters against the metric --------------------------------------------------------------------------------------


def _scatters(found: Comparison) -> list[dict[str, Any]]:
    """Return a scatter of the metric for each numeric parameter, where there are one or two of them."""
    rows = _known(found)
    if not rows or len(found.keys) != 1:
        return []
    (key,) = found.keys
    given = [(row, row.values[key]) for row in rows if key in row.values]
    names: list[str] = []
    if all(_is_number(value) for _, value in given):
        pairs = [(row, float(value)) for row, value in given if isinstance(value, int | float)]
    else:  # words stand side by side
        names = list(dict.fromkeys(compare_text.cell(value) for _, value in given))
        pairs = [(row, float(names.index(compare_text.cell(value)))) for row, value in given]
    pairs.sort(key=lambda pair: pair[1])
    best = found.best
    xs = [x for _, x in pairs]
    log_x = bool(xs) and not names and min(xs) > 0 and max(xs) / min(xs) >= 30
    series = [Series(name="runs", x=tuple(xs), y=tuple(row.metric for row, _ in pairs), dots=True)]
    if best is not None and any(row is best for row, _ in pairs):
        x = next(x for row, x in pairs if row is best)
        series.append(Series(name=f"best: {best.run.id}", x=(x,), y=(best.metric,), colour=1, dots=True, emphasis=True))
    label = key + (", log scale" if log_x else "")
    says = compare_text.best_words(found) or ""
    chart = Chart(
        id="scatter",
        title=f"{found.metric} by {key}",
        series=tuple(series),
        x_kind="number",
        x_name=label,
        says=says,
        log_x=log_x,
        words=tuple(names),
    )
    return [page.figure(chart)]


def _parameters(found: Comparison) -> dict[str, Any] | None:
    """Return parallel coordinates, for two parameters or more."""
    rows = _known(found)
    if len(rows) < 2 or len(found.keys) < 2:
        return None
    keys = list(found.keys[:_AXES])
    axes = [_axis([row.values.get(key) for row in rows]) for key in keys]
    metric = [row.metric or 0.0 for row in rows]
    low, high = min(metric), max(metric)
    axes.append(_axis(list(metric)))
    best = found.best
    lines = []
    for number, row in enumerate(rows):
        places = [axis.place(value) for axis, value in zip(axes, [*(row.values.get(key) for key in keys), row.metric], strict=True)]
        part = ((row.metric or 0.0) - low) / (high - low) if high > low else 0.0
        part = 1 - part if found.higher else part
        shade = 8 if row is best else min(7, int(8 * part))
        given = ", ".join(f"{key}={compare_text.cell(row.values[key])}" for key in keys if key in row.values)
        lines.append((places, shade, f"{row.run.id}: {given}: {found.metric} {scale.number(metric[number], 5)}"))
    left = len(found.keys) - _AXES
    more = f"; {left} more parameters are in the table" if left > 0 else ""
    says = f"each line is a run: the more it stands out the better, the thick one is the best{more}"
    title = f"Parameters and {found.metric}"
    text = svg_more.parallel("parallel", title, [*keys, str(found.metric)], lines=lines, ends=[axis.ends for axis in axes], says=says)
    return {"id": "parallel", "title": title, "says": says, "svg": page.markup(text), "data": None, "keys": [], "table": None, "boxes": [],
            "broad": len(axes) > svg_more.NARROW_AXES}  # fmt: skip


class _Axis:
    """Where the values of one parameter stand: numbers by size (over two powers of ten by their logarithm), words side by side."""

    def __init__(self, values: Sequence[Scalar]) -> None:
        known = [value for value in values if value is not None]
        self.words: list[str] = []
        if known and all(_is_number(value) for value in known):
            numbers = [float(value) for value in known if isinstance(value, int | float)]
            low, high = min(numbers), max(numbers)
            self.scale = scale.Scale(low, high if high > low else low + 1.0, log=low > 0 and high / low >= 20)
            shown = sorted(set(numbers))
            ticks = shown if len(shown) <= 6 else [low, *([] if self.scale.log else [(low + high) / 2]), high]
            self.ends: list[tuple[float, str]] = []
            for value in ticks:  # what would stand on another is left out
                place = self.scale.part(value)
                if not self.ends or place - self.ends[-1][0] >= _APART:
                    self.ends.append((place, scale.number(value)))
        else:
            self.words = list(dict.fromkeys(compare_text.cell(value) for value in known))
            self.scale = scale.Scale(0.0, float(max(1, len(self.words) - 1)))
            self.ends = [(self.scale.part(float(at)), word) for at, word in enumerate(self.words[:12])]

    def place(self, value: Scalar) -> float | None:
        """Return where a value stands, 0 to 1; None for one that is not there."""
        if value is None:
            return None
        if self.words:
            return self.scale.part(float(self.words.index(compare_text.cell(value))))
        return self.scale.part(float(value)) if isinstance(value, int | float) else None


def _axis(values: Sequence[Scalar]) -> _Axis:
    return _Axis(values)


# -- curves -------------------------------------------------------------------------------------------------------------


def _curves(found: Comparison) -> dict[str, Any] | None:
    """Return the loss curves over each other, the best one marked; a few have colours, many are thin."""
    rows = [row for row in found.rows if row.curve][:CURVES]
    if not rows:
        return None
    best = found.best
    few = len(rows) <= 8
    series = []
    for number, row in enumerate(rows):
        stands_out = row is best
        colour = 1 if stands_out else (0, 2, 3, 4, 5, 6, 7)[number % 7] if few else None
        name = f"{row.run.id} (best)" if stands_out else row.run.id
        series.append(Series(
            name=name, x=tuple(x for x, _ in row.curve), y=tuple(y for _, y in row.curve), colour=colour, emphasis=stands_out,
        ))  # fmt: skip
    left = sum(bool(row.curve) for row in found.rows) - len(rows)
    says = "training loss of each run" + (f"; the best {CURVES}, {left} more are left out" if left else "")
    lines = any(row.steps is None for row in rows)
    kind: dict[str, Any] = {"x_kind": "number", "x_name": "line of the log"} if lines else {}
    return page.figure(Chart(id="curves", title="Loss curves", series=tuple(series), says=says, **kind))
