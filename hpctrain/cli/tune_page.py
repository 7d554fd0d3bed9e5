"""What is shown of a study: its trials, the best one, and the config that the best one makes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hpctrain.cli import runs_jobs, runs_table, tune_state
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import shell, tune
from hpctrain.jobs.tune import Definition, Scalar
from hpctrain.runs import files
from hpctrain.runs.states import State
from hpctrain.training import study
from hpctrain.training.study import Row

#: Fewer completed trials say nothing about which argument matters.
_ENOUGH = 8


def status(runs: Path, name: str | None, *, as_json: bool) -> None:
    """Show a study."""
    name = _name(runs, name)
    there = study.open_study(runs, name)
    definition = _definition(there)
    if _tell(runs, definition, study.rows(there)):
        there = study.open_study(runs, name)
    rows = study.rows(there)
    states = _states(runs, rows)
    weights = _importances(there) if len([row for row in rows if row.state == "completed"]) >= _ENOUGH else {}
    found = study.best(rows, definition.direction)
    if as_json:
        said = {
            "schema": 1, "study": name, "metric": definition.metric, "direction": definition.direction, "trials": definition.trials,
            "rows": [_as_json(row) | {"run_state": states[row.run].word if row.run and row.run in states else None} for row in rows],
            "best": None if found is None else found.number, "importance": weights,
        }  # fmt: skip
        click.echo(json.dumps(_finite(said)))
        return
    for line in _page(definition, rows, states, found, weights):
        click.echo(line)
    click.echo(f"next: hpctrain tune best {name} --to best.yaml" if found is not None else "next: hpctrain ps", err=True)


def best(runs: Path, name: str | None, *, to: str | None, force: bool, as_json: bool) -> None:
    """Show the best trial of a study, or write its config."""
    if to is not None and as_json:
        raise UsageError("--to writes a config, and --json shows the trial; keep one of them", fix="hpctrain tune best --json")
    name = _name(runs, name)
    there = study.open_study(runs, name)
    begun = _definition(there)
    rows = study.rows(there)
    found = study.best(rows, begun.direction)
    if found is None:
        raise UsageError(f"no trial of the study {name} has completed yet", fix=f"hpctrain tune status {name}")
    asked = study.read_definition(runs / tune.STUDIES / found.file) if found.file else begun
    if to is not None:
        _write(asked, found, to, force=force)
        return
    weights = runs / (found.run or "") / "model"
    if as_json:
        path = str(weights) if found.run and weights.is_dir() else None
        click.echo(json.dumps(_finite({"schema": 1, "study": name, "metric": begun.metric, "best": _as_json(found), "weights": path})))
        return
    click.echo(f"trial {found.number}: {begun.metric} {found.value:.6g}")
    for key, value in found.params.items():
        click.echo(f"{key}: {tune.spoken(value)}")
    if found.run and weights.is_dir():
        click.echo(f"weights: {weights}")
    click.echo(f"next: hpctrain tune best {name} --to best.yaml", err=True)


# -- the config ---------------------------------------------------------------------------------------------------------


def _write(definition: Definition, found: Row, to: str, *, force: bool) -> None:
    """Write the config of a trial.

    Raises:
        UsageError: there is such a file, or what came out is no config.
    """
    from hpctrain.config.tune_best import with_values

    name, text = definition.config or ("config.yaml", "")
    if Path(to).is_dir():
        raise UsageError(f"{to} is a directory", fix=f"hpctrain tune best {definition.study} --to {shell.quote(Path(to) / 'best.yaml')}")
    made, kept = with_values(text, found.params)
    head = f"# trial {found.number} of the study {definition.study}: {definition.metric} {found.value:.6g}; from {name}\n"
    _validate(made, to)
    if to == "-":
        click.echo(head + made, nl=False)
    else:
        path = Path(to)
        if path.exists() and not force:
            raise UsageError(f"{to} is there already", fix=f"--to OTHER_FILE, or --force to replace {to}")
        try:
            files.write_text(path, head + made)
        except OSError as error:
            raise HpctrainError(f"cannot write {to}: {error.strerror}", fix=f"ls -ld {shell.quote(path.parent)}") from error
        click.echo(to)
    if not kept:
        click.echo("note: the config is written anew, without its comments", err=True)
    file = shell.quote(to) if to != "-" else "FILE"
    words = f" {shell.join(definition.words)}" if definition.words else ""
    if words:
        click.echo(f"note: the trials were rendered with{words}, which stands in no config", err=True)
    click.echo(f"next: hpctrain submit --config {file}{words}", err=True)


def _validate(text: str, name: str) -> None:
    from hpctrain import yaml12
    from hpctrain.config import layers

    layers.resolve([layers.from_document(yaml12.load(text, name), name)], again="hpctrain tune best")


# -- the page -----------------------------------------------------------------------------------------------------------


def _page(
    definition: Definition, rows: Sequence[Row], states: Mapping[str, State], found: Row | None, weights: Mapping[str, float]
) -> list[str]:
    done = sum(row.state in ("completed", "pruned") for row in rows)
    lines = [f"study {definition.study}: {done} of {definition.trials} trials done; {definition.metric}, {definition.direction}"]
    if found is not None:
        lines.append(f"best: trial {found.number} with {found.value:.6g}: {_spoken(found.params)}")
    if weights:
        lines.append("importance: " + ", ".join(f"{key} {share:.2f}" for key, share in weights.items()))
    tags = list(dict.fromkeys((row.run or "").rpartition("_")[0] for row in rows if row.run))
    if len(tags) == 1:
        lines.append(f"runs: {tags[0]}_N")
    keys = list(definition.space)
    head = ("TRIAL", "STATE", "VALUE", "STEP", *keys, "RUN", "WHY")
    cells = [_cells(row, keys, states, short=len(tags) == 1) for row in rows]
    if not any(line[-1] for line in cells):
        head, cells = head[:-1], [line[:-1] for line in cells]
    return [*lines, "", *runs_table.table(head, cells)] if rows else [*lines, "no trial has been asked for yet"]


def _cells(row: Row, keys: Sequence[str], states: Mapping[str, State], *, short: bool) -> tuple[str, ...]:
    step = max(row.reports, default=None)
    value = row.value if row.value is not None else row.reports[step] if step is not None else None
    state = _word(states.get(row.run or "")) if row.state == "running" else row.state
    run = row.run or "-"
    return (
        str(row.number), state,
        "-" if value is None else f"{value:.5g}", "-" if step is None else str(step), *(_value(row.params.get(key)) for key in keys),
        run.rpartition("_")[1] + run.rpartition("_")[2] if short and row.run else run, runs_table.printable(row.reason or ""),
    )  # fmt: skip


def _value(value: Scalar) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else runs_table.printable(tune.spoken(value))


def _spoken(params: Mapping[str, Scalar]) -> str:
    return " ".join(f"{key}={_value(value)}" for key, value in params.items())


def _as_json(row: Row) -> dict[str, Any]:
    said = asdict(row)
    return said | {"reports": [{"step": step, "value": value} for step, value in row.reports.items()]}


def _finite(value: Any) -> Any:
    """Return a value that JSON can hold: numbers that are none become null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _importances(there: Any) -> dict[str, float]:
    """Return how much of the difference between trials each argument explains; nothing where optuna cannot say."""
    import warnings

    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            found = optuna.importance.get_param_importances(there, evaluator=evaluator)
        except (ValueError, RuntimeError, ImportError, ZeroDivisionError):
            return {}
    return {key: float(value) for key, value in found.items() if math.isfinite(value)}


