"""Several runs side by side: the points of a sweep, the trials of a study, or any runs that somebody names.

Reads the runs' files; a scheduler's word is given. A run that failed stands in the table with its diagnosis, and not in the charts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpctrain.errors import UsageError
from hpctrain.logs import found as logs
from hpctrain.report import compare_text, failures, log_history, ran_with, secrets
from hpctrain.report.facts import Given, project_of
from hpctrain.report.failures import Failure
from hpctrain.runs import files, history, layout, store
from hpctrain.runs.history import Point
from hpctrain.runs.store import Run

Scalar = str | int | float | bool | None
_CURVE = 300
"""Points of one run's curve."""
_MANY = 400
"""Runs of which those that have said no step are not read."""
CURVES = 60
"""Runs whose curves are read: more lines than that are one grey surface."""
METRICS = ("eval_loss", "eval_accuracy", "loss")
"""What runs are ordered by where nobody says it: the first that at least half of them have."""
_HIGHER = ("accuracy", "f1", "precision", "recall", "auc", "bleu", "rouge", "reward", "tokens_per_s", "mfu", "score")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run.

    Attributes:
        values: what it was given, and others were given otherwise.
        metric: the last value of what is compared; best: the best it ever had.
        steps: that it reached; seconds: that it had nodes.
        why: it failed: the diagnosis, or the scheduler's word; diagnosis: the id of it.
        curve: (step, value) of its training loss.
    """

    run: Run
    state: str
    values: Mapping[str, Scalar]
    metric: float | None
    best: float | None
    steps: int | None
    seconds: float
    why: str | None
    diagnosis: str | None
    curve: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What is shown. `rows` are in order: the best first, those without a value last.

    Attributes:
        keys: of `values`, those that differ among the runs.
        metric: what is compared; `higher`: whether more of it is better.
        study: whose trials they are.
        next: what to type to go on with the best run.
        failures: the runs that failed, by their diagnosis.
        not_begun: points of the sweep that have left nothing yet.
    """

    title: str
    rows: tuple[Row, ...]
    keys: tuple[str, ...]
    metric: str | None
    higher: bool
    study: str | None
    now: float
    next: tuple[str, ...]
    failures: tuple[Failure, ...] = ()
    not_begun: tuple[str, ...] = ()

    @property
    def best(self) -> Row | None:
        """The best run that has ended well, else the best so far."""
        known = [row for row in self.rows if row.metric is not None and math.isfinite(row.metric)]
        return next((row for row in known if row.state == "completed"), known[0] if known else None)


def gather(
    runs: Sequence[Run], runs_dir: Path, given: Mapping[str, Given], *, title: str, study: str | None, metric: str | None, now: float,
    not_begun: tuple[str, ...] = (),
) -> Comparison:  # fmt: skip
    """Return the comparison.

    Raises:
        UsageError: no run has `metric`.
    """
    definition = _definition(runs_dir, study)
    read = {run.id: _history(run, runs_dir) if len(runs) <= _MANY or run.last_step else history.History() for run in runs}
    points = {run.id: _points(read[run.id], runs_dir / run.id) for run in runs}
    asked = metric or definition.get("metric")
    chosen = _metric(points, asked)
    higher = definition.get("direction") == "maximize" if definition and not metric else _is_higher(chosen)
    values = {run.id: _values(run, runs_dir) for run in runs}
    rows = []
    for number, run in enumerate(runs):
        seen = [point.values[chosen] for point in points[run.id] if chosen is not None and chosen in point.values]
        loss = [(float(point.step), point.values["loss"]) for point in read[run.id].of("log") if "loss" in point.values]
        past = read[run.id]
        rows.append(Row(
            run=run, state=given[run.id].state.word, values=values[run.id], metric=seen[-1] if seen else None,
            best=_best(seen, higher=higher), steps=None if _from_log(past) else past.last_step, why=failures.why(given[run.id]),
            diagnosis=failures.diagnosis(given[run.id]),
            seconds=sum(max(0.0, (start.until or 0.0) - (start.first_at or 0.0)) for start in past.starts),
            curve=tuple(loss) if number < CURVES * 4 else (),
        ))  # fmt: skip
    rows.sort(key=lambda row: _order(row, higher=higher))
    keys = _differing(values)
    found = Comparison(
        title=title, rows=tuple(rows), keys=keys, metric=chosen, higher=higher, study=study, now=now, next=(),
        failures=failures.grouped((run.id, given[run.id]) for run in runs), not_begun=not_begun,
    )  # fmt: skip
    return replace(found, next=compare_text.next_words(found, runs_dir))


def _history(run: Run, runs_dir: Path) -> history.History:
    """Return what a run has written down; of a script that writes no metrics, what its log says."""
    directory = runs_dir / run.id
    past = history.read(directory, most=_CURVE)
    if any(point.event in ("log", "evaluate", "speed") for point in past.points):
        return past
    return log_history.read(logs.of_run(directory, project=project_of(runs_dir, run.tag)), past, most=_CURVE)


def _from_log(past: history.History) -> bool:
    """Whether the curves are a log's, whose lines say no steps and no times."""
    points = past.of("log", "evaluate")
    return bool(points) and all(point.at == 0.0 for point in points)


