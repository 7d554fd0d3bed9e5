"""`hpctrain submit --wait` on a real Slurm: back soon after the end, and few questions until then."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab.typist import HPCTRAIN

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.extended]
TRAIN = """\
import os, sys, time
run, attempt = os.environ["HPCTRAIN_RUN_DIR"], os.environ["HPCTRAIN_ATTEMPT"]
time.sleep(float(sys.argv[1]))
if "save" in sys.argv and not os.path.exists(f"{run}/once"):
    open(f"{run}/once", "w")
    open(f"{run}/attempts/{attempt}/exit", "w").write("85 deadline\\n")
    sys.exit(85)
sys.exit(int(sys.argv[2]))
"""
#: Seconds from the script's last word to the end of --wait: Slurm itself takes some to close a job,
#: and the machine may be busy.
SOON_S = 15.0


@pytest.fixture
def project(tmp_path: Path, lab_env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, and in front of Slurm's programs some that count the questions."""
    for name, value in lab_env.items():
        monkeypatch.setenv(name, value)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("squeue", "sacct", "scontrol"):
        (programs / name).write_text(
            f'#!/bin/bash\necho {name} >> {tmp_path}/asked\nexec {shutil.which(name)} "$@"\n'
        )
        (programs / name).chmod(0o755)
    monkeypatch.setenv("HPCTRAIN_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "config.yaml").write_text(
        "script: train.py\nlauncher: srun\nresources: {time: 5, mem: 100M, cpus_per_task: 1}\n"
        f"environment: {{venv: {Path(sys.executable).parents[1]}}}\n"
    )
    return tmp_path


def wait(project: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], float, int]:
    """Submit and wait; return what was said, the seconds since the last attempt's end, and how
    often Slurm was asked.
    """
    environment = {**os.environ, "PATH": f"{project / 'programs'}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [HPCTRAIN, "submit", "--no-check", "--no-snapshot", "--run-id", "r", "--wait", *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
    )
    now = time.time()
    ends = [
        json.loads(path.read_text())["at"] for path in project.glob("runs/r*/attempts/*/end.json")
    ]
    asked = project / "asked"
    return (
        done,
        now - max(ends),
        len([line for line in asked.read_text().splitlines() if line in ("squeue", "sacct")]),
    )


def test_it_ends_soon_after_the_job(project: Path) -> None:
    done, late, asked = wait(project, "--parsable", "--", "40", "3")
    assert done.returncode == 3, done.stderr
    assert late < SOON_S
    assert asked <= 12, "in 40 s and at the end"


def test_a_chain_ends_soon_after_its_last_link(project: Path) -> None:
    with (project / "config.yaml").open("a") as config:
        config.write("restart: {mode: chain, max: 2}\n")
    done, late, asked = wait(project, "--", "20", "0", "save")
    assert done.returncode == 0, done.stderr
    assert late < SOON_S, "the link that has nothing to do starts and ends, too"
    assert asked <= 20
    assert len(list(project.glob("runs/r/attempts/*/end.json"))) == 2
    assert "exit code 85" not in done.stderr
    listed = json.loads(
        subprocess.run(
            [HPCTRAIN, "ps", "--json"], capture_output=True, text=True, check=True
        ).stdout
    )["jobs"]
    first, second = [job for job in listed if job["run_dir"] == str(project / "runs" / "r")][:2]
    assert (first["state"], first["exit_code"]) == ("FAILED", 85)
    assert "time limit" in first["summary"]
    assert re.search(rf"\b{second['job_id']}\b", first["summary"])


def test_an_array_ends_soon_after_its_last_task(project: Path) -> None:
    with (project / "config.yaml").open("a") as config:
        config.write("sweep:\n  grid: {lr: [1, 2, 3]}\n")
    done, late, asked = wait(project, "--", "25", "0")
    assert done.returncode == 0, done.stderr
    assert late < SOON_S
    assert asked <= 15


def test_a_script_of_ones_own_is_asked_for_less_and_less(project: Path) -> None:
    (project / "own.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --output=own.log --mem=50 --time=5\nsleep 50; exit 4\n"
    )
    environment = {**os.environ, "PATH": f"{project / 'programs'}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [HPCTRAIN, "submit", "--no-check", "--wait", "own.sbatch"],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 4, done.stderr
    assert (project / "asked").read_text().count("squeue") <= 8
