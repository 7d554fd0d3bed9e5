"""`hpctrain report` of jobs on a real Slurm: what sacct accounts becomes hours, parts of the time,
and directives.
"""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab.conftest import Lab
from tests.lab.typist import HPCTRAIN

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
#: Steps 1 to 8, then a requeue; the second start resumes at 5, keeps a core busy, and holds 300
#: MiB.
TRAIN = """\
import json, os, sys, time
run, attempt = os.environ["HPCTRAIN_RUN_DIR"], os.environ["HPCTRAIN_ATTEMPT"]
first = attempt.endswith(".0") and "requeue" in sys.argv
begin, end = (0, 8) if first or "requeue" not in sys.argv else (5, 20)
held = bytearray(os.urandom(1 << 20) * 300)
with open(f"{run}/attempts/{attempt}/metrics.jsonl", "a", buffering=1) as metrics:
    def row(event, step, **more):
        print(json.dumps({"event": event, "step": step, "epoch": 0.1, "at": time.time(), "max_steps": 20, **more}), file=metrics)
    row("begin", begin)
    for step in range(begin + 1, end + 1):
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            pass
        row("log", step, loss=10.0 - step / 4)
    if not first:
        row("end", end)
sys.exit(85 if first else 0)
"""


@pytest.fixture
def project(tmp_path: Path, lab_env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in lab_env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "config.yaml").write_text(
        "script: train.py\nlauncher: srun\nresources: {time: 10, gpus: 1, cpus_per_task: 2, mem:"
        " 2G}\nrestart: {mode: requeue, max: 2}\nenvironment: {venv:"
        f" {Path(sys.executable).parents[1]}}}\n"
    )
    return tmp_path


def hpctrain(*words: str) -> str:
    done = subprocess.run(
        [HPCTRAIN, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def submit(*words: str) -> str:
    return hpctrain(
        "submit", "--no-check", "--no-snapshot", "--parsable", "--run-id", "r", *words
    ).strip()


def rows(attempt: Path) -> dict[int, float]:
    """Return step -> when it was logged, of a start of the training."""
    lines = [json.loads(line) for line in (attempt / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["at"] for line in lines if line["event"] in ("begin", "log")}


def seconds(text: str) -> int:
    hours, minutes, rest = map(int, text.split(":"))
    return (hours * 60 + minutes) * 60 + rest


@pytest.mark.usefixtures("project")
def test_what_a_requeued_job_had_used_and_should_ask_for(lab: Lab) -> None:
    job = submit("--", "requeue")
    hpctrain("watch", "r", "--json")
    lab.finished(job)
    said: dict[str, Any] = json.loads(hpctrain("report", "r", "--json"))
    assert said["state"] == "completed"
    assert [
        (each["first_step"], each["last_step"], each["lost_steps"], each["outcome"])
        for each in said["starts"]
    ] == [
        (0, 8, 3, "requeued"),
        (5, 20, 0, "completed"),
    ]
    [account] = said["accounts"]
    assert (account["source"], account["restarts"], account["gpus"], account["memory_bytes"]) == (
        "sacct",
        1,
        1,
        2 << 30,
    )
    counted = said["efficiency"]
    assert counted["gpus"] == 1
    assert counted["asked_s"] == 2 * 600, "both starts had the whole limit"
    parts = {part["id"]: part["seconds"] for part in counted["parts"]}
    first, second = (rows(attempt) for attempt in sorted(Path("runs/r/attempts").iterdir()))
    assert parts["lost"] == pytest.approx(first[8] - first[5], abs=0.01), "three steps"
    assert parts["training"] == pytest.approx(
        first[5] - first[0] + second[20] - second[5], abs=0.01
    )
    assert counted["gpu_hours"] == pytest.approx(counted["held_s"] / 3600)
    asks = {ask["option"]: ask for ask in counted["next"]}
    assert asks["time"]["asked"] == "00:10:00"
    needed = 1.15 * (parts["training"] + (parts["loading"] + parts.get("after", 0.0)) / 2)
    assert seconds(asks["time"]["value"]) == math.ceil(needed / 60) * 60, (
        "one start's loading, no lost work, 15 % to spare"
    )
    # The accounting looks every few seconds, and sees the 300 MiB.
    peak = counted["host_peak_bytes"]
    assert counted["is_max_rss"], "the script reports none, and the accounting samples tasks"
    assert 300 << 20 <= peak <= 600 << 20
    # A busy machine's sample can count a process and its fork: the directive follows what was
    # sampled.
    needed = math.ceil(max(1.2 * peak, peak + (512 << 20)) / (1 << 30))
    assert (asks["mem"]["key"], asks["mem"]["value"], asks["mem"]["asked"]) == (
        "resources.mem",
        f"{needed}G",
        "2G",
    )
    page = (Path("runs/r/report.html"), hpctrain("report", "r"))[0].read_text()
    assert "MaxRSS" in page
    assert "#SBATCH" not in page[page.index("Request next time") :].partition("</pre>")[0]
    assert "steps that a later start repeated" in page
