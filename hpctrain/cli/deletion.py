"""`hpctrain runs delete` and `hpctrain checkpoints delete`: preview, confirmation, a second check,
and errors.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

import click

from hpctrain.cli import listing, run_table
from hpctrain.cli.options import filter_options, json_option, runs_dir_option, typed, yes_option
from hpctrain.cli.output import print_json, say
from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.jobs import deletion, targets
from hpctrain.jobs.deletion import DeletionPlan
from hpctrain.jobs.targets import RunFilter
from hpctrain.runs import drop, layout, store
from hpctrain.runs.store import Run
from hpctrain.slurm import job_ids
from hpctrain.util import text
from hpctrain.util.text import printable

T = TypeVar("T")
_SHOWN = 20
_dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing."
)


@click.command("delete")
@filter_options
@runs_dir_option
@_dry_run_option
@yes_option
@json_option
def delete_runs(
    *, chosen: RunFilter, runs_dir: Path, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Delete runs with everything they wrote.

    A run that is pending, running or in an unknown state is never deleted. Shows what would be
    deleted, and asks.

    \b
    hpctrain runs delete --state failed --older-than 7d
    hpctrain runs delete 'sft-*' --dry-run
    """  # noqa: D301 - \b keeps click from wrapping
    if chosen.is_empty:
        raise UsageError(
            "no runs are named", fix="hpctrain runs delete --state failed --older-than 7d --dry-run"
        )
    if not dry_run:
        drop.clean(runs_dir)
    meant = chosen.choose(targets.existing_runs(runs_dir), time.time(), whole=True)
    plan = deletion.plan_runs(meant, chosen, runs_dir)

    def plan_again() -> DeletionPlan[Run]:
        now = [run for name in plan.go if (run := store.read_run(runs_dir, name)) is not None]
        return deletion.plan_runs(now, chosen, runs_dir)

    def show(runs: list[Run]) -> None:
        now = time.time()
        run_table.show(
            [
                (*run_table.cells(run, plan.states[run.id], now), text.size(plan.sizes[run.id]))
                for run in runs
            ],
            "SIZE",
            err=not dry_run,
        )

    def remove(run: Run) -> str | None:
        try:
            drop.drop(runs_dir, run)
        except HpctrainError as error:
            return error.what
        return None

    removed = _carry_out(
        plan,
        plan_again,
        remove,
        show,
        noun="run",
        key="id",
        command=typed("hpctrain runs delete", chosen, runs_dir),
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )
    if removed:
        deletion.forget_launches(runs_dir, [plan.go[name] for name in removed])
    if named := _refuse_silence(plan, "run", runs_dir, chosen.words):
        name, live = named[0], plan.states[named[0]].live
        raise _kept(
            plan,
            name,
            fix=job_ids.cancel_command(live) if live else "squeue --me",
            hint=None
            if live
            else f"if nothing of it runs: rm -r {shlex.quote(str(runs_dir / name))}",
        )


