"""What is known before a tracker is opened: which are asked for, what is missing, names, stores;
and that no secret is said.
"""

import importlib.util
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain.training import trackers


@pytest.mark.parametrize(
    ("report_to", "expected"),
    [
        (None, []),
        ("none", []),
        (["none"], []),
        ("wandb", ["wandb"]),
        (["tensorboard", "comet_ml", "mlflow"], ["mlflow", "tensorboard"]),
        ("all", ["mlflow", "wandb", "tensorboard"]),
    ],
)
def test_which_trackers_are_asked_for(report_to: Any, expected: list[str]) -> None:
    assert trackers.asked(report_to) == expected
    assert trackers.problems(report_to) == []


def test_what_is_not_installed_is_said_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "mlflow" or None)
    found = trackers.problems(["mlflow", "wandb", "tensorboard"])
    assert [problem.what for problem in found] == [
        "--report_to wandb: wandb is not installed",
        "--report_to tensorboard: tensorboard is not installed",
    ]
    assert all(problem.fix for problem in found)


@pytest.mark.torch
def test_only_rank_0_gets_callbacks(tmp_path: Path) -> None:
    args = SimpleNamespace(
        report_to=["wandb", "comet_ml"], process_index=1, run_name=None, output_dir=str(tmp_path)
    )
    assert (
        trackers.setup(args, run_dir=tmp_path / "runs" / "a", run_id="a", resumed_step=None) == []
    )
    assert args.report_to == ["comet_ml"]
    args = SimpleNamespace(
        report_to=["tensorboard"], process_index=0, run_name=None, output_dir=str(tmp_path)
    )
    (callback,) = trackers.setup(
        args, run_dir=tmp_path / "runs" / "a", run_id="a", resumed_step=None
    )
    assert (args.run_name, callback.name) == ("a", "tensorboard")
    assert not (tmp_path / "runs").exists()
    trackers.finish(0)


@pytest.mark.torch
def test_names_come_from_the_run(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "lr-261121-7f3a_4"
    run_dir.mkdir(parents=True)
    (run_dir / "run.json").write_text(
        '{"schema": 1, "run_id": "lr-261121-7f3a_4", "tag": "lr-261121-7f3a", "name": "lr"}'
    )
    found = []
    for directory, run_id, step in ((run_dir, "lr-261121-7f3a_4", 20), (None, None, None)):
        args = SimpleNamespace(
            report_to=["wandb"], process_index=0, run_name=None, output_dir=str(tmp_path / "out")
        )
        (callback,) = trackers.setup(args, run_dir=directory, run_id=run_id, resumed_step=step)
        found.append(callback._identity)
    trackers.finish(0)
    run, alone = found
    assert (run.project, run.group, run.runs) == ("lr", "lr-261121-7f3a", tmp_path / "runs")
    assert run.continues
    assert (alone.name, alone.project, alone.group) == ("out", "hpctrain", None)
    assert not alone.continues, "another training may have used the directory before"


@pytest.mark.torch
def test_no_secret_is_said_when_a_tracker_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hpctrain.training.trackers import callback

    def close(_code: int) -> None:
        raise RuntimeError("cannot log in to https://me:secret@host/x with correct-horse\n2nd line")

    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "correct-horse")
    monkeypatch.setitem(callback._CLOSE, "wandb", close)
    identity = trackers.Identity(
        name="sft-1", project="sft", group=None, directory=tmp_path, runs=tmp_path, continues=True
    )
    tracker = callback.Tracker("wandb", identity)
    tracker._inner = object()
    monkeypatch.setattr(trackers, "_open", [tracker])
    trackers.finish(0)
    said = "RuntimeError: cannot log in to https://host/x with … 2nd line"
    assert capsys.readouterr().err == f"[train] notice: wandb: {said}\n"


@pytest.mark.torch
def test_the_end_is_bounded() -> None:
    from hpctrain.training.trackers.callback import bounded

    never = threading.Event()
    with pytest.raises(TimeoutError, match="within 0 s"):
        bounded(never.wait, 0.05)
    never.set()
    bounded(never.wait, 5)


@pytest.mark.torch
def test_parameters_are_not_sent_again_to_a_given_mlflow_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow refuses them where a value has changed, as after a requeue."""
    pytest.importorskip("mlflow")
    from hpctrain.training.trackers import callback

    for name, value in callback._MLFLOW_VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_RUN_ID", "0123456789abcdef0123456789abcdef")
    monkeypatch.setenv("MLFLOW_MAX_LOG_PARAMS", "100")
    identity = trackers.Identity(
        name="sft-1", project="sft", group=None, directory=tmp_path, runs=tmp_path, continues=True
    )
    callback._open_mlflow(identity)
    assert os.environ["MLFLOW_MAX_LOG_PARAMS"] == "0"
