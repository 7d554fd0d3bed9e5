"""Starting the process that holds a job: the submitting shell's child at first, nobody's as soon as that shell has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from hpctrain.scheduler.local.job_directory import JobDirectory

SUPERVISOR = "hpctrain.scheduler.local.supervisor"


def start(job: JobDirectory, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the supervisor of a job whose job.json is written, and return it. `environment` is what the job gets; no file has it."""
    with (job.path / "supervisor.log").open("ab") as log_file:
        holder = subprocess.Popen(
            [sys.executable, "-P", "-m", SUPERVISOR, str(job.path)], stdin=subprocess.DEVNULL,
            stdout=log_file, stderr=log_file, start_new_session=True, cwd="/",
            env={**environment, "HPCTRAIN_LOCAL_JOB": str(job.path)},
        )  # fmt: skip
    job.write_holder(holder.pid)
    return holder


def kill_wait_s() -> float:
    """Return the seconds between SIGTERM and SIGKILL."""
    from hpctrain.scheduler.local.plan import KILL_WAIT_S

    try:
        return max(0.0, float(os.environ["HPCTRAIN_LOCAL_KILL_WAIT"]))
    except (KeyError, ValueError):
        return KILL_WAIT_S
