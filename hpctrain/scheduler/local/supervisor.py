"""The process that holds a local job: `python -m hpctrain.scheduler.local.supervisor JOB_DIRECTORY`.

Its own environment is the job's. Starts the script as slurmd would, enforces the time limit, obeys `cancel` (SIGTERM), writes the
job's state, and leaves no process behind.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from hpctrain.scheduler.local import plan as planning
from hpctrain.scheduler.local import tree
from hpctrain.scheduler.state_dir import read_json, write_json

_POLL_S = 0.1


class Supervisor:
    """One job, from its start to its last process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        job = read_json(directory / "job.json")
        if job is None:
            raise SystemExit(f"no job in {directory}")
        self.plan = planning.Plan.from_json(job["plan"])
        self.cancelled = False
        self.stderr: TextIO | None = None

    def run(self) -> None:
        """Run the job and write how it ended."""
        signal.signal(signal.SIGTERM, self._cancel)
        tree.adopt_orphans()
        started = time.time()
        self._write("RUNNING", start=started)
        try:
            state = self._hold(self._start(), started)
        except OSError as error:
            self._complain(f"slurmstepd: error: {error.strerror}: {error.filename}")
            state = {"state": "FAILED", "reason": "LaunchFailed", "exit_code": 1}
        self._write(**state, start=started, end=time.time())

    def _start(self) -> subprocess.Popen[bytes]:
        plan = self.plan
        if not plan.append:
            for log in (plan.output, plan.error):
                Path(log).write_bytes(b"")
        # Both for appending: where they are one file, neither writes over the other.
        with Path(plan.output).open("ab") as output, Path(plan.error).open("ab") as error:
            self.stderr = Path(plan.error).open("a", encoding="utf-8")  # noqa: SIM115 - for messages until the end of the job
            script = self.directory / "script"
            shebang = script.read_text(encoding="utf-8", errors="surrogateescape").partition("\n")[0]
            return subprocess.Popen(
                [*shlex.split(shebang.removeprefix("#!")), str(script)], cwd=plan.chdir,
                stdin=subprocess.DEVNULL, stdout=output, stderr=error, start_new_session=True,
            )  # fmt: skip

    def _hold(self, batch: subprocess.Popen[bytes], started: float) -> dict[str, Any]:
        limit = self.plan.time_limit_s
        while batch.poll() is None:
            if self.cancelled:
                return self._end(batch, "CANCELLED", "")
            if limit is not None and time.time() - started > limit:
                return self._end(batch, "TIMEOUT", " DUE TO TIME LIMIT")
            time.sleep(_POLL_S)
        tree.kill_descendants()
        code = batch.returncode
        if code < 0:
            return {"state": "FAILED", "reason": "NonZeroExitCode", "exit_code": 0, "signal": -code}
        return {"state": "FAILED" if code else "COMPLETED", "reason": "NonZeroExitCode" if code else None, "exit_code": code}

    def _end(self, batch: subprocess.Popen[bytes], state: str, why: str) -> dict[str, Any]:
        """End the job as Slurm does: SIGTERM to the script and, through srun, to its tasks; KillWait; SIGKILL to all."""
        now = time.strftime("%Y-%m-%dT%H:%M:%S")
        self._complain(f"slurmstepd: error: *** JOB {self.plan.job_id} ON {self.plan.hosts[0]} CANCELLED AT {now}{why} ***")
        tree.signal_group(batch.pid, signal.SIGCONT)
        tree.signal_group(batch.pid, signal.SIGTERM)
        deadline = time.monotonic() + planning.KILL_WAIT_S
        while time.monotonic() < deadline and (batch.poll() is None or tree.descendants()):
            time.sleep(_POLL_S)
        tree.kill_descendants()
        batch.wait()
        return {"state": state, "reason": "TimeLimit" if state == "TIMEOUT" else None, "exit_code": 0, "signal": int(signal.SIGTERM)}

    def _cancel(self, *_: object) -> None:
        self.cancelled = True

    def _complain(self, message: str) -> None:
        if self.stderr is not None:
            self.stderr.write(message + "\n")
            self.stderr.flush()
        else:
            sys.stderr.write(message + "\n")

    def _write(self, state: str, **details: Any) -> None:
        write_json(self.directory / "state.json", {"state": state, "supervisor": os.getpid(), **details})


if __name__ == "__main__":
    Supervisor(Path(sys.argv[1])).run()
