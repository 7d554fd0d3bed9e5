"""`hpctrain watch` on a real Slurm: through the queue, a start, a requeue, a cancellation; and how
often Slurm is asked.
"""

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.lab.typist import HPCTRAIN

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(600)]
TRAIN = """\
import json, os, sys, time
run, attempt = os.environ["HPCTRAIN_RUN_DIR"], os.environ["HPCTRAIN_ATTEMPT"]
with open(f"{run}/attempts/{attempt}/metrics.jsonl", "a", buffering=1) as metrics:
    for step in range(1, 11):
        print(json.dumps({"event": "log", "step": step, "epoch": 0.1, "at": time.time(), "loss": 10.0 - step}), file=metrics)
        time.sleep(float(sys.argv[1]))
sys.exit(85 if attempt.endswith(".0") and "requeue" in sys.argv else 0)
"""


@pytest.fixture
def project(tmp_path: Path, lab_env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in lab_env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "config.yaml").write_text(
        "script: train.py\nlauncher: srun\nresources: {time: 10}\nrestart: {mode: requeue, max:"
        f" 2}}\nenvironment: {{venv: {Path(sys.executable).parents[1]}}}\n"
    )
    return tmp_path


def submit(*words: str) -> str:
    done = subprocess.run(
        [HPCTRAIN, "submit", "--no-check", "--no-snapshot", "--parsable", "--run-id", "r", *words],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def watch(*words: str) -> tuple[int, list[dict[str, Any]]]:
    done = subprocess.run(
        [HPCTRAIN, "watch", "r", "--json", "--exit-status", *words], capture_output=True, text=True
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.usefixtures("project")
def test_a_job_is_followed_from_the_queue_to_its_end() -> None:
    job = submit("--sbatch", "begin=now+30", "--", "3")  # runs longer than between two questions
    code, rows = watch()
    assert code == 0
    states = [row["state"] for row in rows if row["change"] == "state"]
    assert states[0] == "PENDING"
    assert "RUNNING" in states
    waits = [
        row
        for row in rows
        if row["change"] == "state"
        and row["state"] == "PENDING"
        and row["reason"] not in (None, "None")
    ]
    assert waits[0]["reason"] == "BeginTime", "before the scheduler's first look there is no reason"
    assert "begin time has not come" in waits[0]["text"]
    assert {row["job"] for row in rows} == {job}
    assert max(row["step"] for row in rows if row["change"] == "step") == 10
    assert rows[-1]["change"] == "end"


@pytest.mark.usefixtures("project")
def test_a_requeued_job_is_followed_through_both_starts() -> None:
    submit("--", "3", "requeue")  # longer than watch looks away
    code, rows = watch()
    assert code == 0
    assert any("start 2" in row["text"] for row in rows if row["change"] == "state")
    assert len(list(Path("runs/r/attempts").glob("*/end.json"))) == 2


@pytest.mark.usefixtures("project")
def test_a_cancelled_job_is_told_and_slurm_is_asked_politely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = subprocess.run(
        ["which", "squeue"], capture_output=True, text=True, check=True
    ).stdout.strip()
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "squeue").write_text(
        f'#!/bin/bash\ndate +%s.%N >> {tmp_path}/asked\nexec {real} "$@"\n'
    )
    (programs / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    job = submit("--", "60")
    time.sleep(3)
    subprocess.Popen(["bash", "-c", f"sleep 40; scancel {job}"])
    code, rows = watch()
    assert code != 0
    assert "cancelled" in rows[-1]["text"]
    asked = [float(line) for line in (tmp_path / "asked").read_text().split()]
    assert min(after - before for before, after in itertools.pairwise(asked[1:])) >= 14.5
