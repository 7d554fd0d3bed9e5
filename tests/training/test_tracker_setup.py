"""What is known before a tracker is opened: which are asked for, what is missing, names, stores; and that no secret is said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain.training import trackers


def identity(directory: Path, **more: Any) -> trackers.Identity:
    given = {"name": "sft-1", "project": "sft", "group": None, "continues": True, "resumed_step": 0, **more}
    return trackers.Identity(directory=directory, runs=directory.parent, **given)


@pytest.mark.parametrize(
    ("kind", "made", "expected"),
    [
        ("ext4", None, "sqlite:///{runs}/.mlflow/mlflow.db"),
        ("lustre", None, "file://{runs}/.mlflow/mlruns"),
        ("nfs4", None, "file://{runs}/.mlflow/mlruns"),
        (None, None, "file://{runs}/.mlflow/mlruns"),
        ("ext4", "mlruns", "file://{runs}/.mlflow/mlruns"),
    ],
)
def test_sqlite_only_where_its_locks_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str | None, made: str | None, expected: str
) -> None:
    from hpctrain.training import tracker_mlflow

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(tracker_mlflow, "_file_system", lambda _path: kind)
    if made:
        (tmp_path / ".mlflow" / made).mkdir(parents=True)
    assert tracker_mlflow.MLflow(identity(tmp_path / "sft-1"))._choose() == expected.format(runs=tmp_path)


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("sqlite:////a/b.db", "sqlite"),
        ("file:///a/mlruns", "files"),
        ("mlruns", "files"),
        ("https://mlflow.example.org", "server"),
        ("databricks", "server"),
        ("postgresql://host/db", "server"),
    ],
)
def test_what_is_behind_a_uri(uri: str, kind: str) -> None:
    from hpctrain.training.tracker_mlflow import store

    assert store(uri) == kind


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


def test_what_is_not_installed_or_too_old_is_said_before_training(tmp_path: Path) -> None:
    """In a Python of its own, which has no trackers but an MLflow that says it is old."""
    old = tmp_path / "mlflow-1.26.1.dist-info"
    old.mkdir()
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: mlflow\nVersion: 1.26.1\n")
    (tmp_path / "mlflow").mkdir()
    code = """
import sys
from hpctrain.training import trackers
sys.path = [path for path in sys.path if "site-packages" not in path] + sys.argv[1:]
for problem in trackers.problems(["mlflow", "wandb", "tensorboard"]): print(problem.what, "|", problem.fix)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout.splitlines() == [
        f"--report_to wandb: wandb is not installed | {sys.executable} -m pip install 'hpctrain[trackers]'",
        f"--report_to tensorboard: tensorboard is not installed | {sys.executable} -m pip install 'hpctrain[trackers]'",
        f"--report_to mlflow: MLflow 1.26.1 is older than 2.8 | {sys.executable} -m pip install 'hpctrain[trackers]'",
    ], done.stderr


@pytest.mark.torch
def test_only_rank_0_gets_callbacks(tmp_path: Path) -> None:
    args = SimpleNamespace(report_to=["wandb", "comet_ml"], process_index=1, run_name=None, output_dir=str(tmp_path))
    assert trackers.setup(args, run_dir=tmp_path / "runs" / "a", run_id="a", resumed_step=None) == []
    assert args.report_to == ["comet_ml"]
    args = SimpleNamespace(report_to=["tensorboard"], process_index=0, run_name=None, output_dir=str(tmp_path))
    (callback,) = trackers.setup(args, run_dir=tmp_path / "runs" / "a", run_id="a", resumed_step=None)
    assert (args.run_name, type(callback).__name__) == ("a", "TensorBoardCallback")
    assert not (tmp_path / "runs").exists()
    trackers.finish(0)


def test_names_come_from_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = tmp_path / "runs" / "lr-261121-7f3a_4"
    run_dir.mkdir(parents=True)
    (run_dir / "run.json").write_text('{"schema": 1, "run_id": "lr-261121-7f3a_4", "tag": "lr-261121-7f3a", "name": "lr"}')
    args = SimpleNamespace(output_dir="out", run_name=None)
    found = trackers._identity(args, run_dir, "lr-261121-7f3a_4", 20)
    assert (found.project, found.group, found.runs, found.resumed_step) == ("lr", "lr-261121-7f3a", tmp_path / "runs", 20)
    monkeypatch.chdir(tmp_path)
    found = trackers._identity(args, None, None, None)
    assert (found.name, found.project, found.group, found.continues) == ("out", "hpctrain", None, False)
    # Another training used the folder before: what it remembered is not this one's.
    trackers.remember(found, "wandb", {"id": "other"})
    assert trackers.recalled(found, "wandb") == {}
    assert trackers.recalled(identity(tmp_path / "out"), "wandb") == {"id": "other"}


def test_no_secret_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "correct-horse")
    trackers.notice("mlflow: cannot log in to https://me:secret@host/x with correct-horse\nsecond line")
    assert capsys.readouterr().err == "[train] notice: mlflow: cannot log in to https://host/x with … second line\n"


def test_the_end_is_bounded_and_raises_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import threading

    never = threading.Event()
    assert trackers.bounded(never.wait, 0.05) is False
    never.set()
    assert trackers.bounded(never.wait, 5) is True

    def close(_code: int) -> None:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(trackers, "_open", [SimpleNamespace(tracker=SimpleNamespace(name="wandb"), close=close)])
    trackers.finish(0)
    assert capsys.readouterr().err == "[train] notice: wandb: RuntimeError: the disk is full\n"
