"""`hpctrain checkpoints drop`: make room, and keep what a run goes on from."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

import click

from hpctrain.cli import checkpoints, checkpoints_chosen, runs, runs_jobs, runs_table
from hpctrain.cli.checkpoints_chosen import Chosen
from hpctrain.cli.runs_filter import filter_options, runs_dir_option
from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.runs import checkpoints as directories
from hpctrain.runs.saved import Saved
from hpctrain.runs.select import Filter

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class _Rules:
    """What the options say."""

    keep_last: int
    damaged: bool
    even_last: bool
    forgotten: bool


@dataclass(slots=True)
class _Plan:
    """What would go, and what stays: its name, and why; `held` is what stays because a job may work on it."""

    go: list[Saved] = field(default_factory=list)
    keep: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    silent: SchedulerError | None = None


@click.command("drop")
@filter_options
@runs_dir_option
@click.option("--keep-last", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Keep the N newest of each run.")
@click.option("--damaged", is_flag=True, help="Only what is not complete, unfinished saves included.")
@click.option("--even-last", is_flag=True, help="Also the newest complete one, from which a run would go on.")
@click.option("--forgotten", is_flag=True, help="Also of runs silent for a day whose job no scheduler knows any more.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def drop_command(
    *,
    chosen: Filter,
    runs_dir: Path,
    keep_last: int,
    damaged: bool,
    even_last: bool,
    forgotten: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Remove checkpoints, but never the last good one.

    The newest complete one of each run stays, and the best one unless it is named. Of a run that waits, runs, or of which nobody knows
    whether it does, nothing is removed; final weights (RUN/model) go only when they are named. Shows first what would go, and asks.

    \b
    hpctrain checkpoints drop 'sft-*' --state completed --keep-last 2
    hpctrain checkpoints drop sft-1/checkpoint-40
    """  # noqa: D301 - \b is click's word for lines that stay as they are
    if chosen.is_bare:
        raise UsageError("which checkpoints?", fix="hpctrain checkpoints drop RUN, or RUN/checkpoint-40, or '*' for those of all runs")
    rules = _Rules(keep_last, damaged, even_last, forgotten)
    meant = checkpoints_chosen.choose(chosen, runs_dir)
    plan = _plan(meant, runs_dir, rules)
    if not as_json or not (yes or dry_run):
        _preview(plan, err=not dry_run)
    sizes = {one.name: one.size() for one in plan.go}
    removed: list[str] = []
    if plan.go and not dry_run:
        if not yes and not _agreed(plan, sum(sizes.values())):
            click.echo("nothing was removed", err=True)
            return 0
        removed = _drop(plan, meant, runs_dir, rules)
    if as_json:
        gone = [one.name for one in plan.go] if dry_run else removed
        value = {"dropped": [{"name": name, "bytes": sizes[name]} for name in gone], "kept": _rows(plan.keep), "failed": _rows(plan.failed)}
        click.echo(json.dumps({"schema": 1, "dry_run": dry_run, **value}))
    if removed:
        click.echo(f"removed {len(removed)}, {runs_table.size(sum(sizes[name] for name in removed))}", err=True)
    return _outcome(plan, meant)


def _plan(meant: Chosen, runs_dir: Path, rules: _Rules) -> _Plan:
    survey = runs_jobs.survey(runs_dir, meant.runs, every_job=True)
    plan = _Plan(silent=survey.silent)
    for run in meant.runs:
        why = checkpoints_chosen.may_not_change(run, survey.states[run.id], runs_dir, forgotten=rules.forgotten)
        newest = _newest(runs_dir / run.id, rules.keep_last)
        for one in meant.saved.get(run.id, []):
            stays = why or _why_not(one, newest, rules, named=one.name in meant.named)
            if stays is None:
                plan.go.append(one)
            elif stays:
                plan.keep[one.name] = stays
            if why:
                plan.held.add(one.name)
    return plan


def _newest(run: Path, count: int) -> list[str]:
    """Return the names of the newest complete checkpoints of a run, the newest last: of all that it has, not of those that are meant."""
    from hpctrain.runs.saved import saved_in

    return [one.path.name for one in saved_in(run) if one.is_checkpoint and not one.wrong][-count:]


