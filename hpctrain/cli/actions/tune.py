"""`hpctrain tune`, `tune status` and `tune best`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from hpctrain.cli import run_table
from hpctrain.cli.actions import submit
from hpctrain.cli.options import JobCommand, job_options, json_option, request, runs_dir_option
from hpctrain.cli.output import print_json, say, show_table
from hpctrain.config import layers
from hpctrain.config import study as tune
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import schedulers, script_files, suggest, targets
from hpctrain.jobs.request import Request, job_of
from hpctrain.runs import launch, layout, store
from hpctrain.runs.job_state import State
from hpctrain.terminal import for_files
from hpctrain.training import study
from hpctrain.util import files, shell, yaml12

_STATES = ("completed", "pruned", "failed", "running", "waiting")


def run(asked: Request, parameters: dict[str, Any]) -> int:
    """Submit the missing trials of a request's study, and return the exit code.

    Raises:
        UsageError: there is no study, it has another search space, or optuna is missing.
        SchedulerError: a scheduler does not answer, so it is unknown which trials still run.
    """
    job = job_of(asked)
    if job.config.tune is None:
        raise UsageError(
            "config has no tune: section",
            hint=(
                "add to config.yaml, for example: tune: {space: {learning_rate: {low: 1e-5,"
                " high: 1e-3, log: true}}, trials: 20}"
            ),
        )
    wanted = tune.definition(job.config)
    counts = _counts(Path(job.spec.chdir) / layout.RUNS, wanted, write=not parameters["dry_run"])
    missing = wanted.trials - sum(counts[state] for state in _STATES if state != "failed")
    if missing <= 0:
        say(f"nothing to submit; next: hpctrain tune status {wanted.study}")
        return 0
    # An explicit --array overrides these tasks.
    code = submit.run(replace(asked, tasks=f"0-{missing - 1}"), None, parameters)
    if not parameters["parsable"]:
        say(f"next: hpctrain tune status {wanted.study}")
    return code


def _counts(runs: Path, wanted: tune.Definition, *, write: bool) -> Counter[str]:
    """Count and print the trials of a study by state, and mark trials as failed whose jobs no
    longer exist, unless `write` is false.
    """
    rows = _rows(runs, wanted)
    known = {row.run for row in rows}
    coming = [run for run in _runs_of(runs, wanted.study) if run.id not in known]
    running = [_run_of(runs, row) for row in rows if row.state == "running" and row.run]
    found = schedulers.survey(runs, [*running, *coming], every_job=True)
    states = found.states
    found.require_answer("hpctrain tune")
    gone = {
        run.id: "-".join((states[run.id].reason or "job-gone").lower().split())[:60]
        for run in running
        if _is_gone(states[run.id])
    }
    if write and any(row.state == "running" for row in rows):
        for number, _, state in study.settle(runs, wanted, gone):
            say(f"note: trial {number} is {state}: it had not reported its end")
        rows = _rows(runs, wanted)
    known = {row.run for row in rows}  # some may have started in the meantime
    counts = Counter(row.state for row in rows if row.run not in gone or row.state != "running")
    counts["waiting"] = sum(
        each.id not in known and states[each.id].word in ("pending", "running") for each in coming
    )
    words = ", ".join(f"{counts[state]} {state}" for state in _STATES if counts[state])
    say(f"study {wanted.study}: {wanted.trials} trials{f': {words}' if words else ''}")
    stopped = [run.id for run in running if states[run.id].word == "stopped"]
    if stopped:
        say(f"note: {len(stopped)} stopped; to continue: hpctrain resubmit {stopped[0]}")
    return counts


def _rows(runs: Path, wanted: tune.Definition) -> list[study.Row]:
    if not (study.folder(runs, wanted.study) / tune.JOURNAL).exists():
        return []
    opened = study.open_study(runs, wanted.study)
    study.refuse_other(opened, wanted)
    return study.rows(opened)


def _runs_of(runs: Path, name: str) -> Iterator[store.Run]:
    for tag in launch.tags(runs):
        whole = launch.load(runs, tag)
        if whole is None or whole.kind != "run":
            continue
        records = [files.read_json(whole.path / each.config) for each in whole.parts if each.config]
        config = ((records or [None])[-1] or {}).get("config") or {}  # the newest
        section = config.get("tune") or {}
        if section and (section.get("study") or config.get("job_name")) == name:
            yield from targets.launched_runs(runs, whole)[0]


def _run_of(runs: Path, row: study.Row) -> store.Run:
    name = row.run or ""
    return store.read_run(runs, name) or store.Run(id=name, tag=name.rpartition("_")[0] or name)


def _is_gone(state: State) -> bool:
    """Whether a run has failed or was lost, and will not continue automatically."""
    is_lost = state.word == "unknown" and state.forgotten
    return not state.live and (state.word == "failed" or is_lost)


# -- status ----------------------------------------------------------------------------------------


def _status(runs: Path, name: str | None, *, as_json: bool) -> None:
    name, wanted, rows = _read(runs, name)
    if any(row.state == "running" for row in rows):
        with suppress(OSError, HpctrainError):  # the directory is not writable
            study.settle(runs, wanted, {})  # record the ends of trials that did not report them
        rows = study.rows(study.open_study(runs, name))
    found = schedulers.survey(
        runs, [_run_of(runs, row) for row in rows if row.state == "running" and row.run]
    )
    if found.silent is not None:
        say(f"note: {found.silent.what}; whether trials without an end still run is unknown")
    states, best_one = found.states, study.best(rows, wanted.direction)
    if as_json:
        words = {run_id: state.word for run_id, state in states.items()}
        print_json(
            study=name,
            metric=wanted.metric,
            direction=wanted.direction,
            trials=wanted.trials,
            rows=[_as_json(row) | {"run_state": words.get(row.run or "")} for row in rows],
            best=None if best_one is None else best_one.number,
        )
        return
    _show(wanted, rows, states, best_one)
    best_command = f"hpctrain tune best {name} --to best.yaml"
    say(f"next: {'hpctrain ps' if best_one is None else best_command}")


def _show(
    wanted: tune.Definition,
    rows: list[study.Row],
    states: Mapping[str, State],
    best_one: study.Row | None,
) -> None:
    done = sum(row.state in ("completed", "pruned") for row in rows)
    counted = f"{done} of {wanted.trials} trials done"
    click.echo(f"study {wanted.study}: {counted}; {wanted.metric}, {wanted.direction}")
    if best_one is not None:
        values = run_table.values(best_one.params)
        click.echo(f"best: trial {best_one.number} with {best_one.value:.6g}: {values}")
    cells = []
    for row in rows:
        step = max(row.reports, default=None)
        value = row.reports.get(step) if row.value is None and step is not None else row.value
        state = states.get(row.run or "") if row.state == "running" else None
        shown = row.state if state is None else "lost" if _is_gone(state) else state.word
        cells.append(
            (
                str(row.number),
                shown,
                "-" if value is None else f"{value:.5g}",
                "-" if step is None else str(step),
                *(run_table.value(row.params.get(key)) for key in wanted.space),
                row.run or "-",
                row.reason or "",
            )
        )
    show_table(("TRIAL", "STATE", "VALUE", "STEP", *wanted.space, "RUN", "WHY"), cells)


def _as_json(row: study.Row) -> dict[str, Any]:
    return asdict(row) | {
        "reports": [{"step": step, "value": value} for step, value in row.reports.items()]
    }


# -- best ------------------------------------------------------------------------------------------


def _best(runs: Path, name: str | None, *, to: str | None, force: bool, as_json: bool) -> None:
    if to is not None and as_json:
        raise UsageError(
            "--to writes a config, and --json shows the trial; keep one of them",
            fix="hpctrain tune best --json",
        )
    name, wanted, rows = _read(runs, name)
    found = study.best(rows, wanted.direction)
    if found is None:
        raise UsageError(
            f"no trial of the study {name} has completed yet", fix=f"hpctrain tune status {name}"
        )
    if to is not None:
        if found.file:
            wanted = study.read_definition(runs / tune.STUDIES / found.file)
        _write(wanted, found, to, force=force)
        return
    model = runs / (found.run or "") / "model"
    weights = str(model) if found.run and model.is_dir() else None
    if as_json:
        print_json(study=name, metric=wanted.metric, best=_as_json(found), weights=weights)
        return
    click.echo(f"trial {found.number}: {wanted.metric} {found.value:.6g}")
    for key, value in found.params.items():
        click.echo(f"{key}: {tune.spoken(value)}")
    if weights:
        click.echo(f"weights: {weights}")
    say(f"next: hpctrain tune best {name} --to best.yaml")


def _write(wanted: tune.Definition, found: study.Row, to: str, *, force: bool) -> None:
    name, config = wanted.config or ("config.yaml", "")
    made = (
        f"# trial {found.number} of the study {wanted.study}: {wanted.metric} {found.value:.6g};"
        f" from {name}\n{tune.with_values(config, found.params)}"
    )
    layers.resolve([layers.from_document(yaml12.load(made, to), to)], again="hpctrain tune best")
    if wanted.words:
        say(
            f"note: the trials were rendered with {shell.join(wanted.words)}, which is in no config"
        )
    if to == "-":
        click.echo(made, nl=False, file=for_files(sys.stdout))
        return
    path = Path(to)
    if path.exists() and not force:
        raise UsageError(f"{to} exists", hint=f"use another name, or replace {to} with --force")
    script_files.write_file(path, made)
    click.echo(to)
    say(f"next: {suggest.command('submit', suggest.Asked(words=wanted.words), '--config', to)}")


# -- reading ---------------------------------------------------------------------------------------


def _read(runs: Path, name: str | None) -> tuple[str, tune.Definition, list[study.Row]]:
    known = sorted(path.parent.name for path in runs.glob(f"{tune.STUDIES}/*/{tune.JOURNAL}"))
    if name is None and len(known) > 1:
        raise UsageError(
            f"which study? there are {', '.join(known)}", fix=f"hpctrain tune status {known[0]}"
        )
    if name is None and not known:
        raise UsageError(f"there is no study in {runs}", fix="hpctrain tune")
    name = name or known[0]
    opened = study.open_study(runs, name)
    wanted = study.definition_of(opened)
    if wanted is None:
        raise UsageError(
            f"the study {name} has not started: no trial has been requested", fix="hpctrain ps"
        )
    return name, wanted, study.rows(opened)


# -- the commands -----------------------------------------------------------------------------------

#: Parameters of `submit` only.
_NOT_OURS = ("batch_script", "help")


class _TuneCommand(JobCommand, click.Group):
    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        del ctx
        return ["[OPTIONS]", "[-- TRAINING_ARGUMENTS]", "|", "status [NAME]", "|", "best NAME"]


@click.group("tune", cls=_TuneCommand, invoke_without_command=True)
@job_options
@click.pass_context
def command(ctx: click.Context, /, **parameters: Any) -> int | None:
    """Run a hyperparameter search with Optuna.

    The study is `tune:` of config.yaml: the search space, the number of trials and the metric. Each
    trial is a task of an array with its own run. The same command again submits missing trials;
    `hpctrain resubmit` continues runs that have failed.

    \b
    hpctrain tune --local --wait
    hpctrain tune status NAME
    hpctrain tune best NAME --to best.yaml
    """  # noqa: D301 - \b keeps click from wrapping
    if (name := ctx.invoked_subcommand) is not None:
        typed = click.core.ParameterSource.COMMANDLINE
        if any(ctx.get_parameter_source(each) is typed for each in ctx.params):
            fix = f"hpctrain tune {name} --help"
            raise UsageError(f"options before `{name}` would have no effect", fix=fix)
        return None
    return run(request(ctx, parameters), parameters)


# All options of `submit`.
command.params += [
    each
    for each in submit.command.params
    if each.name not in {known.name for known in command.params} | set(_NOT_OURS)
]


@command.command("status", short_help="Show the trials of a study, and the best so far.")
@click.argument("name", required=False)
@runs_dir_option
@json_option
def status(name: str | None, runs_dir: Path, as_json: bool) -> None:
    """Show the trials of a study: parameters, progress and values; and the best so far.

    Default: the only study. Trials that ended without reporting it are recorded.
    """
    _status(runs_dir.absolute(), name, as_json=as_json)


@command.command("best", short_help="Show the best trial, or write its config.")
@click.argument("name", required=False)
@click.option(
    "--to",
    metavar="FILE",
    help="Write the config with the best values, and without the study; - is stdout.",
)
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
@runs_dir_option
@json_option
def best(name: str | None, to: str | None, force: bool, runs_dir: Path, as_json: bool) -> None:
    """Show the best trial of a study, or write its config: yours, with the best values under
    training, and without tune.

    Options that were typed, such as --nodes 2, are printed, because they are in no config.
    """
    _best(runs_dir.absolute(), name, to=to, force=force, as_json=as_json)
