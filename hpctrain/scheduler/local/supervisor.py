"""The process that holds a local job: `python -m hpctrain.scheduler.local.supervisor JOB_DIRECTORY`.

Its own environment is the job's. Waits for what the job depends on, starts the script as slurmd would, enforces the time limit, obeys
`cancel` (SIGTERM) and requests for a requeue, writes the job's state, and leaves no process behind.
"""

from __future__ import annotations

import os
import resource
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from hpctrain.scheduler.local import launch, tree, waiting
from hpctrain.scheduler.local import plan as planning
from hpctrain.scheduler.local.job_directory import JobDirectory

_POLL_S = 0.1
#: What `_hold` returns for a job that starts again.
_REQUEUE: dict[str, Any] = {"state": "PENDING"}


class Supervisor:
    """One job, or one task of an array, from its first start to its last process."""

    def __init__(self, job: JobDirectory, plan: planning.Plan) -> None:
        self.job = job
        self.plan = plan
        self.cancelled = False
        self.restarts = 0
        self.batch: subprocess.Popen[bytes] | None = None
        self.stderr: TextIO | None = None

    def run(self) -> None:
        """Run the job, as often as it is requeued, and write how it ended."""
        signal.signal(signal.SIGTERM, self._cancel)
        tree.adopt_orphans()
        while True:
            self._write("PENDING")
            if not self.restarts:  # what was met once stays met
                waiting.for_jobs(self.plan, self._say_why, lambda: self.cancelled)
            ready = waiting.for_gpus(self.job, self.plan, self._say_why, lambda: self.cancelled)
            if ready is None or self.cancelled:
                self._write("CANCELLED", end=time.time(), exit_code=0, signal=int(signal.SIGTERM))
                return
            self.plan = ready
            started = time.time()
            outcome = self._once(started)
            if outcome is not _REQUEUE:
                self._write(**outcome, start=started, end=time.time(), **_used())
                return
            self.restarts += 1

    def _once(self, started: float) -> dict[str, Any]:
        self._write("RUNNING", start=started)
        try:
            self.batch = self._start(int(started))
        except OSError as error:
            self._complain(f"slurmstepd: error: {error.strerror}: {error.filename}")
            return {"state": "FAILED", "reason": "LaunchFailed", "exit_code": 1}
        # The batch shell is what `scancel --batch` signals.
        self._write("RUNNING", start=started, batch=self.batch.pid)
        return self._hold(self.batch, started)

    def _start(self, started_s: int) -> subprocess.Popen[bytes]:
        plan = self.plan
        for log in (plan.output, plan.error):
            Path(log).parent.mkdir(parents=True, exist_ok=True)
            if not plan.append:
                Path(log).write_bytes(b"")
        # Both for appending: where they are one file, neither writes over the other.
        with Path(plan.output).open("ab") as output, Path(plan.error).open("ab") as error:
            if self.stderr is not None:
                self.stderr.close()
            self.stderr = Path(plan.error).open("a", encoding="utf-8")  # noqa: SIM115 - for messages until the end of the job
            script = self.job.script
            shebang = script.read_text(encoding="utf-8", errors="surrogateescape").partition("\n")[0]
            variables = planning.environment(plan, start_s=started_s, restarts=self.restarts)
            # The nodes share this machine's cores: threads that wait for each other in busy loops, as OpenMP's do, would keep them from it.
            shared = {"OMP_WAIT_POLICY": "passive"}
            return subprocess.Popen(
                [*shlex.split(shebang.removeprefix("#!")), str(script), *plan.arguments], cwd=plan.chdir,
                env={**shared, **os.environ, **variables}, stdin=subprocess.DEVNULL, stdout=output, stderr=error, start_new_session=True,
            )  # fmt: skip

    def _hold(self, batch: subprocess.Popen[bytes], started: float) -> dict[str, Any]:
        limit = self.plan.time_limit_s
        while batch.poll() is None:
            if self.cancelled:
                return self._end(batch, started, "CANCELLED", "")
            if limit is not None and time.time() - started > limit:
                return self._end(batch, started, "TIMEOUT", " DUE TO TIME LIMIT")
            if self._requeue_asked():
                return self._end(batch, started, "PENDING", " DUE TO JOB REQUEUE")
            time.sleep(_POLL_S)
        tree.kill_descendants()
        code = batch.returncode
        if self._requeue_asked() and not self.cancelled:  # the script's last words were `scontrol requeue`
            return _REQUEUE
        if code < 0:
            return {"state": "FAILED", "reason": "NonZeroExitCode", "exit_code": 0, "signal": -code}
        return {"state": "FAILED" if code else "COMPLETED", "reason": "NonZeroExitCode" if code else None, "exit_code": code}

    def _end(self, batch: subprocess.Popen[bytes], started: float, state: str, why: str) -> dict[str, Any]:
        """End the job as Slurm does: SIGTERM to the script's shell and to the tasks of its steps; KillWait; SIGKILL to all."""
        self._write("COMPLETING", start=started, batch=batch.pid)
        now = time.strftime("%Y-%m-%dT%H:%M:%S")
        self._complain(f"slurmstepd: error: *** JOB {self.plan.job_id} ON {self.plan.hosts[0]} CANCELLED AT {now}{why} ***")
        tasks = tree.step_tasks()
        for number in (signal.SIGCONT, signal.SIGTERM):
            tree.send(tasks, number)
            if batch.poll() is None:
                batch.send_signal(number)
        deadline = time.monotonic() + launch.kill_wait_s()
        while time.monotonic() < deadline:
            if batch.poll() is not None:
                tree.kill_outside_steps()
                if not tree.steps():
                    break
            time.sleep(_POLL_S)
        tree.kill_descendants()
        batch.wait()
        if state == "PENDING" and not self.cancelled:
            return _REQUEUE
        if state == "TIMEOUT":
            return {"state": state, "reason": "TimeLimit", "exit_code": 0, "signal": int(signal.SIGTERM)}
        return {"state": "CANCELLED", "reason": None, "exit_code": 0, "signal": int(signal.SIGTERM)}

    def _requeue_asked(self) -> bool:
        return any(request["what"] == "requeue" for request in self.job.take_requests())

    def _cancel(self, *_: object) -> None:
        self.cancelled = True

    def _say_why(self, **details: Any) -> None:
        self._write("PENDING", **details)

    def _complain(self, message: str) -> None:
        if self.stderr is not None:
            self.stderr.write(message + "\n")
            self.stderr.flush()
        else:
            sys.stderr.write(message + "\n")

    def _write(self, state: str, **details: Any) -> None:
        self.job.write_state(state, supervisor=os.getpid(), restarts=self.restarts, **details)


def _used() -> dict[str, Any]:
    """Return what the ended processes of the job used, of all its starts: the memory of the largest one, and CPU seconds (getrusage(2))."""
    tree.reap()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    unit = 1 if sys.platform == "darwin" else 1024
    return {"max_rss_bytes": usage.ru_maxrss * unit, "cpu_s": round(usage.ru_utime + usage.ru_stime, 3)}


def main() -> None:
    """Hold the job of the directory on the command line."""
    job = JobDirectory(Path(sys.argv[1]))
    plan = job.plan()
    if plan is None:
        raise SystemExit(f"no job in {job.path}")
    job.write_holder(os.getpid())  # whoever started this may have ended before it could
    if plan.array is not None and plan.index is None:
        from hpctrain.scheduler.local.array_supervisor import ArraySupervisor

        ArraySupervisor(job, plan).run()
    else:
        Supervisor(job, plan).run()


if __name__ == "__main__":
    main()
