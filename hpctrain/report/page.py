"""A report as one HTML file that needs nothing else: no network, no font, no script or style from elsewhere. PURE but for our files.

All that comes from a run is escaped by the templates. A policy in the page forbids every request, and every script but its own.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.metadata
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpctrain.report import page_charts, page_rows, page_time, svg, svg_more
from hpctrain.report import scale as scales
from hpctrain.report.drawing import Chart, Drawn, Heat, Timeline
from hpctrain.report.facts import Facts, clock
from hpctrain.report.next_time import spoken

MARK = "hpctrain report"
"""What the first lines of a page of ours say, by which it is known."""
_TABLE_ROWS = 16
#: Controls, and what turns the direction of writing; none may stand in a page. Surrogates are no text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def run_page(facts: Facts, *, x: str | None = None) -> str:
    """Return the page of one run; `x`: `step` or `time`, what lies below the curves, None: each what suits it."""
    return render("page_run.html.j2", title=f"{facts.run.id}: {facts.given.state.word}", context=_context(facts, x), at=facts.given.now)


def render(template: str, *, title: str, context: dict[str, Any], at: float) -> str:
    """Return a page."""
    environment = _environment()
    style, script = _file("page.css"), _file("page.js")
    text = environment.get_template(template).render(
        **context, title=title, mark=MARK, style=markup(style), script=markup(script), style_hash=_digest(style),
        script_hash=_digest(script),
        footer=f"hpctrain {_version()}, {clock(at)}. Times are in the time zone of the machine that wrote this page.",
    )  # fmt: skip
    return _CONTROL.sub("\ufffd", text)


@functools.cache
def _environment() -> Any:
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _version() -> str:
    try:
        return importlib.metadata.version("hpctrain")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def markup(text: str) -> Any:
    """Return a text that a template puts on the page as it is: made here, with all that is anybody else's escaped."""
    from markupsafe import Markup

    return Markup(text)  # noqa: S704 - our own files and drawings, which are escaped where they are made


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# -- one run ------------------------------------------------------------------------------------------------------------

_SECTIONS = (
    ("diagnosis", "Diagnosis"), ("starts", "Starts"), ("training", "Training"), ("speed", "Speed"), ("memory", "Memory and GPUs"),
    ("efficiency", "Efficiency"), ("checkpoints", "Checkpoints"), ("config", "Config"), ("environment", "Code and environment"),
    ("log", "End of the log"),
)  # fmt: skip


def _context(facts: Facts, x: str | None) -> dict[str, Any]:
    """Return what the template shows."""
    past = facts.history
    context = {
        **_head(facts),
        **page_rows.diagnosis(facts),
        **_starts(facts),
        "training": [figure(chart) for chart in page_charts.training(past, by_epoch=facts.from_log, x=x)],
        "training_note": page_rows.training_note(facts),
        "evaluation": [(name, scales.number(value)) for name, value in facts.evaluation.items()],
        "speed": [figure(chart) for chart in page_charts.speed(past, by_step=facts.from_log, x=x)],
        **_memory(facts),
        **_efficiency(facts),
        "saved": [(each.name, each.step if each.step is not None else "-", each.problem or "complete") for each in facts.saved],
        **_config(facts),
        "ends": facts.ends,
    }
    there = {
        "diagnosis": context["has"]["diagnosis"],
        "starts": context["starts"],
        "training": context["training"] or context["training_note"],
        "speed": context["speed"],
        "memory": context["memory"] or context["beside"],
        "checkpoints": facts.saved,
        "config": facts.config or facts.resolved or facts.command,
        "log": facts.ends,
    }
    return context | {"sections": [(f"s-{name}", title) for name, title in _SECTIONS if there.get(name, True)]}


def _head(facts: Facts) -> dict[str, Any]:
    return {
        "run": facts.run.id,
        "state": facts.given.state.word,
        "subtitle": page_rows.subtitle(facts),
        "going_on": page_rows.going_on(facts),
        "tiles": page_rows.tiles(facts),
    }


def _starts(facts: Facts) -> dict[str, Any]:
    past = facts.history
    submitted = min((each.submitted for each in facts.given.accounts if each.submitted is not None), default=None)
    now = facts.given.now if facts.given.state.word == "running" else None
    line = page_time.timeline(past, now=now, submitted=submitted)
    return {
        "timeline": figure(line) if line is not None else None,
        "starts_head": page_rows.STARTS,
        "starts": page_rows.starts(past, facts.given.accounts),
        "starts_notes": page_rows.starts_notes(past),
    }


def _memory(facts: Facts) -> dict[str, Any]:
    head, rows, classes = page_rows.ranks(facts.history)
    return {
        "memory": [figure(chart) for chart in page_charts.memory(facts.history)],
        "beside": page_rows.beside(facts.beside),
        "ranks": rows,
        "ranks_classes": classes,
        "ranks_head": head,
        "ranks_kind": page_rows.kind_of(facts.history) or "",
        "ranks_numbers": [at for at, name in enumerate(head) if name not in ("node", "GPU")],
    }


def _efficiency(facts: Facts) -> dict[str, Any]:
    counted = facts.efficiency
    return {
        "parts": _parts(facts),
        "efficiency": page_rows.efficiency(counted),
        "asks": [(ask.option, ask.asked or "-", ask.value, ask.why) for ask in counted.next],
        "asks_text": "\n".join(ask.line for ask in counted.next),
        "efficiency_notes": list(counted.notes),
    }


