"""`hpctrain logs`: the log of a job, whole or as it grows."""

from __future__ import annotations

import sys

import click

from hpctrain.cli import follow, jobs_meant, schedulers
from hpctrain.errors import HpctrainError


@click.command()
@click.argument("job", required=False)
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the job has ended. Ctrl-C leaves the job alone.")
@click.option("--err", is_flag=True, help="The error log in place of the output.")
def command(job: str | None, following: bool, err: bool) -> int:
    """Show the log of a job; -f follows it.

    JOB is an id, a job's name, or a run; without it, the newest job. Of an array, the task that started last: 123_4 names one.
    """
    record = schedulers.newest(jobs_meant.find([job] if job else []))
    scheduler = schedulers.owner(record.job_id)
    logs = scheduler.logs(record.job_id)
    if logs is None:
        raise HpctrainError(f"where job {record.job_id} writes is no longer known", fix=f"ls -t logs/*{record.job_id}*")
    path = logs.error if err else logs.output
    click.echo(f"{path}: {follow.describe(record)}", err=True)
    tail = follow.Tail(path, sys.stdout)
    if not following or record.is_final:
        tail.copy()
        if not path.exists():
            click.echo("there is no such file yet; it appears when the job starts", err=True)
        elif record.is_final and record.state != "COMPLETED" and not err and logs.error != path:
            click.echo(f"next: hpctrain logs {record.job_id} --err", err=True)
        return 0
    try:
        ended = follow.until_the_end(scheduler, record.job_id, [tail], lambda line: click.echo(line, err=True))
    except KeyboardInterrupt:
        click.echo(f"\njob {record.job_id} keeps running; to stop it: hpctrain cancel {record.job_id}", err=True)
        return 130
    if ended is not None:
        click.echo(follow.describe(ended), err=True)
    return 0
