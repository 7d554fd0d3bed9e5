"""A job on the CPU on purpose, on a real Slurm: it holds no GPU, and each node has one process that
knows of the others.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.lab.typist import HPCTRAIN

pytestmark = [pytest.mark.slurm, pytest.mark.extended]

TRAIN = """
import json, os
names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ACCELERATE_USE_CPU", "CUDA_VISIBLE_DEVICES", "SLURM_GPUS_ON_NODE")
open(f"rank-{os.environ['RANK']}.json", "w").write(json.dumps({name: os.environ.get(name) for name in names}))
"""


def test_a_job_on_the_cpu_of_two_nodes(tmp_path: Path, lab_env: dict[str, str]) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "config.yaml").write_text(
        "script: train.py\nlauncher: srun\nresources: {gpus_per_node: 0, nodes: 2, mem: 200M, time:"
        " 2}\n"
    )
    environment = {**lab_env, "HPCTRAIN_STATE_DIR": os.environ["HPCTRAIN_STATE_DIR"]}

    def type_(*words: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            words,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stderr
        return done

    words = ("--cpus-per-task", "2", "--no-snapshot", "--run-id", "cpu")
    job = type_(HPCTRAIN, "submit", "--wait", "--parsable", *words).stdout.split()[0]
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    assert [rank["RANK"] for rank in ranks] == ["0", "1"]
    for rank in ranks:
        assert (rank["WORLD_SIZE"], rank["LOCAL_WORLD_SIZE"]) == ("2", "1")
        assert (
            rank["ACCELERATE_USE_CPU"],
            rank["CUDA_VISIBLE_DEVICES"],
            rank["SLURM_GPUS_ON_NODE"],
        ) == ("true", "", None)
    allocated = type_("sacct", "-j", job, "-X", "-n", "-P", "-o", "AllocTRES").stdout
    assert "node=2" in allocated
    assert "gres" not in allocated
    for words in (
        ("watch", "--once", "cpu"),
        ("explain", "cpu"),
        ("report", "cpu"),
        ("runs", "show", "cpu"),
        ("ps",),
    ):
        type_(HPCTRAIN, *words)
