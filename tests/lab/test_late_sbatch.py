"""An sbatch whose answer is lost, or whose job arrives late, on the real Slurm: each script of a
launch is submitted once, never twice.
"""

import os
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.lab.typist import HPCTRAIN
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.extended]

#: The real sbatch takes the job at once, and nobody hears its answer.
LOST = 'REAL "$@" >/dev/null\necho asked >>ASKED\nsleep 60\n'
#: The request itself is on its way until the test lets it go; whoever asked has given up by then.
LATE = """\
echo asked >>ASKED
setsid sh -c 'for each in $(seq 6000); do [ -e ASKED.go ] && exec REAL "$@"; sleep 0.2; done' sh "$@" >/dev/null 2>&1 </dev/null &
sleep 60
"""


class Project:
    """A directory with a trivial training, and an sbatch of ours in front of the real one."""

    def __init__(
        self, directory: Path, lab_env: dict[str, str], sbatch: str, seconds: int = 0
    ) -> None:
        self.directory, self.name = directory, f"late-{uuid.uuid4().hex[:6]}"
        (directory / "train.py").write_text(f"import time\ntime.sleep({seconds})\n")
        shim = directory / "shims" / "sbatch"
        shim.parent.mkdir()
        real = shutil.which("sbatch", path=lab_env["PATH"])
        shim.write_text(
            "#!/bin/bash\n"
            + sbatch.replace("REAL", str(real)).replace("ASKED", str(directory / "asked"))
        )
        shim.chmod(0o755)
        path = f"{shim.parent}:{Path(sys.executable).parent}:{lab_env['PATH']}"
        self.env = {
            **lab_env,
            "PATH": path,
            "HPCTRAIN_STATE_DIR": os.environ["HPCTRAIN_STATE_DIR"],
            "HPCTRAIN_SLURM_TIMEOUT": "10",
        }

    def type(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=self.directory,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=600,
            stdin=subprocess.DEVNULL,
        )

    def submit(self, *options: str) -> subprocess.CompletedProcess[str]:
        size = (
            "--launcher",
            "srun",
            "--mem",
            "200M",
            "--cpus-per-task",
            "1",
            "--time",
            "20",
            "--no-check",
        )
        return self.type(
            HPCTRAIN,
            "submit",
            "--script",
            "train.py",
            "--job-name",
            self.name,
            *size,
            *options,
            "--parsable",
        )

    def jobs(self) -> list[tuple[str, str]]:
        """Return (job id, dependency as Slurm was told it) of all that Slurm has under this name."""
        asked = self.type(
            "sacct",
            "-X",
            "-n",
            "-P",
            "--name",
            self.name,
            "-S",
            "now-1hour",
            "-o",
            "JobIDRaw,SubmitLine",
        )
        rows = [line.split("|") for line in asked.stdout.splitlines()]
        found = [(job, re.search(r"--dependency=(\S+)", line)) for job, line in rows]
        return sorted((job, match[1] if match else "") for job, match in found)

    def asked(self) -> int:
        path = self.directory / "asked"
        return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_chain_whose_sbatch_never_answers_is_submitted_once_each(
    tmp_path: Path, lab_env: dict[str, str]
) -> None:
    project = Project(tmp_path, lab_env, LOST)
    done = project.submit("--restart", "chain", "--max-restarts", "2")
    assert done.returncode == 0, done.stderr
    first, second, third = (line.partition(";")[0] for line in done.stdout.split())
    wait_until(lambda: len(project.jobs()) == 3, "three jobs in the accounting")
    assert project.jobs() == sorted(
        [(first, ""), (second, f"afterany:{first}"), (third, f"afterany:{second}")]
    )
    assert project.asked() == 3


def test_an_array_whose_sbatch_never_answers_is_submitted_once(
    tmp_path: Path, lab_env: dict[str, str]
) -> None:
    project = Project(tmp_path, lab_env, LOST)
    done = project.submit("--array", "0-2")
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    ended = [f"{job}_{index}|COMPLETED" for index in range(3)]
    ask = ("sacct", "-X", "-n", "-P", "-j", job, "-o", "JobID,State")
    wait_until(lambda: project.type(*ask).stdout.split() == ended, "three tasks have ended")
    assert len(project.jobs()) == 3
    assert project.asked() == 1


def test_a_job_that_arrives_late_is_waited_for_and_then_found(
    tmp_path: Path, lab_env: dict[str, str]
) -> None:
    project = Project(tmp_path, lab_env, LATE, seconds=600)
    unknown = project.submit()
    assert unknown.returncode == 3
    assert "whether the job exists is unknown" in unknown.stderr
    assert project.jobs() == []
    impatient = project.submit()
    assert impatient.returncode == 3
    assert "has not been answered, and may still arrive" in impatient.stderr
    (tmp_path / "asked.go").touch()
    wait_until(lambda: len(project.jobs()) == 1, "the job arrives")
    ((job, _),) = project.jobs()
    try:
        wait_until(
            lambda: list((tmp_path / "runs").glob("*/attempts/*/start.json")), "the job starts"
        )
        found = project.submit()
        assert found.returncode == 1, found.stderr
        assert f"job {job} is the earlier" in found.stderr
        assert [each for each, _ in project.jobs()] == [job]
        assert project.asked() == 1
    finally:
        project.type("scancel", job)
