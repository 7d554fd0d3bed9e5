"""Local jobs on disk, the lookup of a job id, and job records.

`local/JOB_ID/` has job.json (the plan), state.json (its progress) and supervisor.json (its holder).
An array is a job, too; each of its tasks that has started has the same files in
`local/ARRAY/tasks/INDEX/`. A pending task is only an index in the array's plan. Each file has one
writer, and an id belongs to the process that created its directory. next.json has the next id.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import time
import uuid
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from hpctrain.local import processes
from hpctrain.local.plan import FIRST_JOB_ID, Plan
from hpctrain.slurm.notations import array, hostlist, states
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.util.files import lock, read_json, state_dir, write_json
from hpctrain.util.stored import made
from hpctrain.util.text import is_number

#: Seconds for which an ended job is listed, and for which it is kept.
LISTED_S = 86_400
KEPT_S = 30 * 86_400
TASKS = "tasks"
#: The reason of a NODE_FAIL job without a supervisor, which was killed or lost in a reboot.
GONE = "its supervisor process no longer exists"
#: Spacing of the first job ids of different users and of different directories: ids keep 8 digits,
#: and are not reused for some hours.
_PORTS, _BEGINNINGS = 9000, 999
#: Seconds to wait for the lock, which other submissions hold for milliseconds.
_LOCK_S = 60.0


@dataclass(frozen=True, slots=True)
class LocalState:
    """The content of state.json. `start` and `end` are seconds since the epoch.

    Attributes:
        waits_for: why the array's next task is pending.
    """

    state: str
    start: float | None = None
    end: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    restarts: int | None = None
    waits_for: str | None = None

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return states.is_final(self.state)


@dataclass(frozen=True, slots=True)
class LocalJob:
    """The directory of a job, of an array, or of a started array task."""

    path: Path

    @property
    def job_id(self) -> str:
        """The job's id as squeue shows it: the directory's name, or ARRAY_INDEX."""
        return self.path.name if self.array is None else f"{self.array.path.name}_{self.path.name}"

    @property
    def array(self) -> LocalJob | None:
        """The array that this task belongs to."""
        return LocalJob(self.path.parent.parent) if self.path.parent.name == TASKS else None

    @property
    def script(self) -> Path:
        """The script as submitted; an array's tasks share it."""
        return (self.array or self).path / "script"

    def task(self, index: int) -> LocalJob:
        """Return the directory of a task, which exists once the task has started."""
        return LocalJob(self.path / TASKS / str(index))

    def started(self) -> list[int]:
        """Return the indices of the array's tasks that have started."""
        return sorted(int(name) for name in names(self.path / TASKS) if is_number(name))

    def begin(self, index: int, plan: Plan) -> LocalJob:
        """Create the directory of a task that is about to start, atomically: an incomplete one
        would look like a failed job.
        """
        task = self.task(index)
        draft = LocalJob(task.path.with_name(f".{index}.{uuid.uuid4().hex}"))
        draft.path.mkdir(parents=True)
        draft.write_holder(os.getpid(), submits=True)
        draft.write_plan(plan)
        draft.path.rename(task.path)
        return task

    def write_plan(self, plan: Plan) -> None:
        """Write the plan."""
        write_json(self.path / "job.json", asdict(plan))

    def write_holder(self, pid: int, *, submits: bool = False) -> None:
        """Write which process holds the job: its supervisor, or the process that starts it
        (`submits`).
        """
        try:
            created: float | None = psutil.Process(pid).create_time()
        except psutil.Error:
            created = None
        write_json(
            self.path / "supervisor.json", {"pid": pid, "created": created, "submits": submits}
        )

    def write_state(self, state: str, **details: Any) -> None:
        """Write the state; only for the supervisor, or for a process that found that it has died."""
        write_json(self.path / "state.json", {"state": state, **details})

    def drop_tasks(self, indices: Iterable[int]) -> None:
        """Cancel tasks of the array, started or not; its supervisor polls for this."""
        with lock(self.path / "dropped.lock", timeout_s=_LOCK_S):
            write_json(
                self.path / "dropped.json",
                {"tasks": array.compress({*self.dropped_tasks(), *indices})},
            )

    def dropped_tasks(self) -> set[int]:
        """Return the tasks of the array that were cancelled one by one."""
        return set(array.known((read_json(self.path / "dropped.json") or {}).get("tasks")))

    def plan(self) -> Plan | None:
        """Return the job's plan; None if it was never written or cannot be read."""
        return made(Plan, read_json(self.path / "job.json"))

    def state(self) -> LocalState:
        """Return state, times and exit code, as far as known; UNKNOWN if they cannot be read."""
        path = self.path / "state.json"
        if not os.path.lexists(path):
            return LocalState("PENDING")
        state = made(LocalState, read_json(path))
        return state or LocalState(states.UNKNOWN, reason=f"{path} is damaged")

    def holder(self, *, to_signal: bool = False) -> psutil.Process | None:
        """Return the live supervisor; the start time rules out another process that reuses its id.

        Args:
            to_signal: not if it is still the process that submits the job.
        """
        known = read_json(self.path / "supervisor.json") or {}
        pid, created = known.get("pid"), known.get("created")
        if to_signal and known.get("submits") is True:
            return None
        if not isinstance(pid, int) or not isinstance(created, float):
            return None
        try:
            process = psutil.Process(pid)
            same = abs(process.create_time() - created) < 1
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except (psutil.Error, ValueError, OverflowError):  # not a process id
            return None

    def record(self) -> JobRecord:
        """Return the record of a job, a started task or an entire array; NODE_FAIL if its
        supervisor no longer exists.
        """
        plan = self.plan()
        if plan is None:
            return JobRecord(
                job_id=self.job_id,
                scheduler="local",
                state=states.UNKNOWN if self.holder() is not None else "NODE_FAIL",
                reason=f"{self.path / 'job.json'} is missing or damaged",
            )
        state, host = self.state(), other_host(plan)
        if not state.is_final and host is None and self.holder() is None:
            state = self.state()  # it may have ended between the two reads
            if not state.is_final:
                why = state.reason if state.state == states.UNKNOWN else GONE
                state = replace(state, state="NODE_FAIL", reason=why)
        elapsed_s = None
        if state.start is not None:
            elapsed_s = max(0, int((state.end or time.time()) - state.start))
        return JobRecord(
            job_id=self.job_id,
            scheduler="local",
            state=state.state,
            name=plan.name,
            reason=f"on {host}" if host is not None and not state.is_final else state.reason,
            n_nodes=plan.nodes,
            partition="local",
            elapsed_s=elapsed_s,
            time_limit_s=plan.time_limit_s,
            start=None if state.start is None else timestamp(state.start),
            exit_code=state.exit_code,
            signal=state.signal,
            slurm_job_id=plan.job_id if plan.job_id != self.job_id else None,
            user=plan.user or None,
            submitted=plan.submitted,
            started=state.start,
            ended=state.end if state.is_final else None,
            nodes=hostlist.compress(plan.hosts) if state.start is not None else None,
            cpus=plan.cpus,
            gpus=plan.total_gpus,
            restarts=state.restarts or 0,
            dependency=plan.dependency,
            work_dir=plan.chdir,
            command=plan.command or None,
            output=plan.output,
            error=plan.error,
            source="local",
        )

    def age_s(self) -> float:
        """Return the seconds since the job ended or last wrote a file; 0 if a process holds it."""
        if self.holder() is not None:
            return 0.0
        return time.time() - (self.state().end or self.path.lstat().st_mtime)

    def kill_leftovers(self) -> None:
        """Kill what a killed supervisor left running: processes with the job's id in their
        environment.

        Scans until nothing is found, because a process may start another between two scans. Gives
        up after several scans on a process that the kernel does not end.
        """
        for _ in range(10):
            left = [process for process in psutil.process_iter() if self._owns(process)]
            processes.send(left, signal.SIGKILL)
            if not left:
                return
            psutil.wait_procs(left, timeout=2)

    def _owns(self, process: psutil.Process) -> bool:
        try:
            job = process.environ().get("HPCTRAIN_LOCAL_JOB", "")
            ours = job == str(self.path) or job.startswith(f"{self.path}/{TASKS}/")
            lives = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            return ours and lives
        except psutil.Error:
            return False


