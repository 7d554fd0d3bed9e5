"""A local job on disk: `local/JOB_ID/` with job.json (the plan), state.json (how it goes) and supervisor.json (who holds it)."""

from __future__ import annotations

import os
import shutil
import socket
import time
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


@dataclass(frozen=True, slots=True)
class JobDirectory:
    """One local job."""

    path: Path

    @property
    def job_id(self) -> str:
        """The job's id, which is the directory's name."""
        return self.path.name

    def write_job(self, plan: planning.Plan) -> None:
        """Write what never changes: the plan, the machine, and when it was submitted."""
        write_json(self.path / "job.json", {"plan": plan.to_json(), "host": socket.gethostname(), "submitted": time.time()})

    def write_holder(self, pid: int) -> None:
        """Write which process holds the job."""
        try:
            created: float | None = psutil.Process(pid).create_time()
        except psutil.Error:
            created = None
        write_json(self.path / "supervisor.json", {"pid": pid, "created": created})

    def write_state(self, state: str, **details: Any) -> None:
        """Write the state where no supervisor is there to do it."""
        write_json(self.path / "state.json", {"state": state, "end": time.time(), **details})

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

    def record(self) -> JobRecord:
        """Return the job's record; a job whose supervisor is gone is NODE_FAIL."""
        job, state = self.job(), self.state()
        if job is None:
            return JobRecord(job_id=self.job_id, scheduler="local", state="FAILED", reason="never started")
        plan = planning.Plan.from_json(job["plan"])
        host = self.other_host()
        if not states.is_final(state["state"]) and host is None and self.holder() is None and time.time() - job["submitted"] > 1:
            state = self.state()  # it may have ended between the two looks
            if not states.is_final(state["state"]):
                state = {**state, "state": "NODE_FAIL", "reason": "its supervisor process is gone"}
        start, end = state.get("start"), state.get("end")
        reason = f"on {host}" if host is not None and not states.is_final(state["state"]) else state.get("reason")
        return JobRecord(
            job_id=plan.job_id, scheduler="local", state=str(state["state"]), name=plan.name, reason=reason, nodes=plan.nodes,
            partition="local",
            elapsed_s=None if start is None else max(0, int((end or time.time()) - start)), time_limit_s=plan.time_limit_s,
            start=None if start is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(start)),
            exit_code=state.get("exit_code"), signal=state.get("signal"),
        )  # fmt: skip

    def holds_gpus(self) -> tuple[str, ...]:
        """Return the GPUs that the job uses now."""
        plan = self.plan()
        return () if plan is None or self.record().is_final or self.other_host() is not None else plan.gpus

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
            ours = process.environ().get("HPCTRAIN_LOCAL_JOB") == str(self.path)
            return ours and process.pid != os.getpid() and bool(process.status() != psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return False


def root() -> Path:
    """Return the directory of all local jobs."""
    directory = state_dir() / "local"
    directory.mkdir(exist_ok=True)
    return directory


def first_job_id() -> int:
    """Return the first id that is given out here.

    Users of one machine count from different numbers, because the rendezvous port is made of the job id.
    """
    return planning.FIRST_JOB_ID + zlib.crc32(str(root()).encode()) % 9000


def all_jobs() -> list[JobDirectory]:
    """Return all local jobs, the oldest first."""
    found = [path for path in root().iterdir() if path.name.isdigit()]
    return [JobDirectory(path) for path in sorted(found, key=lambda path: int(path.name))]


def new() -> JobDirectory:
    """Make the directory of the next job, and remove those of jobs that ended long ago."""
    jobs = all_jobs()
    number = max([first_job_id() - 1, *(int(job.job_id) for job in jobs)]) + 1
    for job in jobs:
        if job.age_s() > KEPT_S and job.other_host() is None:
            shutil.rmtree(job.path, ignore_errors=True)
    while True:
        path = root() / str(number)
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            number += 1
        else:
            return JobDirectory(path)
