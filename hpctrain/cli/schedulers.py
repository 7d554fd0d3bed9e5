"""Which scheduler a verb talks to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.scheduler import slurm_asked
from hpctrain.scheduler.base import ASK_EVERY_S, Scheduler
from hpctrain.scheduler.local.plan import FIRST_JOB_ID
from hpctrain.scheduler.local.scheduler import LocalScheduler
from hpctrain.scheduler.parse import states
from hpctrain.scheduler.parse.accounting import Account
from hpctrain.scheduler.parse.records import JobRecord
from hpctrain.scheduler.slurm import SlurmScheduler


def available(patience_s: float | None = None) -> list[Scheduler]:
    """Return Slurm, where sbatch is on PATH, and this machine.

    Args:
        patience_s: seconds for each answer of Slurm, where less than usual will do.
    """
    local: list[Scheduler] = [LocalScheduler()]
    if not SlurmScheduler.is_available():
        return local
    slurm = SlurmScheduler()
    slurm.timeout = min(slurm.timeout, patience_s) if patience_s is not None else slurm.timeout
    return [slurm, *local]


def owner(job_id: str) -> Scheduler:
    """Return the scheduler of a job id: local ids begin where Slurm's end."""
    first = job_id.partition("_")[0]
    if first.isdigit() and int(first) >= FIRST_JOB_ID:
        return LocalScheduler()
    return SlurmScheduler()


def all_jobs(*, fresh: bool = False, patience_s: float | None = None) -> tuple[list[JobRecord], SchedulerError | None]:
    """Return my jobs on every scheduler, those of the last day included, and what kept Slurm from answering.

    A cluster that does not answer is no reason to hide what runs on this machine. Slurm is not asked the same again within 15 s, by any
    hpctrain of this user.

    Args:
        fresh: ask anew: for who acts on the answer.
        patience_s: seconds for each answer of Slurm, where less than usual will do.
    """
    jobs: list[JobRecord] = []
    silent: SchedulerError | None = None
    for scheduler in available(patience_s):
        try:
            jobs += scheduler.status(max_age_s=0.0 if fresh else ASK_EVERY_S)
        except SchedulerError as error:
            silent = error
    return jobs, silent


def accounts(job_ids: Sequence[str], *, near: Mapping[str, float] | None = None, patience_s: float | None = None) -> list[Account]:
    """Return what these jobs were given and used, on every scheduler; of an array, all its tasks. Unknown ids are left out.

    One question to Slurm for all of them, not again within 15 s, and of jobs that have ended never again. Where Slurm is not on PATH, its
    jobs are unknown.

    Args:
        job_ids: as the schedulers show them.
        near: job id to seconds since the epoch at which the job meant was running, where its id may have been used again since.
        patience_s: seconds for each answer of Slurm, where less than usual will do.

    Raises:
        SchedulerError: Slurm is there, is asked, and neither accounting nor slurmctld answers.
    """
    found: list[Account] = []
    for scheduler in available(patience_s):
        mine = [job for job in dict.fromkeys(job_ids) if owner(job).name == scheduler.name]
        if mine:
            times = {job: at for job, at in (near or {}).items() if job in mine}
            found += scheduler.accounts(mine, near=times or None, max_age_s=ASK_EVERY_S)
    return found


def select(words: Sequence[str], jobs: Sequence[JobRecord]) -> list[JobRecord]:
    """Return the jobs that `words` stand for: ids, names of jobs, which stand for every job of the name, or runs in ./runs.

    Raises:
        UsageError: words that stand for no job, all at once.
        SchedulerError: there may be such a job, and accounting, which would know, does not answer.
    """
    chosen: dict[str, JobRecord] = {}
    unknown: list[str] = []
    for word in words:
        matching = [record for record in jobs if word in (record.job_id, record.name) or record.job_id.startswith(f"{word}_")]
        if not matching:
            # squeue and the last day of accounting do not show it; older jobs are asked for by id.
            ids = [word] if word.replace("_", "").isdigit() else jobs_of_run(word)
            matching = [record for record in jobs if record.job_id in ids or record.job_id.partition("_")[0] in ids]
            names = {scheduler.name for scheduler in available()}
            known = [job for job in ids[-1:] if owner(job).name in names]
            matching = matching or [record for job in known for record in owner(job).status([job], max_age_s=ASK_EVERY_S)]
        chosen.update({record.job_id: record for record in matching})
        if not matching:
            unknown.append(word)
    if unknown:
        silent = accounting_trouble()
        if silent is not None and any(_is_of_slurm(job) for word in unknown for job in (word, *jobs_of_run(word))):
            # Of a job that slurmctld has forgotten, accounting alone could say that there is none.
            raise SchedulerError(
                f"whether there is a job {', '.join(repr(word) for word in unknown)} is not known",
                details=(f"  {silent}", "slurmctld shows none, but forgets a job some minutes after its end"),
                fix="sacct, and when that answers: the same command",
            )
        raise UsageError(f"there is no job {', '.join(repr(word) for word in unknown)}", fix="hpctrain ps")
    return list(chosen.values())


def accounting_trouble() -> str | None:
    """Return what kept sacct from answering a short while ago; None where nothing did, and where there is no Slurm."""
    return slurm_asked.trouble("sacct") if SlurmScheduler.is_available() else None


def _is_of_slurm(word: str) -> bool:
    return word.replace("_", "").isdigit() and owner(word).name == "slurm"


def jobs_of_run(name: str) -> list[str]:
    """Return the ids of the jobs of a run, or of a whole launch, in ./runs; the newest last."""
    from hpctrain.runs import launch, launches, layout, store

    runs = Path(layout.RUNS)
    whole = launch.load(runs, name)
    if whole is not None:
        return [each.job_id for each in whole.submissions if each.job_id is not None]
    run = store.read_run(runs, name) if layout.NAME.match(name) else None
    if run is None:
        return []
    submitted = [job for job in launches.jobs_of(run, launches.read(runs, run.tag)) if job is not None]
    return [*run.job_ids, *(job for job in submitted if job not in run.job_ids)]


def newest(jobs: Sequence[JobRecord]) -> JobRecord:
    """Return the job that started last, one that waits counting as later still.

    Raises:
        HpctrainError: there is none.
    """
    known = [record for record in jobs if record.state != states.UNKNOWN]
    # Tasks of an array that wait are one record, `123_[4-9]`, and have no log.
    known = [record for record in known if "[" not in record.job_id] or known
    if not known:
        raise HpctrainError("no job of yours is known here", fix="hpctrain submit")
    # One that was cancelled before it started has no start either, and no log.
    known = [record for record in known if record.start is not None or not record.is_final] or known
    return max(known, key=lambda record: (record.start or ("" if record.is_final else "~"), len(record.job_id), record.job_id))
