"""A report of one run as JSON values: `--json`. Raw units; keys are only ever added. PURE."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from hpctrain.report.facts import Facts
from hpctrain.runs.history import History

_POINTS = 400


def run(facts: Facts) -> dict[str, Any]:
    """Return what the page says, as values. Times are seconds since the epoch, sizes bytes or as their names say, parts 0 to 1."""
    run, given = facts.run, facts.given
    said: dict[str, Any] = finite({
        "schema": 1, "run": {"id": run.id, "tag": run.tag, "name": run.name, "stage": run.stage, "index": run.index, "created": run.created,
                             "job_ids": list(run.job_ids), "owner": given.owner, "directory": str(facts.directory.absolute())},
        "state": given.state.word, "reason": given.state.reason, "at": given.now, "scheduler_silent": given.silent,
        "step": facts.history.last_step, "max_steps": facts.history.max_steps, "lost_steps": facts.history.lost_steps,
        "from_log": facts.from_log, "starts": [asdict(start) for start in facts.history.starts], "points": _points(facts.history),
        "ranks": _ranks(facts.history), "fit": facts.fit, "efficiency": _efficiency(facts), "idle": [asdict(each) for each in facts.idle],
        "diagnosis": _explanation(facts), "accounts": [asdict(each) for each in given.accounts],
        "checkpoints": [asdict(each) for each in facts.saved], "evaluation": dict(facts.evaluation),
        "command": facts.command or None, "config": facts.resolved,
        "set": [{"key": key, "value": value, "from": where} for key, value, where in facts.config],
        "code": dict(facts.code), "environment": dict(facts.environment),
        "log_ends": [{"file": each.name, "lines": list(each.lines)} for each in facts.ends],
    })  # fmt: skip
    return said


def _points(past: History) -> list[dict[str, Any]]:
    """Return the points of each event, thinned evenly to what a program would draw; nonfinite values are null."""
    found = []
    for event in ("log", "evaluate", "speed", "save"):
        points = past.of(event)
        each = max(1, math.ceil(len(points) / _POINTS))
        found += [point for number, point in enumerate(points) if number % each == 0 or number == len(points) - 1]
    return [{"event": point.event, "step": point.step, "at": point.at, "values": dict(point.values)} for point in found]


def _ranks(past: History) -> list[dict[str, Any]]:
    found = []
    for each in past.ranks:
        last = asdict(each.samples[-1]) if each.samples else None
        names = ("gpu_used_mib", "torch_peak_mib", "torch_reserved_mib", "cgroup_used_mib", "node_used_mib", "rss_mib")
        peaks = {name: max((v for sample in each.samples if (v := getattr(sample, name)) is not None), default=None) for name in names}
        found.append({
            "rank": each.rank, "samples": each.count, "mean_utilisation_percent": each.mean_utilisation, "clock_off_s": each.clock_off_s,
            "peak": peaks, "last": last,
        })  # fmt: skip
    return found


def _efficiency(facts: Facts) -> dict[str, Any]:
    counted = facts.efficiency
    return asdict(counted) | {
        "gpu_hours": counted.gpu_hours, "asked_gpu_hours": counted.asked_gpu_hours, "node_hours": counted.node_hours,
        "wasted_s": counted.wasted_s, "wasted_gpu_hours": counted.wasted_gpu_hours,
        "next": [{**asdict(ask), "directive": ask.line} for ask in counted.next],
    }  # fmt: skip


def _explanation(facts: Facts) -> dict[str, Any] | None:
    from hpctrain.report import secrets

    said = facts.given.explanation
    found = None if said is None else secrets.value("", asdict(said))
    return found if isinstance(found, dict) else None


def finite(value: Any) -> Any:
    """Return a value that JSON can hold: numbers that are none become null."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
