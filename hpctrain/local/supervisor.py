"""The process that holds a local job or an array: `python -m hpctrain.local.supervisor
JOB_DIRECTORY`.

Its environment is the job's. The supervisor of a job waits for the dependencies, starts the script
as slurmd would, enforces the time limit, handles `cancel` (SIGTERM) and requeue requests, writes
the job's state, and leaves no process running. The supervisor of an array starts the tasks, a
limited number at a time, each with its own supervisor. If it is killed, running tasks continue;
pending ones are lost, and reported as lost.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TextIO

from hpctrain.local import gpus, jobs, processes
from hpctrain.local.plan import KILL_WAIT_S, Plan, environment
from hpctrain.slurm.notations import states

_POLL_S = 0.1
#: The signal that asks a job's supervisor to requeue it.
REQUEUE = signal.SIGUSR2
#: Seconds between checks for GPUs that other jobs have released.
_GPU_LOOK_S = 0.5
#: The outcome of a start whose job is requeued.
_REQUEUE: dict[str, Any] = {"state": "PENDING"}
#: The state of an array is the first of these that one of its tasks ended in.
_WORST = ("NODE_FAIL", "OUT_OF_MEMORY", "FAILED", "TIMEOUT", "CANCELLED", "COMPLETED")
_TERMINATED = {"exit_code": 0, "signal": int(signal.SIGTERM)}


def start(job: jobs.LocalJob, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the supervisor of a job whose job.json is written, and return its process.

    `environment` is the job's; it is not stored in any file.
    """
    with (job.path / "supervisor.log").open("ab") as log_file:
        holder = subprocess.Popen(
            [sys.executable, "-P", "-m", "hpctrain.local.supervisor", str(job.path)],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
            cwd="/",
            env={**environment, "HPCTRAIN_LOCAL_JOB": str(job.path)},
        )
    job.write_holder(holder.pid)
    return holder


def kill_wait_s() -> float:
    """Return the seconds between SIGTERM and SIGKILL."""
    try:
        return max(0.0, float(os.environ["HPCTRAIN_LOCAL_KILL_WAIT"]))
    except (KeyError, ValueError):
        return KILL_WAIT_S


class _Holder:
    """What the supervisors of a job and of an array have in common."""

    def __init__(self, job: jobs.LocalJob, plan: Plan) -> None:
        self.job, self.plan = job, plan
        self.stopped = False
        self._written: dict[str, Any] = {}

    def begin(self) -> None:
        """Take over the job: adopt its processes, and wait until its dependency is met. One that
        was met stays met, even if that job is requeued later.
        """
        signal.signal(signal.SIGTERM, self._stop)
        processes.adopt_orphans()
        self.write("PENDING")
        left = parse_dependency(self.plan.dependency) if self.plan.dependency is not None else []
        while left and not self.is_over():
            now = {condition: _fulfilment(*condition) for condition in left}
            left = [condition for condition in left if now[condition] != "met"]
            if left:
                never = "failed" in now.values()
                self.write("PENDING", reason="DependencyNeverSatisfied" if never else "Dependency")
                time.sleep(_CHECK_S)

    def is_over(self) -> bool:
        """Whether nothing is left to start."""
        return self.stopped

    def _stop(self, *_: object) -> None:
        self.stopped = True

    def write(self, state: str, **details: Any) -> None:
        """Write the state, if it has changed."""
        now = {"state": state, "supervisor": os.getpid(), **details}
        if now != self._written:
            self._written = now
            self.job.write_state(**now)


