"""`hpctrain ps`: my jobs, on Slurm and on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from hpctrain.cli import schedulers
from hpctrain.scheduler.parse import duration, states
from hpctrain.scheduler.parse.records import JobRecord

SHOWN_ENDED = 10
_COLOURS = {"COMPLETED": "green", "RUNNING": "cyan", "PENDING": "yellow", states.UNKNOWN: "yellow"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--all", "show_all", is_flag=True, help=f"All jobs of the last day, not only the last {SHOWN_ENDED} that ended.")
def command(as_json: bool, show_all: bool) -> int:
    """List my jobs, on Slurm and on this machine.

    Shows what waits or runs, at the end of the list, and what ended within the last day.
    """
    jobs, silent = schedulers.all_jobs()
    ended = [record for record in jobs if record.is_final]
    hidden = 0 if show_all or as_json else max(0, len(ended) - SHOWN_ENDED)
    jobs = ended[hidden:] + [record for record in jobs if not record.is_final]
    if as_json:
        click.echo(json.dumps({"schema": 1, "jobs": [asdict(record) for record in jobs]}))
    elif jobs:
        _table(jobs)
        if hidden:
            click.echo(f"and {hidden} more that ended: hpctrain ps --all", err=True)
    elif silent is None:
        click.echo("no jobs; next: hpctrain submit", err=True)
    if silent is None:
        return 0
    said = silent.details[-1].strip() if silent.details else silent.what
    click.echo(f"error: Slurm does not answer: {said}\nfix: load your site's Slurm module, then: hpctrain ps", err=True)
    return silent.exit_code


def _table(jobs: list[JobRecord]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console.width = 10_000  # a pipe has no width: nothing is cut off
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("JOB", "NAME", "STATE", "ON", "NODES", "ELAPSED", "LIMIT"):
        table.add_column(column, no_wrap=True)
    table.add_column("WHY", overflow="fold")
    for record in jobs:
        colour = _COLOURS.get(record.state, "red" if record.state in states.FAILED else "")
        table.add_row(
            record.job_id, Text(record.name or "-"), Text(record.state, style=colour), record.scheduler, _or_dash(record.nodes),
            _or_dash(None if record.elapsed_s is None else duration.format(record.elapsed_s)),
            _or_dash(None if record.time_limit_s is None else duration.format(record.time_limit_s)), Text(_why(record)),
        )  # fmt: skip
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _why(record: JobRecord) -> str:
    if record.state == "PENDING" and record.start:
        return f"{record.reason or ''}; expected {record.start}".lstrip("; ")
    if record.is_final and record.exit_code:
        return f"exit code {record.exit_code}"
    return record.reason or ""


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
