"""Which jobs a word stands for, on a cluster that may not answer: what runs on this machine can be shown and ended all the same."""

from __future__ import annotations

from collections.abc import Sequence

import click

from hpctrain.cli import schedulers
from hpctrain.errors import SchedulerError
from hpctrain.scheduler import slurm_words
from hpctrain.scheduler.local.scheduler import LocalScheduler
from hpctrain.scheduler.parse.records import JobRecord


def find(words: Sequence[str], *, fresh: bool = False, patience_s: float | None = None) -> list[JobRecord]:
    """Return the jobs that `words`, ids or names, stand for; without words, all.

    Slurm is not asked where every word is the id of a job of this machine: a controller that is silent costs minutes.
    `fresh` asks it anew, for who acts on the answer; `patience_s` are the seconds for each answer, where less than usual will do.

    Raises:
        UsageError: words that stand for no job.
        SchedulerError: Slurm does not answer, and some of what was asked for may be Slurm's.
    """
    ids = [job for word in words for job in (schedulers.jobs_of_run(word) or [word])]
    if ids and all(schedulers.owner(job).name == LocalScheduler.name for job in ids):
        return schedulers.select(words, LocalScheduler().status())
    jobs, silent = schedulers.all_jobs(fresh=fresh, patience_s=patience_s)
    if silent is None:
        return schedulers.select(words, jobs) if words else jobs
    local = [record for record in jobs if not words or {record.job_id, record.name} & set(words)]
    known = {name for record in local for name in (record.job_id, record.name)}
    if not local or not set(words) <= known:
        # Half of what was asked is not done silently.
        raise no_answer(silent) from silent
    click.echo("note: Slurm does not answer; only the jobs of this machine are known", err=True)
    return local


def in_words(silent: SchedulerError) -> tuple[str, ...]:
    """Return what a Slurm that did not answer said last; that it said nothing, where it did not."""
    said = silent.details[-1].strip() if silent.details else ""
    return (f"  {said if ' said: ' in said else silent.what}",)


def no_answer(silent: SchedulerError) -> SchedulerError:
    """Return what is said when Slurm does not answer, in the words of `hpctrain ps`."""
    said = silent.details[-1].strip() if silent.details else ""
    if " said: " not in said:  # it said nothing: in time, or at all
        return SchedulerError(f"Slurm does not answer: {silent.what}", fix="sinfo, and when that answers: hpctrain ps")
    if slurm_words.is_unreachable(said):
        return SchedulerError(f"Slurm does not answer: {said}", fix="sinfo, and when that answers: hpctrain ps")
    return SchedulerError(f"Slurm does not answer: {said}", fix="load your site's Slurm module, then: hpctrain ps")
