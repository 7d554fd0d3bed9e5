"""`hpctrain cancel`: stop jobs."""

from __future__ import annotations

import sys

import click

from hpctrain.cli import schedulers
from hpctrain.cli.job_options import Request, spec_of
from hpctrain.errors import UsageError
from hpctrain.scheduler.parse.records import JobRecord


@click.command()
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@click.option("--yes", is_flag=True, help="Do not ask before cancelling several jobs.")
def command(jobs: tuple[str, ...], yes: bool) -> int:
    """Cancel jobs.

    JOB is an id or a name; without it, the jobs with the name that config.yaml gives (sft), as scancel -n sft does.
    """
    chosen = schedulers.find(jobs)
    if not jobs:
        name = spec_of(Request(options={})).job_name
        chosen = [record for record in chosen if record.name == name]
    active = [record for record in chosen if not record.is_final]
    for record in (record for record in chosen if record.is_final and record.job_id in jobs):
        click.echo(f"job {record.job_id} has ended already: {record.state}", err=True)
    if not active:
        click.echo("nothing to cancel", err=True)
        return 0
    if len(active) > 1 and not yes:
        _ask(active)
    for name in dict.fromkeys(record.scheduler for record in active):
        ids = [record.job_id for record in active if record.scheduler == name]
        schedulers.owner(ids[0]).cancel(ids)
    for record in active:
        click.echo(f"cancelled job {record.job_id} ({record.name})")
    return 0


def _ask(active: list[JobRecord]) -> None:
    names = ", ".join(f"{record.job_id} ({record.name})" for record in active)
    if not sys.stdin.isatty():
        raise UsageError(f"this would cancel {len(active)} jobs: {names}", fix="the same command with --yes, or with one job id")
    click.confirm(f"Cancel {len(active)} jobs: {names}?", abort=True, err=True)
