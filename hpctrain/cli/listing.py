"""`hpctrain runs list` and `show`, `hpctrain checkpoints list` and `verify`."""

from __future__ import annotations

import math
import re
import shlex
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hpctrain.cli import run_table
from hpctrain.cli.options import complete_runs, filter_options, json_option, runs_dir_option
from hpctrain.cli.output import print_json, say
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

#: Seconds between two progress lines.
_EVERY_S = 10.0
#: The number of newest runs to list if none are named.
SHOWN = 30
#: The column number in `config.yaml:12:3`, omitted to save space in tables.
_IN_LINE = re.compile(r":(\d+):\d+$")


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
        say(f"no runs: {Path.cwd()} has no directory {runs_dir}")
        say("of another directory: hpctrain runs list --runs-dir DIR")
        say("next: hpctrain submit")
        return
    listing = targets.existing_runs(runs_dir)
    meant = sorted(
        chosen.choose(listing, now, started=False), key=lambda run: (run.since or 0.0, run.id)
    )
    survey = schedulers.survey(runs_dir, meant)
    states = survey.states
    meant = [run for run in meant if chosen.has(states[run.id].word)]
    trials = {run.id: run_table.trial_of(runs_dir, run.id) for run in meant}
    if as_json:
        rows = [_run_row(run, states[run.id]) | {"trial": trials[run.id]} for run in meant]
        print_json(runs=rows, foreign=list(listing.foreign))
    else:
        shown = meant if show_all or chosen.words else meant[-SHOWN:]
        if shown:
            click.echo("\n".join(_table(shown, states, trials, now)))
        _notes(listing, meant, shown, chosen, runs_dir)
    if survey.silent is not None and any(state.word == "unknown" for state in states.values()):
        say(f"note: {run_table.summary(survey.silent)}; some states are unknown")


def _table(
    shown: list[Run],
    states: dict[str, State],
    trials: dict[str, dict[str, Any] | None],
    now: float,
) -> list[str]:
    *head, why = run_table.HEAD
    has_trials = any(trials[run.id] for run in shown)
    rows = []
    for run in shown:
        *cells, reason = run_table.cells(run, states[run.id], now)
        trial = trials[run.id]
        values = (str(trial["number"]), run_table.values(trial["params"])) if trial else ("-", "-")
        rows.append((*cells, *(values if has_trials else ()), reason))
    return run_table.table((*head, *(("TRIAL", "VALUES") if has_trials else ()), why), rows)


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
        say("next: hpctrain submit" if chosen.is_empty else f"next: {listed}")
    if len(shown) < len(meant):
        say(f"and {len(meant) - len(shown)} older ones: {listed} --all")
    for run in shown:
        for problem in run.problems[:3]:
            say(f"note: {run.id}: {printable(problem)}")
        if len(run.problems) > 3:
            say(f"note: {run.id}: and {len(run.problems) - 3} more that cannot be read")
    if listing.foreign and chosen.is_empty:
        names = ", ".join(printable(name) for name in listing.foreign[:3])
        more = f" and {len(listing.foreign) - 3} more" if len(listing.foreign) > 3 else ""
        say(f"note: not runs, ignored: {names}{more}")
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
    metrics = model.evaluation_of(directory).items()
    lines = _lines(shown, state, directory, facts)
    lines += _section(
        ("EVALUATION", "VALUE"), [(printable(name), number(value, 6)) for name, value in metrics]
    )
    rows = [
        (path, printable(value)[:50], printable(_IN_LINE.sub(r":\1", where)))
        for path, value, where in model.config_rows(config, origins)
    ]
    lines += _section(("CONFIG", "VALUE", "FROM"), rows)
    click.echo("\n".join(lines))
    for problem in shown.problems:
        say(f"note: {printable(problem)}")
    if survey.silent is not None:
        say(f"note: {run_table.summary(survey.silent)}")
    for line in _next_steps(shown, state, runs_dir, saved=any(not one.wrong for one in saved)):
        say(f"next: {line}")


