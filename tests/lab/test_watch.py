"""`hpctrain watch` on a real Slurm: through the queue, a start, a requeue, a cancellation; and how
often Slurm is asked.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.typist import HPCTRAIN

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
#: Its steps; then it waits for the file `go.0`, after a requeue for `go.1`.
TRAIN = """\
import json, os, sys, time
run, attempt = os.environ["HPCTRAIN_RUN_DIR"], os.environ["HPCTRAIN_ATTEMPT"]
with open(f"{run}/attempts/{attempt}/metrics.jsonl", "a", buffering=1) as metrics:
    for step in range(1, 11):
        print(json.dumps({"event": "log", "step": step, "epoch": 0.1, "at": time.time(), "loss": 10.0 - step}), file=metrics)
while not os.path.exists("go" + attempt[attempt.rindex("."):]):
    time.sleep(0.1)
sys.exit(85 if attempt.endswith(".0") and "requeue" in sys.argv else 0)
"""


@pytest.fixture
def project(tmp_path: Path, lab_env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in lab_env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "config.yaml").write_text(
        "script: train.py\nlauncher: srun\nresources: {time: 60}\nrestart: {mode: requeue, max:"
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


def watch(act: Callable[[dict[str, Any]], object]) -> tuple[int, list[dict[str, Any]]]:
    """Watch the run to its end, and act on each row; return the exit code and the rows."""
    rows = []
    words = [HPCTRAIN, "watch", "r", "--json", "--exit-status"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            rows.append(json.loads(line))
            act(rows[-1])
    return process.returncode, rows


def test_a_job_is_followed_from_the_queue_to_its_end(project: Path) -> None:
    job = submit("--sbatch", "begin=now+1hour")

    def act(row: dict[str, Any]) -> None:
        state = row.get("state"), row.get("reason")
        if state == ("PENDING", "BeginTime"):
            subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=True)
        elif state[0] == "RUNNING":
            (project / "go.0").touch()

    code, rows = watch(act)
    assert code == 0
    states = [row["state"] for row in rows if row["change"] == "state"]
    assert states[0] == "PENDING"
    assert "RUNNING" in states
    waits = next(row for row in rows if row.get("reason") == "BeginTime")
    assert "begin time has not come" in waits["text"]
    assert {row["job"] for row in rows} == {job}
    assert max(row["step"] for row in rows if row["change"] == "step") == 10
    assert rows[-1]["change"] == "end"


def test_a_requeued_job_is_followed_through_both_starts(project: Path) -> None:
    submit("--", "requeue")

    def act(row: dict[str, Any]) -> None:
        if row.get("state") == "RUNNING":
            (project / ("go.1" if "start 2" in row["text"] else "go.0")).touch()

    code, rows = watch(act)
    assert code == 0
    assert any("start 2" in row["text"] for row in rows if row["change"] == "state")
    assert len(list(Path("runs/r/attempts").glob("*/end.json"))) == 2
