"""`hpctrain runs drop`: remove runs, and never one that a job works on."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import click

from hpctrain.cli import runs, runs_jobs, runs_table
from hpctrain.cli.runs_filter import filter_options, runs_dir_option
from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.runs import drop, launch, store
from hpctrain.runs.code_unused import remove_unused_code, unused_code
from hpctrain.runs.select import Filter
from hpctrain.runs.states import State
from hpctrain.runs.store import Run

#: Seconds of silence after which a run whose job nobody knows may be dropped, if somebody says so.
FORGOTTEN_S = 86_400
_SHOWN = 20


@dataclass(slots=True)
class _Plan:
    """What would go, and what stays and why.

    Attributes:
        where: the directory of all runs, as it was written.
        go: what may be removed, as it was read; `sizes` are bytes.
        keep: run id → why it is not removed, and `closed`: why it cannot be.
        silent: what kept a scheduler from answering.
    """

    where: Path
    go: list[Run] = field(default_factory=list)
    states: dict[str, State] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    keep: dict[str, str] = field(default_factory=dict)
    closed: dict[str, str] = field(default_factory=dict)
    silent: SchedulerError | None = None

    @property
    def total(self) -> int:
        return sum(self.sizes[run.id] for run in self.go)


@click.command("drop")
@filter_options
@runs_dir_option
@click.option("--forgotten", is_flag=True, help="Also runs silent for a day whose job no scheduler knows any more.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def drop_command(*, chosen: Filter, runs_dir: Path, forgotten: bool, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Remove runs, with their checkpoints and all that they have written.

    A run that waits, runs, or of which nobody knows whether it does, is never removed. Shows first what would go, and asks.

    \b
    hpctrain runs drop --state failed --older-than 7d
    hpctrain runs drop 'sft-*' --dry-run
    """  # noqa: D301 - \b is click's word for lines that stay as they are
    if chosen.is_bare:
        raise UsageError("which runs?", fix="hpctrain runs drop RUN, or --state failed --older-than 7d, or '*' for all that have ended")
    if not runs_dir.is_dir():
        raise runs.no_runs(runs_dir)
    if not dry_run:
        for run in drop.clean(runs_dir):
            click.echo(f"note: {run} is back: an earlier drop was killed before it had decided", err=True)
    plan = _plan(chosen, runs_dir, forgotten)
    if not as_json or not (yes or dry_run):
        _preview(plan, err=not dry_run)
    dropped: list[str] = []
    if plan.go and not dry_run:
        if not yes and not _agreed(plan, chosen):
            click.echo("nothing was removed", err=True)
            return 0
        # While somebody was reading, a job may have started.
        again = _plan(chosen, runs_dir, forgotten, only={run.id for run in plan.go})
        plan.keep |= again.keep
        plan.silent = plan.silent or again.silent
        dropped = _drop(runs_dir, again, plan)
    if as_json:
        _json(plan, dropped, dry_run)
    return _outcome(plan, dropped, chosen, dry_run=dry_run)


def _plan(chosen: Filter, runs_dir: Path, forgotten: bool, only: set[str] | None = None) -> _Plan:
    """Judge the runs that are meant: each read from its files, every job of theirs asked for in one query.

    Args:
        chosen: what was asked for.
        runs_dir: the directory of all runs.
        forgotten: whether --forgotten was said.
        only: of these runs alone, whatever the words say: they have been understood before.
    """
    now = time.time()
    if only is None:
        listing = runs.all_runs(runs_dir, index=False)
        meant = chosen.choose(listing.runs if listing is not None else (), now)
    else:
        meant = [run for id_ in sorted(only) if (run := store.read_run(runs_dir, id_)) is not None]
        chosen = replace(chosen, words=tuple(run.id for run in meant))
    survey = runs_jobs.survey(runs_dir, meant, every_job=True)
    plan = _Plan(runs_dir, silent=survey.silent, states=survey.states)
    for run in meant:
        state = survey.states[run.id]
        if not chosen.has(state.word):
            if only is not None:
                plan.keep[run.id] = state.word
            continue
        reason = why_not(runs_dir, run, state, now if forgotten else None)
        if reason is not None:
            plan.keep[run.id] = reason
            continue
        weight = drop.weigh(runs_dir, run.id)
        if weight.obstacle is not None:
            plan.closed[run.id] = weight.obstacle
        else:
            plan.go.append(run)
            plan.sizes[run.id] = weight.size
    return plan


def why_not(runs_dir: Path, run: Run, state: State, forgotten_now: float | None) -> str | None:
    """Return why a run is not removed; None where it may be."""
    if state.live:
        return f"{state.word}: {state.reason}" if state.word in ("running", "pending", "unknown") else f"job {state.live[0]} has not ended"
    if state.word not in ("running", "pending", "unknown"):
        return None
    silent_s = 0.0 if forgotten_now is None else forgotten_now - _last_sign(runs_dir, run)
    if state.forgotten and silent_s > FORGOTTEN_S:
        return None
    return f"{state.word}: {state.reason}"


def _last_sign(runs_dir: Path, run: Run) -> float:
    """Return when something in a run's directory changed last, in seconds since the epoch."""
    home = runs_dir / run.id
    newest = run.since or 0.0
    for pattern in ("*", "attempts/*", "attempts/*/*", "memory/*", "checkpoints/*"):
        for path in (home, *home.glob(pattern)):
            try:
                newest = max(newest, path.lstat().st_mtime)
            except OSError:
                continue
    return newest


