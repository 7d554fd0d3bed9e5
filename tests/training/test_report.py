"""`hpctrain report` of a real training that was killed between two checkpoints and resubmitted:
nothing of it is made by hand.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import survival

from tests.waiting import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.usefixtures("no_slurm")]
HPCTRAIN = str(Path(sys.executable).with_name("hpctrain"))
STEPS, SAVES = 60, 20
#: So that the kill comes before the second checkpoint.
SLOW_STEPS = {
    "PYTHONPATH": str(Path(__file__).parents[1] / "chaos" / "slow_steps"),
    "CHAOS_STEP_SECONDS": "0.3",
}


def rows(run: Path) -> list[list[dict[str, object]]]:
    """Return the whole rows of each start, oldest first."""
    files = sorted(run.glob("attempts/*/metrics.jsonl"), key=lambda path: path.stat().st_ctime)
    return [[json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] for path in files]


def steps(start: list[dict[str, object]]) -> list[int]:
    return [row["step"] for row in start if "loss" in row and isinstance(row["step"], int)]


def killed_behind(step: int, run: Path) -> None:
    """Kill the training with SIGKILL when it has logged `step`."""
    while not any(done >= step for start in rows(run) for done in steps(start)):
        time.sleep(0.01)  # it trains fast
    for process in psutil.process_iter():
        try:
            if survival.SFT in process.cmdline() and process.environ().get(
                "HPCTRAIN_RUN_DIR"
            ) == str(run):
                process.kill()
        except psutil.Error:
            continue


def test_a_killed_and_resubmitted_training(
    tiny: tuple[str, str], environment: dict[str, str], tmp_path: Path
) -> None:
    options = {
        **survival.BASE,
        "max_steps": STEPS,
        "save_steps": SAVES,
        "logging_steps": 1,
        "eval_strategy": "no",
        "memory_every": 5,
    }
    training = {"model_name_or_path": tiny[0], "dataset_name": tiny[1], **options}
    resources, venv = {"nodes": 1, "gpus": 1, "time": 10}, str(Path(sys.executable).parents[1])
    config = {
        "job_name": "sft",
        "resources": resources,
        "environment": {"venv": venv},
        "training": training,
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    surroundings = {**environment, "HPCTRAIN_STATE_DIR": str(tmp_path / "state")}

    def hpctrain(*words: str, code: int | None = 0, **variables: str) -> str:
        done = subprocess.run(
            [HPCTRAIN, *words],
            cwd=tmp_path,
            env=surroundings | variables,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return done.stdout

    run = tmp_path / "runs" / "r"
    hpctrain("submit", "--local", "--run-id", "r", "--no-check", "--no-snapshot", **SLOW_STEPS)
    killed_behind(SAVES + 4, run)
    wait_until(lambda: json.loads(hpctrain("report", "r", "--json"))["state"] != "running")
    hpctrain("resubmit", "r", "--local", "--wait")

    first, second = rows(run)
    assert steps(second) == list(range(SAVES + 1, STEPS + 1)), (
        "the second start goes on from the checkpoint"
    )
    lost = steps(first)[-1] - SAVES
    assert lost > 0
    said = json.loads(hpctrain("report", "r", "--json"))
    assert (said["state"], said["step"], said["max_steps"], said["lost_steps"]) == (
        "completed",
        STEPS,
        STEPS,
        lost,
    )
    assert [
        (start["first_step"], start["last_step"], start["lost_steps"]) for start in said["starts"]
    ] == [
        (0, SAVES + lost, lost),
        (SAVES, STEPS, 0),
    ]
    assert [start["outcome"] for start in said["starts"]] == ["failed", "completed"]
    drawn = {
        point["step"]: point["values"]["loss"]
        for point in said["points"]
        if point["event"] == "log" and "loss" in point["values"]
    }
    kept = {
        row["step"]: row["loss"]
        for row in (*first, *second)
        if row["event"] == "log" and "loss" in row
    }
    assert drawn == kept, (
        "the loss of both starts, and of a step that was done twice that of the second"
    )
    assert {part["id"] for part in said["efficiency"]["parts"]} >= {"training", "loading", "lost"}
    hpctrain("report", "r")
    page = (run / "report.html").read_text()
    loss = page.partition('id="loss"')[2].partition("</svg>")[0]
    assert f"resumed at step {SAVES}" in loss, "the restart stands on the axis"
    assert "steps that a later start repeated" in page
