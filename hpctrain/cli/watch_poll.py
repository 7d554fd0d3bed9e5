"""What the schedulers say of the jobs that are watched: one question for all of them, politely, and never again of a job that has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from hpctrain.cli import schedulers
from hpctrain.cli.asking import Question
from hpctrain.errors import SchedulerError
from hpctrain.runs import launches
from hpctrain.scheduler.base import ASK_EVERY_S, Scheduler
from hpctrain.scheduler.parse.records import JobRecord

_LAST_S, _SLOWER = 60.0, 1.5


@dataclass(slots=True)
class Poll:
    """The newest records of jobs.

    Attributes:
        clock: seconds that only grow.
        records: by job id; of tasks that wait together, as Slurm shows them (`123_[4-9]`).
        taken: when each was, in seconds since the epoch.
        silent: what kept Slurm from answering the last time, or None.
        asked: how often Slurm was asked.
    """

    clock: Callable[[], float]
    records: dict[str, JobRecord] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    taken: dict[str, float] = field(default_factory=dict)
    silent: SchedulerError | None = None
    asked: int = 0
    _next: float = 0.0
    _last: float = float("-inf")
    _pause: float = ASK_EVERY_S
    _question: tuple[list[str], Question[list[JobRecord]]] | None = None

    @property
    def is_asking(self) -> bool:
        """Whether Slurm was asked and has not answered yet."""
        return self._question is not None

    def ask(self, jobs: Iterable[str], *, patience: float | None = None) -> bool:
        """Ask for these jobs, if it is time to; of local ones always. Return whether anything was asked.

        Args:
            jobs: their ids.
            patience: seconds to wait for Slurm's answer, which then is taken at a later call; None waits as long as it takes.
        """
        open_ = [job for job in dict.fromkeys(jobs) if not self.has_ended(job)]
        local = [job for job in open_ if schedulers.owner(job).name == "local"]
        slurm = [job for job in open_ if job not in local]
        for scheduler in schedulers.available() if local or slurm else ():
            if scheduler.name == "local" and local:
                self._keep(self._status(scheduler, local), local)
            elif scheduler.name == "slurm" and slurm and (self.clock() >= self._next or not self.known.issuperset(slurm)):
                self._ask_slurm(scheduler, slurm)
        self._hear(patience)
        self.known.update(local)
        return bool(open_)

    def soon(self) -> None:
        """Something has happened: ask as soon as is polite."""
        self._pause = ASK_EVERY_S
        self._next = min(self._next, self._last + ASK_EVERY_S)

    def _ask_slurm(self, scheduler: Scheduler, jobs: list[str]) -> None:
        if self._question is None:
            self.asked += 1
            self.known.update(jobs)
            self._question = jobs, Question(lambda: self._status(scheduler, jobs))

    def _hear(self, patience: float | None) -> None:
        """Take Slurm's answer, where it is there or comes in time."""
        if self._question is None or not self._question[1].wait(patience):
            return
        (jobs, question), self._question = self._question, None
        before = dict(self.records)
        try:
            self._keep(question.answer(), jobs)
            self.silent = None
        except SchedulerError as error:
            # A controller that restarts is no reason to stop looking at a run.
            self.silent = error
            self._pause = ASK_EVERY_S
        same = all(_state(before.get(job)) == _state(record) for job, record in self.records.items())
        self._pause = min(self._pause * _SLOWER, _LAST_S) if same and before else ASK_EVERY_S
        self._last = self.clock()
        self._next = self._last + self._pause

    @staticmethod
    def _status(scheduler: Scheduler, jobs: list[str]) -> list[JobRecord]:
        """Return the records of jobs; the tasks of arrays are known only to the question for everything."""
        return scheduler.status(None if any("_" in job for job in jobs) else jobs, max_age_s=ASK_EVERY_S)

    def _keep(self, found: list[JobRecord], jobs: list[str]) -> None:
        """Take the records of jobs; of arrays those of all their tasks."""
        arrays = {job.partition("_")[0] for job in jobs if "_" in job}
        if arrays:
            found = [record for record in found if record.job_id in jobs or record.job_id.partition("_")[0] in arrays]
            waiting = [
                job for job, record in self.records.items() if "[" in job and job.partition("_")[0] in arrays and not record.is_final
            ]
            for job in waiting:  # the tasks that wait are fewer each time
                del self.records[job]
        now = time.time()
        for record in found:
            if self.records.get(record.job_id) != record:  # an answer that is shared may be some seconds old
                self.taken[record.job_id] = now
            self.records[record.job_id] = record

    def record(self, job: str) -> JobRecord | None:
        """Return the record of a job, or of a task among those that wait; None where nothing is known."""
        if job in self.records:
            return self.records[job]
        array, _, task = job.partition("_")
        if not task.isdigit():
            return None
        return next(
            (
                record
                for each, record in self.records.items()
                if each.startswith(f"{array}_[") and launches.holds(each.partition("_")[2].strip("[]"), int(task))
            ),
            None,
        )

    def tasks(self, array: str) -> list[str]:
        """Return the ids of an array's tasks, those that wait each by its own."""
        found: dict[str, None] = {}
        for job in self.records:
            number, _, tasks = job.partition("_")
            if number == array and tasks:
                found.update(dict.fromkeys(expanded(job)))
        return sorted(found, key=lambda job: int(job.partition("_")[2]))

    def has_ended(self, job: str) -> bool:
        """Whether a job's state is final; an array's, where all of its tasks' are."""
        record = self.records.get(job)
        return record is not None and record.is_final and "[" not in job


def expanded(job: str) -> Collection[str]:
    """Return the ids of the tasks in `123_[4-9%2]`, or in `123_4`; nothing for a job, and for a list that squeue has cut short."""
    from hpctrain.scheduler.parse import array as arrays

    array, _, tasks = job.partition("_")
    if tasks.isdigit():
        return [f"{array}_{tasks}"]
    try:
        return [f"{array}_{index}" for index in arrays.parse(tasks.strip("[]")).indices]
    except ValueError:
        return []


def _state(record: JobRecord | None) -> tuple[str, str | None] | None:
    return None if record is None else (record.state, record.reason)