def _config(facts: Facts) -> dict[str, Any]:
    packages = facts.environment.get("packages")
    return {
        "command": facts.command,
        "config": facts.config,
        "resolved": json.dumps(facts.resolved, indent=1, ensure_ascii=False) if facts.resolved else "",
        "code": page_rows.code(facts.code),
        "environment": page_rows.environment(facts.environment),
        "packages": [str(each) for each in packages] if isinstance(packages, list) else [],
    }


def figure(drawn: Drawn) -> dict[str, Any]:
    """Return what the template needs of a chart."""
    if isinstance(drawn, Timeline):
        boxes = [(f"span {kind}", text) for kind, text in _KINDS if any(span.kind == kind for row in drawn.rows for span in row)]
        boxes += [("key-save", "checkpoint saved")] if drawn.saves else []
        boxes += [("key-evaluation", "evaluation")] if drawn.evaluations else []
        return _figure(drawn, svg_more.timeline(drawn), boxes=boxes)
    if isinstance(drawn, Heat):
        return _figure(drawn, svg_more.heat(drawn), data=markup(svg.data_of(drawn)))
    return _figure(drawn, svg.draw(drawn), data=markup(svg.data_of(drawn)), keys=_keys(drawn), table=_table(drawn))


_KINDS = (
    ("waiting", "waiting, without nodes"), ("loading", "before the first step"), ("training", "training"),
    ("lost", "work that was done again"), ("after", "after the last logged step"),
)  # fmt: skip


def _figure(drawn: Drawn, text: str, **more: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {"data": None, "keys": [], "table": None, "boxes": [], "broad": False}
    return empty | {"id": drawn.id, "title": drawn.title, "says": drawn.says, "svg": markup(text)} | more


def _keys(chart: Chart) -> list[tuple[str, str]]:
    """Return (class of the line, name) for each line with a colour, and what the others are."""
    coloured = [line for line in chart.series if line.colour is not None]
    many = len(chart.series) - len(coloured)
    if len(chart.series) < 2 and not chart.rules and all(y is None or math.isfinite(y) for line in chart.series for y in line.y):
        return []
    found = [
        (f"line c{(line.colour or 0) % 8}{' dashed' if line.dashed else ''}{' strong' if line.emphasis else ''}", line.name)
        for line in (coloured if len(chart.series) > 1 else ())
    ]
    found += [("line many", f"{many} others")] if many else []
    lost = any(y is not None and not math.isfinite(y) for line in chart.series for y in line.y)
    found += [("bad", "NaN or infinite")] if lost else []
    kinds = {rule.kind for rule in chart.rules}
    return found + [(f"rule {kind}", text) for kind, text in _RULES if kind in kinds]


_RULES = (("restart", "restart"), ("limit", "limit"), ("lost", "lost work"))


def _table(chart: Chart) -> dict[str, Any] | None:
    """Return some rows of the values, for those who do not see the chart; of many lines none, because the ranks have a table."""
    lines = [line for line in chart.series if line.x]
    if not lines or len(lines) > page_charts.FEW:
        return None
    longest = max(lines, key=lambda line: len(line.x))
    count = len(longest.x)
    rows = []
    for at in (
        sorted({round(number * (count - 1) / max(1, _TABLE_ROWS - 1)) for number in range(_TABLE_ROWS)})
        if count > _TABLE_ROWS
        else range(count)
    ):
        x = longest.x[at]
        cells = [_near(line.x, line.y, x, exact=line is longest, at=at) for line in lines]
        rows.append(
            (
                chart.words[int(x)] if chart.words else spoken(x) if chart.x_kind == "time" else scales.number(x, 6),
                *(scales.number(cell) for cell in cells),
            )
        )
    head = "time" if chart.x_kind == "time" else "step" if chart.x_kind == "step" else chart.x_name
    unit = f" ({chart.unit})" if chart.unit else ""
    return {"head": (head, *(f"{line.name}{unit}" for line in lines)), "rows": rows}


def _near(xs: Sequence[float], ys: Sequence[float | None], x: float, *, exact: bool, at: int) -> float | None:
    """Return the newest value of a line at x; of the line that x was taken from, the one there."""
    import bisect

    if exact:
        return ys[at]
    place = bisect.bisect_right(xs, x) - 1
    return ys[place] if place >= 0 else None


def _parts(facts: Facts) -> dict[str, Any] | None:
    counted = facts.efficiency
    if not counted.parts or counted.held_s <= 0:
        return None
    rows = []
    for part in counted.parts:
        hours = f", {scales.number(part.gpu_s / 3600, 3)} GPU h" if part.gpu_s else ""
        rows.append((part.id, part.seconds, f"{100 * part.seconds / counted.held_s:.0f} %, {spoken(part.seconds)}{hours}", part.id))
    wasted = counted.wasted_s
    share = "how much was training is not known" if wasted is None else f"{100 * wasted / counted.held_s:.0f} % were no training"
    says = f"of {spoken(counted.held_s)} with nodes, {share}"
    text = svg_more.bars("parts", "Where the time went", rows, max(part.seconds for part in counted.parts), says)
    boxes = [(f"span {part.id}", part.what) for part in counted.parts]
    return {
        "id": "parts",
        "title": "Where the time went",
        "says": says,
        "svg": markup(text),
        "data": None,
        "keys": [],
        "table": None,
        "boxes": boxes,
        "broad": False,
    }