def _preview(plan: _Plan, *, err: bool) -> None:
    now = time.time()
    rows = [(*runs_table.cells(run, plan.states[run.id], now)[:6], runs_table.size(plan.sizes[run.id])) for run in plan.go]
    if rows:
        head = (*runs_table.HEAD[:6], "SIZE")
        click.echo("\n".join(runs_table.table(head, rows)), err=err)
        click.echo(f"{_count(len(rows))}, {runs_table.size(plan.total)}", err=err)
    for said in _staying(plan):
        click.echo(said, err=True)
    if not rows:
        click.echo("nothing to remove", err=True)


def _staying(plan: _Plan) -> list[str]:
    kept = list(plan.keep.items())
    lines = [f"stays: {run} ({runs_table.printable(why)})" for run, why in kept[:_SHOWN]]
    return lines + ([f"stays: {len(kept) - _SHOWN} more"] if len(kept) > _SHOWN else [])


def _agreed(plan: _Plan, chosen: Filter) -> bool:
    what = f"{_count(len(plan.go))}, {runs_table.size(plan.total)}"
    if sys.stdin.isatty():
        return click.confirm(f"Remove {what}?", err=True)
    words = shlex.join(chosen.words) or "…"
    raise UsageError(f"this would remove {what}", fix=f"hpctrain runs drop {words} --yes, with the same options")


def _count(number: int) -> str:
    return f"{number} run{'' if number == 1 else 's'}"


def _drop(runs_dir: Path, now: _Plan, plan: _Plan) -> list[str]:
    """Remove what may still be removed, and return the ids; what fails is told, and does not keep the others."""
    dropped = []
    plan.closed |= now.closed
    for run in now.go:
        try:
            drop.drop(runs_dir, run)
        except HpctrainError as error:
            plan.closed[run.id] = error.what
            click.echo(error.render(), err=True)
            continue
        dropped.append(run.id)
    _forget_launches(runs_dir, {run.tag for run in now.go if run.id in dropped}, set(dropped))
    return dropped


def _forget_launches(runs_dir: Path, tags: set[str], dropped: set[str]) -> None:
    """Remove the record of a launch of which no run is left, and the snapshots of code that nobody runs any more."""
    for tag in tags:
        whole = launch.load(runs_dir, tag)
        # A sweep has points that never began, and may begin yet.
        if whole is None or (whole.kind == "sweep" and not set(whole.run_ids) <= dropped):
            continue
        if not any(run.exists() for run in launch.run_dirs_for(runs_dir, whole)):
            shutil.rmtree(whole.path, ignore_errors=True)
    unused = [one.digest for one in unused_code(runs_dir, now=time.time())]
    remove_unused_code(runs_dir, unused, now=time.time())


def _json(plan: _Plan, dropped: list[str], dry_run: bool) -> None:
    gone = [run.id for run in plan.go] if dry_run else dropped
    value = {
        "schema": 1, "dry_run": dry_run, "dropped": [{"id": run, "bytes": plan.sizes[run]} for run in gone],
        "kept": [{"id": run, "why": why} for run, why in plan.keep.items()],
        "failed": [{"id": run, "why": why} for run, why in plan.closed.items()],
    }  # fmt: skip
    click.echo(json.dumps(value))


def _outcome(plan: _Plan, dropped: list[str], chosen: Filter, *, dry_run: bool) -> int:
    """Say what has happened, and return the exit code."""
    if dropped:
        click.echo(f"removed {_count(len(dropped))}, {runs_table.size(sum(plan.sizes[run] for run in dropped))}", err=True)
    if not dry_run:
        for run in sorted(plan.keep.keys() & {run.id for run in plan.go}):
            click.echo(f"stays: {run} ({runs_table.printable(plan.keep[run])}), since a moment ago", err=True)
    if plan.closed:
        details = tuple(f"  {run}: {why}" for run, why in list(plan.closed.items())[:_SHOWN])
        first = shlex.quote(next(iter(plan.closed)))
        fix = f"ls -ld {shlex.quote(str(plan.where))}/{first}"
        click.echo(HpctrainError(f"{_count(len(plan.closed))} cannot be removed", details=details, fix=fix).render(), err=True)
        return 1
    if plan.keep and plan.silent is not None:
        fix = "when Slurm answers again (hpctrain ps), the same command"
        click.echo(HpctrainError(runs.silence(plan.silent), details=("what may run is not removed",), fix=fix).render(), err=True)
        return plan.silent.exit_code
    named = [run for run in plan.keep if run in chosen.words]
    if named:
        fix = _remedy(named[0], plan.states[named[0]])
        click.echo(HpctrainError(f"{_count(len(named))} that you named stays", fix=fix).render(), err=True)
        return 1
    return 0


def _remedy(run: str, state: State) -> str:
    if state.live:
        return f"hpctrain cancel {' '.join(shlex.quote(job) for job in state.live)}, then: hpctrain runs drop {run}"
    return f"squeue --me; if nothing of it runs, a day after its last sign of life: hpctrain runs drop {run} --forgotten"
