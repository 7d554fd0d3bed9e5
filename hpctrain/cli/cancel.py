"""`hpctrain cancel`: stop jobs."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

import click

from hpctrain.cli import jobs_meant, schedulers
from hpctrain.cli.job_options import Request, spec_of
from hpctrain.errors import SchedulerError, UsageError
from hpctrain.scheduler.parse import states
from hpctrain.scheduler.parse.records import JobRecord


@click.command()
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(jobs: tuple[str, ...], yes: bool) -> int:
    """Cancel jobs.

    JOB is an id, a job's name, or a run; without it, the jobs with the name that config.yaml gives (sft), as scancel -n sft does.
    """
    try:
        chosen = jobs_meant.find(jobs, fresh=True) if jobs else _of_the_config()
    except SchedulerError as error:
        raise SchedulerError(error.what, details=(*error.details, "nothing was cancelled"), fix=error.fix) from error
    for record in chosen:
        if record.state == states.UNKNOWN:
            click.echo(f"{record.name}: {record.reason}; it cannot be cancelled before Slurm shows it", err=True)
        elif record.is_final and record.job_id in jobs and record.state != "NODE_FAIL":
            click.echo(f"job {record.job_id} has ended already: {record.state}", err=True)
    # A local job whose supervisor was killed has ended, and its processes may not have.
    active = [record for record in chosen if _may_run(record)]
    if not active:
        click.echo("nothing to cancel", err=True)
        return 0
    if not yes and not _agreed(active, named=bool(jobs)):
        click.echo("nothing was cancelled", err=True)
        return 0
    for scheduler in schedulers.available():
        ids = _whole_arrays([record.job_id for record in active if record.scheduler == scheduler.name], jobs)
        if ids and scheduler.name == "local":
            click.echo("ending the job; a training that saves gets up to 30 s", err=True)
        if ids:
            scheduler.cancel(ids)
    for record in active:
        # It is cancelled all the same: a requeue would bring it back.
        ending = "; it was ending already" if record.state == "COMPLETING" else ""
        click.echo(f"cancelled job {record.job_id} ({record.name}){ending}")
    return 0


def _whole_arrays(ids: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return the ids, with an array that was named as a whole in place of its tasks: one word to Slurm, however many there are."""
    # scancel takes `123_[4-9]`, and not the limit that squeue shows with it: `123_[4-9%2]`.
    bare = [re.sub(r"%[0-9]+", "", job) for job in ids]
    return list(dict.fromkeys(job.partition("_")[0] if job.partition("_")[0] in words else job for job in bare))


def _of_the_config() -> list[JobRecord]:
    """Return the jobs with the name that config.yaml gives; none is no mistake, as long as all schedulers have answered."""
    name = spec_of(Request(options={}, verb="cancel")).job_name
    known, silent = schedulers.all_jobs(fresh=True)
    if silent is not None:
        return jobs_meant.find([name], fresh=True)
    return [record for record in known if record.name == name]


def _may_run(record: JobRecord) -> bool:
    if record.state == states.UNKNOWN:
        return False
    return not record.is_final or (record.scheduler == "local" and record.state == "NODE_FAIL")


def _agreed(active: list[JobRecord], *, named: bool) -> bool:
    """Ask before several jobs are ended, and before one that was not named: another project's job may have the same name."""
    if named and len({record.job_id.partition("_")[0] for record in active}) == 1:
        return True  # one job, or tasks of one array
    names = ", ".join(f"{record.job_id} ({record.name})" for record in active)
    what = f"{len(active)} jobs: {names}" if len(active) > 1 else f"job {names}"
    if sys.stdin.isatty():
        return click.confirm(f"Cancel {what}?", err=True)
    if len(active) > 1:
        raise UsageError(f"this would cancel {what}", fix="the same command with --yes, or with one job id")
    return True
