"""`hpctrain cancel` of tasks of an array on a real Slurm, those that wait and those that run."""

import time
from pathlib import Path

import pytest

from hpctrain.runs import launch
from tests.lab.conftest import Lab
from tests.lab.typist import HPCTRAIN, Typist
from tests.runs import make
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

SMALL = ("--ntasks=1", "--mem=50", "--time=5")


def tasks(lab: Lab, job: str) -> dict[int, str]:
    """Return index → state of what squeue still shows as alive, each task by itself."""
    rows = lab.run("squeue", "-h", "-r", "-j", job, "-o", "%K %T").stdout.splitlines()
    return {
        int(index): state
        for index, state in map(str.split, rows)
        if state in ("PENDING", "RUNNING")
    }


def wait_for(lab: Lab, job: str, expected: dict[int, str]) -> None:
    wait_until(lambda: tasks(lab, job) == expected, f"{expected}")


def test_tasks_by_id_and_by_run(lab: Lab, tmp_path: Path) -> None:
    typist = Typist(tmp_path, lab.env)
    job = lab.submit("sleep 300", tmp_path, "--array=0-9%2", *SMALL)
    try:
        make.submission(tmp_path / "runs", "grid", job, array="0-9%2", offset=0)
        said = {
            "now": time.time(),
            "cwd": str(tmp_path),
            "version": "0",
            "argv": (),
            "points": 10,
            "table": "points.tsv",
        }
        launch.create(tmp_path / "runs", "grid", kind="sweep", name="grid", **said)
        alive = dict.fromkeys(range(10), "PENDING") | {0: "RUNNING", 1: "RUNNING"}
        wait_for(lab, job, alive)
        for words, gone in (
            ((f"{job}_9",), [9]),
            (("grid_8",), [8]),
            ((f"{job}_[6-7%2]",), [6, 7]),
            ((f"{job}_5", "grid_4"), [4, 5]),
        ):
            done = typist.type(HPCTRAIN, "cancel", *words)
            assert done.returncode == 0, done.stderr
            alive = {index: state for index, state in alive.items() if index not in gone}
            wait_for(lab, job, alive)
        assert typist.type(HPCTRAIN, "cancel", f"{job}_11").returncode == 2
        assert typist.type(HPCTRAIN, "cancel", "grid_11").returncode == 2
        done = typist.type(HPCTRAIN, "cancel", "grid_[1-2]")  # one that runs, one that waits
        assert done.returncode == 0, done.stderr
        wait_for(lab, job, {0: "RUNNING", 3: "RUNNING"})
    finally:
        lab.run("scancel", job)