def _why_not(one: Saved, newest: list[str], rules: _Rules, *, named: bool) -> str | None:
    """Return why a checkpoint stays, empty where nobody would expect it to go; None where it goes."""
    if rules.damaged:
        return None if one.wrong and (one.is_checkpoint or one.unfinished or named) else ""
    if not one.is_checkpoint and not one.unfinished:
        return None if named else "final weights; to remove them, name them"
    if one.path.name in newest[-1:] and not rules.even_last:
        return "the newest complete one; --even-last"
    if named:
        return None
    if one.best:
        return "the best one; to remove it, name it"
    # --even-last without a number of its own means that none is kept.
    kept = newest if not rules.even_last or rules.keep_last > 1 else []
    return f"among the {rules.keep_last} newest" if one.path.name in kept else None


def _preview(plan: _Plan, *, err: bool) -> None:
    if plan.go:
        click.echo("\n".join(checkpoints.table(plan.go)), err=err)
        click.echo(f"{len(plan.go)}, {runs_table.size(sum(one.size() for one in plan.go))}", err=err)
    kept = list(plan.keep.items())
    for name, why in kept[:_SHOWN]:
        click.echo(f"stays: {name} ({runs_table.printable(why)})", err=True)
    if len(kept) > _SHOWN:
        click.echo(f"stays: {len(kept) - _SHOWN} more", err=True)
    if not plan.go:
        click.echo("nothing to remove", err=True)


def _agreed(plan: _Plan, total: int) -> bool:
    what = f"{len(plan.go)} checkpoint{'' if len(plan.go) == 1 else 's'}, {runs_table.size(total)}"
    if sys.stdin.isatty():
        return click.confirm(f"Remove {what}?", err=True)
    raise UsageError(f"this would remove {what}", fix="the same command with --yes, or with --dry-run to see it again")


def _drop(plan: _Plan, meant: Chosen, runs_dir: Path, rules: _Rules) -> list[str]:
    """Remove what may still go: while somebody was reading, a job may have started, or saved."""
    again = _plan(checkpoints_chosen.choose_again(meant, runs_dir), runs_dir, rules)
    removed = []
    still = {one.name for one in again.go}
    for one in plan.go:
        if one.name not in still:
            plan.keep[one.name] = again.keep.get(one.name, "it is gone")
            click.echo(f"stays: {one.name} ({runs_table.printable(plan.keep[one.name])}), since a moment ago", err=True)
            continue
        try:
            left = directories.remove(one.path)
        except OSError as error:
            plan.failed[one.name] = (error.strerror or str(error)).lower()
            continue
        if left is not None:
            plan.failed[one.name] = f"it is no checkpoint any more, and files of it are left in {left}"
        removed.append(one.name)
    for run in {one.run for one in plan.go if one.name in still}:
        directories.sweep(runs_dir / run / directories.CHECKPOINTS)
    return removed


def _rows(why: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "why": reason} for name, reason in why.items()]


def _outcome(plan: _Plan, meant: Chosen) -> int:
    """Say what did not happen, and return the exit code."""
    if plan.failed:
        details = tuple(f"  {name}: {why}" for name, why in list(plan.failed.items())[:_SHOWN])
        run = shlex.quote(next(iter(plan.failed)).partition("/")[0])
        click.echo(
            HpctrainError(f"{len(plan.failed)} cannot be removed", details=details, fix=f"hpctrain runs show {run}").render(), err=True
        )
        return 1
    if plan.held and plan.silent is not None:
        fix = "when Slurm answers again (hpctrain ps), the same command"
        click.echo(HpctrainError(runs.silence(plan.silent), details=("of what may run, nothing is removed",), fix=fix).render(), err=True)
        return plan.silent.exit_code
    named = [name for name in plan.keep if name in meant.named]
    if named:
        run = shlex.quote(named[0].partition("/")[0])
        details = tuple(f"  {name}: {plan.keep[name]}" for name in named)
        click.echo(HpctrainError(f"{len(named)} that you named stays", details=details, fix=f"hpctrain runs show {run}").render(), err=True)
        return 1
    return 0
