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
from hpctrain.jobs import deletion, requested, schedulers, targets
from hpctrain.jobs.targets import RunFilter
from hpctrain.runs import checkpoints, drop, job_state, layout, manifest, predicted
from hpctrain.runs.checkpoints import Saved
from hpctrain.runs.job_state import State
from hpctrain.runs.store import Listing, Run
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
        rows = [
            _run_row(run, states[run.id]) | {"trial": run_table.trial_of(runs_dir, run.id)}
            for run in meant
        ]
        print_json(runs=rows, foreign=list(listing.foreign))
    else:
        shown = meant if show_all or chosen.words else meant[-SHOWN:]
        if shown:
            pairs = [(run, states[run.id]) for run in shown]
            run_table.show(
                [(*run_table.cells(*pair, now), run_table.why(*pair)) for pair in pairs], "WHY"
            )
        _notes(listing, meant, shown, chosen, runs_dir)
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


def _notes(
    listing: Listing, meant: list[Run], shown: list[Run], chosen: RunFilter, runs_dir: Path
) -> None:
    listed = layout.in_runs_dir("hpctrain runs list", runs_dir)
    if not meant:
        say(f"no runs{'' if chosen.is_empty else ' like that'} in {runs_dir.absolute()}")
    if len(shown) < len(meant):
        say(f"and {len(meant) - len(shown)} older ones: {listed} --all")
    for run in shown:
        if run.problems:
            more = f", and {len(run.problems) - 1} more" if len(run.problems) > 1 else ""
            say(f"note: {run.id}: {printable(run.problems[0])}{more}")
    if listing.foreign and chosen.is_empty:
        say(f"note: not runs, ignored: {', '.join(map(printable, listing.foreign[:3]))}")
    if shown:
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
    ran_with = requested.ran_with(shown, runs_dir)
    config, origins = ran_with.config, ran_with.origins
    saved = [one for one in checkpoints.saved_in(directory) if one.is_checkpoint]
    facts: dict[str, Any] = {
        "directory": str(directory.absolute()),
        "owner": drop.owner((directory if directory.is_dir() else launch).stat().st_uid),
        "bytes": drop.weigh(runs_dir, shown.id)[0] if directory.is_dir() else 0,
        "config": None if config is None else dict(config),
        "origins": None if config is None else dict(origins),
        "code": model.code_of(shown, runs_dir) or None,
        "environment": model.environment_of(shown, runs_dir) or None,
        "saved": [one.summary() for one in saved],
        "fit": predicted.read(directory),
        "evaluation": requested.first_object(directory / layout.EVALUATION) or None,
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
    files = [
        (
            one["name"],
            "-" if one["step"] is None else str(one["step"]),
            one["problem"] or "complete",
        )
        for one in facts["saved"]
    ]
    _section(("CHECKPOINT", "STEP", "FILES"), files)
    _section(("WHAT", "PREDICTED", "MEASURED", "PREDICTION IS OFF"), _fit(facts["fit"]))
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
    first = {
        "running": f"hpctrain watch {name}{where}",
        "failed": f"hpctrain explain {path if where else name}",
        "completed": f"hpctrain report {name}{where}",
        "unknown": "hpctrain ps",
    }
    steps = [first[state.word]] if state.word in first else []
    if run.job_ids:
        job = run.job_ids[-1]
        follow = " -f" if state.word == "running" else ""
        steps.append(f"hpctrain logs{follow} {name if job_ids.split(job)[1] else shlex.quote(job)}")
    if state.word in ("failed", "stopped"):
        resumes = "  # resumes from its newest checkpoint" if saved else ""
        steps.append(f"hpctrain resubmit {name}{where}{resumes}")
    if state.word == "running":
        steps.append(f"touch {path}/stop  # saves and stops")
    if run.checkpoints:
        steps.append(f"hpctrain checkpoints list {name}{where}")
    return steps


def _facts(run: Run, state: State, directory: Path, facts: dict[str, Any]) -> list[tuple[str, str]]:
    point = f", combination {run.index}" if run.index is not None else ""
    stage = f", stage {printable(run.stage)}" if run.stage else ""
    words = run_table.why(run, state)
    is_open = state.word in ("pending", "running", "unknown")
    step = "-"
    if run.last_step is not None:
        step = f"{run.last_step}, loss {number(run.last_loss)}"
    return [
        ("run", run.id),
        ("state", f"{state.word}: {words}" if words and is_open else words or state.word),
        ("launch", f"{run.tag}{point}{stage}"),
        ("name", printable(run.name or "-")),
        ("owner", facts["owner"]),
        ("created", text.date(run.created)),
        ("directory", f"{directory} ({text.size(facts['bytes'])})"),
        ("step", step),
        ("code", _code(facts["code"] or {})),
    ]


def _fit(record: dict[str, Any] | None) -> list[tuple[str, ...]]:
    rows = []
    for each in predicted.beside(record) if record is not None else ():
        shown = [
            "-" if value is None else f"{value / 2**30:.2f} GiB" if each.is_size else f"{value:.0f}"
            for value in (each.predicted, each.measured)
        ]
        rows.append((each.name, *shown, "-" if each.off is None else f"{100 * each.off:+.1f} %"))
    return rows


def _attempts(run: Run, state: State) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for each in run.attempts:
        # Only the last attempt's job state is known; for earlier ones, use their files.
        ended = job_state.of_job(None, each, next_job=job_state.continuation(run, each, state.live))
        if each is run.last and state.word not in ("pending", "running", "unknown"):
            ended = job_state.of_run(run, state)
        code = each.status if each.status is not None else each.exit_code
        rows.append(
            (
                each.name,
                each.job or "-",
                each.host or "-",
                text.date(each.started),
                "-" if each.ended is None else run_table.ago(each.started, each.ended),
                "-" if code is None else str(code),
                ended.words or "-",
            )
        )
    return rows


def _code(code: dict[str, Any]) -> str:
    commit, dirty, digest = code.get("commit"), code.get("dirty"), code.get("digest")
    if isinstance(commit, str):
        changes = " and changes that are not committed (code.diff)" if dirty else ""
        return f"{printable(commit[:12])}{changes}"
    return f"files {printable(digest[:12])}" if isinstance(digest, str) else "-"


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
        print_json(checkpoints=[_checkpoint_row(one) for one in found])
        return
    if not found:
        matching = "" if chosen.is_empty else "matching "
        say(f"no {matching}checkpoints in {runs_dir.absolute()}")
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
    rows = [
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
    ]
    head = ("RUN", "CHECKPOINT", "STEP", "SAVED", "SIZE", "RANKS", "BEST", "STATE")
    show_table(head, rows, err=err)


def _checkpoint_row(one: Saved) -> dict[str, Any]:
    """Return a checkpoint as JSON values: bytes, seconds, seconds since the epoch, or null."""
    made = one.manifest
    return {
        "run_id": one.run,
        "name": one.path.name,
        "path": str(one.path.absolute()),
        "complete": not one.wrong,
        "problems": list(one.wrong),
        "best": one.best,
        "bytes": one.size(),
        "step": made and made.step,
        "world_size": made and made.world_size,
        "saved_at": made and made.saved_at,
        "seconds": made and made.seconds,
        "attempt": made and made.attempt,
        "state": made and list(made.state),
    }


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
        row = {"run_id": one.run, "name": one.path.name, "ok": not wrong, "problems": list(wrong)}
        rows.append(row)
        if not as_json:
            click.echo(f"{one.name}  {'damaged' if wrong else 'ok'}  {text.size(one.size())}")
            for problem in wrong:
                click.echo(f"  {printable(problem)}")
    if as_json:
        print_json(checkpoints=rows)
    if damaged:
        # A checkpoint that merely cannot be read here may be complete: do not suggest deleting it.
        known = [path for path in damaged if manifest.problems(path, digests=False)]
        fix = checkpoints.drop_damaged(known) if known else f"ls -lR {shlex.quote(str(damaged[0]))}"
        what = f"{len(damaged)} of {len(found)} are not as they were saved"
        raise HpctrainError(what, fix=fix)
    if not as_json:
        say(f"{len(found)} as saved")
    return 0
