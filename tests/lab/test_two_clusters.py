"""Two clusters that share a home directory, a project and a job id: a bare number is this cluster's
job, and a run's job is its own's.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.conftest import Lab
from tests.lab.typist import HPCTRAIN
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.extended]

LAB = Path(__file__).with_name("lab")
NUMBER = "7"
TRAIN = """\
import os, time
print("trains on the cluster", os.environ["SLURM_CLUSTER_NAME"], flush=True)
time.sleep(600)
"""
CONFIG = (
    "script: train.py\nlauncher: srun\nresources: {gpus_per_node: 1, cpus_per_task: 1, mem: 200M,"
    " time: 0:09:00}\n"
)


@dataclass(frozen=True, slots=True)
class Site:
    """One of the clusters, the project, and what is typed there."""

    env: dict[str, str]
    project: Path

    def type_(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [HPCTRAIN, *words],
            cwd=self.project,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=600,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        return done

    def json(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.type_(*words, "--json").stdout)
        return found

    def run_of(self, job: str) -> str | None:
        [row] = self.json("ps", job)["jobs"]
        run: str | None = row["run"]
        return run

    def submit(self, run: str) -> str:
        return self.type_(
            "submit", "--run-id", run, "--job-name", f"of-{run}", "--parsable", "--no-check"
        ).stdout.strip()

    def state(self, job: str) -> str:
        asked = subprocess.run(
            ["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"],
            env=self.env,
            capture_output=True,
            text=True,
        )
        return asked.stdout.strip()


@pytest.fixture
def sites(lab: Lab, tmp_path: Path) -> Iterator[tuple[Site, Site, str]]:
    """Yield two clusters with a run each, `alpha` and `beta`, whose jobs have the same id, and that
    id.
    """
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "config.yaml").write_text(CONFIG)
    shared = {
        "HPCTRAIN_STATE_DIR": os.environ["HPCTRAIN_STATE_DIR"],
        "XDG_CONFIG_HOME": os.environ["XDG_CONFIG_HOME"],
    }
    one = Site({**lab.env, **shared}, tmp_path)
    job = one.submit("alpha")
    started = {**lab.env, "HPCTRAIN_LAB_NUMBER": NUMBER, "HPCTRAIN_LAB_FIRST_JOB_ID": job}
    started.pop("SLURM_CONF")
    try:
        up = subprocess.run(
            [sys.executable, str(LAB), "up"], env=started, capture_output=True, text=True
        )
        assert up.returncode == 0, up.stderr
        conf = up.stdout.strip().removeprefix("export SLURM_CONF=")
        two = Site({**lab.env, **shared, "SLURM_CONF": conf}, tmp_path)
        assert two.submit("beta") == job
        for run in ("alpha", "beta"):
            log = tmp_path / "logs" / f"output_of-{run}_{job}.log"
            wait_until(lambda log=log: log.exists() and "trains on" in log.read_text())  # type: ignore[misc]
        yield one, two, job
    finally:
        subprocess.run(["scancel", job], env=one.env, capture_output=True)
        subprocess.run([sys.executable, str(LAB), "down"], env=started, capture_output=True)


def test_a_number_is_this_cluster_s_job_and_a_run_s_job_is_its_own_cluster_s(
    sites: tuple[Site, Site, str],
) -> None:
    one, two, job = sites
    conf = Path(one.env["SLURM_CONF"]).read_text()
    first = conf.partition("ClusterName=")[2].split()[0]
    theirs = {"alpha": f"{job}@{first}", "beta": f"{job}@lab{NUMBER}"}
    for here, own, other, says in (
        (one, "alpha", "beta", f"cluster {first}\n"),
        (two, "beta", "alpha", f"cluster lab{NUMBER}\n"),
    ):
        assert here.run_of(job) == own
        assert [row["job_id"] for row in here.json("ps", own)["jobs"]] == [job]
        for word in (job, own):
            assert here.type_("logs", word).stdout.endswith(says)
        assert not here.type_("logs", other).stdout.endswith(
            says
        )  # what its files say, from either cluster
        assert f"run {own}," in here.type_("explain", job).stderr
        runs = {run["id"]: run for run in here.json("runs", "list")["runs"]}
        assert (runs[own]["state"], runs[own]["job_ids"]) == ("running", [job])
        assert (runs[other]["state"], runs[other]["job_ids"]) == ("unknown", [theirs[other]])
        assert here.json("runs", "show", other)["state"] == "unknown"
        assert here.json("report", own)["run"]["id"] == own
        said = [
            json.loads(line)
            for line in here.type_("watch", job, "--once", "--json").stdout.splitlines()
        ]
        assert {(each["run"], each["job"]) for each in said} == {(own, job)}
        for words in (
            ("ps", other),
            ("cancel", other),
            ("cancel", theirs[other]),
            ("submit", "--run-id", other, "--job-name", f"of-{other}"),
        ):
            here.type_(*words, code=2)
        here.type_("resubmit", other)  # which runs, as far as is known: nothing is left
        assert len(list(one.project.glob("runs/.launches/*/submissions/*.json"))) == 2
    # What an older hpctrain has written does not say the cluster; the comment of the job says whose
    # it is.
    for path in Path(one.env["HPCTRAIN_STATE_DIR"]).glob("submissions/*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "cluster": None}))
    assert (one.run_of(job), two.run_of(job)) == ("alpha", "beta")
    one.type_("cancel", job)
    wait_until(lambda: one.state(job) != "RUNNING")
    assert two.state(job) == "RUNNING"
    two.type_("cancel", "beta")
    wait_until(lambda: two.state(job) != "RUNNING")
    assert {run["state"] for run in two.json("runs", "list", "beta")["runs"]} == {"stopped"}