def other_host(plan: Plan) -> str | None:
    """Return the host that a job runs on, if it is another one: home directories are shared,
    processes are not.
    """
    return plan.host if plan.host != socket.gethostname() else None


def timestamp(seconds: float) -> str:
    """Return a time as Slurm prints it, in the local time zone."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


def names(directory: Path) -> list[str]:
    """Return the names in a directory, possibly thousands; nothing if it is missing."""
    return os.listdir(directory) if directory.is_dir() else []  # noqa: PTH208


def root() -> Path:
    """Return the directory of all local jobs."""
    directory = state_dir().absolute() / "local"
    directory.mkdir(exist_ok=True)
    return directory


def _numbers() -> list[int]:
    return [int(name) for name in names(root()) if is_number(name)]


def all_jobs() -> list[LocalJob]:
    """Return all local jobs, oldest first; an array is one job."""
    return [LocalJob(root() / str(number)) for number in sorted(_numbers())]


# ids


def next_job_id() -> int:
    """Return the id of the next job.

    Users of one machine count from different numbers, because the rendezvous port is derived from
    the job id (modulo 9000). So does a directory that was lost and created again, as in a container
    with a new home: the projects still have logs and attempts of its old jobs.
    """
    known = (read_json(root() / "next.json") or {}).get("next")
    if isinstance(known, int):
        return known
    of_user = zlib.crc32(str(root()).encode()) % _PORTS
    first = FIRST_JOB_ID + of_user + _PORTS * (int(time.time()) // 60 % _BEGINNINGS)
    write_json(root() / "next.json", {"next": first})
    return first


def new(tasks: int = 0) -> LocalJob:
    """Create the directory of the next job, reserve an id for each task of an array, and remove
    jobs that ended long ago.
    """
    _forget_old()
    while True:
        with lock(root() / "next.lock", timeout_s=_LOCK_S):
            number = next_job_id()
            write_json(root() / "next.json", {"next": number + tasks + 1})
        job = LocalJob(root() / str(number))
        try:
            job.path.mkdir(mode=0o700)
            return job
        except FileExistsError:  # from before next.json was lost
            continue


def _forget_old() -> None:
    for job in all_jobs():
        with contextlib.suppress(OSError):  # another process removes it, too
            plan = job.plan() if job.age_s() > KEPT_S else None
            if plan is not None and other_host(plan) is None:
                shutil.rmtree(job.path, ignore_errors=True)


# job ids and what they select


@dataclass(frozen=True, slots=True)
class JobSelection:
    """A job or an array; the entire array if `indices` is None, else these tasks."""

    job: LocalJob
    plan: Plan
    indices: tuple[int, ...] | None = None

    @property
    def is_array(self) -> bool:
        """Whether it selects an array or some of its tasks."""
        return self.plan.array is not None

    @property
    def tasks(self) -> tuple[int, ...]:
        """The selected indices: all of them for an entire array."""
        return self.plan.indices if self.indices is None else self.indices

    def directories(self) -> list[LocalJob]:
        """Return the job's directory, or those of the selected tasks that have started, followed by
        that of an entire array.
        """
        started = set(self.job.started()) if self.is_array else set()
        tasks = [self.job.task(index) for index in self.tasks if index in started]
        return tasks if self.indices is not None else [*tasks, self.job]

    def running(self) -> list[LocalJob]:
        """Return the directories of what has a script and has not ended: the job, or tasks."""
        found = [each for each in self.directories() if not (self.is_array and each == self.job)]
        return [each for each in found if not each.record().is_final]

    def records(self) -> list[JobRecord]:
        """Return one record for a job or an entire array, or one for each task selected by index."""
        if self.indices is None:
            return [self.job.record()]
        started = set(self.job.started())
        waits = any(index not in started for index in self.indices)
        unstarted = _unstarted(self.job, self.plan) if waits else {}
        return [  # a task that starts between the two reads is in neither
            (
                replace(unstarted[index], job_id=f"{self.plan.job_id}_{index}")
                if index in unstarted
                else self.job.task(index).record()
            )
            for index in self.indices
        ]


def find(job_id: str) -> JobSelection | None:
    """Return what `123`, `123_4`, `123_[4-9]` or a task's own SLURM_JOB_ID selects; None if
    unknown.
    """
    try:
        number, tasks = array.split(job_id)
    except ValueError:
        return None
    job = LocalJob(root() / number)
    plan = job.plan()
    if plan is None:
        return _task_with_id(int(number)) if tasks is None else None
    if tasks is None:
        return JobSelection(job, plan)
    known = set(plan.indices)
    chosen = tuple(index for index in tasks.indices if index in known)
    return JobSelection(job, plan, chosen) if chosen else None


def _task_with_id(number: int) -> JobSelection | None:
    before = max((each for each in _numbers() if each < number), default=0)
    job = LocalJob(root() / str(before))
    plan, place = job.plan(), number - before - 1
    if plan is None or place >= len(plan.indices):
        return None
    return JobSelection(job, plan, (plan.indices[place],))


def rows(job: LocalJob) -> list[JobRecord]:
    """Return a job's records as squeue lists them: one per array task, and one for all pending
    tasks, `123_[4-9%2]`.
    """
    plan = job.plan()
    if plan is None or plan.array is None:
        return [job.record()]
    unstarted = _unstarted(job, plan)
    # Read after the pending tasks: a task that starts between the two reads would be in neither,
    # and an array of one task would disappear.
    found = [job.task(index).record() for index in job.started() if index not in unstarted]
    for state in dict.fromkeys(record.state for record in unstarted.values()):
        indices = [index for index, record in unstarted.items() if record.state == state]
        limit = plan.parallel if state == "PENDING" else None
        name = str(indices[0]) if len(indices) == 1 else f"[{array.compress(indices, limit=limit)}]"
        found.append(replace(unstarted[indices[0]], job_id=f"{plan.job_id}_{name}"))
    return found


def _unstarted(job: LocalJob, plan: Plan) -> dict[int, JobRecord]:
    """Return the records of the tasks that have not started: pending, cancelled, or without a
    supervisor.
    """
    record, state = job.record(), job.state()
    dropped = job.dropped_tasks()
    started = set(job.started())  # read after the state, which is written after a task has started
    word, why = "PENDING", state.waits_for or record.reason
    if record.is_final:  # all cancelled, or the supervisor was killed
        word, why = (record.state, GONE) if record.state == "NODE_FAIL" else ("CANCELLED", None)
    left = JobRecord(
        job_id=record.job_id,
        scheduler="local",
        state=word,
        name=record.name,
        reason=why,
        n_nodes=record.n_nodes,
        partition=record.partition,
        time_limit_s=record.time_limit_s,
        user=record.user,
        submitted=record.submitted,
        dependency=record.dependency,
        work_dir=record.work_dir,
        command=record.command,
        source="local",
    )
    cancelled = replace(left, state="CANCELLED", reason=None)
    return {
        index: cancelled if index in dropped else left
        for index in plan.indices
        if index not in started
    }
