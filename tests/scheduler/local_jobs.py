"""Submitting real scripts to the local scheduler and looking at what they do, for the tests of it."""

import contextlib
import os
from pathlib import Path
from typing import Any

import psutil

from hpctrain.errors import HpctrainError
from hpctrain.local.scheduler import LocalScheduler
from hpctrain.slurm.notations.records import JobRecord
from tests.waiting import wait_until

DIRECTIVES = (
    "#SBATCH --job-name=try\n#SBATCH --output=logs/out_%j.log\n#SBATCH --error=logs/err_%j.log\n"
)
#: A task that says which signals reach it, until the file `stop` is there.
LISTENS = """
cat > listen.sh <<'END'
for name in TERM USR1 USR2 INT; do trap "echo $1 got $name" $name; done
touch "$1.ready"
while [ ! -e stop ]; do sleep 0.05; done
END
"""


def write(body: str, directives: str = "", name: str = "job.sbatch") -> Path:
    path = Path(name)
    path.write_text(f"#!/bin/bash\n{DIRECTIVES}{directives}\n{body}\n")
    return path


def submit(
    body: str, directives: str = "", *, scheduler: LocalScheduler | None = None, **words: Any
) -> str:
    return (scheduler or LocalScheduler()).submit(write(body, directives), **words).job_id


def record(job_id: str) -> JobRecord:
    (found,) = LocalScheduler().status([job_id])
    return found


def wait(job_id: str) -> JobRecord:
    wait_until(lambda: record(job_id).is_final, f"job {job_id} ends")
    return record(job_id)


def output(job_id: str, stream: str = "out") -> str:
    return Path(f"logs/{stream}_{job_id}.log").read_text()


def directory(job_id: str) -> Path:
    return Path(os.environ["HPCTRAIN_STATE_DIR"]) / "local" / job_id


def processes(path: Path) -> list[psutil.Process]:
    """Return the processes of a job, or of an array and its tasks; the supervisors, which end a
    moment later, are none.
    """
    found = []
    for process in psutil.process_iter():
        try:
            job = process.environ().get("HPCTRAIN_LOCAL_JOB", "")
            ours = job == str(path) or job.startswith(f"{path}/")
            if (
                ours
                and process.status() != psutil.STATUS_ZOMBIE
                and "hpctrain.local.supervisor" not in process.cmdline()
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def end_all() -> None:
    """End what a test that failed has left."""
    for path in (Path(os.environ["HPCTRAIN_STATE_DIR"]) / "local").glob("[0-9]*"):
        with contextlib.suppress(HpctrainError):  # one that a test has given to another machine
            LocalScheduler().cancel([path.name])
