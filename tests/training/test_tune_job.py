"""Real studies: the shipped training on the local scheduler; trials that are stopped early, killed,
stopped and resumed.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.waiting import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.slow]

HOOK = """\
if [ "$index" = 0 ] && [ ! -e "$HPCTRAIN_RUN_DIR/once" ]; then
    touch "$HPCTRAIN_RUN_DIR/once" "$HPCTRAIN_RUN_DIR/stop"
fi
"""


def config(model: str, dataset: str, **more: Any) -> str:
    training = {
        "model_name_or_path": model,
        "dataset_name": dataset,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 8,
        "max_length": 32,
        "max_steps": 60,
        "logging_steps": 20,
        "eval_strategy": "steps",
        "eval_steps": 20,
        "save_strategy": "steps",
        "save_steps": 20,
        "memory_every": 0,
        **more,
    }
    return json.dumps(
        {
            "job_name": "lr",
            "launcher": "srun",
            "resources": {"time": 15},
            "environment": {
                "env": {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""},
                "before": ["hook.sh"],
            },
            "training": training,
            "tune": {
                "space": {"learning_rate": {"choices": [1e-3, 1.5e-3, 4e-3, 3e-3, 30.0]}},
                "trials": 5,
                "parallel": 2,
                "sampler": "random",
                "seed": 1918,  # with which each choice comes once, in this order
                "pruner": {"kind": "median", "startup_trials": 1},
            },
        }
    )


class Project:
    def __init__(self, directory: Path, hpctrain: str) -> None:
        self.directory, self.hpctrain = directory, hpctrain
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            # so that a kill or a stop meets the middle of a training
            "PYTHONPATH": str(Path(__file__).parents[1] / "chaos" / "slow_steps"),
            "CHAOS_STEP_SECONDS": "0.1",
        }

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [self.hpctrain, *words],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == code, done.stdout + done.stderr + self.logs()
        return done

    def logs(self) -> str:
        return "".join(
            path.read_text() for path in sorted((self.directory / "logs").glob("*_*_*.log"))
        )

    def rows(self) -> dict[int, dict[str, Any]]:
        return {
            row["number"]: row
            for row in json.loads(self.run("tune", "status", "--json").stdout)["rows"]
        }


@pytest.fixture
def project(tmp_path: Path, tiny: tuple[str, str], hpctrain: str) -> Project:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(json.loads(config(*tiny))))
    (tmp_path / "hook.sh").write_text(HOOK)
    return Project(tmp_path, hpctrain)


def kill_the_training(run: Path) -> None:
    """Kill the process that trains, as the kernel does when memory runs out, once it has a
    checkpoint to go on from.
    """
    while not list(run.glob("checkpoints/checkpoint-*/hpctrain.json")):
        time.sleep(0.01)  # it trains fast
    word = str(run / "trial.json")
    found = [
        each
        for each in psutil.process_iter(["cmdline", "create_time"])
        if word in (each.info["cmdline"] or [])
    ]
    assert found, "it has ended already"
    # The launcher in front of it has the same words on its command line.
    max(found, key=lambda each: float(each.info["create_time"])).kill()


def of_run(rows: dict[int, dict[str, Any]], index: int) -> list[dict[str, Any]]:
    return [row for row in rows.values() if row["run"] == f"T_{index}"]


@pytest.mark.extended
def test_a_study_with_trials_that_are_stopped_killed_and_resumed(project: Project) -> None:
    project.run("tune", "--local", "--run-id", "T")
    kill_the_training(project.directory / "runs" / "T_1")
    runs = project.directory / "runs"
    wait_until((runs / "T_4").is_dir)
    wait_until(lambda: len(list(runs.glob("T_*/attempts/*/end.json"))) >= 5)
    rows = project.rows()
    states = {index: [row["state"] for row in of_run(rows, index)] for index in range(5)}
    assert states[0] == ["running"], "stopped, and not over"
    assert states[1] == ["failed"]
    # The data are noise, so that a higher learning rate learns it by heart sooner: of the third and
    # the fourth, one may be stopped too.
    assert {*states[2], *states[3]} in ({"completed"}, {"completed", "pruned"})
    (bad,) = [row for row in rows.values() if row["params"] == {"learning_rate": 30.0}]
    assert bad["state"] == "pruned"
    folder = project.directory / "runs" / bad["run"]
    assert json.loads(next(folder.glob("attempts/*/end.json")).read_text())["reason"] == "pruned"
    assert not (folder / "model").exists()
    assert "the study prunes this trial at step" in project.logs()

    project.run("resubmit", "T", "--local", "--wait")
    after = project.rows()
    (same,) = of_run(after, 0)
    assert (same["number"], same["params"]) == (
        of_run(rows, 0)[0]["number"],
        of_run(rows, 0)[0]["params"],
    )
    assert same["state"] == "completed"
    failed, again = of_run(after, 1)
    assert (again["state"], again["params"], again["retry_of"]) == (
        "completed",
        failed["params"],
        failed["number"],
    )
    assert [report["step"] for report in again["reports"]] == [20, 40, 60], project.logs()
    assert "resum" in (project.logs()).lower()
    assert "nothing to submit" in project.run("tune", "--local").stderr

    best = json.loads(project.run("tune", "best", "--json").stdout)
    assert (Path(best["weights"]) / "model.safetensors").is_file()
    assert best["best"]["value"] == min(
        row["value"] for row in after.values() if row["state"] == "completed"
    )
    project.run("tune", "best", "--to", "best.yaml")
    rendered = project.run("render", "--config", "best.yaml", "--to", "-").stdout
    assert f"--learning_rate {best['best']['params']['learning_rate']!r}" in rendered
    (project.directory / "hook.sh").write_text("")
    project.run("submit", "--local", "--wait", "--config", "best.yaml", "--run-id", "final")
    lines = (project.directory / "runs/final").rglob("metrics.jsonl")
    evaluations = [
        json.loads(line)
        for path in lines
        for line in path.read_text().splitlines()
        if '"eval_loss"' in line
    ]
    assert evaluations[-1]["eval_loss"] == pytest.approx(best["best"]["value"]), (
        "the config of the best trial trains what the trial did"
    )


@pytest.mark.extended
def test_two_ranks_stop_at_the_same_step(project: Project, tiny: tuple[str, str]) -> None:
    text = json.loads(config(*tiny, ddp_find_unused_parameters=False))
    text["resources"]["gpus"], text["launcher"] = 2, "torchrun"
    text["tune"] |= {
        "space": {"learning_rate": {"choices": [1e-3, 30.0]}},
        "trials": 2,
        "parallel": 1,
        "seed": 0,
    }
    (project.directory / "config.yaml").write_text(yaml.safe_dump(text))
    (project.directory / "hook.sh").write_text("")
    project.run("tune", "--local", "--wait")
    rows = project.rows()
    assert [row["state"] for row in rows.values()] == ["completed", "pruned"]
    assert project.logs().count("the study prunes this trial at step 20") == 1
    assert max(report["step"] for report in rows[1]["reports"]) == 20
