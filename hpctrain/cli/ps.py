"""`hpctrain ps`: my jobs, on Slurm and on this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from hpctrain.cli import jobs_meant, schedulers
from hpctrain.errors import SchedulerError
from hpctrain.runs import layout
from hpctrain.scheduler.parse import states
from hpctrain.scheduler.parse.records import JobRecord

SHOWN_ENDED = 10


@click.command()
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--all", "show_all", is_flag=True, help=f"All jobs of the last day, not only the last {SHOWN_ENDED} that ended; each task.")
def command(jobs: tuple[str, ...], as_json: bool, show_all: bool) -> int:
    """List my jobs, on Slurm and on this machine.

    Shows what waits or runs, at the end of the list, and what ended within the last day, each with how far its training is. JOB, an id,
    a name or a run, shows that alone; of one that waits also why, when Slurm expects it to start, and what would start sooner.

    \b
    hpctrain ps
    hpctrain ps 123
    """  # noqa: D301 - \b is click's word for lines that stay as they are
    from hpctrain.cli import ps_rows, ps_table

    records, silent = (jobs_meant.find(jobs), None) if jobs else schedulers.all_jobs()
    ended = [record for record in records if record.is_final]
    records = ended + [record for record in records if not record.is_final]
    if as_json:
        click.echo(json.dumps({"schema": 1, "jobs": _json(records, sooner=bool(jobs))}))
        return _silence(silent)
    hidden = 0
    if not (show_all or jobs):
        records, hidden = _newest(records)
    rows = ps_rows.of(records)
    if rows:
        click.echo("\n".join(ps_table.lines(rows if show_all else ps_table.folded(rows))))
    if hidden:
        click.echo(f"and {hidden} more that ended: hpctrain ps --all", err=True)
    if not any(map(_is_local, jobs)) and schedulers.accounting_trouble() is not None:
        click.echo("note: sacct does not answer; of jobs that have ended, only what slurmctld remembers is shown", err=True)
    if not rows and silent is None:
        click.echo("no jobs; next: hpctrain submit", err=True)
    waiting = [row for row in rows if row.record.scheduler == "slurm" and row.record.state in states.WAITING]
    if jobs and len(waiting) == 1:
        from hpctrain.cli import ps_job

        for line in ps_job.lines(ps_job.look(waiting[0])):
            click.echo(line)
    elif waiting and sys.stdout.isatty():
        click.echo(f"what would start sooner: hpctrain ps {waiting[0].job_id.partition('_')[0]}", err=True)
    return _silence(silent)


def _newest(records: list[JobRecord]) -> tuple[list[JobRecord], int]:
    """Return the jobs with the last SHOWN_ENDED that ended, the tasks of an array being one, and how many more there are."""
    ended = list(dict.fromkeys(record.job_id.partition("_")[0] for record in records if record.is_final))
    gone = set(ended[: max(0, len(ended) - SHOWN_ENDED)])
    kept = [record for record in records if not record.is_final or record.job_id.partition("_")[0] not in gone]
    return kept, len(records) - len(kept)


def _json(records: list[JobRecord], *, sooner: bool) -> list[dict[str, object]]:
    from hpctrain.cli import ps_job, ps_rows

    rows = ps_rows.of(records)
    waiting = [row for row in rows if row.record.scheduler == "slurm" and row.record.state in states.WAITING]
    found = {row.job_id: row.to_json() for row in rows}
    if sooner and len(waiting) == 1:
        found[waiting[0].job_id]["pending"] = ps_job.look(waiting[0]).to_json()
    return list(found.values())


def _is_local(job: str) -> bool:
    return schedulers.owner(job).name == "local"


def _silence(silent: SchedulerError | None) -> int:
    if silent is None:
        return 0
    if Path(layout.RUNS).is_dir():
        click.echo("note: what the files of the runs here say meanwhile: hpctrain runs list", err=True)
    error = jobs_meant.no_answer(silent)
    click.echo(f"error: {error.what}\nfix: {error.fix}", err=True)
    return silent.exit_code
