"""Which scheduler a verb talks to."""

from __future__ import annotations

from collections.abc import Sequence

from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.scheduler.base import Scheduler
from hpctrain.scheduler.local.plan import FIRST_JOB_ID
from hpctrain.scheduler.local.scheduler import LocalScheduler
from hpctrain.scheduler.parse import states
from hpctrain.scheduler.parse.records import JobRecord
from hpctrain.scheduler.slurm import SlurmScheduler


def available() -> list[Scheduler]:
    """Return Slurm, where sbatch is on PATH, and this machine."""
    local: list[Scheduler] = [LocalScheduler()]
    return [SlurmScheduler(), *local] if SlurmScheduler.is_available() else local


def owner(job_id: str) -> Scheduler:
    """Return the scheduler of a job id: local ids begin where Slurm's end."""
    first = job_id.partition("_")[0]
    if first.isdigit() and int(first) >= FIRST_JOB_ID:
        return LocalScheduler()
    return SlurmScheduler()


def all_jobs() -> tuple[list[JobRecord], SchedulerError | None]:
    """Return my jobs on every scheduler, those of the last day included, and what kept Slurm from answering.

    A cluster that does not answer is no reason to hide what runs on this machine.
    """
    jobs: list[JobRecord] = []
    silent: SchedulerError | None = None
    for scheduler in available():
        try:
            jobs += scheduler.status()
        except SchedulerError as error:
            silent = error
    return jobs, silent


def select(words: Sequence[str], jobs: Sequence[JobRecord]) -> list[JobRecord]:
    """Return the jobs that `words`, ids or names, stand for; a name stands for every job of it.

    Raises:
        UsageError: words that stand for no job, all at once.
    """
    chosen: dict[str, JobRecord] = {}
    unknown: list[str] = []
    for word in words:
        matching = [record for record in jobs if word in (record.job_id, record.name) or record.job_id.startswith(f"{word}_")]
        if not matching and word.replace("_", "").isdigit():
            # squeue and the last day of accounting do not show it; older jobs are asked for by id.
            scheduler = owner(word)
            matching = scheduler.status([word]) if scheduler.name in {known.name for known in available()} else []
        chosen.update({record.job_id: record for record in matching})
        if not matching:
            unknown.append(word)
    if unknown:
        raise UsageError(f"there is no job {', '.join(repr(word) for word in unknown)}", fix="hpctrain ps")
    return list(chosen.values())


def newest(jobs: Sequence[JobRecord]) -> JobRecord:
    """Return the job that started last, one that waits counting as later still.

    Raises:
        HpctrainError: there is none.
    """
    known = [record for record in jobs if record.state != states.UNKNOWN]
    if not known:
        raise HpctrainError("no job of yours is known here", fix="hpctrain submit")
    return max(known, key=lambda record: (record.start or "~", len(record.job_id), record.job_id))
