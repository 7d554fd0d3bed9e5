"""`hpctrain cancel`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

import click

from hpctrain.cli import follow
from hpctrain.cli.options import complete_runs, yes_option
from hpctrain.cli.output import say
from hpctrain.errors import SchedulerError, UsageError
from hpctrain.jobs import schedulers
from hpctrain.jobs.request import Request, job_of
from hpctrain.slurm.notations import states
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.util import shell


@click.command("cancel")
@click.argument("jobs", nargs=-1, metavar="[JOB]...", shell_complete=complete_runs)
@yes_option
def command(jobs: tuple[str, ...], yes: bool) -> None:
    """Cancel jobs.

    JOB is an id, a job's name, or a run; default: the jobs named as in config.yaml (sft), as
    scancel -n sft does.
    """
    try:
        chosen = follow.known_jobs(jobs, fresh=True) if jobs else _of_the_config()
    except SchedulerError as error:
        error.details += ("nothing was cancelled",)
        raise
    for record in chosen:
        if record.state == states.UNKNOWN:
            say(f"{record.name}: {record.reason}; it cannot be cancelled before Slurm shows it")
        elif record.is_final and record.job_id in jobs and record.state != "NODE_FAIL":
            say(f"{follow.describe(record)}; it has ended already")
    # If the supervisor of a local job was killed, its processes may still be running.
    active = [
        record
        for record in chosen
        if record.state != states.UNKNOWN
        and (not record.is_final or (record.scheduler, record.state) == ("local", "NODE_FAIL"))
    ]
    if not active or not (yes or _is_agreed(active, jobs)):
        say("nothing was cancelled" if active else "nothing to cancel")
        return
    for scheduler in schedulers.available():
        ids = []
        for record in active:
            # A named array is passed to Slurm as one id, regardless of its number of tasks. scancel
            # accepts `123_[4-9]`, but not with the throttle that squeue prints: `123_[4-9%2]`.
            number = record.job_id.partition("_")[0]
            if record.scheduler == scheduler.name:
                ids.append(number if number in jobs else re.sub(r"%[0-9]+", "", record.job_id))
        if ids and scheduler.name == "local":
            say("ending the job; a training that saves gets up to 30 s")
        if ids:
            scheduler.cancel(list(dict.fromkeys(ids)))
    for record in active:
        click.echo(f"cancelled job {record.job_id} ({record.name})")


def _of_the_config() -> list[JobRecord]:
    """Return the jobs with the job name in config.yaml; finding none is not an error if all
    schedulers answered.
    """
    name = job_of(Request(options={}, verb="cancel")).spec.job_name
    known, silent = schedulers.all_jobs(fresh=True)
    if silent is not None:
        return follow.known_jobs([name], fresh=True)
    return [record for record in known if record.name == name]


def _is_agreed(active: list[JobRecord], words: Sequence[str]) -> bool:
    """Ask before canceling several jobs, or one that was not named: another project's job may have
    the same name.
    """
    jobs = {record.job_id.partition("_")[0] for record in active}
    if words and (len(jobs) == 1 or jobs <= {word.partition("_")[0] for word in words}):
        return True  # one job, or tasks of one array, or each named by its id
    names = ", ".join(f"{record.job_id} ({record.name})" for record in active)
    what = f"{len(active)} jobs: {names}" if len(active) > 1 else f"job {names}"
    if sys.stdin.isatty():
        return click.confirm(f"Cancel {what}?", err=True)
    if len(active) > 1:
        raise UsageError(
            f"this would cancel {what}", fix=shell.join(("hpctrain", "cancel", "--yes", *words))
        )
    return True
