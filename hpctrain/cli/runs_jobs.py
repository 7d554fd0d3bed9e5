"""The states of runs: what their directories say, and what the schedulers are asked, once for all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpctrain.cli import schedulers
from hpctrain.errors import SchedulerError
from hpctrain.runs import launches
from hpctrain.runs.launches import Submitted
from hpctrain.runs.states import State, Word, state_of
from hpctrain.runs.store import Run
from hpctrain.scheduler import ledger
from hpctrain.scheduler.base import ASK_EVERY_S
from hpctrain.scheduler.parse import states
from hpctrain.scheduler.parse.records import JobRecord

#: Where there is no accounting, each job that Slurm no longer shows costs a question of its own.
MOST_ASKED = 200


@dataclass(frozen=True, slots=True)
class Survey:
    """Runs with their states.

    Attributes:
        states: by run id.
        silent: what kept a scheduler from answering, or None.
    """

    states: dict[str, State]
    silent: SchedulerError | None


def survey(runs_dir: Path, runs: Sequence[Run], *, every_job: bool = False) -> Survey:
    """Return the states of `runs`; no scheduler is asked where their directories say all.

    Args:
        runs_dir: the directory of all runs.
        runs: whose states.
        every_job: ask also for the jobs of runs that have ended, whose last job may be ending still.
    """
    submitted = _submitted(runs_dir, [run for run in runs if every_job or _is_open(run)])
    open_ = [job for run in runs if _is_undecided(run) for job in _last_jobs(run, submitted)]
    if every_job:  # the queue is asked for this user's jobs; somebody else's are asked for by their ids
        theirs = [run for run in runs if _is_theirs(runs_dir / run.id)]
        open_ += [job for run in theirs for job in (*run.job_ids, *submitted.get(run.id, ())) if job is not None]
    others = [job for run in runs for job in submitted.get(run.id, ()) if job is not None and (every_job or job not in run.job_ids)]
    others += [job for run in runs if every_job or _is_undecided(run) for job in run.job_ids]
    # Who asks for every job is about to act on the answer.
    word, silent = _ask(list(dict.fromkeys(open_)), list(dict.fromkeys(others)), max_age_s=0.0 if every_job else ASK_EVERY_S)
    return Survey({run.id: state_of(run, submitted.get(run.id, ()), word) for run in runs}, silent)


def _is_theirs(directory: Path) -> bool:
    try:
        return directory.stat().st_uid != os.geteuid()
    except OSError:
        return False


def _is_open(run: Run) -> bool:
    """Whether a scheduler's word can change the state of a run."""
    return run.last is None or run.last.outcome != "completed"


def _is_undecided(run: Run) -> bool:
    return run.last is None or run.last.outcome in (None, "requeued")


def _last_jobs(run: Run, submitted: dict[str, tuple[str | None, ...]]) -> list[str]:
    jobs = (run.last.job,) if run.last is not None else submitted.get(run.id, ())
    return [job for job in jobs if job is not None]


def _submitted(runs_dir: Path, runs: Sequence[Run]) -> dict[str, tuple[str | None, ...]]:
    """Return the jobs that were submitted for each run: as its launch says, and as this user's own record of all submissions does."""
    remembered = _remembered(runs_dir) if runs else {}
    of_tag: dict[str, tuple[Submitted, ...]] = {}
    for tag in {run.tag for run in runs}:
        mine = {each.token: each for each in remembered.get(tag, ())}
        # An answer that came late is in the user's record alone.
        recorded = [replace(each, job_id=each.job_id or (mine[each.token].job_id if each.token in mine else None))
                    for each in launches.read(runs_dir, tag)]  # fmt: skip
        known = {each.token for each in recorded}
        of_tag[tag] = (*recorded, *(each for token, each in mine.items() if token not in known))
    return {run.id: tuple(launches.jobs_of(run, of_tag[run.tag])) for run in runs}


def _remembered(runs_dir: Path) -> dict[str, list[Submitted]]:
    """Return what this user has submitted in the directory of `runs_dir`, by tag: the first argument of the script."""
    here = str(runs_dir.resolve().parent)
    found: dict[str, list[Submitted]] = {}
    for entry in ledger.entries():
        if entry.arguments and entry.directory == here:
            array = next((order.removeprefix("--array=") for order in entry.orders if order.startswith("--array=")), None)
            found.setdefault(entry.arguments[0], []).append(Submitted(job_id=entry.job_id, token=entry.token, array=array))
    return found


def _ask(open_: list[str], others: list[str], *, max_age_s: float) -> tuple[Word, SchedulerError | None]:
    """Return the states of jobs.

    Args:
        open_: jobs whose end is asked for, however long ago it was.
        others: jobs of which it is asked only whether they wait or run.
        max_age_s: how old an answer may be.
    """
    word: dict[str, str | None] = {}
    silent: SchedulerError | None = None
    by_name = {scheduler.name: scheduler for scheduler in schedulers.available()}
    for name in ("slurm", "local"):
        mine, rest = ([job for job in jobs if schedulers.owner(job).name == name] for jobs in (open_, others))
        if not mine and not rest:
            continue
        if name not in by_name:
            silent = SchedulerError("Slurm does not answer: sbatch is not on PATH", fix="load your site's Slurm module")
            continue
        try:
            known = _Known(by_name[name].status(max_age_s=max_age_s))
            missing = [job for job in mine if known.state(job) is None]
            if missing:
                known.add(by_name[name].status(missing[-MOST_ASKED:], max_age_s=max_age_s))
        except SchedulerError as error:
            silent = error
            continue
        unasked = set(missing[:-MOST_ASKED])
        word.update({job: known.state(job) for job in dict.fromkeys((*mine, *rest)) if job not in unasked})
    return word, silent


class _Known:
    """The records of jobs, to be found by id."""

    def __init__(self, records: Iterable[JobRecord]) -> None:
        self._jobs: dict[str, str] = {}
        self._arrays: dict[str, list[tuple[str, str]]] = {}
        self.add(records)

    def add(self, records: Iterable[JobRecord]) -> None:
        """Take more records, newer than those before."""
        for record in records:
            self._jobs[record.job_id] = record.state
            array, _, tasks = record.job_id.partition("_")
            if tasks:
                self._arrays.setdefault(array, []).append((tasks, record.state))

    def state(self, job: str) -> str | None:
        """Return the state of a job; of a whole array, the liveliest of its tasks'."""
        array, _, task = job.partition("_")
        tasks = self._arrays.get(array, ())
        found = [self._jobs[job]] if job in self._jobs else []
        if not task:
            found += [state for _, state in tasks]
        elif task.isdigit() and not found:  # tasks that wait are one line: 123_[0-9%4]
            found = [state for which, state in tasks if which[0] == "[" and launches.holds(which.strip("[]"), int(task))]
        return min(found, key=lambda state: (state not in states.ACTIVE, states.is_final(state)), default=None)
