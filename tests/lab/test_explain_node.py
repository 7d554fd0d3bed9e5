"""A node that dies under a job, explained: in a lab of its own, whose nodes may die."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))
from rough_lab import RoughLab

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

HPCTRAIN = str(Path(sys.executable).with_name("hpctrain"))
BODY = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --mem=100 --time=5 --no-requeue
srun --kill-on-bad-exit=1 bash -c 'for step in $(seq 300); do echo "step $step of 300 on $SLURMD_NODENAME"; sleep 1; done'
"""


@pytest.fixture(scope="module")
def rough(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoughLab]:
    made = RoughLab(tmp_path_factory.mktemp("state"), number=3)
    yield made
    subprocess.run([sys.executable, str(Path(__file__).with_name("lab")), "down"], env={**made.env, "HPCTRAIN_LAB_NUMBER": "3"}, check=True)


def wait_for(condition: object, what: str, timeout_s: float = 120.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, what
        time.sleep(0.5)


def test_a_node_that_dies(rough: RoughLab, tmp_path: Path) -> None:
    (tmp_path / "job.sbatch").write_text(BODY)
    job = rough.run("sbatch", "--parsable", f"--output={tmp_path}/%j.out", "job.sbatch", cwd=tmp_path)
    log, node = tmp_path / f"{job}.out", rough.nodes[1]
    wait_for(lambda: log.exists() and f"step 3 of 300 on {node}" in log.read_text(), "the job runs on both nodes")
    pids = rough.pids_on(node, {job})
    rough.kill_daemon(f"slurmd-{node}", signal.SIGKILL)
    for pid in pids:
        if psutil.pid_exists(pid):
            psutil.Process(pid).kill()
    wait_for(lambda: rough.queued(job) is None, "Slurm notices that the node is gone")
    wait_for(lambda: "NODE_FAIL" in rough.run("sacct", "-nPX", "-j", job, "-o", "State"), "sacct says so")
    done = subprocess.run([HPCTRAIN, "explain", job, "--json"], cwd=tmp_path, env=rough.env, capture_output=True, text=True)
    found = json.loads(done.stdout)["diagnoses"]
    assert [(each["id"], each["certainty"]) for each in found] == [("node-fail", "certain")], done.stdout + done.stderr + log.read_text()
    assert found[0]["node"] == node
    assert node in found[0]["fix"], found