class Supervisor(_Holder):
    """One job, or one task of an array, from its first start to its last process."""

    restarts = 0
    is_requeued = False
    stderr: TextIO | None = None

    def run(self) -> None:
        """Run the job, again after each requeue, and write how it ended."""
        signal.signal(REQUEUE, self._requeue)
        self.begin()
        while self._has_gpus():
            started, self.is_requeued = time.time(), False
            outcome = self._run_once(started)
            if outcome is not _REQUEUE:
                self.write(**outcome, start=started, end=time.time())
                return
            self.restarts += 1
            self.write("PENDING")
        self.write("CANCELLED", end=time.time(), **_TERMINATED)

    def _has_gpus(self) -> bool:
        """Wait for the job's GPUs; return False if it is cancelled."""
        while self.plan.total_gpus and not self.stopped:
            taken = gpus.take(self.job, self.plan.total_gpus, self.plan.gpus)
            if taken is not None:
                self.plan = replace(self.plan, gpus=taken)
                self.job.write_plan(self.plan)
                break
            self.write("PENDING", reason="Resources")
            time.sleep(_GPU_LOOK_S)
        return not self.stopped

    def _run_once(self, started: float) -> dict[str, Any]:
        self.write("RUNNING", start=started)
        try:
            batch = self._start_script(int(started))
        except OSError as error:
            self._complain(f"slurmstepd: error: {error.strerror}: {error.filename}")
            return {"state": "FAILED", "reason": "LaunchFailed", "exit_code": 1}
        limit = self.plan.time_limit_s
        while batch.poll() is None:
            if self.is_over():
                return self._end(batch, started, "")
            if limit is not None and time.time() - started > limit:
                ended = self._end(batch, started, " DUE TO TIME LIMIT")
                return ended | {"state": "TIMEOUT", "reason": "TimeLimit"}
            if self.is_requeued:
                ended = self._end(batch, started, " DUE TO JOB REQUEUE")
                return ended if self.is_over() else _REQUEUE
            time.sleep(_POLL_S)
        processes.kill_descendants()
        # `scontrol requeue` may have been the script's last command.
        if self.is_requeued and not self.is_over():
            return _REQUEUE
        code = batch.returncode
        if code == 0:
            return {"state": "COMPLETED", "reason": None, "exit_code": 0}
        how = {"exit_code": code} if code > 0 else {"exit_code": 0, "signal": -code}
        return {"state": "FAILED", "reason": "NonZeroExitCode", **how}

    def _start_script(self, started_s: int) -> subprocess.Popen[bytes]:
        plan, script = self.plan, self.job.script
        for log in (plan.output, plan.error):
            Path(log).parent.mkdir(parents=True, exist_ok=True)
            if not plan.append:
                Path(log).write_bytes(b"")
        # Both in append mode: if they are one file, neither overwrites the other.
        with Path(plan.output).open("ab") as output, Path(plan.error).open("ab") as error:
            if self.stderr is None:
                self.stderr = Path(plan.error).open("a", encoding="utf-8")  # noqa: SIM115 - for messages until the end of the job
            text = script.read_text(encoding="utf-8", errors="surrogateescape")
            shebang = text.partition("\n")[0].removeprefix("#!")
            variables = environment(plan, start_s=started_s, restarts=self.restarts)
            # The nodes share the cores of one machine: OpenMP threads that wait in busy loops would
            # take them from the other nodes.
            shared = {"OMP_WAIT_POLICY": "passive"}
            return subprocess.Popen(
                [*shlex.split(shebang), str(script), *plan.arguments],
                cwd=plan.chdir,
                env={**shared, **os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=error,
                start_new_session=True,
            )

    def _end(self, batch: subprocess.Popen[bytes], started: float, why: str) -> dict[str, Any]:
        """End the job as Slurm does: SIGTERM to the script's shell and to the tasks of its steps,
        then SIGKILL to all after KillWait.
        """
        self.write("COMPLETING", start=started)
        self._complain(
            f"slurmstepd: error: *** JOB {self.plan.job_id} ON {self.plan.hosts[0]} CANCELLED AT"
            f" {jobs.timestamp(time.time())}{why} ***"
        )
        tasks = processes.step_tasks()
        for number in (signal.SIGCONT, signal.SIGTERM):
            processes.send(tasks, number)
            if batch.poll() is None:
                batch.send_signal(number)
        deadline = time.monotonic() + kill_wait_s()
        while time.monotonic() < deadline:
            if batch.poll() is not None:
                # What the script started outside its steps ends with it, as with slurmstepd.
                steps = processes.steps()
                kept = {each.pid for step in steps for each in [step, *processes.descendants(step)]}
                left = [each for each in processes.descendants() if each.pid not in kept]
                processes.send(left, signal.SIGKILL)
                if not steps:
                    break
            time.sleep(_POLL_S)
        processes.kill_descendants()
        batch.wait()
        return {"state": "CANCELLED", "reason": None, **_TERMINATED}

    def _requeue(self, *_: object) -> None:
        self.is_requeued = True

    def _complain(self, message: str) -> None:
        print(message, file=self.stderr or sys.stderr, flush=True)

    def write(self, state: str, **details: Any) -> None:
        """Write the state, if it has changed."""
        super().write(state, restarts=self.restarts, **details)


class ArraySupervisor(_Holder):
    """One array, from its first task to its last."""

    def __init__(self, job: jobs.LocalJob, plan: Plan) -> None:
        super().__init__(job, plan)
        self.waiting = list(reversed(plan.indices))
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.cancelled: set[int] = set()
        self.ended: set[str] = set()
        self.exit_code = 0
        self.started: float | None = None

    def run(self) -> None:
        """Run the tasks and write how the array ended."""
        self.begin()
        while True:
            self._obey()
            self._collect()
            reason = self._start_more() if self.waiting else None
            if not self.waiting and not self.running:
                break
            word, why = ("RUNNING", None) if self.started is not None else ("PENDING", reason)
            self.write(word, waits_for=reason, reason=why)
            time.sleep(_POLL_S)
        state = next((word for word in _WORST if word in self.ended), "COMPLETED")
        why = "NonZeroExitCode" if state == "FAILED" else None
        self.write(state, reason=why, end=time.time(), exit_code=self.exit_code)

    def _start_more(self) -> str | None:
        """Start tasks; return why the next one waits."""
        need, among = self.plan.total_gpus, self.plan.gpus
        while self.waiting:
            if self.plan.parallel is not None and len(self.running) >= self.plan.parallel:
                return "JobArrayTaskLimit"
            if need and len(among) - len(gpus.held(among)) < need:
                return "Resources"
            index = self.waiting.pop()
            plan = self.plan.task(index)
            task = self.job.begin(index, plan)
            if need:  # if another job takes them first, the task waits for them itself
                gpus.take(task, need, among)
            self.running[index] = start(task, os.environ)
            self.started = self.started or time.time()
        return None

    def _collect(self) -> None:
        for index, holder in list(self.running.items()):
            if holder.poll() is None:
                continue
            del self.running[index]
            task = self.job.task(index)
            state = task.state()
            if not state.is_final:  # its supervisor was killed
                task.kill_leftovers()
                wanted = index in self.cancelled or self.stopped
                word, why = ("CANCELLED", None) if wanted else ("NODE_FAIL", jobs.GONE)
                task.write_state(word, end=time.time(), start=state.start, reason=why)
                state = task.state()
            self.ended.add(state.state)
            self.exit_code = max(self.exit_code, state.exit_code or 0)
            processes.reap({each.pid for each in self.running.values()})

    def _obey(self) -> None:
        asked = self.job.dropped_tasks()
        if self.stopped:
            asked |= {*self.waiting, *self.running}
        if not asked.isdisjoint(self.waiting):
            self.ended.add("CANCELLED")
        self.waiting = [index for index in self.waiting if index not in asked]
        for index in (asked - self.cancelled) & set(self.running):
            self.cancelled.add(index)
            self.running[index].send_signal(signal.SIGTERM)

    def is_over(self) -> bool:
        """Whether all tasks were cancelled before the first one started."""
        self._obey()
        return self.stopped or not self.waiting

    def write(self, state: str, **details: Any) -> None:
        """Write the state, if it has changed; a pending array's tasks wait for the same reason."""
        details = {"waits_for": details.get("reason"), **details}
        super().write(state, start=self.started, **details)


# -- dependencies -----------------------------------------------------------------------------------

#: Slurm's message for a dependency on an unknown job, or of an unknown type.
DEPENDENCY_PROBLEM = "Job dependency problem"
_KINDS = ("afterany", "afterok", "afternotok")
#: Seconds between checks of the jobs depended on.
_CHECK_S = 0.5
_JOB = re.compile(r"[0-9]{1,18}(?:_[0-9]{1,9})?\Z")


def parse_dependency(text: str) -> list[tuple[str, str]]:
    """Return the dependencies in `text` as (type, job id).

    Raises:
        ValueError: Slurm's message, with the part that is wrong.
    """
    found: list[tuple[str, str]] = []
    for word in text.split(","):
        kind, *job_ids = word.split(":")
        if kind not in _KINDS or not job_ids:
            raise ValueError(
                f"{DEPENDENCY_PROBLEM}: the local scheduler knows {', '.join(_KINDS)} with job ids,"
                f" separated by commas, not {word!r}"
            )
        wrong = next((job_id for job_id in job_ids if not _JOB.match(job_id)), None)
        if wrong is not None:
            raise ValueError(f"{DEPENDENCY_PROBLEM}: {wrong!r} is not a job id")
        found += [(kind, job_id) for job_id in job_ids]
    return found


def _fulfilment(kind: str, job_id: str) -> Literal["met", "unfulfilled", "failed"]:
    selection = jobs.find(job_id)
    if selection is None:  # existed at submission and was deleted since: its end is unknown
        return "met" if kind == "afterany" else "failed"
    record = selection.records()[0]
    if not record.is_final:
        return "unfulfilled"
    good = record.state in states.COMPLETED
    wanted = kind == "afterany" or good == (kind == "afterok")
    return "met" if wanted else "failed"


def main() -> None:
    """Hold the job of the directory on the command line."""
    job = jobs.LocalJob(Path(sys.argv[1]))
    plan = job.plan()
    if plan is None:
        raise SystemExit(f"no job in {job.path}")
    job.write_holder(os.getpid())  # the parent may have ended before it could write this
    is_array = plan.array is not None and plan.index is None
    (ArraySupervisor(job, plan) if is_array else Supervisor(job, plan)).run()


if __name__ == "__main__":
    main()
