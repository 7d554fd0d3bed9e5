"""The dataset on each node's own storage, and compiled kernels that outlive a restart, on Slurm."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.typist import HPCTRAIN, Typist
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

#: Each process says what it finds, leaves a compiled kernel, and ends as the file `how` says.
TRAIN = """
import json, os, sys, time
from pathlib import Path
data, kernels = Path(os.environ["HPCTRAIN_DATA"]), Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
found = {"node": os.environ["SLURMD_NODENAME"], "data": str(data), "kernels": str(kernels)}
found["rows"] = (data / "rows.txt").read_text()
found["compiled"] = [path.read_text() for path in kernels.glob("kernel-*")]
rank = os.environ["RANK"]
kernels.mkdir(parents=True, exist_ok=True)
(kernels / f"kernel-{rank}").write_text(rank)
Path(f"said.{os.environ['HPCTRAIN_ATTEMPT']}.{rank}").write_text(json.dumps(found))
how = Path("how").read_text()
time.sleep(300 if how == "long" else 0)
if how == "requeue":  # rank 0 says how it ended; the other ranks' own exit status says nothing of it
    place = Path(os.environ["HPCTRAIN_RUN_DIR"], "attempts", os.environ["HPCTRAIN_ATTEMPT"])
    if rank == "0":
        ended = "0 completed" if "SLURM_RESTART_COUNT" in os.environ else "85 deadline"
        (place / "exit.new").write_text(ended)
        (place / "exit.new").rename(place / "exit")
    while not (place / "exit").exists():
        time.sleep(0.05)
    how = "0"
sys.exit(int(how))
"""


class Project(Typist):
    """A project whose training reads the dataset `data/rows`, with one task for each of 2 x 2 GPUs."""

    def configure(self, launcher: str = "srun", how: str = "0", **data: str) -> None:
        (self.directory / "train.py").write_text(TRAIN)
        (self.directory / "how").write_text(how)
        resources = {"nodes": 2, "gpus": 2, "cpus_per_task": 2, "mem": "1G", "time": 5}
        config: dict[str, Any] = {"launcher": launcher, "script": "train.py"}
        config |= {"resources": resources, "data": {"stage": "local", "path": "data/rows", **data}}
        (self.directory / "config.yaml").write_text(yaml.safe_dump(config))
        (self.directory / "data/rows").mkdir(parents=True, exist_ok=True)
        (self.directory / "data/rows/rows.txt").write_text("1 2 3")

    def submit(self, *words: str) -> subprocess.CompletedProcess[str]:
        self.type(HPCTRAIN, "render", "--force")
        return self.type(HPCTRAIN, "submit", "--no-check", *words)

    def said(self) -> list[dict[str, Any]]:
        """Return what the processes have found, and forget it."""
        files = sorted(self.directory.glob("said.*"))
        found = [json.loads(file.read_text()) for file in files]
        for file in files:
            file.unlink()
        return found

    def log(self, stream: str = "output") -> str:
        return (self.directory / f"logs/{stream}_sft.log").read_text()


@pytest.fixture
def project(tmp_path: Path, lab_env: dict[str, str]) -> Project:
    environment = {**lab_env, "TMPDIR": str(tmp_path / "local")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    (tmp_path / "local").mkdir()
    (tmp_path / "project").mkdir()
    return Project(tmp_path / "project", environment)


def left(project: Project) -> list[Path]:
    return list(Path(project.environment["TMPDIR"]).glob("*hpctrain*"))


@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_each_node_has_one_copy_until_the_job_ends(project: Project, launcher: str) -> None:
    project.configure(launcher)
    assert project.submit("--wait").returncode == 0, project.log("error")
    said = project.said()
    copies = {(one["node"], one["data"]) for one in said}
    assert len(copies) == 2, "one on each node"
    assert all(copy.startswith(project.environment["TMPDIR"]) for _, copy in copies)
    assert {one["rows"] for one in said} == {"1 2 3"}
    assert left(project) == [], "both ends have cleaned up"
    assert not list(project.directory.glob("runs/*/compile-cache/*")), "of a run that is over"


def test_a_requeued_job_copies_again_and_has_its_kernels(project: Project) -> None:
    project.configure(how="requeue")
    config = project.directory / "config.yaml"
    config.write_text(config.read_text() + "restart: {mode: requeue}\n")
    assert project.submit("--wait", "--run-id", "requeued").returncode == 0, project.log("error")
    first, second = (
        [one for one in said if bool(one["compiled"]) is restarted]
        for said in [project.said()]
        for restarted in (False, True)
    )
    assert len(first) == len(second) == 4
    assert {one["kernels"] for one in first} == {one["kernels"] for one in second}
    assert not {one["data"] for one in first} & {one["data"] for one in second}
    assert left(project) == []
    assert not list(project.directory.glob("runs/*/compile-cache/*"))


def test_a_cancelled_job_cleans_up_and_the_next_start_removes_what_is_left(
    project: Project,
) -> None:
    project.configure(how="long")
    submitted = project.submit("--run-id", "stopped")
    job = re.findall(r"\bjob (\d+)", submitted.stdout + submitted.stderr)[0]
    wait_until(lambda: len(list(project.directory.glob("said.*"))) == 4)
    copy = Path(project.said()[0]["data"]).parent
    project.type("scancel", job)
    wait_until(lambda: job not in project.type("squeue", "-h", "-o", "%i").stdout.split())
    assert left(project) == []
    copy.mkdir()  # as after SIGKILL, when nothing can clean up
    (project.directory / "how").write_text("0")
    assert project.submit("--wait", "--run-id", "stopped").returncode == 0, project.log("error")
    assert left(project) == []
