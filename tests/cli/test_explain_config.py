"""What explain knows of the config of a run that failed twice, of what was typed behind `--`, and of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hpctrain.cli import explain_case, explain_config
from hpctrain.explain.case import Case
from hpctrain.scheduler.parse.accounting import Account

if TYPE_CHECKING:
    from conftest import Desk

OOM = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed."
NEVER_ENOUGH = f"import sys\nsys.stderr.write({OOM!r} + '\\n')\nsys.exit(137)\n"


@pytest.mark.slow
@pytest.mark.usefixtures("no_slurm")
def test_a_second_failure_is_explained_with_the_numbers_of_the_second_start(desk: Desk) -> None:
    desk.write("train.py", NEVER_ENOUGH)
    desk.write("config.yaml", "script: train.py\nlauncher: srun\nresources: {mem: 64G}\ntraining: {learning_rate: 1e-5}\n")
    assert desk.run("submit", "--local", "--wait", "--run-id", "r1", "--", "--learning_rate=1e-3", "--max-steps", "7", "--bf16").code == 137
    first = explain_case.explanation("r1")
    assert first.explanation.diagnoses[0].fix.text.startswith("--mem 64G -> 96G")
    assert first.case.config is not None
    assert first.case.config["training"] == {"learning_rate": "1e-3", "max_steps": "7", "bf16": "true"}
    assert desk.run("resubmit", "r1", "--apply-fix", "--local", "--wait").code == 137
    second = explain_case.explanation("r1")
    assert second.explanation.diagnoses[0].fix.text.startswith("--mem 96G -> ")
    assert second.case.config is not None
    assert second.case.config["training"]["learning_rate"] == "1e-3"


def test_the_profile_that_the_config_names_says_what_the_partition_has() -> None:
    config = {"cluster": "leonardo", "resources": {"partition": "boost_usr_prod"}}
    known = explain_config.with_cluster(Case(config=config))
    assert known.extra["profile"]["name"] == "leonardo"
    assert known.extra["time_max_s"] == 24 * 3600
    assert known.extra["cpus_per_node"] == 32
    assert known.gpu_memory_bytes is not None
    assert explain_config.with_cluster(Case(config={"cluster": "nowhere"})).extra == {}


def test_the_people_of_a_job_that_was_cancelled() -> None:
    account = Account(job_id="7", scheduler="local", state="CANCELLED", user="root", cancelled_by=0)
    assert explain_config.with_cluster(Case(account=account)).extra == {"canceller": "root", "owner_uid": 0}
    nobody = Account(job_id="7", scheduler="local", state="CANCELLED", user="no-such-user", cancelled_by=4_000_000)
    assert explain_config.with_cluster(Case(account=nobody)).extra == {}
