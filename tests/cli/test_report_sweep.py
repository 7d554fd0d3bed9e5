"""`hpctrain report SWEEP` of a sweep that went wrong: many failed points, some that never began, scripts that write no metrics."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from hpctrain.cli import report_facts
from hpctrain.runs import launch
from tests.cli.test_report import call
from tests.report.made_runs import gpu_run, write

pytestmark = pytest.mark.usefixtures("no_slurm")
MISSING = (
    "Traceback (most recent call last):\n  File \"train.py\", line 1, in <module>\nModuleNotFoundError: No module named 'flash_attn'\n"
)
COUNT = 30


def point(root: Path, index: int, *, error: str = "", outcome: str = "failed", log: str = "") -> None:
    run, job = root / f"runs/S_{index}", f"8000_{index}"
    write(run / "run.json", {"schema": 1, "run_id": run.name, "tag": "S", "name": "S", "created": 1_794_600_000, "index": index})
    write(run / "point.json", {"lr": 0.1 * index})
    attempt = run / "attempts" / f"{8000 + index}.0"
    write(
        attempt / "start.json",
        {"schema": 1, "job_id": job, "slurm_job_id": str(8000 + index), "restart": 0, "host": "n", "at": 1_794_600_000},
    )
    write(attempt / "end.json", {"schema": 1, "at": 1_794_600_060, "status": 1, "reason": "", "outcome": outcome})
    (root / "logs").mkdir(exist_ok=True)
    (root / f"logs/error_S_{job}.log").write_text(error)
    (root / f"logs/output_S_{job}.log").write_text(log)


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Return a project with a sweep of 33 points: 30 failed of two known and one unknown causes, 1 completed, 2 have not begun."""
    launch.create(tmp_path / "runs", "S", kind="sweep", name="S", now=1.0, cwd=str(tmp_path), version="1", argv=(), points=33, table="t")
    for index in range(COUNT):
        error = (
            MISSING
            if index % 3 == 0
            else "Traceback (most recent call last):\nValueError: odd value 17 at 0x7f\n".replace("17", str(index))
        )
        point(tmp_path, index, error=error)
    log = "".join(f"{{'loss': {2 * math.exp(-n / 9):.4f}, 'grad_norm': 1.0, 'epoch': {n / 20}}}\n" for n in range(1, 21))
    point(tmp_path, COUNT, outcome="completed", log=log)
    return tmp_path


def test_all_failed_points_are_told_by_their_diagnosis(sweep: Path) -> None:
    said = json.loads(call(sweep, "S", "--json").stdout)
    groups = {each["diagnosis"]: each for each in said["failures"]}
    assert {name: (each["count"], each["first"]) for name, each in groups.items()} == {
        "python-module-missing": (10, "S_0"),
        None: (20, "S_1"),
    }
    assert groups["python-module-missing"]["runs"] == [f"S_{index}" for index in range(0, COUNT, 3)]
    assert groups["python-module-missing"]["certainty"] == "certain"
    assert "ValueError: odd value" in groups[None]["cause"], "errors that differ in their numbers are one"
    assert {row["diagnosis"] for row in said["runs"] if row["state"] == "failed"} == {"python-module-missing", None}
    text = call(sweep, "S", "--terminal").stdout
    assert "  10 python-module-missing (certain): " in text
    assert "     look: hpctrain explain S_0\n" in text
    assert "       hpctrain doctor\n" in text, "the command of the fix has a line of its own"
    assert max(map(len, text.splitlines())) <= 80
    call(sweep, "S")
    page = (sweep / "runs/S.report.html").read_text()
    assert "10 runs: The Python of the job has no module flash_attn." in page
    assert "hpctrain explain S_1<" in page


def test_points_that_never_began_are_named(sweep: Path) -> None:
    assert json.loads(call(sweep, "S", "--json").stdout)["not_begun"] == ["S_31", "S_32"]
    text = " ".join(call(sweep, "S", "--terminal").stdout.split())
    assert "31 runs: 30 failed, 1 completed; 2 more have not begun: S_31, S_32" in text


def test_points_of_a_script_without_metrics_are_compared_by_their_logs(sweep: Path) -> None:
    said = json.loads(call(sweep, "S", "--json").stdout)
    assert (said["metric"], said["best"]) == ("loss", "S_30")
    (row,) = (row for row in said["runs"] if row["id"] == "S_30")
    assert row["metric"] == pytest.approx(2 * math.exp(-20 / 9), abs=1e-4)
    assert row["steps"] is None, "the lines of a log are no steps"


def test_what_takes_too_long_is_left_without_a_diagnosis_and_said(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_facts, "_EXPLAIN_S", 0.0)
    done = call(sweep, "S", "--json")
    assert "note: the logs of 30 failed runs were not read" in done.stderr
    (group,) = json.loads(done.stdout)["failures"]
    assert (group["count"], group["cause"]) == (30, "its logs were not read")


def test_a_job_that_asked_for_its_nodes_alone_pays_for_them_whole(tmp_path: Path) -> None:
    gpu_run(tmp_path / "runs", ranks=2, steps=100, restarts=0)
    for sbatch, whole in (({"exclusive": None}, True), ({"exclusive": "user"}, None), ({}, None)):
        record = {"schema": 1, "config": {"sbatch": sbatch}, "origins": {}}
        write(tmp_path / "runs/.launches/pretrain-1/config.json", record)
        efficiency = json.loads(call(tmp_path, "--json").stdout)["efficiency"]
        assert efficiency["whole_nodes"] is whole
        assert ("mem" in [ask["option"] for ask in efficiency["next"]]) is not whole
