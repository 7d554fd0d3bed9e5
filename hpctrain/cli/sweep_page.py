"""How a plan is shown: a table where it fits, else each point on lines of its own."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from hpctrain.jobs.sweep.model import Point, canonical, shown, spoken
from hpctrain.jobs.sweep.table import json_text
from hpctrain.scheduler.parse import duration
from hpctrain.scheduler.parse.array import compress

if TYPE_CHECKING:
    from hpctrain.cli.sweep_plan import Plan, Script

#: On a terminal, of a sweep with more points than both together, so many are shown from its beginning and its end.
_HEAD, _TAIL = 40, 10
_SCRIPTS = 20


def show(plan: Plan) -> None:
    """Print the plan."""
    terminal = sys.stdout.isatty()
    width = max(shutil.get_terminal_size().columns, 40) if terminal else None
    bold = terminal and not os.environ.get("NO_COLOR")
    varying, constant = split(plan.chosen)
    lines = [*_summary(plan), *([_wrapped(f"the same in all: {constant}", width)] if constant else []), ""]
    points: Sequence[Point] = plan.chosen
    left_out = len(points) - _HEAD - _TAIL if terminal else 0
    if left_out > 0:
        points = [*points[:_HEAD], *points[-_TAIL:]]
    rows = [[str(point.index), *_cells(point, varying)] for point in points]
    written = _table(["POINT", *varying], rows, width) or _records(rows, varying, width or 80)
    if left_out > 0:
        written.insert(_HEAD + len(written) - len(rows), f"... and {left_out} more: hpctrain sweep plan | less")
    if bold and written and written[0].startswith("POINT"):
        written[0] = click.style(written[0], bold=True)
    click.echo("\n".join([*lines, *written]), color=bold)


def document(plan: Plan) -> str:
    """Return the plan as one JSON object; numbers are written as they were, durations are seconds."""
    varying, _ = split(plan.chosen)
    head = json.dumps({
        "schema": 1, "count": len(plan.points), "varying": varying, "throttle": plan.throttle, "max_array_size": plan.max_array_size,
        "max_array_size_from": plan.max_array_size_from, "gpu_seconds": plan.gpu_seconds,
        "scripts": [_script(script) for script in plan.scripts],
        "pass": plan.sweep.passed, "table": plan.table().name,
    })  # fmt: skip
    of_script = {point.index: number for number, script in enumerate(plan.scripts) for point in script.group.points}
    points = ", ".join(
        f'{{"index": {point.index}, "script": {of_script[point.index]}, "values": {json_text(dict(point.values))}}}'
        for point in plan.chosen
    )
    return f'{head[:-1]}, "points": [{points}]}}'


def split(points: Sequence[Point]) -> tuple[list[str], str]:
    """Return the keys that vary over `points`, and what is the same in all of them, as words."""
    first = {key: canonical(value) for key, value in points[0].values}
    seen: dict[str, Any] = {}
    same: dict[str, int] = dict.fromkeys(first, 0)
    equal: dict[tuple[str, str], bool] = {}
    for point in points:
        for key, value in point.values:
            seen.setdefault(key, value)
            if key not in same:
                continue
            if isinstance(value, str):
                known = (key, value)
                if known not in equal:
                    equal[known] = canonical(value) == first[key]
                same[key] += equal[known]
            else:
                same[key] += canonical(value) == first[key]
    constant = {key for key, count in same.items() if count == len(points)} if len(points) > 1 else set()
    return [key for key in seen if key not in constant], spoken(tuple((key, seen[key]) for key in seen if key in constant)) * bool(constant)


def _summary(plan: Plan) -> Iterator[str]:
    count, parts = len(plan.chosen), sum(len(script.parts) for script in plan.scripts)
    of = f" of {len(plan.points)}" if count < len(plan.points) else ""
    yield f"{_count(count, 'point')}{of}, {_count(len(plan.scripts), 'script')}, {_count(parts, 'array job')}{_at_a_time(plan, parts)}"
    yield f"highest array index: {plan.max_array_size - 1} (MaxArraySize {plan.max_array_size}: {plan.max_array_size_from})"
    for number, script in enumerate(plan.scripts[:_SCRIPTS]):
        spec = script.job.spec
        limit = f", {duration.format(spec.time_s)}" if spec.time_s is not None else ""
        if len(plan.scripts) > 1:
            points = _short(compress(script.group.indices))
            yield f"script {number + 1}: {spoken(script.group.overrides)}: points {points}: {spec.layout}{limit}"
        else:
            yield f"each point: {spec.layout}{limit}"
        if len(script.parts) > 1:
            for part in script.parts:
                yield f"    --array={_short(part.spec)}, point = index + {part.offset}"
    if len(plan.scripts) > _SCRIPTS:
        yield f"... and {len(plan.scripts) - _SCRIPTS} more scripts"
    if plan.gpu_seconds is not None:
        hours = _hours(plan.gpu_seconds)
        yield f"at most {hours} GPU hour{'' if hours == '1' else 's'}: GPUs x time limit, for every point"


def _at_a_time(plan: Plan, parts: int) -> str:
    if plan.throttle is None:
        return ""
    return f"; {plan.throttle} at a time" + (f" in each array, {plan.throttle * parts} in all" if parts > 1 else "")


def _hours(seconds: int) -> str:
    hours = seconds / 3600
    return f"{hours:,.0f}" if hours >= 100 or hours == int(hours) else f"{hours:.2g}" if hours < 1 else f"{hours:.1f}"


def _script(script: Script) -> dict[str, Any]:
    spec = script.job.spec
    return {
        "overrides": {key: shown(value) for key, value in script.group.overrides}, "points": compress(script.group.indices),
        "nodes": spec.nodes, "gpus_per_node": spec.gpus_per_node, "time_s": spec.time_s, "gpu_seconds": script.gpu_seconds,
        "arrays": [{"offset": part.offset, "array": part.spec, "count": part.count} for part in script.parts],
    }  # fmt: skip


def _cells(point: Point, keys: list[str]) -> list[str]:
    values = dict(point.values)
    return [_cell(values[key]) if key in values else "-" for key in keys]


def _cell(value: Any) -> str:
    text = shown(value)
    return text if text.isprintable() and text not in ("", "-") else json.dumps(text)


def _table(head: list[str], rows: list[list[str]], width: int | None) -> list[str]:
    """Return the lines of a table; none where it is wider than `width`."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    if width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        return []
    return ["  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)]


def _records(rows: list[list[str]], keys: list[str], width: int) -> list[str]:
    number = max(len(row[0]) for row in rows)
    blank = " " * (number + 2)
    lines = []
    for row in rows:
        line = row[0].ljust(number + 2)
        filled = False
        for key, cell in zip(keys, row[1:], strict=True):
            word = f"{key}={cell}"
            if filled and len(line) + len(word) > width:
                lines.append(line.rstrip())
                line = blank
            line += f"{word} "
            filled = True
        lines.append(line.rstrip())
    return ["\n".join(each) for each in _grouped(lines, blank)]


def _grouped(lines: list[str], blank: str) -> list[list[str]]:
    """Return the lines of each point together."""
    found: list[list[str]] = []
    for line in lines:
        if line.startswith(blank) and found:
            found[-1].append(line)
        else:
            found.append([line])
    return found


def _wrapped(text: str, width: int | None) -> str:
    import textwrap

    return text if width is None else textwrap.fill(text, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40].rpartition(',')[0]},..."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
