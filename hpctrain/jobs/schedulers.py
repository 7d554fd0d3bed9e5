"""The schedulers that a job may belong to, and the states that they report for jobs and runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.local.plan import FIRST_JOB_ID
from hpctrain.local.scheduler import LocalScheduler
from hpctrain.runs import launch
from hpctrain.runs.job_state import State, Word, state_of
from hpctrain.runs.store import Run
from hpctrain.slurm import job_ids, query_cache
from hpctrain.slurm.base import ASK_EVERY_S, JobControl, LogFiles, Scheduler, is_unreachable
from hpctrain.slurm.client import SlurmScheduler
from hpctrain.slurm.notations import array as arrays
from hpctrain.slurm.notations import states
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.util.text import is_number

T = TypeVar("T")

#: Without accounting, each job that Slurm no longer lists costs a query of its own.
MOST_ASKED = 200


class _OtherCluster:
    """The scheduler of another cluster that shares the home directory. It cannot be queried from
    here, so it has no records of jobs, and refuses to act on one.
    """

    name = "elsewhere"

    def status(self, *_: object, **__: object) -> list[JobRecord]:
        return []

    accounts = status

    def cancel(self, job_ids: Sequence[str]) -> None:
        raise refusal(job_ids)

    def logs(self, _: str) -> LogFiles | None:
        return None  # its run records its logs


def refusal(jobs: Sequence[str]) -> UsageError:
    """Return the error for jobs of another cluster."""
    return UsageError(
        f"{job_ids.elsewhere(jobs[-1])}; this is {job_ids.this_cluster()}",
        fix="hpctrain runs list",
    )


def available(patience_s: float | None = None) -> list[Scheduler]:
    """Return Slurm, if sbatch is on PATH, and the local scheduler.

    Args:
        patience_s: timeout of each Slurm query, if shorter than the default.
    """
    local: list[Scheduler] = [LocalScheduler()]
    if not SlurmScheduler.is_available():
        return local
    slurm = SlurmScheduler()
    slurm.timeout = min(slurm.timeout, patience_s) if patience_s is not None else slurm.timeout
    return [slurm, *local]


def owner(job_id: str) -> JobControl:
    """Return the scheduler of a job, by its id in the records (slurm.job_ids): local ids start
    above Slurm's range.
    """
    if job_ids.split(job_id)[1] is not None:
        return _OtherCluster()
    first = job_id.partition("_")[0]
    if is_number(first) and int(first) >= FIRST_JOB_ID:
        return LocalScheduler()
    return SlurmScheduler()


def all_jobs(
    *, fresh: bool = False, patience_s: float | None = None
) -> tuple[list[JobRecord], SchedulerError | None]:
    """Return the user's jobs on every scheduler, including those of the last day, and the error if
    Slurm did not answer.

    Local jobs are returned even if Slurm does not answer. The answer is cached for 15 s, for all
    hpctrain processes of the user.

    Args:
        fresh: bypass the cache, for callers that act on the answer.
        patience_s: timeout of each Slurm query, if shorter than the default.
    """
    jobs: list[JobRecord] = []
    silent: SchedulerError | None = None
    for scheduler in available(patience_s):
        try:
            jobs += scheduler.status(max_age_s=0.0 if fresh else ASK_EVERY_S)
        except SchedulerError as error:
            silent = error
    return jobs, silent


def accounts(job_ids: Sequence[str], *, patience_s: float | None = None) -> list[JobRecord]:
    """Return the allocation and usage of these jobs, on every scheduler; for an array, of all its
    tasks.

    Unknown ids are left out, and so are Slurm's jobs if Slurm is not on PATH. One Slurm query
    covers all of them; the answer is cached for 15 s.

    Args:
        job_ids: ids in the schedulers' own notation.
        patience_s: timeout of each Slurm query, if shorter than the default.

    Raises:
        SchedulerError: neither accounting nor slurmctld answers.
    """
    found: list[JobRecord] = []
    for scheduler in available(patience_s):
        mine = [job for job in dict.fromkeys(job_ids) if owner(job).name == scheduler.name]
        if mine:
            found += scheduler.accounts(mine, max_age_s=ASK_EVERY_S)
    return found


def accounting_trouble() -> str | None:
    """Return the error of a recent failed sacct query; None without one, or without Slurm."""
    error = query_cache.recent_failure("sacct") if SlurmScheduler.is_available() else None
    return error.what if error is not None else None


def last_message(error: HpctrainError) -> str:
    """Return what a scheduler's program said last, `squeue said: ...`; else what the error says."""
    said = error.details[-1].strip() if error.details else ""
    return said if " said: " in said else error.what


def no_answer(silent: SchedulerError) -> SchedulerError:
    """Return the error for a Slurm that does not answer, worded as in `hpctrain ps`."""
    words = last_message(silent)
    is_missing = " said: " in words and not is_unreachable(words)
    first = "load your site's Slurm module, then" if is_missing else "when that answers,"
    return SchedulerError(
        f"Slurm does not answer: {words}",
        fix=None if is_missing else "sinfo",
        hint=f"{first} run: hpctrain ps",
    )


