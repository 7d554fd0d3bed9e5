"""The process that holds a local array: starts the tasks, so many at a time, each with a supervisor of its own.

Should it be killed, the tasks that run go on under theirs; those that wait are lost, and say so.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import Any

from hpctrain.scheduler.local import claims, launch, tree, waiting
from hpctrain.scheduler.local import plan as planning
from hpctrain.scheduler.local.job_directory import GONE, JobDirectory
from hpctrain.scheduler.parse import array, states

_POLL_S = 0.1
#: What an array is called whose tasks ended in several ways: the first of these that a task ended in.
_WORST = ("NODE_FAIL", "OUT_OF_MEMORY", "FAILED", "TIMEOUT", "CANCELLED", "COMPLETED")


class ArraySupervisor:
    """One array, from its first task to its last."""

    def __init__(self, job: JobDirectory, plan: planning.Plan) -> None:
        self.job = job
        self.plan = plan
        self.waiting = list(reversed(plan.indices))
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.cancelled: set[int] = set()
        self.never_started: set[int] = set()
        self.ended: dict[str, int] = {}
        self.exit_code = 0
        self.stopped = False
        self.started: float | None = None
        self._written: dict[str, Any] = {}

    def run(self) -> None:
        """Work through the tasks and write how the array ended."""
        signal.signal(signal.SIGTERM, self._stop)
        tree.adopt_orphans()
        self._write("PENDING")
        waiting.for_jobs(self.plan, self._say_why, self._is_stopped)
        reason: str | None = None
        while True:
            self._obey()
            self._collect()
            if self.waiting:
                reason = self._start_more()
            if not self.waiting and not self.running:
                break
            state = "PENDING" if self.started is None else "RUNNING"
            self._write(state, waits_for=reason if self.waiting else None, reason=reason if state == "PENDING" else None)
            time.sleep(_POLL_S)
        state = next((word for word in _WORST if self.ended.get(word)), "COMPLETED")
        why = "NonZeroExitCode" if state == "FAILED" else None
        self._write(state, reason=why, end=time.time(), exit_code=self.exit_code)

    def _start_more(self) -> str | None:
        """Start tasks while there is room, and return why the next one waits."""
        while self.waiting:
            if self.plan.parallel is not None and len(self.running) >= self.plan.parallel:
                return "JobArrayTaskLimit"
            need, among = self.plan.total_gpus, self.plan.gpus
            if need and len(among) - len(claims.held(among)) < need:
                return "Resources"
            if not self._start(self.waiting[-1]):
                return "Resources"
            self.waiting.pop()
        return None

    def _start(self, index: int) -> bool:
        """Start a task; False where another job was faster at its GPUs."""
        plan = self.plan.task(index)
        task = self.job.begin(index, plan)
        if plan.total_gpus and claims.take(task, plan.total_gpus, plan.gpus) is None:
            task.vanish()
            return False
        self.running[index] = launch.start(task, os.environ)
        self.started = self.started or time.time()
        return True

    def _collect(self) -> None:
        for index, holder in list(self.running.items()):
            if holder.poll() is None:
                continue
            del self.running[index]
            task = self.job.task(index)
            state = task.state()
            if not states.is_final(str(state["state"])):  # its supervisor was killed
                task.sweep()
                word = "CANCELLED" if index in self.cancelled or self.stopped else "NODE_FAIL"
                task.write_state(word, end=time.time(), start=state.get("start"), reason=GONE if word == "NODE_FAIL" else None)
                state = task.state()
            self._count(str(state["state"]), state.get("exit_code") or 0)
            tree.reap_but({holder.pid for holder in self.running.values()})

    def _count(self, state: str, exit_code: int = 0) -> None:
        self.ended[state] = self.ended.get(state, 0) + 1
        self.exit_code = max(self.exit_code, exit_code)

    def _obey(self) -> None:
        """Cancel the tasks that somebody asked for, or all."""
        asked: set[int] = set()
        for request in self.job.take_requests():
            if request["what"] == "cancel":
                asked |= set(array.parse(request["tasks"]).indices)
        if self.stopped:
            asked |= {*self.waiting, *self.running}
        for index in asked & set(self.waiting):
            self.never_started.add(index)
            self._count("CANCELLED")
        self.waiting = [index for index in self.waiting if index not in asked]
        for index in asked - self.cancelled:
            if index in self.running:
                self.cancelled.add(index)
                self.running[index].send_signal(signal.SIGTERM)

    def _stop(self, *_: object) -> None:
        self.stopped = True

    def _is_stopped(self) -> bool:
        self._obey()
        return self.stopped or not self.waiting

    def _say_why(self, **details: Any) -> None:
        self._write("PENDING", waits_for=details["reason"], **details)

    def _write(self, state: str, **details: Any) -> None:
        cancelled = array.compress(self.never_started) if self.never_started else None
        now = {"state": state, "start": self.started, "cancelled": cancelled, **details}
        if now != self._written:
            self._written = dict(now)
            self.job.write_state(supervisor=os.getpid(), **now)
