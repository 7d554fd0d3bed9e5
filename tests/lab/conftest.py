"""The lab as fixtures: `lab_env` is an environment for subprocess, `lab` runs Slurm's commands in
it.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

LAB = Path(__file__).with_name("lab")
CANNOT_RUN_HERE = 3
# What an outer job or the user's habits would change about every command below, and pytest's own
# mark.
SCRUBBED = (
    "SLURM_",
    "SLURMD_",
    "SBATCH_",
    "SRUN_",
    "SALLOC_",
    "SACCT_",
    "SQUEUE_",
    "SINFO_",
    "SCANCEL_",
    "PYTEST_",
)
FINAL_STATES = frozenset(
    (
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    )
)


@dataclass(frozen=True, slots=True)
class Lab:
    """The running lab, and the few things that every test does with it."""

    env: dict[str, str]

    def run(
        self, *argv: str, check: bool = True, timeout_s: float = 600.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command against the lab; with check, fail with the command's own words if it does."""
        done = subprocess.run(
            argv,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )
        assert not check or done.returncode == 0, (
            f"{' '.join(argv)}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done

    def submit(self, body: str, folder: Path, *options: str) -> str:
        """Submit a batch script whose output goes to folder/JOBID.out, and return the job id."""
        script = folder / "job.sbatch"
        script.write_text(f"#!/bin/bash\n{body}\n")
        where = (f"--chdir={folder}", f"--output={folder}/%j.out")
        return (
            self.run("sbatch", "--parsable", *where, *options, str(script))
            .stdout.strip()
            .partition(";")[0]
        )

    def accounting(self, job_id: str, *fields: str) -> dict[str, dict[str, str]]:
        """Return sacct's rows: 'JOBID', 'JOBID.batch', 'JOBID.0' → field → text."""
        asked = self.run(
            "sacct",
            "--noheader",
            "--parsable2",
            f"--jobs={job_id}",
            f"--format=JobID,{','.join(fields)}",
        )
        rows = (line.split("|") for line in asked.stdout.splitlines())
        return {row[0]: dict(zip(fields, row[1:], strict=True)) for row in rows}

    def finished(
        self, job_id: str, *fields: str, timeout_s: float = 600.0
    ) -> dict[str, dict[str, str]]:
        """Wait until sacct calls the job and all its steps ended, and return its rows (with State
        among the fields).

        Long: in everybody's lab a job waits for the jobs of the files that run at the same time.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            rows = self.accounting(job_id, "State", *fields)
            # "CANCELLED by 0" names the user after the state.
            if job_id in rows and all(
                row["State"].partition(" ")[0] in FINAL_STATES for row in rows.values()
            ):
                return rows
            assert time.monotonic() < deadline, (
                f"job {job_id} has not ended in {timeout_s:.0f} s: {rows}"
            )
            time.sleep(0.3)


def lab_directory() -> str | None:
    """Return the directory of the lab that the caller's SLURM_CONF points into, if it is a lab's.

    SLURM_CONF alone is not trusted: on a real cluster's login node it names the real cluster.
    """
    conf = os.environ.get("SLURM_CONF", "")
    root = Path(conf).parent.parent
    return str(root) if conf and (root / ".hpctrain-lab").exists() else None


@pytest.fixture(scope="session")
def lab_env() -> dict[str, str]:
    """Return the environment in which Slurm's commands talk to the lab; start the lab if it is not
    up.

    The lab stays up afterwards: other test processes may be using it (`make lab-down` stops it).
    """
    directory = lab_directory()
    where = ["--dir", directory] if directory else []
    asked = subprocess.run(
        [sys.executable, str(LAB), "env", *where], capture_output=True, text=True
    )
    if asked.returncode:
        asked = subprocess.run(
            [sys.executable, str(LAB), "up", *where], capture_output=True, text=True
        )
    if asked.returncode:
        # Only a machine that cannot hold the lab (3) is a reason to skip; a lab that breaks is a
        # failure anywhere.
        if (
            asked.returncode != CANNOT_RUN_HERE
            or os.environ.get("CI")
            or os.environ.get("HPCTRAIN_REQUIRE_LAB")
        ):
            pytest.fail(
                f"the Slurm lab did not start (exit status {asked.returncode}): {asked.stderr}",
                pytrace=False,
            )
        pytest.skip(asked.stderr.strip().splitlines()[-1])
    exports = (line.removeprefix("export ").partition("=") for line in asked.stdout.splitlines())
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SCRUBBED)}
    return kept | {name: value for name, _, value in exports}


@pytest.fixture(scope="session")
def lab(lab_env: dict[str, str]) -> Lab:
    """Return the running lab."""
    return Lab(lab_env)


@pytest.fixture(scope="session")
def another_lab() -> Iterator[Callable[[int], Lab]]:
    """Return a function that starts the lab of a number, for tests that need a queue of their own;
    it is stopped at the end.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(SCRUBBED) and name != "HPCTRAIN_LAB_DIR"
    }
    started: dict[int, Lab] = {}

    def start(number: int) -> Lab:
        env = {**kept, "HPCTRAIN_LAB_NUMBER": str(number)}
        asked = subprocess.run(
            [sys.executable, str(LAB), "up"], env=env, capture_output=True, text=True
        )
        if asked.returncode == CANNOT_RUN_HERE and not (
            os.environ.get("CI") or os.environ.get("HPCTRAIN_REQUIRE_LAB")
        ):
            pytest.skip(asked.stderr.strip().splitlines()[-1])
        assert asked.returncode == 0, asked.stderr
        exports = (
            line.removeprefix("export ").partition("=") for line in asked.stdout.splitlines()
        )
        started[number] = Lab(env | {name: value for name, _, value in exports})
        return started[number]

    yield start
    for each in started.values():
        subprocess.run(
            [sys.executable, str(LAB), "down"], env=each.env, check=True, capture_output=True
        )