@dataclass(frozen=True, slots=True)
class Survey:
    """Runs with their states.

    Attributes:
        states: by run id.
        silent: the error of a scheduler that did not answer, or None.
    """

    states: dict[str, State]
    silent: SchedulerError | None

    def require_answer(self, again: str) -> None:
        """Raise the scheduler's error if a state is unknown because of it; `again` is the command
        to run once it answers.

        Raises:
            SchedulerError: see above.
        """
        silent = self.silent
        if silent is not None and any(
            state.word == "unknown" and not state.forgotten for state in self.states.values()
        ):
            hint = "; ".join(filter(None, (silent.hint, f"when Slurm answers, run: {again}")))
            raise SchedulerError(silent.what, details=silent.details, fix=silent.fix, hint=hint)


def survey(runs_dir: Path, runs: Sequence[Run], *, every_job: bool = False) -> Survey:
    """Return the states of `runs`; no scheduler is queried if the run directories are sufficient.

    Args:
        runs_dir: the directory of all runs.
        runs: the runs to look up.
        every_job: query the jobs of ended runs too; their last job may still be ending.
    """
    # The state of a completed run is final.
    open_runs = [
        run for run in runs if every_job or run.last is None or run.last.outcome != "completed"
    ]
    submitted = _submitted(runs_dir, open_runs)
    if any(None in jobs for jobs in submitted.values()):  # the job may have arrived by now
        all_jobs(fresh=every_job)
        submitted = _submitted(runs_dir, open_runs)
    open_: list[str | None] = []
    others: list[str | None] = []
    for run in runs:
        sent = submitted.get(run.id, ())
        undecided = run.last is None or run.last.outcome in (None, "requeued")
        if undecided:
            open_ += [run.last.job] if run.last is not None else sent
        if every_job and _is_theirs(runs_dir / run.id):
            open_ += (*run.job_ids, *sent)  # status() lists only this user's jobs
        others += (job for job in sent if every_job or job not in run.job_ids)
        others += run.job_ids if every_job or undecided else ()
    # With every_job, the caller acts on the answer: bypass the cache.
    word, silent = _ask(
        [job for job in dict.fromkeys(open_) if job is not None],
        [job for job in dict.fromkeys(others) if job is not None],
        max_age_s=0.0 if every_job else ASK_EVERY_S,
    )
    return Survey({run.id: state_of(run, submitted.get(run.id, ()), word) for run in runs}, silent)


def _is_theirs(directory: Path) -> bool:
    try:
        return directory.stat().st_uid != os.geteuid()
    except OSError:
        return False


def _submitted(runs_dir: Path, runs: Sequence[Run]) -> dict[str, tuple[str | None, ...]]:
    of_tag = {tag: launch.read_submissions(runs_dir, tag) for tag in {run.tag for run in runs}}
    return {run.id: tuple(launch.jobs_of(run, of_tag[run.tag])) for run in runs}


def _ask(
    open_: list[str], others: list[str], *, max_age_s: float
) -> tuple[Word, SchedulerError | None]:
    """Return the states of jobs.

    Args:
        open_: jobs to look up however long ago they ended.
        others: jobs to look up only in the list of current jobs.
        max_age_s: maximum age of a cached answer.
    """
    word: dict[str, str | None] = {}
    silent: SchedulerError | None = None
    by_name = {scheduler.name: scheduler for scheduler in available()}
    for name in ("slurm", "local"):
        mine, rest = ([job for job in jobs if owner(job).name == name] for jobs in (open_, others))
        if not mine and not rest:
            continue
        if name not in by_name:
            silent = SchedulerError(
                "Slurm does not answer: sbatch is not on PATH", hint="load your site's Slurm module"
            )
            continue
        try:
            records = by_name[name].status(max_age_s=max_age_s)
            known = _states_of((*mine, *rest), records)
            missing = [job for job in mine if known[job] is None]
            if missing:
                more = by_name[name].status(missing[-MOST_ASKED:], max_age_s=max_age_s)
                known = _states_of((*mine, *rest), [*records, *more])
        except SchedulerError as error:
            silent = error
            continue
        unasked = set(missing[:-MOST_ASKED])
        word |= {job: state for job, state in known.items() if job not in unasked}
    return word, silent


def _states_of(jobs: Iterable[str], records: Sequence[JobRecord]) -> dict[str, str | None]:
    """Return job id → its state in the records, of which the last counts; of a whole array, the
    state of its most active task.
    """
    of_array: dict[str, dict[str, str]] = {}
    for record in records:
        array, _, tasks = record.job_id.partition("_")
        of_array.setdefault(array, {})[tasks] = record.state
    found: dict[str, str | None] = {}
    for job in jobs:
        array, _, task = job.partition("_")
        known = of_array.get(array, {})
        candidates = [known[task]] if task in known else []
        if not task:
            candidates = list(known.values())
        elif is_number(task) and not candidates:  # waiting tasks are one line: 123_[0-9%4]
            candidates = [
                state
                for which, state in known.items()
                if which[:1] == "[" and arrays.contains(which.strip("[]"), int(task))
            ]
        found[job] = min(
            candidates,
            key=lambda state: (state not in states.ACTIVE, states.is_final(state)),
            default=None,
        )
    return found


def in_background(ask: Callable[[], T]) -> Future[T]:
    """Run a call in a daemon thread, which ends with the process, and return its future."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # raised by Future.result()
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer
