"""`hpctrain runs`: what has run here, and what is left of it."""

from __future__ import annotations

import importlib
import json
import math
import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hpctrain.cli import runs_table
from hpctrain.cli.runs_filter import filter_options, runs_dir_option
from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.runs.index import Listing
from hpctrain.runs.select import Filter
from hpctrain.runs.states import State
from hpctrain.runs.store import Run

#: Of the runs that nobody asked for by name, the newest are shown.
SHOWN = 30
#: Subcommand → module, function and first line of its help; a module is imported when its subcommand is called.
_ELSEWHERE = {
    "show": ("runs_show", "show_command", "Show a run, and what to type next."),
    "drop": ("runs_drop", "drop_command", "Remove runs, with their checkpoints and all that they have written."),
    "export": ("runs_archive", "export_command", "Put runs into one file."),
    "import": ("runs_archive", "import_command", "Take runs out of a file."),
}


class _Group(click.Group):
    """The subcommands, most of them in modules of their own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the subcommands in the order of their use."""
        del ctx
        return ["list", *_ELSEWHERE]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the subcommand; while the group's own help is shown, a stand-in that knows the help line alone."""
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, function, line = _ELSEWHERE[cmd_name]
        if ctx.resilient_parsing or ctx.meta.get("hpctrain.listing"):
            return click.Command(cmd_name, short_help=line)
        command: click.Command = getattr(importlib.import_module(f"hpctrain.cli.{module}"), function)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the subcommands without importing them."""
        ctx.meta["hpctrain.listing"] = True
        try:
            super().format_commands(ctx, formatter)
        finally:
            ctx.meta.pop("hpctrain.listing")


@click.group(cls=_Group)
def command() -> None:
    """List, show, drop, export and import runs.

    A run is a directory in runs/: what one training does until it is done, over restarts. RUN is its id, or the beginning of it, or a
    glob such as 'sft-*'; the tag of a sweep means all of its points.
    """


@command.command("list")
@filter_options
@runs_dir_option
@click.option("--all", "show_all", is_flag=True, help=f"All that are meant, not only the newest {SHOWN}.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with all that are meant.")
def list_command(chosen: Filter, runs_dir: Path, show_all: bool, as_json: bool) -> int:
    """List runs, the newest at the end."""
    from hpctrain.cli import runs_jobs, runs_trials

    now = time.time()
    listing = all_runs(runs_dir)
    if listing is None:
        return _none(runs_dir, as_json)
    meant = sorted(chosen.choose(listing.runs, now), key=lambda run: (run.since or 0.0, run.id))
    survey = runs_jobs.survey(runs_dir, meant)
    meant = [run for run in meant if chosen.has(survey.states[run.id].word)]
    if as_json:
        rows = [as_json_row(run, survey.states[run.id]) | {"trial": runs_trials.trial_of(runs_dir, run.id)} for run in meant]
        click.echo(json.dumps({"schema": 1, "runs": rows, "foreign": list(listing.foreign)}))
    else:
        shown = meant if show_all or chosen.words else meant[-SHOWN:]
        rows_ = [runs_table.cells(run, survey.states[run.id], now) for run in shown]
        if shown:
            head, more = runs_trials.columns(runs_dir, shown)
            lines = [(*row[:-1], *extra, row[-1]) for row, extra in zip(rows_, more, strict=True)]
            click.echo("\n".join(runs_table.table((*runs_table.HEAD[:-1], *head, runs_table.HEAD[-1]), lines)))
        _notes(listing, meant, shown, chosen, runs_dir)
    if survey.silent is not None and any(state.word == "unknown" for state in survey.states.values()):
        click.echo(f"note: {silence(survey.silent)}; some states are unknown", err=True)
    return 0


def all_runs(runs_dir: Path, *, index: bool = True) -> Listing | None:
    """Return what lies in `runs_dir`; None where there is no such directory.

    Raises:
        HpctrainError: it is no directory, or cannot be read.
    """
    from hpctrain.runs.index import read_all

    try:
        return read_all(runs_dir, index=index)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise HpctrainError(f"cannot read {runs_dir}: {reason}", fix=f"ls -ld {shlex.quote(str(runs_dir))}") from error


def no_runs(runs_dir: Path) -> UsageError:
    """Return the error for a verb that needs a run where there is no runs/."""
    return UsageError(
        f"there is no directory {runs_dir}", details=(f"looked in {Path.cwd()}",),
        fix="go to the directory where you submit, or say --runs-dir DIRECTORY",
    )  # fmt: skip


def silence(silent: SchedulerError) -> str:
    """Return why a scheduler has not answered, in one line."""
    said = silent.details[-1].strip() if silent.details else ""
    return f"{silent.what}{f' ({said})' if said else ''}"


def as_json_row(run: Run, state: State) -> dict[str, Any]:
    """Return a run as JSON values: seconds since the epoch, null for what is not known."""
    row = asdict(run) | {"since": run.since, "job_ids": list(run.job_ids), "state": state.word, "reason": state.reason}
    row["live_jobs"] = list(state.live)
    if run.last_loss is not None and not math.isfinite(run.last_loss):  # JSON has no number for it
        row["last_loss"] = None
        row["nonfinite"] = {"last_loss": str(run.last_loss)}
    return row


def _none(runs_dir: Path, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps({"schema": 1, "runs": [], "foreign": []}))
    click.echo(f"no runs: there is no directory {runs_dir} in {Path.cwd()}", err=True)
    click.echo("next: hpctrain submit, or where else runs are: hpctrain runs list --runs-dir DIRECTORY", err=True)
    return 0


def _notes(listing: Listing, meant: list[Run], shown: list[Run], chosen: Filter, runs_dir: Path) -> None:
    if not meant:
        click.echo(f"no runs{'' if chosen.is_bare else ' like that'} in {runs_dir.absolute()}", err=True)
        click.echo("next: hpctrain submit" if chosen.is_bare else "next: hpctrain runs list", err=True)
    if len(shown) < len(meant):
        click.echo(f"and {len(meant) - len(shown)} older ones: hpctrain runs list --all", err=True)
    for run in shown:
        for problem in run.problems[:3]:
            click.echo(f"note: {run.id}: {runs_table.printable(problem)}", err=True)
        if len(run.problems) > 3:
            click.echo(f"note: {run.id}: and {len(run.problems) - 3} more that cannot be read", err=True)
    if listing.foreign and chosen.is_bare:
        names = ", ".join(runs_table.printable(name) for name in listing.foreign[:3])
        more = f" and {len(listing.foreign) - 3} more" if len(listing.foreign) > 3 else ""
        click.echo(f"note: no runs, so they are left alone: {names}{more}", err=True)
    if shown:
        click.echo(f"next: hpctrain runs show {shown[-1].id}", err=True)
