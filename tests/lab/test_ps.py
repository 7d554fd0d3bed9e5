"""`hpctrain ps` and accounts on the real Slurm: what waits, and what sacct
says of what ended.
"""

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain.slurm.client import SlurmScheduler
from hpctrain.slurm.notations.records import JobRecord
from tests.lab.conftest import Lab
from tests.lab.typist import HPCTRAIN, Typist

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
MIB = 1024**2
#: Its nodes are node7 and node8.
NUMBER = 4
Ps = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def lab(another_lab: Callable[[int], Lab]) -> Lab:
    """Return a lab that nobody else has jobs in: who is first in line depends on all of
    them.
    """
    return another_lab(NUMBER)


@pytest.fixture
def lab_env(lab: Lab) -> dict[str, str]:
    """Return the environment of that lab."""
    return lab.env


@pytest.fixture(autouse=True)
def _lab_here(lab_env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, lab_env[name])


@pytest.fixture
def ps(lab_env: dict[str, str], tmp_path: Path) -> Ps:
    """Return a function that types `hpctrain ps`."""
    typist = Typist(tmp_path, lab_env)
    return lambda *words: typist.type(HPCTRAIN, "ps", *words, code=0)


def account(job_id: str) -> JobRecord:
    [found] = SlurmScheduler().accounts([job_id])
    return found


def shown(ps: Ps, job_id: str, *words: str) -> dict[str, Any]:
    return next(
        job for job in json.loads(ps("--json", *words).stdout)["jobs"] if job["job_id"] == job_id
    )


def planned(lab: Lab, job_id: str) -> None:
    """Wait until the backfill scheduler has an expected start for a job, and the main one has seen
    that it is the first in line.
    """
    deadline = time.monotonic() + 600
    while (said := lab.run("squeue", "-h", "-j", job_id, "-o", "%S %r").stdout.split())[:1] in (
        [],
        ["N/A"],
    ) or said[1] != "Resources":
        assert time.monotonic() < deadline, said
        time.sleep(1)


def test_a_job_that_waits_for_nodes(lab: Lab, ps: Ps, tmp_path: Path) -> None:
    holds = lab.submit(
        "sleep 1200",
        tmp_path,
        "--nodes=1",
        "--nodelist=node7",
        "--gres=gpu:4",
        "--time=20",
        "--mem=100",
        "--priority=4294967290",
    )
    waits = lab.submit(
        "srun sleep 5",
        tmp_path,
        "--nodes=2",
        "--gres=gpu:4",
        "--time=20",
        "--mem=100",
        "--job-name=large",
    )
    behind = lab.submit("true", tmp_path, "--nodes=2", "--gres=gpu:4", "--time=20", "--mem=100")
    held = lab.submit("true", tmp_path, "--hold")
    after = lab.submit("true", tmp_path, f"--dependency=afterok:{waits}")
    try:
        planned(lab, waits)
        table = {line.split()[0]: line for line in ps().stdout.splitlines()}
        assert re.search(r" RUNNING .* slurm", table[holds])
        assert re.search(
            r"waiting: .*; Slurm expects (tomorrow )?\d\d:\d\d$",
            table[waits],
        )
        assert "waiting: " in table[behind]
        assert table[held].endswith("waiting: held by you")
        assert table[after].endswith("waiting: a job it depends on has not ended yet")

        job = shown(ps, waits, waits)
        expected = int(
            lab.run("squeue", "-h", "-j", waits, "-o", "%S", check=False).stdout.strip() != ""
        )
        assert expected
        assert 0 < job["expected"] - time.time() < 1300, (
            "when the job that holds the first node has to end"
        )
        assert job["pending"]["expected"] == job["expected"]
    finally:
        lab.run("scancel", holds, waits, behind, held, after, check=False)


def test_a_step_that_the_kernel_killed(lab: Lab, tmp_path: Path) -> None:
    hungry = (
        "srun -n1 python3 -c \"held = bytearray(400 << 20); held[::4096] = b'x' *"
        ' len(held[::4096])"'
    )
    job = lab.submit(hungry, tmp_path, "--mem=100", "--time=5", "--gres=gpu:2")
    lab.finished(job)
    found = account(job)
    assert (found.state, found.exit_code, found.memory_bytes, found.gpus, found.nodes) == (
        "OUT_OF_MEMORY",
        1,
        100 * MIB,
        2,
        found.nodes,
    )
    killed = next(step for step in found.steps if step.name == "0")
    assert (killed.state, killed.signal) == ("OUT_OF_MEMORY", 125)
    assert (found.source, found.time_limit_s, found.account, found.qos, found.user) == (
        "sacct",
        300,
        "proj_b",
        "normal",
        "root",
    )


def test_tasks_of_an_array(lab: Lab, ps: Ps, tmp_path: Path) -> None:
    job = lab.submit(
        "exit $((SLURM_ARRAY_TASK_ID % 2))", tmp_path, "--array=0-3", "--mem=50", "--time=5"
    )
    for task in range(4):
        lab.finished(f"{job}_{task}")
    found = SlurmScheduler().accounts([job])
    assert [(each.job_id, each.exit_code) for each in found] == [
        (f"{job}_{task}", task % 2) for task in range(4)
    ]
    assert {each.slurm_job_id for each in found} == {str(int(job) + number) for number in range(4)}
    out = ps().stdout
    assert f"{job}_[0,2]" in out
    assert f"{job}_[1,3]" in out