def _section(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    return ["", *run_table.table(head, rows)] if rows else []


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


def _lines(run: Run, state: State, directory: Path, facts: dict[str, Any]) -> list[str]:
    point = f", combination {run.index}" if run.index is not None else ""
    stage = f", stage {printable(run.stage)}" if run.stage else ""
    words = run_table.why(run, state)
    is_open = state.word in ("pending", "running", "unknown")
    rows = [
        ("run", run.id),
        ("state", f"{state.word}: {words}" if words and is_open else words or state.word),
        ("launch", f"{run.tag}{point}{stage}"),
    ]
    if trial := run_table.trial_of(directory.parent, run.id):
        study = printable(str(trial["study"]))
        rows.append(("trial", f"{trial['number']} of {study}: {run_table.values(trial['params'])}"))
    rows += [
        ("name", printable(run.name or "-")),
        ("owner", facts["owner"]),
        ("created", text.date(run.created)),
        ("directory", f"{directory} ({text.size(facts['bytes'])})"),
        (
            "step",
            f"{run.last_step}, loss {number(run.last_loss)}" if run.last_step is not None else "-",
        ),
        ("code", _code(facts["code"] or {})),
    ]
    if environment := facts["environment"]:
        versions = environment.get("versions")
        known = environment | (versions if isinstance(versions, dict) else {})
        names = [name for name in ("python", "torch", "transformers", "trl") if name in known]
        told = ", ".join(f"{name} {known[name]}" for name in names)
        rows.append(("ran with", printable(told or "see environment.json")))
    files = [
        (
            printable(one["name"]),
            "-" if one["step"] is None else str(one["step"]),
            printable(one["problem"] or "complete"),
        )
        for one in facts["saved"]
    ]
    return [
        *(f"{label:10} {value}" for label, value in rows),
        *_attempts(run, state),
        *_section(("CHECKPOINT", "STEP", "FILES"), files),
        *_fit(facts["fit"]),
    ]


def _fit(record: dict[str, Any] | None) -> list[str]:
    rows = []
    for each in predicted.beside(record) if record is not None else ():
        shown = [
            "-" if value is None else f"{value / 2**30:.2f} GiB" if each.is_size else f"{value:.0f}"
            for value in (each.predicted, each.measured)
        ]
        rows.append((each.name, *shown, "-" if each.off is None else f"{100 * each.off:+.1f} %"))
    return _section(("WHAT", "PREDICTED", "MEASURED", "PREDICTION IS OFF"), rows)


def _attempts(run: Run, state: State) -> list[str]:
    if not run.attempts:
        return [] if state.word in ("failed", "stopped") else ["", "it has not started"]
    rows: list[tuple[str, ...]] = []
    for each in run.attempts:
        # Only the last attempt's job state is known; for earlier ones, use their files.
        ended = job_state.of_job(None, each, next_job=job_state.continuation(run, each, state.live))
        if each is run.last and state.word not in ("pending", "running", "unknown"):
            ended = job_state.of_run(run, state)
        is_timed = each.started is not None and each.ended is not None
        code = each.status if each.status is not None else each.exit_code
        rows.append(
            (
                printable(each.name),
                printable(each.job or "-"),
                printable(each.host or "-"),
                text.date(each.started),
                run_table.ago(each.started, each.ended or 0.0) if is_timed else "-",
                "-" if code is None else str(code),
                printable(ended.words or "-"),
            )
        )
    return _section(("ATTEMPT", "JOB", "HOST", "STARTED", "TOOK", "EXIT", "HOW IT ENDED"), rows)


def _code(code: dict[str, Any]) -> str:
    commit, dirty, digest = code.get("commit"), code.get("dirty"), code.get("digest")
    if isinstance(commit, str):
        changes = " and changes that are not committed (code.diff)" if dirty else ""
        return f"{printable(commit[:12])}{changes}"
    return f"files {printable(digest[:12])}" if isinstance(digest, str) else "-"


# -- checkpoints -----------------------------------------------------------------------------------


class ByteProgress:
    """Progress lines on stderr for long operations: one every 10 s."""

    def __init__(self, verb: str, total: int | None = None) -> None:
        self._verb, self._total, self._done = verb, total, 0
        self._next = time.monotonic() + _EVERY_S
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        """Add the number of bytes."""
        with self._lock:
            self._done += count
            if time.monotonic() >= self._next:
                self._next = time.monotonic() + _EVERY_S
                of = f" of {text.size(self._total)}" if self._total is not None else ""
                say(f"{self._verb} {text.size(self._done)}{of}")


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
    click.echo("\n".join(checkpoint_table(found)))
    damaged = [one.path for one in found if one.wrong and not one.unfinished]
    if damaged:
        say(f"next: {checkpoints.drop_damaged(damaged)}")
    else:
        verify = layout.in_runs_dir(f"hpctrain checkpoints verify {found[-1].run}", runs_dir)
        say(f"next: {verify}, which reads the files")


def checkpoint_table(found: list[Saved]) -> list[str]:
    """Return the lines of a table of checkpoints."""
    now = time.time()
    rows: list[tuple[str, ...]] = []
    for one in found:
        made = one.manifest
        rows.append(
            (
                one.run,
                one.path.name,
                "-" if made is None else str(made.step),
                run_table.ago(made.saved_at if made else None, now),
                text.size(one.size()),
                "-" if made is None else str(made.world_size),
                "best" if one.best else "-",
                printable("; ".join(one.wrong)) or "complete",
            )
        )
    head: tuple[str, ...] = ("RUN", "CHECKPOINT", "STEP", "SAVED", "SIZE", "RANKS", "BEST", "IS")
    if not any(one.best for one in found):  # leaves more of 80 columns to the others
        head, rows = (*head[:6], head[7]), [(*row[:6], row[7]) for row in rows]
    return run_table.table(head, rows)


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
    progress = ByteProgress("read", sum(one.manifest.bytes for one in found if one.manifest))
    rows = []
    damaged = []
    for one in found:
        wrong = manifest.problems(one.path, digests=True, progress=progress)
        damaged += [one.path] if wrong else []
        row = {"run_id": one.run, "name": one.path.name, "ok": not wrong, "problems": list(wrong)}
        rows.append(row)
        if not as_json:
            _say_verified(one, wrong)
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


def _say_verified(one: Saved, wrong: tuple[str, ...]) -> None:
    size = text.size(one.manifest.bytes) if one.manifest else "-"
    click.echo(f"{one.name}  {'damaged' if wrong else 'ok'}  {size}")
    for problem in wrong[:10]:
        click.echo(f"  {printable(problem)}")
    if len(wrong) > 10:
        click.echo(f"  and {len(wrong) - 10} more")
