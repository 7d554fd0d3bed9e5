"""A node that dies under a job, and jobs that others preempt, explained: in a lab of its own, whose
nodes may die.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.chaos.rough_lab import RoughLab
from tests.lab.typist import HPCTRAIN
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.extended]

BODY = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --mem=100 --time=30 --no-requeue
srun --kill-on-bad-exit=1 bash -c 'for step in $(seq 1500); do echo "step $step of 1500 on $SLURMD_NODENAME"; sleep 1; done'
"""


@pytest.fixture(scope="module")
def rough(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoughLab]:
    made = RoughLab(tmp_path_factory.mktemp("state"), number=3)
    yield made
    subprocess.run(
        [sys.executable, str(Path(__file__).with_name("lab")), "down"],
        env={**made.env, "HPCTRAIN_LAB_NUMBER": "3"},
        check=True,
    )


def test_a_node_that_dies(rough: RoughLab, tmp_path: Path) -> None:
    (tmp_path / "job.sbatch").write_text(BODY)
    job = rough.run(
        "sbatch", "--parsable", f"--output={tmp_path}/%j.out", "job.sbatch", cwd=tmp_path
    )
    log, node = tmp_path / f"{job}.out", rough.nodes[1]
    wait_until(
        lambda: log.exists() and f"step 3 of 1500 on {node}" in log.read_text(),
        "the job runs on both nodes",
    )
    pids = rough.pids_on(node, {job})
    rough.kill_daemon(f"slurmd-{node}", signal.SIGKILL)
    for pid in pids:
        if psutil.pid_exists(pid):
            psutil.Process(pid).kill()
    wait_until(lambda: rough.queued(job) is None, "Slurm notices that the node is gone")
    wait_until(
        lambda: "NODE_FAIL" in rough.run("sacct", "-nPX", "-j", job, "-o", "State"), "sacct says so"
    )
    done = subprocess.run(
        [HPCTRAIN, "explain", job, "--json"],
        cwd=tmp_path,
        env=rough.env,
        capture_output=True,
        text=True,
    )
    found = json.loads(done.stdout)["diagnoses"]
    assert [(each["id"], each["certainty"]) for each in found] == [("node-fail", "certain")], (
        done.stdout + done.stderr + log.read_text()
    )
    assert found[0]["node"] == node
    assert node in found[0]["fix"], found
