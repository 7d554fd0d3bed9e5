"""What `hpctrain watch WORD` means: runs, points of a sweep, jobs that are no runs; without a word the newest that runs, else waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpctrain.cli import schedulers
from hpctrain.errors import SchedulerError, UsageError
from hpctrain.runs import launch, launches, select
from hpctrain.runs.store import Run
from hpctrain.scheduler.base import ASK_EVERY_S
from hpctrain.scheduler.parse import states
from hpctrain.scheduler.parse.records import JobRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One thing to watch: a run, or a job, or an array, that is none."""

    run_id: str | None = None
    job_id: str | None = None


def find(words: Sequence[str], runs: Path) -> list[Target]:
    """Return what the words mean, each once, in their order.

    Raises:
        UsageError: words that mean nothing here, all at once; or there is nothing to watch.
        SchedulerError: Slurm does not answer, and what was asked for may be Slurm's.
    """
    known = _runs(runs)
    if not words:
        return [_newest(known, runs)]
    found: dict[Target, None] = {}
    unknown: list[str] = []
    for word in words:
        meant = _of_runs(word, known, runs) or _of_jobs(word, known, runs)
        found.update(dict.fromkeys(meant))
        if not meant:
            unknown.append(word)
    if unknown:
        raise UsageError(f"there is no run or job {', '.join(map(repr, unknown))}", fix="hpctrain ps, or hpctrain runs list")
    return list(found)


def _runs(runs: Path) -> tuple[Run, ...]:
    from hpctrain.runs.index import read_all

    try:
        return read_all(runs).runs
    except (OSError, ValueError):
        return ()


def _of_runs(word: str, known: Sequence[Run], runs: Path) -> list[Target]:
    """Return the runs of a word: a run's id, the beginning of one, a glob, or a launch, started or not."""
    whole = launch.load(runs, word)
    if whole is not None:
        return [Target(run_id=run) for run in whole.run_ids]
    if word.replace("_", "").isdigit() and word not in {run.id for run in known}:
        return []  # a job's id
    try:
        meant = select.resolve([word], known)
    except UsageError:
        if sum(run.id.startswith(word) for run in known) > 1:
            raise
        return []
    return [Target(run_id=run.id) for run in known if run.id in meant]


def _of_jobs(word: str, known: Sequence[Run], runs: Path) -> list[Target]:
    """Return the run of a job's id or name, or the job; of several of one name, the one that `ps` shows last."""
    of_job = _by_job(known, runs)
    if word.replace("_", "").isdigit():
        mine = [run for job, run in of_job.items() if job == word or job.startswith(f"{word}_")]
        if mine:
            return [Target(run_id=run) for run in dict.fromkeys(mine)]
        records = _status(word)
    else:
        records = [record for record in _all() if record.name == word]
        records = [schedulers.newest(records)] if records else []
    return [Target(run_id=of_job[record.job_id]) if record.job_id in of_job else Target(job_id=record.job_id) for record in records]


def _status(word: str) -> list[JobRecord]:
    owner = schedulers.owner(word)
    if owner.name not in {scheduler.name for scheduler in schedulers.available()}:
        return []
    tasks = [record for record in owner.status(max_age_s=ASK_EVERY_S) if record.job_id.startswith(f"{word}_")]
    if tasks:  # an array's tasks have ids of their own
        return tasks
    # A job that was submitted by hand a moment ago is younger than what is kept.
    return owner.status([word], max_age_s=ASK_EVERY_S) or owner.status([word])


def _by_job(known: Sequence[Run], runs: Path) -> dict[str, str]:
    """Return job id → run id, of jobs that have started and of those that were submitted."""
    found: dict[str, str] = {}
    of_tag = {tag: launches.read(runs, tag) for tag in {run.tag for run in known}}
    for run in known:
        for job in (*launches.jobs_of(run, of_tag[run.tag]), *run.job_ids):
            if job is not None:
                found[job] = run.id
    return found


def _all() -> list[JobRecord]:
    jobs, silent = schedulers.all_jobs()
    if silent is not None and not jobs:
        raise SchedulerError(
            f"Slurm does not answer: {silent.what}", details=silent.details, fix="hpctrain watch RUN, which reads its files"
        )
    return jobs


def _newest(known: Sequence[Run], runs: Path) -> Target:
    """Return the newest that runs, else that waits, else the newest."""
    jobs, _ = schedulers.all_jobs()
    jobs = [record for record in jobs if record.state != states.UNKNOWN]
    for wanted in (states.ACTIVE, states.WAITING):
        now = [record for record in jobs if record.state in wanted]
        if now:
            return _target(max(now, key=lambda record: (record.start or "~", _number(record))), known, runs)
    last = max(jobs, key=lambda record: (record.start or "", _number(record)), default=None)
    run = max(known, key=lambda each: (each.since or 0.0, each.id), default=None)
    if last is None and run is None:
        raise UsageError("there is nothing to watch: no job of yours is known here, and no run", fix="hpctrain submit")
    return Target(run_id=run.id) if run is not None else _target(last, known, runs) if last is not None else Target()


def _target(record: JobRecord, known: Sequence[Run], runs: Path) -> Target:
    of_job = _by_job(known, runs)
    run = of_job.get(record.job_id)
    if run is None:
        whole = next((launch_ for tag in _tags(runs) if (launch_ := launch.load(runs, tag)) and _has(launch_, record.job_id)), None)
        if whole is not None and len(whole.run_ids) == 1:
            return Target(run_id=whole.run_ids[0])
    return Target(run_id=run) if run is not None else Target(job_id=record.job_id)


def _tags(runs: Path) -> list[str]:
    return launch.tags(runs)[-200:]


def _has(whole: launch.Launch, job: str) -> bool:
    return any(each.job_id is not None and each.job_id == job.partition("_")[0] for each in whole.submissions)


def _number(record: JobRecord) -> tuple[int, str]:
    number = record.job_id.partition("_")[0]
    return (int(number) if number.isdigit() else 0, record.job_id)
