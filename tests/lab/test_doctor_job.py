"""The preflight job on a real Slurm: two nodes report over gloo, and what is broken is said."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.lab.typist import HPCTRAIN, Typist

pytestmark = [pytest.mark.slurm, pytest.mark.torch, pytest.mark.slow]

NODES = (
    "--job",
    "--nodes",
    "2",
    "--gpus",
    "1",
    "--mem",
    "3G",
    "--cpus-per-task",
    "1",
    "--partition",
    "boost_usr_prod",
)


class User(Typist):
    def doctor(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.type(HPCTRAIN, "doctor", "--json", *words, code=code).stdout)


@pytest.fixture
def user(tmp_path: Path, lab_env: dict[str, str]) -> User:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/part.arrow").write_bytes(os.urandom(4 << 20))
    return User(tmp_path, lab_env)


def test_two_nodes_report(user: User) -> None:
    found = user.doctor(*NODES, "--launcher", "accelerate", "--", "--dataset_name", "data")
    assert found["state"] == "COMPLETED"
    assert [node["host"] for node in found["nodes"]] == ["node1", "node2"]
    for node in found["nodes"]:
        assert node["gpus_given"] == 1
        assert node["read"]["error"] is None
        assert node["write"]["error"] is None
    assert [(rank["cpus_per_task"], rank["done"]) for rank in found["ranks"]] == [(1, True)] * 2
    assert all(speed["right"] and speed["ranks"] == 2 for speed in found["all_reduce"])
    assert [finding["level"] for finding in found["findings"]] == ["note"]


def test_gpus_that_are_not_there_are_said(user: User) -> None:
    """Slurm gives two of the lab's GPUs on each node; torch can use none of them."""
    del user.environment["ACCELERATE_USE_CPU"]
    words = [*NODES]
    words[words.index("--gpus") + 1] = "2"
    found = user.doctor(*words, "--launcher", "torchrun", code=1)
    assert found["state"] == "COMPLETED", "the rest was tried on the CPU"
    (finding,) = [finding for finding in found["findings"] if finding["id"] == "node-gpus-missing"]
    assert (finding["level"], finding["what"]) == ("error", "node[1-2]: 0 of 2 GPUs")
    assert {speed["group"] for speed in found["all_reduce"]} == {"node1", "node2", "all"}


def test_the_login_node_knows_the_lab(user: User) -> None:
    (user.directory / "train.py").write_text("")
    found = user.doctor("--quick", "--script", "train.py", "--launcher", "srun")
    slurm = next(probe for probe in found["probes"] if probe["probe"] == "slurm")
    assert slurm["result"] == "ok"
    assert "proj_b" in slurm["sentence"]
    assert "euhpc_a06_067" in slurm["sentence"]
