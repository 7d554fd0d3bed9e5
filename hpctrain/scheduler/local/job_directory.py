"""A local job on disk: `local/JOB_ID/` with job.json (the plan), state.json (how it goes) and supervisor.json (who holds it).

An array is a job, too; a task of it that has started is `local/ARRAY/tasks/INDEX/`, with the same files. One that waits is nothing but an
index in the array's plan. No lock is needed, and so no file system that has them: each file has one writer, and an id belongs to
whoever made its directory.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
import uuid
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hpctrain.scheduler.local import plan as planning
from hpctrain.scheduler.parse import states
from hpctrain.scheduler.parse.records import JobRecord
from hpctrain.scheduler.state_dir import read_json, state_dir, write_json

#: Seconds for which an ended job is listed, and for which it is kept.
LISTED_S = 86_400
KEPT_S = 30 * 86_400
TASKS = "tasks"
#: Why a job that nobody holds is NODE_FAIL: a supervisor was killed, or the machine has started anew.
GONE = "its supervisor process is gone"
#: Numbers from which users count, and multiples of them from which directories do: 8 digits, and some hours before one comes again.
_PORTS, _BEGINNINGS = 9000, 999
#: Marks the last id of an array's tasks.
_LAST = re.compile(r"\.last-([0-9]+)\Z")


@dataclass(frozen=True, slots=True)
class JobDirectory:
    """One local job."""

    path: Path

    @property
    def job_id(self) -> str:
        """The job's id as squeue shows it: the directory's name, or ARRAY_INDEX."""
        return self.path.name if self.array is None else f"{self.array.path.name}_{self.path.name}"

    @property
    def array(self) -> JobDirectory | None:
        """The array that this is a task of."""
        return JobDirectory(self.path.parent.parent) if self.path.parent.name == TASKS else None

    def task(self, index: int) -> JobDirectory:
        """Return the directory of a task, which is there once the task has started."""
        return JobDirectory(self.path / TASKS / str(index))

    @property
    def script(self) -> Path:
        """The script as it was submitted: an array's tasks share one."""
        return (self.array or self).path / "script"

    def started(self) -> list[int]:
        """Return the indices of the array's tasks that have started."""
        try:
            return sorted(int(name) for name in names(self.path / TASKS) if name.isdigit())
        except FileNotFoundError:
            return []

    def begin(self, index: int, plan: planning.Plan) -> JobDirectory:
        """Make the directory of a task that this process is about to start, whole at once: half of one would look like a failed job."""
        task = self.task(index)
        draft = JobDirectory(task.path.with_name(f".{index}.{uuid.uuid4().hex}"))
        draft.path.mkdir(parents=True)
        draft.write_holder(os.getpid(), submits=True)
        draft.write_job(plan)
        draft.path.rename(task.path)
        return task

    def vanish(self) -> None:
        """Remove the directory of a task, whole at once too: it waits again."""
        shutil.rmtree(self.path.rename(self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex}")))

    def write_job(self, plan: planning.Plan) -> None:
        """Write the plan, the machine, and when it was submitted."""
        write_json(self.path / "job.json", {"plan": plan.to_json(), "host": socket.gethostname(), "submitted": time.time()})

    def change_plan(self, plan: planning.Plan) -> None:
        """Write the plan anew, with the GPUs that the job has got."""
        write_json(self.path / "job.json", {**(self.job() or {}), "plan": plan.to_json()})

    def write_holder(self, pid: int, *, submits: bool = False) -> None:
        """Write which process holds the job: its supervisor, or the one that is about to start it (`submits`)."""
        try:
            created: float | None = psutil.Process(pid).create_time()
        except psutil.Error:
            created = None
        write_json(self.path / "supervisor.json", {"pid": pid, "created": created, "submits": submits})

    def ask(self, what: str, **details: Any) -> None:
        """Leave a request for the supervisor, which looks every moment."""
        directory = self.path / "requests"
        directory.mkdir(exist_ok=True)
        write_json(directory / f"{time.time_ns()}-{uuid.uuid4().hex[:8]}.json", {"what": what, **details})

    def take_requests(self) -> list[dict[str, Any]]:
        """Return the requests, the oldest first, and remove them."""
        try:
            left = sorted(name for name in names(self.path / "requests") if not name.startswith("."))
        except FileNotFoundError:
            return []
        found = [read_json(self.path / "requests" / name) for name in left]
        for name in left:
            (self.path / "requests" / name).unlink(missing_ok=True)
        return [request for request in found if request is not None]

    def write_state(self, state: str, **details: Any) -> None:
        """Write the state; only the supervisor does, or whoever finds that there is none any more."""
        write_json(self.path / "state.json", {"state": state, **details})

    def job(self) -> dict[str, Any] | None:
        """Return what `write_job` wrote."""
        return read_json(self.path / "job.json")

    def plan(self) -> planning.Plan | None:
        """Return the plan, or None for a job that never came to have one."""
        job = self.job()
        return None if job is None else planning.Plan.from_json(job["plan"])

    def state(self) -> dict[str, Any]:
        """Return state, times and exit code, as far as they are known."""
        return read_json(self.path / "state.json") or {"state": "PENDING"}

    def other_host(self) -> str | None:
        """Return the machine that the job runs on, if it is not this one: home directories are shared, processes are not."""
        host = (self.job() or {}).get("host")
        return host if host != socket.gethostname() else None

    def holder(self) -> psutil.Process | None:
        """Return the living supervisor; a process that has its number by chance started at another time."""
        known = read_json(self.path / "supervisor.json")
        if known is None:
            return None
        try:
            process = psutil.Process(known["pid"])
            same = known["created"] is not None and abs(process.create_time() - known["created"]) < 1
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None

    def submitter_holds(self) -> bool:
        """Whether the job waits for the process that submits it, to which nobody sends a signal."""
        return bool((read_json(self.path / "supervisor.json") or {}).get("submits"))

    def record(self) -> JobRecord:
        """Return the record of a job, of a task that has started, or of an array as a whole; one whose supervisor is gone is NODE_FAIL."""
        job, state = self.job(), self.state()
        if job is None:
            whole = self.array.plan() if self.array is not None else None
            if whole is not None:  # a task that was listed, and has vanished since
                return self.as_record(whole.task(int(self.path.name)), {"state": "PENDING"})
            return JobRecord(job_id=self.job_id, scheduler="local", state="FAILED", reason="never started")
        plan = planning.Plan.from_json(job["plan"])
        host = job["host"] if job["host"] != socket.gethostname() else None
        if not states.is_final(str(state["state"])) and host is None and self.holder() is None:
            state = self.state()  # it may have ended between the two looks
            if not states.is_final(str(state["state"])):
                state = {**state, "state": "NODE_FAIL", "reason": GONE}
        return self.as_record(plan, state, host)

    def as_record(self, plan: planning.Plan, state: dict[str, Any], host: str | None = None) -> JobRecord:
        """Return the record of a job with this plan in this state; `host` is the other machine that it runs on."""
        start, end = state.get("start"), state.get("end")
        reason = f"on {host}" if host is not None and not states.is_final(state["state"]) else state.get("reason")
        return JobRecord(
            job_id=plan.shown_id, scheduler="local", state=str(state["state"]), name=plan.name, reason=reason, nodes=plan.nodes,
            partition="local",
            elapsed_s=None if start is None else max(0, int((end or time.time()) - start)), time_limit_s=plan.time_limit_s,
            start=None if start is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(start)),
            exit_code=state.get("exit_code"), signal=state.get("signal"),
        )  # fmt: skip

    def age_s(self) -> float:
        """Return the seconds since the job ended, or since it was last heard of; 0 for one that is held."""
        if self.holder() is not None:
            return 0.0
        state_file = self.path / "state.json"
        last = state_file if state_file.exists() else self.path
        return time.time() - float(self.state().get("end") or last.stat().st_mtime)

    def sweep(self) -> None:
        """End what a supervisor that was killed left behind: processes that carry the job in their environment.

        Looks again until a look finds none, because a process may have started another in between; a process that the kernel does not
        let go of is left after some looks.
        """
        for _ in range(10):
            left = [process for process in psutil.process_iter() if self._owns(process)]
            for process in left:
                try:
                    process.kill()
                except psutil.Error:
                    continue
            if not left:
                return
            psutil.wait_procs(left, timeout=2)

    def _owns(self, process: psutil.Process) -> bool:
        try:
            job = process.environ().get("HPCTRAIN_LOCAL_JOB", "")
            ours = job == str(self.path) or job.startswith(f"{self.path}/{TASKS}/")
            return ours and process.pid != os.getpid() and bool(process.status() != psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return False


def names(directory: Path) -> list[str]:
    """Return the names in a directory, which may be thousands.

    Raises:
        FileNotFoundError: there is no such directory.
    """
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def root() -> Path:
    """Return the directory of all local jobs."""
    directory = state_dir().absolute() / "local"
    directory.mkdir(exist_ok=True)
    return directory


def first_job_id() -> int:
    """Return the first id that is given out here.

    Users of one machine count from different numbers, because the rendezvous port is made of the job id (modulo 9000). So does a directory
    that was lost and is made anew, as in a container's fresh home: the logs and attempts of its old jobs are still in the projects.
    """
    return planning.FIRST_JOB_ID + zlib.crc32(str(root()).encode()) % _PORTS + _PORTS * (_began_minute() % _BEGINNINGS)


def _began_minute() -> int:
    """Return the minute, since the epoch, in which ids were first given out here."""
    began = root() / ".began"
    try:
        began.symlink_to(str(int(time.time()) // 60))
    except FileExistsError:
        pass
    name = began.readlink().name
    return int(name) if name.isdigit() else 0


def all_jobs() -> list[JobDirectory]:
    """Return all local jobs, arrays as one, the oldest first."""
    return [JobDirectory(root() / str(number)) for number in sorted(int(name) for name in names(root()) if name.isdigit())]


def new(tasks: int = 0) -> JobDirectory:
    """Make the directory of the next job, with as many ids behind its own as an array has tasks; remove jobs that ended long ago."""
    for job in all_jobs():
        if _untouched_s(job.path) > KEPT_S and job.age_s() > KEPT_S and job.other_host() is None:
            shutil.rmtree(job.path, ignore_errors=True)
            for end in [end for end, owner in _marks() if owner == job.path.name]:
                (root() / f".last-{end}").unlink(missing_ok=True)
    while True:
        taken = _taken()
        number = max([first_job_id() - 1, *taken]) + 1
        last = root() / f".last-{number + tasks}"
        job = JobDirectory(root() / str(number))
        try:
            # The last id first: whoever sees the array's own id sees also where its tasks end.
            if tasks:
                last.symlink_to(str(number))
        except FileExistsError:
            continue
        try:
            job.path.mkdir(mode=0o700)
        except FileExistsError:
            if tasks:
                last.unlink(missing_ok=True)
            continue
        # Another array may have made its mark around this id since the first look; then both look again.
        if any(int(owner) < number <= end for end, owner in _marks() if owner != job.path.name):
            job.path.rmdir()
            if tasks:
                last.unlink(missing_ok=True)
            continue
        return job


def _taken() -> list[int]:
    found = names(root())
    return [int(name) for name in found if name.isdigit()] + [int(match[1]) for name in found if (match := _LAST.match(name))]


def _marks() -> list[tuple[int, str]]:
    """Return the last id of each array's tasks, and the array."""
    found = []
    for name in names(root()):
        if match := _LAST.match(name):
            try:
                found.append((int(match[1]), str((root() / name).readlink())))
            except OSError:
                continue
    return found


def array_of(number: int) -> JobDirectory | None:
    """Return the array that has a task with the job id `number`."""
    for last, owner in _marks():
        if int(owner) < number <= last:
            return JobDirectory(root() / owner)
    return None


def _untouched_s(path: Path) -> float:
    """Return the seconds since anything was written into a job's directory: one look for each job, where its age takes several."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0
