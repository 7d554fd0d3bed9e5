"""Compare runs: parameter combinations of a sweep, trials of a study, or any named runs.

Reads the runs' files; the states are passed in.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hpctrain.errors import UsageError
from hpctrain.jobs import request
from hpctrain.report.model import evaluation_of, shown
from hpctrain.runs import history, layout
from hpctrain.runs.job_state import State
from hpctrain.runs.store import Run
from hpctrain.util.files import read_json
from hpctrain.util.secrets import hidden_in
from hpctrain.util.text import number

Scalar = str | int | float | bool | None
#: Points per curve.
_CURVE = 120
#: Maximum number of curves: more lines are unreadable.
CURVES = 60
#: Sort order without --metric: the first one that any run has.
METRICS = ("eval_loss", "eval_accuracy", "loss")
_HIGHER = (
    "accuracy",
    "f1",
    "precision",
    "recall",
    "auc",
    "bleu",
    "rouge",
    "reward",
    "tokens_per_s",
    "mfu",
    "score",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One run.

    Attributes:
        values: parameters that differ between the runs.
        metric: the last value of the compared metric; best: its best one.
        steps: completed; seconds: of allocated nodes.
        why: the reason of its state.
        curve: (step, value) of its training loss.
    """

    id: str
    tag: str
    index: int | None
    state: str
    values: Mapping[str, Scalar]
    metric: float | None
    best: float | None
    steps: int | None
    seconds: float
    why: str | None
    curve: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The comparison. `rows` are sorted: the best first, those without a value last.

    Attributes:
        keys: of `values`, those that differ between the runs.
        metric: the compared metric; `higher`: whether higher is better.
        study: the study that the trials belong to.
        next: commands to continue with the best run.
    """

    title: str
    rows: tuple[ComparedRun, ...]
    keys: tuple[str, ...]
    metric: str | None
    higher: bool
    study: str | None
    now: float
    next: tuple[str, ...] = ()

    @property
    def best(self) -> ComparedRun | None:
        """The best completed run, else the best so far."""
        known = [row for row in self.rows if row.metric is not None and math.isfinite(row.metric)]
        return next((row for row in known if row.state == "completed"), known[0] if known else None)


def gather(
    runs: Sequence[Run],
    runs_dir: Path,
    states: Mapping[str, State],
    *,
    title: str,
    study: str | None,
    metric: str | None,
    now: float,
) -> Comparison:
    """Compare the runs.

    Raises:
        UsageError: no run has `metric`.
    """
    definition: dict[str, Any] = {}
    for path in sorted((runs_dir / ".studies").glob(f"{study}-*.json")) if study else ():
        given = read_json(path) or {}
        definition = given if given.get("study") == study else definition
    pasts = {run.id: history.read(runs_dir / run.id, most=_CURVE) for run in runs}
    points = {run.id: pasts[run.id].of("log", "evaluate", "speed") for run in runs}
    for run in runs:
        if known := evaluation_of(runs_dir / run.id):
            values = {**{f"eval_{name}": value for name, value in known.items()}, **known}
            points[run.id].append(
                history.Point(
                    at=0.0, step=pasts[run.id].last_step or 0, event="evaluate", values=values
                )
            )
    chosen = _metric(points, metric or definition.get("metric"))
    higher = chosen is not None and any(word in chosen for word in _HIGHER)
    if definition and not metric:
        higher = definition.get("direction") == "maximize"
    rows = []
    for run in runs:
        past = pasts[run.id]
        seen = [each.values[chosen] for each in points[run.id] if chosen and chosen in each.values]
        held = (max(0.0, (each.until or 0.0) - (each.first_at or 0.0)) for each in past.starts)
        log = (each for each in past.of("log") if "loss" in each.values)
        rows.append(
            ComparedRun(
                id=run.id,
                tag=run.tag,
                index=run.index,
                state=states[run.id].word,
                values=_values(run, runs_dir),
                metric=seen[-1] if seen else None,
                best=(max if higher else min)(filter(math.isfinite, seen), default=None),
                steps=past.last_step,
                why=states[run.id].reason,
                seconds=sum(held),
                curve=tuple((each.step, each.values["loss"]) for each in log),
            )
        )

    def order(row: ComparedRun) -> tuple[bool, bool, float, int, str]:
        value = row.metric if row.metric is not None else math.nan
        known = math.isfinite(value)
        place = (-value if higher else value) if known else 0.0
        return not known, row.metric is None, place, row.index or 0, row.id

    keys = dict.fromkeys(key for row in rows for key in row.values)
    found = Comparison(
        title=title,
        rows=tuple(sorted(rows, key=order)),
        keys=tuple(
            key for key in keys if len({repr(row.values.get(key, ...)) for row in rows}) > 1
        ),
        metric=chosen,
        higher=higher,
        study=study,
        now=now,
    )
    best, commands = found.best, []
    if best is not None and study:
        commands.append(f"hpctrain tune best {shlex.quote(study)} --to best.yaml")
    if best is not None:
        commands.append(layout.in_runs_dir(f"hpctrain report {shlex.quote(best.id)}", runs_dir))
    failed = [
        f"hpctrain explain {shlex.quote(row.id)}" for row in found.rows if row.state == "failed"
    ]
    return replace(found, next=(*commands, *failed[:1]))


def _metric(points: Mapping[str, Sequence[history.Point]], asked: str | None) -> str | None:
    having = {name for each in points.values() for point in each for name in point.values}
    if asked is not None and having and asked not in having:
        raise UsageError(
            f"no run has logged {asked!r}",
            details=(f"  they have: {', '.join(sorted(having)[:12])}",),
            hint="use --metric with one of these",
        )
    known = (name for name in METRICS if name in having)
    return asked if asked is not None else next(known, None)


def _values(run: Run, runs_dir: Path) -> dict[str, Scalar]:
    """Return a run's parameters: those of a sweep or a trial; for other runs, the arguments of the
    training.
    """
    directory = runs_dir / run.id
    point = read_json(directory / "point.json") or {}
    trial, training = (read_json(directory / "trial.json") or {}).get("params"), None
    if not trial and not point:
        training = (request.ran_with(run, runs_dir)[0] or {}).get("training")
    candidates = (trial, point.get("values"), point, training)
    said = next((each for each in candidates if each and isinstance(each, dict)), {})
    return {
        str(key): hidden_in(
            str(key), item if item is None or isinstance(item, str | int | float) else shown(item)
        )
        for key, item in said.items()
        if key != "schema"
    }


def to_json(found: Comparison) -> dict[str, Any]:
    """Return JSON values in raw units; a metric may be NaN or infinite."""
    best = found.best
    return {
        "schema": 1,
        "title": found.title,
        "study": found.study,
        "metric": found.metric,
        "higher_is_better": found.higher,
        "varying": list(found.keys),
        "best": None if best is None else best.id,
        "next": list(found.next),
        "runs": [asdict(row) for row in found.rows],
    }


def cell(value: Scalar) -> str:
    """Format a value as in a config."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    return shown(value) if value is not None else "null"


def best_words(found: Comparison) -> str | None:
    """Describe the best run and its parameters."""
    best = found.best
    if best is None:
        return None
    given = " ".join(f"{key}={cell(best.values[key])}" for key in found.keys if key in best.values)
    so_far = "" if best.state == "completed" else f", which is {best.state}"
    words = f"best: {best.id}{so_far}: {found.metric} {number(best.metric, 5)}"
    return f"{words} with {given}" if given else words
