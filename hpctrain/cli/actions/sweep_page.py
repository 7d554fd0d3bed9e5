"""Show a sweep's plan: a summary, and a table of the points."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from hpctrain.cli.output import say
from hpctrain.config.fields import ALIASES, FIELDS
from hpctrain.config.sweep import SweepPoint, canonical, json_text, shown, spoken
from hpctrain.slurm.notations import units
from hpctrain.slurm.notations.array import compress
from hpctrain.util import text

if TYPE_CHECKING:
    from hpctrain.jobs.sweep_plan import SweepPlan, SweepScript

#: The most points to list on a terminal.
_SHOWN = 50


def show(plan: SweepPlan) -> None:
    """Print the plan."""
    varying, constant = split(plan.chosen)
    points: Sequence[SweepPoint] = plan.chosen
    if sys.stdout.isatty():
        points = points[:_SHOWN]
    rows = [["POINT", *varying]]
    for point in points:
        words = {key: shown(value) for key, value in point.values}
        cells = [_cell(words[key]) if key in words else "-" for key in varying]
        rows.append([str(point.index), *cells])
    lines = [*_summary(plan), *([f"the same in all: {constant}"] if constant else []), ""]
    lines += text.table(rows)
    if left_out := len(plan.chosen) - len(points):
        lines.append(f"... and {left_out} more: hpctrain submit --dry-run | less")
    click.echo("\n".join(lines))
    known_keys = {entry.name: ".".join(entry.path) for entry in FIELDS if len(entry.path) > 1}
    known_keys |= {alias[-1]: ".".join(path) for alias, path in ALIASES.items()}
    for key in plan.sweep.keys:
        if key in known_keys and key not in plan.sweep.config_keys:
            say(f"note: {key} goes to the script; {known_keys[key]} is the job's")


def document(plan: SweepPlan) -> str:
    """Return the plan as one JSON object; numbers are kept as written, durations are in seconds."""
    varying, _ = split(plan.chosen)
    head = json.dumps(
        {
            "schema": 1,
            "count": len(plan.points),
            "varying": varying,
            "throttle": plan.throttle,
            "max_array_size": plan.max_array_size,
            "max_array_size_from": plan.max_array_size_from,
            "gpu_seconds": plan.gpu_seconds,
            "scripts": [_script(script) for script in plan.scripts],
            "pass": plan.sweep.pass_,
            "table": plan.table().name,
        }
    )
    of_script = {
        point.index: number
        for number, script in enumerate(plan.scripts)
        for point in script.group.points
    }
    points = ", ".join(
        f'{{"index": {point.index}, "script": {of_script[point.index]}, "values":'
        f" {json_text(dict(point.values))}}}"
        for point in plan.chosen
    )
    return f'{head[:-1]}, "points": [{points}]}}'


def split(points: Sequence[SweepPoint]) -> tuple[list[str], str]:
    """Return the keys that vary over `points`, and a description of the values that they share."""
    rows = [dict(point.values) for point in points]
    keys = list(dict.fromkeys(key for row in rows for key in row))
    if len(rows) < 2:
        return keys, ""
    constant = {
        key
        for key, value in rows[0].items()
        if all(key in row and canonical(row[key]) == canonical(value) for row in rows)
    }
    same = tuple((key, rows[0][key]) for key in keys if key in constant)
    return [key for key in keys if key not in constant], spoken(same) if same else ""


def _summary(plan: SweepPlan) -> Iterator[str]:
    count, parts = len(plan.chosen), sum(len(script.parts) for script in plan.scripts)
    of = f" of {len(plan.points)}" if count < len(plan.points) else ""
    throttle = ""
    if plan.throttle is not None:
        all_ = f" in each array, {plan.throttle * parts} in all" if parts > 1 else ""
        throttle = f"; {plan.throttle} at a time{all_}"
    yield (
        f"{text.count(count, 'combination')}{of}, {text.count(len(plan.scripts), 'script')},"
        f" {text.count(parts, 'array job')}{throttle}"
    )
    yield (
        f"highest array index: {plan.max_array_size - 1} (MaxArraySize {plan.max_array_size}:"
        f" {plan.max_array_size_from})"
    )
    for number, script in enumerate(plan.scripts, 1):
        spec, what = script.job.spec, "each combination"
        limit = f", {units.format_time(spec.time_s)}" if spec.time_s is not None else ""
        if len(plan.scripts) > 1:
            points = _short(compress(script.group.indices))
            what = f"script {number}: {spoken(script.group.overrides)}: combinations {points}"
        yield f"{what}: {spec.layout}{limit}"
        for part in script.parts if len(script.parts) > 1 else ():
            yield f"    --array={_short(part.spec)}, combination = index + {part.offset}"
    if plan.gpu_seconds is not None:
        yield f"at most {plan.gpu_seconds / 3600:,.3g} GPU hours: GPUs x time limit of all jobs"


def _script(script: SweepScript) -> dict[str, Any]:
    spec = script.job.spec
    return {
        "overrides": {key: shown(value) for key, value in script.group.overrides},
        "points": compress(script.group.indices),
        "nodes": spec.nodes,
        "gpus_per_node": spec.gpus_per_node,
        "time_s": spec.time_s,
        "gpu_seconds": script.gpu_seconds,
        "arrays": [
            {"offset": part.offset, "array": part.spec, "count": part.count}
            for part in script.parts
        ],
    }


def _cell(word: str) -> str:
    return word if word.isprintable() and word not in ("", "-") else json.dumps(word)


def _short(indices: str) -> str:
    return indices if len(indices) <= 40 else f"{indices[:40].rpartition(',')[0]},..."