@click.command("delete")
@filter_options
@runs_dir_option
@click.option(
    "--keep-last",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Keep the N newest of each run.",
)
@click.option(
    "--damaged",
    is_flag=True,
    help="Only damaged checkpoints (reads the files) and unfinished saves.",
)
@_dry_run_option
@yes_option
@json_option
def delete_checkpoints(
    *,
    chosen: RunFilter,
    runs_dir: Path,
    keep_last: int,
    damaged: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete checkpoints to free space.

    The newest complete checkpoint of each run is kept, and the best one unless it is named. Nothing
    is deleted of a run that is pending, running or in an unknown state; final weights (RUN/model)
    only when they are named. Shows what would be deleted, and asks.

    \b
    hpctrain checkpoints delete 'sft-*' --state completed --keep-last 2
    hpctrain checkpoints delete sft-1/checkpoint-40
    """  # noqa: D301 - \b keeps click from wrapping
    if chosen.is_empty:
        raise UsageError(
            "no checkpoints are named",
            fix="hpctrain checkpoints delete '*' --keep-last 2 --dry-run",
        )
    command = typed("hpctrain checkpoints delete", chosen, runs_dir)
    command += f" --keep-last {keep_last}" if keep_last > 1 else ""
    command += " --damaged" if damaged else ""
    meant = deletion.choose(chosen, runs_dir, whole=True)
    if damaged:
        meant = deletion.choose_again(meant, runs_dir, read=True)
    plan_of = partial(
        deletion.plan_checkpoints, runs_dir=runs_dir, keep_last=keep_last, damaged=damaged
    )
    plan = plan_of(meant)
    _carry_out(
        plan,
        lambda: plan_of(deletion.choose_again(meant, runs_dir)),
        deletion.remove_checkpoint,
        lambda found: listing.show_checkpoints(found, err=not dry_run),
        noun="checkpoint",
        key="name",
        command=command,
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )
    if named := _refuse_silence(plan, "checkpoint", runs_dir, meant.named):
        show = f"hpctrain runs show {shlex.quote(named[0].partition('/')[0])}"
        raise _kept(plan, named[0], fix=layout.in_runs_dir(show, runs_dir))


def _carry_out(
    plan: DeletionPlan[T],
    plan_again: Callable[[], DeletionPlan[T]],
    remove: Callable[[T], str | None],
    show: Callable[[list[T]], None],
    *,
    noun: str,
    key: str,
    command: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> list[str]:
    """Show a plan, ask, delete, and return the names of what was deleted.

    Raises:
        UsageError: there is no terminal to ask on.
        Exit: the user declined.
    """
    if not as_json or not (yes or dry_run):
        if plan.go:
            show(list(plan.go.values()))
            click.echo(_sum(plan, plan.go, noun), err=not dry_run)
        for name, why in plan.keep.items():
            say(f"stays: {name} ({printable(why)})")
        if not plan.go:
            say("nothing to remove")
    removed = []
    if plan.go and not dry_run:
        what = _sum(plan, plan.go, noun)
        if not yes and not sys.stdin.isatty():
            raise UsageError(f"this would remove {what}", fix=f"{command} --yes")
        if not yes and not click.confirm(f"Remove {what}?", err=True):
            say("nothing was removed")
            raise click.exceptions.Exit(0)
        removed = _remove(plan, plan_again(), remove)
    if as_json:
        gone = plan.go if dry_run else removed
        print_json(
            dry_run=dry_run,
            dropped=[{key: name, "bytes": plan.sizes[name]} for name in gone],
            kept=[{key: name, "why": why} for name, why in plan.keep.items()],
            failed=[{key: name, "why": why} for name, why in plan.failed.items()],
        )
    if removed:
        say(f"removed {_sum(plan, removed, noun)}")
    return removed


def _sum(plan: DeletionPlan[T], names: Iterable[str], noun: str) -> str:
    sizes = [plan.sizes[name] for name in names]
    return f"{text.count(len(sizes), noun)}, {text.size(sum(sizes))}"


def _remove(
    plan: DeletionPlan[T], now: DeletionPlan[T], remove: Callable[[T], str | None]
) -> list[str]:
    """Delete what both plans allow; a job may have started since the first. Return the names."""
    plan.silent = plan.silent or now.silent
    plan.held |= now.held
    plan.failed |= now.failed
    removed = []
    for name in plan.go:
        if name in now.go:
            problem = remove(now.go[name])
            if problem is None:
                removed.append(name)
            else:
                plan.failed[name] = problem
        elif name not in now.failed:
            plan.keep[name] = now.keep.get(name, "it has changed, or is removed")
            say(f"stays: {name} ({printable(plan.keep[name])}), since a moment ago")
    return removed


def _refuse_silence(
    plan: DeletionPlan[T], noun: str, runs_dir: Path, named: Iterable[str]
) -> list[str]:
    """Return the named items that are kept.

    Raises:
        HpctrainError: something could not be deleted.
        SchedulerError: something is kept because Slurm did not answer.
    """
    if plan.failed:
        first = next(iter(plan.failed)).partition("/")[0]
        raise HpctrainError(
            f"{text.count(len(plan.failed), noun)} cannot be removed",
            details=tuple(
                f"  {name}: {printable(why)}" for name, why in list(plan.failed.items())[:_SHOWN]
            ),
            fix=f"ls -ld {shlex.quote(str(runs_dir / first))}",
        )
    if plan.held and plan.silent is not None:
        raise SchedulerError(
            run_table.summary(plan.silent),
            details=("what a job may use is kept; delete again when Slurm answers",),
            fix="hpctrain ps",
        )
    return [name for name in plan.keep if name in set(named)]


def _kept(plan: DeletionPlan[T], name: str, *, fix: str, hint: str | None = None) -> HpctrainError:
    why = printable(plan.keep[name])
    return HpctrainError(f"{name} stays: {why}", fix=fix, hint=hint)
