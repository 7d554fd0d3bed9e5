"""`hpctrain runs list` and `show`, `hpctrain checkpoints list` and `verify`."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hpctrain.cli import run_table
from hpctrain.cli.options import complete_runs, filter_options, json_option, runs_dir_option
from hpctrain.cli.output import print_json, say, show_table
from hpctrain.errors import HpctrainError
from hpctrain.jobs import deletion, request, schedulers, targets
from hpctrain.jobs.targets import RunFilter
from hpctrain.runs import checkpoints, drop, job_state, layout, manifest, predicted
from hpctrain.runs.checkpoints import Saved
from hpctrain.runs.job_state import State
from hpctrain.runs.store import Run
from hpctrain.slurm import job_ids
from hpctrain.util import text
from hpctrain.util.text import number, printable

#: The number of newest runs to list if none are named.
SHOWN = 30


# -- runs ------------------------------------------------------------------------------------------


@click.command("list")
@filter_options
@runs_dir_option
@click.option("--all", "show_all", is_flag=True, help=f"All of them, not only the newest {SHOWN}.")
@json_option
def list_runs(chosen: RunFilter, runs_dir: Path, show_all: bool, as_json: bool) -> None:
    """List runs, the newest at the end."""
    now = time.time()
    if not runs_dir.exists():
        if as_json:
            print_json(runs=[], foreign=[])
        say(f"no runs: {Path.cwd()} has no directory {runs_dir}; next: hpctrain submit")
        return
    listing = targets.existing_runs(runs_dir)
    meant = sorted(
        chosen.choose(listing, now, started=False), key=lambda run: (run.since or 0.0, run.id)
    )
    survey = schedulers.survey(runs_dir, meant)
    states = survey.states
    meant = [run for run in meant if chosen.has(states[run.id].word)]
    if as_json:
        print_json(
            runs=[
                _run_row(run, states[run.id]) | {"trial": run_table.trial_of(runs_dir, run.id)}
                for run in meant
            ],
            foreign=list(listing.foreign),
        )
    else:
        shown = meant if show_all or chosen.words else meant[-SHOWN:]
        if not shown:
            say(f"no runs{'' if chosen.is_empty else ' like that'} in {runs_dir.absolute()}")
        else:
            _show_runs(shown, states, runs_dir, now)
        if len(shown) < len(meant):
            listed = layout.in_runs_dir("hpctrain runs list", runs_dir)
            say(f"and {len(meant) - len(shown)} older ones: {listed} --all")
        if listing.foreign and chosen.is_empty:
            say(f"note: not runs, ignored: {', '.join(map(printable, listing.foreign[:3]))}")
    if survey.silent is not None and any(state.word == "unknown" for state in states.values()):
        say(f"note: {run_table.summary(survey.silent)}; some states are unknown")


def _run_row(run: Run, state: State) -> dict[str, Any]:
    """Return a run as JSON values: seconds since the epoch, null for unknown."""
    row = asdict(run) | {
        "since": run.since,
        "job_ids": list(run.job_ids),
        "state": state.word,
        "reason": state.reason,
        "live_jobs": list(state.live),
        "summary": job_state.of_run(run, state).words or None,
    }
    # JSON has no NaN or infinity
    if run.last_loss is not None and not math.isfinite(run.last_loss):
        row |= {"last_loss": None, "nonfinite": {"last_loss": str(run.last_loss)}}
    return row


def _show_runs(shown: list[Run], states: dict[str, State], runs_dir: Path, now: float) -> None:
    pairs = [(run, states[run.id]) for run in shown]
    run_table.show([(*run_table.cells(*pair, now), run_table.why(*pair)) for pair in pairs], "WHY")
    for run in shown:
        for problem in run.problems[:1]:
            say(f"note: {run.id}: {printable(problem)}")
    say(f"next: {layout.in_runs_dir(f'hpctrain runs show {shown[-1].id}', runs_dir)}")


@click.command("show")
@click.argument("run", required=False, shell_complete=complete_runs)
@runs_dir_option
@json_option
def show_run(run: str | None, runs_dir: Path, as_json: bool) -> None:
    """Show a run: owner, config, code, attempts, checkpoints, and suggested commands. Without RUN,
    the newest run.
    """
    from hpctrain.report import model

    listing = targets.existing_runs(runs_dir)
    shown = targets.newest_run(listing) if run is None else targets.one_run(run, listing)
    survey = schedulers.survey(runs_dir, [shown])
    state = survey.states[shown.id]
    directory = runs_dir / shown.id
    launch = runs_dir / layout.LAUNCHES / shown.tag
    ran_with = request.ran_with(shown, runs_dir)
    config, origins = ran_with.config, ran_with.origins
    saved = [one for one in checkpoints.saved_in(directory) if one.is_checkpoint]
    fit = predicted.read(directory)
    facts: dict[str, Any] = {
        "directory": str(directory.absolute()),
        "owner": drop.owner((directory if directory.is_dir() else launch).stat().st_uid),
        "bytes": drop.weigh(runs_dir, shown.id)[0] if directory.is_dir() else 0,
        "config": None if config is None else dict(config),
        "origins": None if config is None else dict(origins),
        "code": model.code_of(shown, runs_dir) or None,
        "environment": model.environment_of(shown, runs_dir) or None,
        "saved": [one.summary() for one in saved],
        "fit": fit,
        "evaluation": request.first_object(directory / layout.EVALUATION) or None,
    }
    if as_json:
        print_json(**_run_row(shown, state), **facts)
        return
    for label, value in _facts(shown, state, directory, facts):
        click.echo(f"{label:10} {value}")
    _section(
        ("ATTEMPT", "JOB", "HOST", "STARTED", "TOOK", "EXIT", "HOW IT ENDED"),
        _attempts(shown, state),
    )
    _section(
        ("CHECKPOINT", "STEP", "FILES"),
        [
            (one["name"], text.number(one["step"]), one["problem"] or "complete")
            for one in facts["saved"]
        ],
    )
    _section(
        ("WHAT", "PREDICTED", "MEASURED", "PREDICTION IS OFF"),
        [
            (
                each.name,
                *(
                    text.size(value) if each.is_size and value is not None else number(value)
                    for value in (each.predicted, each.measured)
                ),
                "-" if each.off is None else f"{100 * each.off:+.1f} %",
            )
            for each in (predicted.beside(fit) if fit is not None else ())
        ],
    )
    metrics = model.evaluation_of(directory).items()
    _section(("EVALUATION", "VALUE"), [(name, number(value, 6)) for name, value in metrics])
    rows = model.config_rows(config, origins)
    _section(("CONFIG", "VALUE", "FROM"), [(key, value[:50], where) for key, value, where in rows])
    for problem in shown.problems:
        say(f"note: {printable(problem)}")
    if survey.silent is not None:
        say(f"note: {run_table.summary(survey.silent)}")
    for line in _next_steps(shown, state, runs_dir, saved=any(not one.wrong for one in saved)):
        say(f"next: {line}")


def _section(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    if rows:
        click.echo()
        show_table(head, rows)


def _next_steps(run: Run, state: State, runs_dir: Path, *, saved: bool) -> list[str]:
    name, path = shlex.quote(run.id), shlex.quote(str(runs_dir / run.id))
    where = layout.in_runs_dir("", runs_dir)
    job = run.job_ids[-1] if run.job_ids else ""
    logs = f"hpctrain logs {name if job_ids.split(job)[1] else shlex.quote(job)}"
    resubmit = f"hpctrain resubmit {name}{where}"
    resubmit += "  # resumes from its newest checkpoint" if saved else ""
    explain = f"hpctrain explain {path if where else name}"
    steps = {
        "running": [f"hpctrain watch {name}{where}", f"touch {path}/stop  # saves and stops"],
        "failed": [explain, resubmit],
        "stopped": [resubmit],
        "completed": [f"hpctrain report {name}{where}"],
        "unknown": ["hpctrain ps"],
    }
    return [*steps.get(state.word, ()), *([logs] if job else ())]


def _facts(run: Run, state: State, directory: Path, facts: dict[str, Any]) -> list[tuple[str, str]]:
    point = f", combination {run.index}" if run.index is not None else ""
    stage = f", stage {printable(run.stage)}" if run.stage else ""
    words = run_table.why(run, state)
    code = facts["code"] or {}
    commit, digest = (str(code.get(name) or "")[:12] for name in ("commit", "digest"))
    changes = " and changes that are not committed (code.diff)" if code.get("dirty") else ""
    return [
        ("run", run.id),
        ("state", f"{state.word}: {words}" if words else state.word),
        ("launch", f"{run.tag}{point}{stage}"),
        ("name", printable(run.name or "-")),
        ("owner", facts["owner"]),
        ("created", text.date(run.created)),
        ("directory", f"{directory} ({text.size(facts['bytes'])})"),
        ("step", f"{text.number(run.last_step)}, loss {number(run.last_loss)}"),
        ("code", printable(commit or f"files {digest}" if code else "-") + changes),
    ]


def _attempts(run: Run, state: State) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for each in run.attempts:
        # Only the last attempt's job state is known; for earlier ones, use their files.
        ended = job_state.of_job(None, each, next_job=job_state.continuation(run, each, state.live))
        if each is run.last and state.word not in ("pending", "running", "unknown"):
            ended = job_state.of_run(run, state)
        code = each.status if each.status is not None else each.exit_code
        took = "-" if each.ended is None else run_table.ago(each.started, each.ended)
        started = text.date(each.started)
        cells = (each.name, each.job, each.host, started, took, code, ended.words)
        rows.append(tuple("-" if cell in (None, "") else str(cell) for cell in cells))
    return rows


# -- checkpoints -----------------------------------------------------------------------------------


@click.command("list")
@filter_options
@runs_dir_option
@json_option
def list_checkpoints(chosen: RunFilter, runs_dir: Path, as_json: bool) -> None:
    """List checkpoints, complete or not.

    Names and sizes are compared, and what `verify` found before is shown; `verify` reads the files.
    """
    found = deletion.choose(chosen, runs_dir).all
    if as_json:
        # Bytes, seconds, seconds since the epoch, or null.
        print_json(
            checkpoints=[
                {
                    "run_id": one.run,
                    "name": one.path.name,
                    "path": str(one.path.absolute()),
                    "complete": not one.wrong,
                    "problems": list(one.wrong),
                    "best": one.best,
                    "bytes": one.size(),
                    "step": one.manifest and one.manifest.step,
                    "world_size": one.manifest and one.manifest.world_size,
                    "saved_at": one.manifest and one.manifest.saved_at,
                    "seconds": one.manifest and one.manifest.seconds,
                    "attempt": one.manifest and one.manifest.attempt,
                    "state": one.manifest and list(one.manifest.state),
                }
                for one in found
            ]
        )
        return
    if not found:
        say(f"no such checkpoints in {runs_dir.absolute()}")
        return
    show_checkpoints(found)
    damaged = [one.path for one in found if one.wrong and not one.unfinished]
    if damaged:
        say(f"next: {checkpoints.drop_damaged(damaged)}")
    else:
        verify = layout.in_runs_dir(f"hpctrain checkpoints verify {found[-1].run}", runs_dir)
        say(f"next: {verify}, which reads the files")


def show_checkpoints(found: list[Saved], *, err: bool = False) -> None:
    """Print a table of checkpoints."""
    now = time.time()
    show_table(
        ("RUN", "CHECKPOINT", "STEP", "SAVED", "SIZE", "RANKS", "BEST", "STATE"),
        [
            (
                one.run,
                one.path.name,
                "-" if one.manifest is None else str(one.manifest.step),
                run_table.ago(one.manifest.saved_at if one.manifest else None, now),
                text.size(one.size()),
                "-" if one.manifest is None else str(one.manifest.world_size),
                "best" if one.best else "-",
                "; ".join(one.wrong) or "complete",
            )
            for one in found
        ],
        err=err,
    )


@click.command("verify")
@filter_options
@runs_dir_option
@json_option
def verify_checkpoints(chosen: RunFilter, runs_dir: Path, as_json: bool) -> int:
    """Compare checkpoints with what was saved.

    Exit code 1 if one is damaged. Unfinished saves are ignored.
    """
    found = [one for one in deletion.choose(chosen, runs_dir).all if not one.unfinished]
    if not found and not chosen.is_empty:
        raise HpctrainError("no matching checkpoints to verify", fix="hpctrain checkpoints list")
    rows, damaged = [], []
    for one in found:
        wrong = manifest.problems(one.path, digests=True)
        damaged += [one.path] if wrong else []
        rows.append(
            {"run_id": one.run, "name": one.path.name, "ok": not wrong, "problems": list(wrong)}
        )
        if not as_json:
            click.echo(f"{one.name}  {'damaged' if wrong else 'ok'}  {text.size(one.size())}")
            for problem in wrong:
                click.echo(f"  {printable(problem)}")
    if as_json:
        print_json(checkpoints=rows)
    if damaged:
        # A checkpoint that merely cannot be read here may be complete: do not suggest deleting it.
        known = [path for path in damaged if manifest.problems(path, digests=False)]
        raise HpctrainError(
            f"{len(damaged)} of {len(found)} are not as they were saved",
            fix=checkpoints.drop_damaged(known)
            if known
            else f"ls -lR {shlex.quote(str(damaged[0]))}",
        )
    if not as_json:
        say(f"{len(found)} as saved")
    return 0
