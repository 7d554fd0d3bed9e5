"""A node that dies under a job, and jobs that others preempt, explained: in a lab of its own, whose
nodes may die.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


LOSES = """\
#!/bin/bash
#SBATCH --exclusive --ntasks-per-node=1 --mem=100 --time=30 --open-mode=append
trap '' %(deaf)s
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then echo "step 1500 of 1500"; exit 0; fi
srun bash -c 'trap "" %(deaf)s; for step in $(seq 1500); do echo "step $step of 1500"; sleep 1; done'
"""


def preempted(
    rough: RoughLab, folder: Path, partition: str, node: str, *, deaf: str = "USR2"
) -> str:
    """Return a job that runs, and that a job of higher priority is going to drive out; it does not
    hear a signal.
    """
    (folder / "loses.sbatch").write_text(LOSES % {"deaf": deaf})
    where = (f"--partition={partition}", f"--nodelist={node}", f"--output={folder}/%j.out")
    job = rough.run("sbatch", "--parsable", *where, "loses.sbatch", cwd=folder).strip()
    log = folder / f"{job}.out"
    wait_until(lambda: log.exists() and "step 2 of 1500" in log.read_text(), "the job runs")
    rough.run(
        "sbatch",
        "--partition=high",
        "--exclusive",
        f"--nodelist={node}",
        "--mem=50",
        f"--output={folder}/wins.out",
        "--wrap=sleep 1",
    )
    return job


def explained(rough: RoughLab, folder: Path, job: str) -> list[dict[str, Any]]:
    environment = {**rough.env, "HPCTRAIN_STATE_DIR": str(folder / f"state-{job}")}
    said = subprocess.run(
        [HPCTRAIN, "explain", job, "--json"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    found: list[dict[str, Any]] = json.loads(said.stdout)["diagnoses"]
    return found


def state(rough: RoughLab, job: str) -> str:
    return rough.run("sacct", "-nPX", "-j", job, "-o", "State").strip()


def test_jobs_that_others_preempt(rough: RoughLab, tmp_path: Path) -> None:
    """One goes on until it is killed; one ends at the signal, so that nothing says who sent it; one
    is requeued, and has completed.
    """
    first, second = rough.nodes
    rough.up()  # the node that died
    wait_until(
        lambda: "idle" in rough.run("sinfo", "-h", "-n", second, "-o", "%T"), "the node is back"
    )
    polite, requeued = (
        preempted(rough, tmp_path, "low_cancel", first),
        preempted(rough, tmp_path, "low", second),
    )
    wait_until(lambda: state(rough, polite) in ("FAILED", "PREEMPTED"), "it ends")
    found = explained(rough, tmp_path, polite)
    if state(rough, polite) == "FAILED":  # Slurm 22.05 does not say why; 24.11 does
        assert [(each["id"], each["certainty"]) for each in found] == [("interrupted", "likely")], (
            found
        )
        assert "preemption" in found[0]["fix"]
    else:
        assert [(each["id"], each["certainty"]) for each in found] == [("preempted", "certain")], (
            found
        )
    deaf = preempted(rough, tmp_path, "low_cancel", first, deaf="TERM")
    wait_until(lambda: state(rough, requeued) == "COMPLETED", "it has run again")
    assert explained(rough, tmp_path, requeued) == []
    wait_until(lambda: state(rough, deaf) == "PREEMPTED", "it is killed when its time is over")
    found = explained(rough, tmp_path, deaf)
    assert [(each["id"], each["certainty"], each["node"]) for each in found] == [
        ("preempted", "certain", first)
    ], found
