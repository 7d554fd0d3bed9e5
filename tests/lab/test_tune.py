"""A study as a real array job: two trials at a time, one of them requeued in the middle, and the
config of the best one.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.typist import HPCTRAIN

pytestmark = [pytest.mark.slurm, pytest.mark.torch, pytest.mark.slow, pytest.mark.extended]

SLOW_STEPS = Path(__file__).parents[1] / "chaos" / "slow_steps"
CONFIG: dict[str, Any] = {
    "job_name": "study",
    "launcher": "srun",
    "resources": {
        "nodes": 1,
        "gpus_per_node": 1,
        "time": 10,
        "cpus_per_task": 2,
        "partition": "boost_usr_prod",
        "account": "proj_b",
        "mem": "2G",
    },
    "training": {
        "model_name_or_path": "model",
        "dataset_name": "few",
        "max_steps": 9,
        "per_device_train_batch_size": 2,
        "max_length": 32,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 3,
        "save_strategy": "steps",
        "save_steps": 3,
        "memory_every": 0,
        "learning_rate": 0.002,
    },
    "tune": {
        "study": "lr",
        "trials": 3,
        "parallel": 2,
        "pruner": "none",
        "space": {
            "learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
            "lr_scheduler_type": {"choices": ["linear", "cosine"]},
        },
    },
}


class Study:
    """A project directory with the demo's model, few of its data, and a study."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.directory = directory
        self.environment = environment | {
            "HPCTRAIN_STATE_DIR": os.environ["HPCTRAIN_STATE_DIR"],
            "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}",
            # The lab's GPUs are files that only Slurm counts; each step sleeps, so that a requeue
            # meets the middle of a training.
            "ACCELERATE_USE_CPU": "true",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(SLOW_STEPS),
            "CHAOS_STEP_SECONDS": "0.5",
        }

    def type(self, *words: str) -> str:
        done = subprocess.run(
            words,
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, (
            f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.logs()}"
        )
        return done.stdout

    def logs(self) -> str:
        return "".join(
            path.read_text() for path in sorted((self.directory / "logs").glob("*_*_*.log"))
        )

    def rows(self) -> dict[str, dict[str, Any]]:
        """Return the trials by the index of their task."""
        said = json.loads(self.type("hpctrain", "tune", "status", "--json"))
        return {row["run"].rpartition("_")[2]: row for row in said["rows"]}

    def tasks(self, array: str) -> dict[str, str]:
        """Return the tasks that run, and their states."""
        return dict(
            line.split()
            for line in self.type("squeue", "-h", "-r", "-j", array, "-o", "%K %T").splitlines()
        )

    def until(self, look: Callable[[], Any], timeout_s: float = 600) -> Any:
        end = time.monotonic() + timeout_s
        while not (found := look()):
            assert time.monotonic() < end, self.logs()
            time.sleep(0.3)
        return found


@pytest.fixture
def study(tmp_path: Path, lab_env: dict[str, str]) -> Study:
    import datasets

    subprocess.run(
        [HPCTRAIN, "prepare", "--demo", str(tmp_path / "demo")], check=True, capture_output=True
    )
    whole = datasets.load_from_disk(str(tmp_path / "demo" / "dataset"))
    rows = {"train": 48, "test": 8}
    datasets.DatasetDict(
        {name: whole[name].select(range(count)) for name, count in rows.items()}
    ).save_to_disk(str(tmp_path / "few"))
    shutil.move(tmp_path / "demo" / "model", tmp_path / "model")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    return Study(tmp_path, lab_env)


def test_a_study_is_an_array_whose_requeued_task_keeps_its_trial(study: Study) -> None:
    array = study.type("hpctrain", "tune", "--run-id", "T", "--parsable").strip()
    first = study.directory / "runs" / "T_0"
    most = 0

    def checkpoint() -> bool:
        nonlocal most
        most = max(most, list(study.tasks(array).values()).count("RUNNING"))
        return any(first.glob("checkpoints/checkpoint-*/hpctrain.json"))

    study.until(checkpoint)
    before = json.loads((first / "trial.json").read_text())
    study.type("scontrol", "requeue", f"{array}_0")

    def over() -> bool:
        nonlocal most
        tasks = study.tasks(array)
        most = max(most, list(tasks.values()).count("RUNNING"))
        return not tasks

    study.until(over)
    assert most == 2, "parallel"

    rows = study.rows()
    assert {index: row["state"] for index, row in rows.items()} == dict.fromkeys("012", "completed")
    assert sorted(row["number"] for row in rows.values()) == [
        0,
        1,
        2,
    ], "the requeued task asked for no other trial"
    assert (rows["0"]["number"], rows["0"]["params"]) == (before["number"], before["params"])
    assert [report["step"] for report in rows["0"]["reports"]] == [3, 6, 9]
    assert len(list(first.glob("attempts/*/start.json"))) == 2
    log = (study.directory / "logs" / f"output_study_{array}_0.log").read_text()
    assert f"trial {before['number']} of the study lr again" in log
    assert "[train] resumes " in log, "from its checkpoint"
    page = study.type("hpctrain", "tune", "status")
    best = min(rows.values(), key=lambda row: row["value"])
    assert page.startswith(
        f"study lr: 3 of 3 trials done; eval_loss, minimize\nbest: trial {best['number']} with "
    )

    study.type("hpctrain", "tune", "best", "--to", "best.yaml")
    script = study.type("hpctrain", "render", "--config", "best.yaml", "--to", "-")
    assert f"--learning_rate {best['params']['learning_rate']!r}" in script
    assert f"--lr_scheduler_type {best['params']['lr_scheduler_type']}" in script
    assert "hpctrain.training.trial" not in script