# -- reading ------------------------------------------------------------------------------------------------------------


def _name(runs: Path, name: str | None) -> str:
    if name is not None:
        return name
    there = sorted(path.parent.name for path in runs.glob(f"{tune.STUDIES}/*/{tune.JOURNAL}"))
    if len(there) == 1:
        return there[0]
    raise UsageError(
        f"which study? there are {', '.join(there)}" if there else f"there is no study in {runs}",
        fix=f"hpctrain tune status {there[0]}" if there else "hpctrain tune",
    )


def _definition(there: Any) -> Definition:
    found = study.definition_of(there)
    if found is None:
        raise UsageError(f"the study {there.study_name} has not begun: no trial has been asked for", fix="hpctrain ps")
    return found


def _tell(runs: Path, definition: Definition, rows: Sequence[Row]) -> bool:
    """Tell the ends that runs have written down and the study has not heard of; whoever may only read leaves that to others."""
    if not any(row.state == "running" for row in rows):
        return False
    try:
        return bool(study.settle(runs, definition, {}))
    except (OSError, HpctrainError):  # no room, or nothing to be written here
        return False


def _states(runs: Path, rows: Sequence[Row]) -> Mapping[str, State]:
    """Return the states of the runs of trials that are not over; a scheduler that does not answer is said."""
    running = [tune_state.run_of(runs, row) for row in rows if row.state == "running" and row.run]
    found = runs_jobs.survey(runs, running)
    if found.silent is not None:
        click.echo(f"note: {found.silent.what}; whether trials that have no end still run is unknown", err=True)
    return found.states


def _word(state: State | None) -> str:
    """Return what is shown of a trial without an end: `lost` where nothing of its run goes on by itself."""
    return "running" if state is None else "lost" if tune_state.is_gone(state) else state.word
