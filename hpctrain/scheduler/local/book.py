"""What a job id stands for here, and the records of it: a job, an array as a whole, some of an array's tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpctrain.scheduler.local import job_directory
from hpctrain.scheduler.local import plan as planning
from hpctrain.scheduler.local.job_directory import GONE, JobDirectory
from hpctrain.scheduler.parse import array, states
from hpctrain.scheduler.parse.records import JobRecord


@dataclass(frozen=True, slots=True)
class Meant:
    """A job, or an array: as a whole where `indices` is None, else those tasks."""

    job: JobDirectory
    plan: planning.Plan
    indices: tuple[int, ...] | None = None

    @property
    def is_array(self) -> bool:
        """Whether it is an array or tasks of one."""
        return self.plan.array is not None

    @property
    def tasks(self) -> tuple[int, ...]:
        """The indices meant: all of them where the array is meant."""
        return self.plan.indices if self.indices is None else self.indices


def find(job_id: str) -> Meant | None:
    """Return what `123`, `123_4`, `123_[4-9]` or a task's own SLURM_JOB_ID stands for; None for what is unknown."""
    try:
        number, tasks = array.split(job_id)
    except ValueError:
        return None
    job = JobDirectory(job_directory.root() / number)
    plan = job.plan()
    if plan is None:
        parent = job_directory.array_of(int(number)) if tasks is None else None
        plan = parent.plan() if parent is not None else None
        if parent is None or plan is None:
            return None
        return Meant(parent, plan, (plan.indices[int(number) - int(plan.job_id) - 1],))
    if tasks is None:
        return Meant(job, plan)
    known = set(plan.indices)
    chosen = tuple(index for index in tasks.indices if index in known)
    return Meant(job, plan, chosen) if chosen else None


def records(meant: Meant) -> list[JobRecord]:
    """Return one record for a job or an array, one for each task that is meant by its index."""
    if meant.indices is None:
        return [meant.job.record()]
    started = set(meant.job.started())
    unstarted = _unstarted(meant.job, meant.plan) if any(index not in started for index in meant.indices) else {}
    return [  # a task that starts between the two looks is in neither
        replace(unstarted[index], job_id=f"{meant.plan.job_id}_{index}") if index in unstarted else meant.job.task(index).record()
        for index in meant.indices
    ]


def rows(job: JobDirectory) -> list[JobRecord]:
    """Return the records of a job as squeue lists them: an array's tasks each, those that wait in one row, `123_[4-9%2]`."""
    plan = job.plan()
    if plan is None or plan.array is None:
        return [job.record()]
    unstarted = _unstarted(job, plan)
    # After those that wait: a task that starts between the two looks would be in neither, and an array of one task would be gone.
    found = [job.task(index).record() for index in job.started() if index not in unstarted]
    for state in dict.fromkeys(record.state for record in unstarted.values()):
        indices = [index for index, record in unstarted.items() if record.state == state]
        limit = plan.parallel if state == "PENDING" else None
        name = str(indices[0]) if len(indices) == 1 else f"[{array.compress(indices, limit=limit)}]"
        found.append(replace(unstarted[indices[0]], job_id=f"{plan.job_id}_{name}"))
    return found


def _unstarted(job: JobDirectory, plan: planning.Plan) -> dict[int, JobRecord]:
    """Return the records of the tasks that have not started: they wait, were cancelled, or nobody starts them any more."""
    record = job.record()
    state = job.state()
    cancelled = set(array.parse(str(state["cancelled"])).indices) if state.get("cancelled") else set()
    started = set(job.started())  # after the state: a task is started before the state says so
    whole = replace(record, start=None, elapsed_s=None, exit_code=None, signal=None)
    found = {}
    for index in plan.indices:
        if index in started:
            continue
        if index in cancelled:
            found[index] = replace(whole, state="CANCELLED", reason=None)
        elif record.is_final:
            # Ended with tasks that never started: cancelled as a whole, or the supervisor was killed.
            ended = "NODE_FAIL" if record.state == "NODE_FAIL" else "CANCELLED"
            found[index] = replace(whole, state=ended, reason=GONE if ended == "NODE_FAIL" else None)
        else:
            found[index] = replace(whole, state="PENDING", reason=state.get("waits_for") or record.reason)
    return found


def all_records() -> list[JobRecord]:
    """Return the rows of all jobs that have not ended more than a day ago, the oldest first."""
    return [
        record for job in job_directory.all_jobs() if job.age_s() < job_directory.LISTED_S for record in rows(job)
    ]  # an array has ended when its last task has


def running(meant: Meant) -> list[JobDirectory]:
    """Return the directories of what is meant and holds processes: the job, or the tasks that have started and not ended."""
    if not meant.is_array:
        return [] if meant.job.record().is_final else [meant.job]
    started = set(meant.job.started())
    tasks = [meant.job.task(index) for index in meant.tasks if index in started]
    return [task for task in tasks if not task.record().is_final]


def named(name: str, *, before: int) -> Sequence[JobRecord]:
    """Return the records of the jobs called `name` with a lower id that have not ended (`singleton`)."""
    found = []
    for job in job_directory.all_jobs():
        plan = job.plan() if int(job.path.name) < before else None
        if plan is not None and plan.name == name and not (record := job.record()).is_final:
            found.append(record)
    return found


def is_over(record: JobRecord) -> bool:
    """Whether nothing more comes of a job."""
    return states.is_final(record.state)
