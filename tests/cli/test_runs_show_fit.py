"""`hpctrain runs show` lays predicted beside measured, and shows what an evaluation-only run has found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpctrain.cli import main

GIB = 2**30
RECORD: dict[str, Any] = {
    "schema": 1, "layout": None, "shape": None, "gpu": "NVIDIA H100", "cluster": None,
    "predicted": {"total": 42 * GIB, "allocated": 39 * GIB, "reserved": 40 * GIB, "parts": {}, "host": None, "tokens_per_s": 11000.0},
    "measured": {"allocated": 40 * GIB, "reserved": 41 * GIB, "used": 42 * GIB, "host": 10 * GIB, "tokens_per_s": 10000.0, "mfu": 0.4},
}  # fmt: skip


@pytest.fixture
def runs(tmp_path: Path, no_slurm: None) -> Path:
    run = tmp_path / "runs" / "r"
    (run / "attempts" / "1.0").mkdir(parents=True)
    (run / "run.json").write_text('{"schema": 1, "run_id": "r", "tag": "r"}')
    return tmp_path / "runs"


def shown(runs: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["runs", "show", "r", "--runs-dir", str(runs), *words])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_predicted_beside_measured(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "r" / "fit.json").write_text(json.dumps(RECORD))
    lines = shown(runs, capsys).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("WHAT"))
    assert lines[at].split() == ["WHAT", "PREDICTED", "MEASURED", "PREDICTION", "IS", "OFF"]
    assert [" ".join(line.split()) for line in lines[at + 1 : at + 6]] == [
        "GPU, tensors 39.00 GiB 40.00 GiB -2.5 %",
        "GPU, reserved 40.00 GiB 41.00 GiB -2.4 %",
        "GPU, all 42.00 GiB 42.00 GiB +0.0 %",
        "node's memory - 10.00 GiB -",
        "tokens/s 11000 10000 +10.0 %",
    ]
    assert all(len(line) <= 80 for line in lines[at : at + 6])
    assert json.loads(shown(runs, capsys, "--json"))["fit"] == RECORD


@pytest.mark.parametrize("text", [None, "{", '{"schema": 9}', json.dumps({**RECORD, "predicted": None, "measured": None})])
def test_without_anything_to_compare_there_is_no_table(runs: Path, capsys: pytest.CaptureFixture[str], text: str | None) -> None:
    if text is not None:
        (runs / "r" / "fit.json").write_text(text)
    assert "PREDICTED" not in shown(runs, capsys)
    json.loads(shown(runs, capsys, "--json"))


def test_the_metrics_of_an_evaluation(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = {"eval_loss": 2.5, "eval_perplexity": 12.25, "eval_bad": None}
    (runs / "r" / "evaluation.json").write_text(json.dumps({"schema": 1, "metrics": metrics}))
    out = shown(runs, capsys)
    assert "eval_perplexity  12.25" in out
    assert "eval_bad" not in out
    assert json.loads(shown(runs, capsys, "--json"))["evaluation"]["metrics"] == metrics


def test_an_evaluation_of_somebody_s_own_script_is_left_alone(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "r" / "evaluation.json").write_text(json.dumps({"loss": {"refine": 2.0}}))
    assert "EVALUATION" not in shown(runs, capsys)
