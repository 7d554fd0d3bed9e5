"""`hpctrain ps`: my jobs, on Slurm and on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from hpctrain.cli import schedulers
from hpctrain.scheduler.parse import duration, states
from hpctrain.scheduler.parse.records import JobRecord

_COLOURS = {"COMPLETED": "green", "RUNNING": "cyan", "PENDING": "yellow", states.UNKNOWN: "yellow"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(as_json: bool) -> int:
    """List my jobs, on Slurm and on this machine.

    Shows what waits, runs, or ended within the last day.
    """
    jobs, silent = schedulers.all_jobs()
    if as_json:
        click.echo(json.dumps({"schema": 1, "jobs": [asdict(record) for record in jobs]}))
    elif jobs:
        _table(jobs)
    elif silent is None:
        click.echo("no jobs; next: hpctrain submit", err=True)
    if silent is None:
        return 0
    click.echo(silent.render(), err=True)
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
    console.print(table)


def _why(record: JobRecord) -> str:
    if record.state == "PENDING" and record.start:
        return f"{record.reason or ''}; expected {record.start}".lstrip("; ")
    if record.reason not in (None, "None"):
        return str(record.reason)
    if record.is_final and record.exit_code:
        return f"exit code {record.exit_code}"
    return f"signal {record.signal}" if record.is_final and record.signal else ""


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