def _points(past: history.History, directory: Path) -> list[Point]:
    """Return what was logged and measured, and what an evaluation of its own found."""
    points = past.of("log", "evaluate", "speed")
    said = (store.read_object(str(directory / layout.EVALUATION)) or {}).get("metrics")
    if isinstance(said, dict):
        known = {
            str(name): float(value)
            for name, value in said.items()
            if isinstance(value, float) or (type(value) is int and abs(value) < 2**63)
        }
        points.append(
            Point(at=0.0, step=past.last_step or 0, event="evaluate", values={**{f"eval_{name}": v for name, v in known.items()}, **known})
        )
    return points


def _definition(runs_dir: Path, study: str | None) -> dict[str, Any]:
    """Return metric and direction of a study, as its newest definition says them."""
    if study is None:
        return {}
    found = [read for path in sorted((runs_dir / ".studies").glob(f"{study}-*.json")) if (read := files.read_json(path)) is not None]
    return next(({key: each.get(key) for key in ("metric", "direction")} for each in reversed(found) if each.get("study") == study), {})


def _metric(points: Mapping[str, Sequence[Point]], asked: str | None) -> str | None:
    """Return what is compared.

    Raises:
        UsageError: it was asked for, and no run has it.
    """
    having: dict[str, int] = {}
    for each in points.values():
        for name in {name for point in each for name in point.values}:
            having[name] = having.get(name, 0) + 1
    if asked is not None and asked not in having and f"eval_{asked}" in having:
        asked = f"eval_{asked}"
    if asked is not None and having and asked not in having:
        import difflib

        close = difflib.get_close_matches(asked, having, n=1)
        names = ", ".join(sorted(having)[:12])
        raise UsageError(
            f"no run has logged {asked!r}", details=(f"  they have: {names}",), fix=f"--metric {close[0] if close else sorted(having)[0]}"
        )
    if asked is not None:
        return asked
    enough = [name for name in METRICS if 2 * having.get(name, 0) >= max(1, sum(bool(each) for each in points.values()))]
    return next(iter(enough), next((name for name in METRICS if name in having), None))


def _is_higher(metric: str | None) -> bool:
    return metric is not None and any(word in metric for word in _HIGHER)


def _best(values: Sequence[float], *, higher: bool) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return None if not finite else max(finite) if higher else min(finite)


def _order(row: Row, *, higher: bool) -> tuple[int, float, int, str]:
    value = row.metric
    known = value is not None and math.isfinite(value)
    return (0 if known else 1 if value is not None else 2, (-value if higher else value) if known and value is not None else 0.0,
            row.run.index or 0, row.run.id)  # fmt: skip


def _values(run: Run, runs_dir: Path) -> dict[str, Scalar]:
    """Return what a run was given: of a sweep's point, or of a trial; of other runs the arguments of its training."""
    directory = runs_dir / run.id
    said: Any = (files.read_json(directory / "trial.json") or {}).get("params")
    if not isinstance(said, dict):
        point = files.read_json(directory / "point.json") or {}
        said = point.get("values") if isinstance(point.get("values"), dict) else point
    if not said:
        training = (ran_with.read(run, runs_dir).config or {}).get("training")
        said = training if isinstance(training, dict) else {}
    return {str(key): secrets.value(str(key), _scalar(item)) for key, item in said.items() if key != "schema"}


def _scalar(item: Any) -> Scalar:
    """Return a value as one: numbers that were written as text are numbers."""
    if isinstance(item, bool) or item is None:
        return item
    if isinstance(item, int | float):
        return item
    text = item if isinstance(item, str) else secrets.shown(item)
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def _differing(values: Mapping[str, Mapping[str, Scalar]]) -> tuple[str, ...]:
    """Return the keys that not all runs have the same value for, in the order in which they come."""
    keys = dict.fromkeys(key for each in values.values() for key in each)
    absent = object()
    return tuple(key for key in keys if len({repr(each.get(key, absent)) for each in values.values()}) > 1)


def to_json(found: Comparison) -> dict[str, Any]:
    """Return JSON values: raw units, null for what is no number."""
    best = found.best
    return {
        "schema": 1, "title": found.title, "study": found.study, "metric": found.metric, "higher_is_better": found.higher,
        "varying": list(found.keys), "best": None if best is None else best.run.id, "next": list(found.next),
        "runs": [{
            "id": row.run.id, "tag": row.run.tag, "index": row.run.index, "state": row.state, "values": dict(row.values),
            "metric": row.metric if row.metric is not None and math.isfinite(row.metric) else None, "best": row.best,
            "steps": row.steps, "seconds": row.seconds, "why": row.why, "diagnosis": row.diagnosis,
        } for row in found.rows],
        "failures": [{
            "diagnosis": each.id, "certainty": each.certainty, "cause": each.cause, "fix": each.fix, "count": len(each.runs),
            "first": each.first, "runs": list(each.runs),
        } for each in found.failures],
        "not_begun": list(found.not_begun),
    }  # fmt: skip


def lines(found: Comparison) -> list[str]:
    """Return the comparison in characters."""
    return compare_text.lines(found)
