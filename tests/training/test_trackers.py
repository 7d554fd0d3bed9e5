"""One run of ours is one run of each tracker, over a kill, a stop and a resume; a tracker that fails does nothing to the training.

The libraries are the real ones, and what they wrote is read back by their own readers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

TRAINING = Path(__file__).with_name("tracked_training.py")
Run = Callable[..., "subprocess.CompletedProcess[str]"]
KEY = "0123456789abcdef0123456789abcdef01234567"


def clean_environment() -> dict[str, str]:
    unwanted = ("SLURM", "HPCTRAIN", "ACCELERATE", "HF_", "TRANSFORMERS", "WANDB", "MLFLOW", "TENSORBOARD")
    launcher = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted) and name not in launcher}


def starter(project: Path) -> Run:
    """Return what starts a training in `project` as the job script does."""

    def start(run: str, attempt: str, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
        run_dir = project / "runs" / run
        run_dir.mkdir(parents=True, exist_ok=True)
        job = {"HPCTRAIN_RUN_DIR": str(run_dir), "HPCTRAIN_RUN_ID": run, "HPCTRAIN_ATTEMPT": attempt, "SLURM_JOB_NAME": "sft"}
        fixed = {"ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HPCTRAIN_TAG": run.partition("_")[0]}
        return subprocess.run(
            [sys.executable, str(TRAINING), *map(str, words)],
            env=clean_environment() | fixed | job | variables,
            cwd=project,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return start


# -- reading back ------------------------------------------------------------------------------------------------------


def mlflow_client(uri: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return mlflow.MlflowClient(tracking_uri=uri)


def mlflow_runs(client: Any) -> list[Any]:
    return [run for experiment in client.search_experiments() for run in client.search_runs([experiment.experiment_id])]


def mlflow_steps(client: Any, run: str, name: str = "loss") -> list[int]:
    return sorted(metric.step for metric in client.get_metric_history(run, name))


def wandb_rows(run_dir: Path) -> list[dict[str, Any]]:
    """What W&B's own reader finds in all folders of the run, in the order in which `wandb sync` uploads them."""
    rows = []
    for file in sorted((run_dir / "wandb").glob("offline-run-*/run-*.wandb")):
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
        done = subprocess.run(command, env=clean_environment() | {"WANDB_MODE": "offline"}, capture_output=True, text=True, timeout=60)
        rows += [json.loads(line) for line in done.stdout.splitlines()]
    return rows


def wandb_values(rows: list[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    items = [row["history"]["item"] for row in rows if row["type"] == "history"]
    return [(item["train/global_step"], item[name]) for item in items if name in item]


def tensorboard_values(folder: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(name)]


def logged(run_dir: Path) -> dict[int, float]:
    from hpctrain.runs import metrics

    return {row["step"]: row["loss"] for row in metrics.read(run_dir) if "loss" in row}


# -- one run over a kill, a stop and a resume --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def survived(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run that was killed at step 7 (checkpoint 4), stopped at step 8, and brought to its end at step 10; the statuses between."""
    pytest.importorskip("torch")
    project = tmp_path_factory.mktemp("tracked")
    start = starter(project)
    # The store of plain files is made by hand, so that the file system of this machine does not matter; SQLite has a test of its own.
    (project / "runs" / ".mlflow" / "mlruns").mkdir(parents=True)
    uri = (project / "runs" / ".mlflow" / "mlruns").as_uri()
    statuses, done = [], []
    with pytest.MonkeyPatch.context() as patch:
        for attempt, words, code in (("1.0", ("--kill", 7), -9), ("1.1", ("--stop", 8), 85), ("1.2", (), 0)):
            done.append(start("sft-1", attempt, 10, *words, WANDB_API_KEY=KEY))
            assert done[-1].returncode == code, done[-1].stderr
            client = mlflow_client(uri, patch)
            statuses.append([run.info.status for run in mlflow_runs(client)])
    return SimpleNamespace(directory=project / "runs" / "sft-1", uri=uri, statuses=statuses, done=done, project=project)


@pytest.mark.torch
@pytest.mark.slow
def test_one_mlflow_run_with_each_step_once(survived: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = mlflow_client(survived.uri, monkeypatch)
    (run,) = mlflow_runs(client)
    assert mlflow_steps(client, run.info.run_id) == list(range(1, 11))
    assert {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "loss")} == logged(survived.directory)
    assert (run.info.run_name, run.data.tags["hpctrain.run_id"]) == ("sft-1", "sft-1")
    assert client.get_experiment(run.info.experiment_id).name == "sft"
    assert run.data.params["max_steps"] == "10"
    # Killed: nobody could say so. Stopped to be requeued: waiting. Then done.
    assert survived.statuses == [["RUNNING"], ["SCHEDULED"], ["FINISHED"]]
    remembered = json.loads((survived.directory / "tracker.json").read_text())
    assert remembered["mlflow"] == {"uri": survived.uri, "run_id": run.info.run_id}


@pytest.mark.torch
@pytest.mark.slow
def test_one_wandb_run_with_each_step_once(survived: Any) -> None:
    rows = wandb_rows(survived.directory)
    runs = [row["run"] for row in rows if row["type"] == "run"]
    # The killed start left a file without anything in it: W&B writes every 15 s. Its steps were told to the run by the next start.
    assert {(run["run_id"], run["project"], run["display_name"], run["resume"]) for run in runs} == {("sft-1", "sft", "sft-1", True)}
    losses = wandb_values(rows, "train/loss")
    assert [step for step, _ in losses] == list(range(1, 11))
    assert dict(losses) == pytest.approx(logged(survived.directory))
    assert [step for step, _ in wandb_values(rows, "train/epoch")][:8] == list(range(1, 9))
    assert [row["exit"]["exit_code"] for row in rows if row["type"] == "exit"] == [85, 0]
    assert [row["type"] for row in rows].count("preempting") == 1


@pytest.mark.torch
@pytest.mark.slow
def test_one_tensorboard_directory_with_each_step_once(survived: Any) -> None:
    folder = survived.directory / "tensorboard"
    assert len(list(folder.glob("events.*"))) == 3
    losses = tensorboard_values(folder, "train/loss")
    assert [step for step, _ in losses] == list(range(1, 11))
    assert dict(losses) == pytest.approx(logged(survived.directory))
    # All that is there: the steps that were done twice are hidden, not gone, so it is purge_step that hides them.
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    everything = EventAccumulator(str(folder), purge_orphaned_data=False)
    everything.Reload()
    assert sorted(event.step for event in everything.Scalars("train/loss")) == sorted([*range(1, 11), 5, 6, 7])


@pytest.mark.torch
@pytest.mark.slow
def test_the_log_ends_with_what_can_be_typed(survived: Any) -> None:
    for done in survived.done[1:]:
        said = [line for line in done.stdout.splitlines() if line.startswith("[train] ")]
        assert len(said) == 3
        assert f"mlflow ui --backend-store-uri {survived.uri}" in said[0]
        assert said[1].endswith(f"wandb sync {survived.directory}/wandb/offline-run-*")
        assert said[2].endswith(f"tensorboard --logdir {survived.directory}/tensorboard")
        assert "notice" not in done.stderr
        assert "there is already one" not in done.stderr


@pytest.mark.torch
@pytest.mark.slow
def test_no_secret_is_written(survived: Any) -> None:
    files = [path for path in survived.project.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    assert not any(KEY in done.stdout + done.stderr for done in survived.done)


# -- MLflow ------------------------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.slow
def test_sqlite_by_uri_a_failure_and_a_lost_tracker_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is found by its tag, goes on with other arguments, and is FAILED and then FINISHED."""
    start, uri = starter(tmp_path), f"sqlite:///{tmp_path / 'mine.db'}"
    given = {"MLFLOW_TRACKING_URI": uri, "MLFLOW_EXPERIMENT_NAME": "mine"}
    done = start("sweep_3", "1.0", 8, "--trackers", "mlflow", "--fail", 6, **given)
    assert done.returncode == 1
    client = mlflow_client(uri, monkeypatch)
    assert [run.info.status for run in mlflow_runs(client)] == ["FAILED"]
    (tmp_path / "runs" / "sweep_3" / "tracker.json").unlink()
    done = start("sweep_3", "2.0", 8, "--trackers", "mlflow", SEED="8", **given)
    assert done.returncode == 0, done.stderr
    (run,) = mlflow_runs(client)
    assert (run.info.status, run.data.tags["hpctrain.tag"]) == ("FINISHED", "sweep")
    assert client.get_experiment(run.info.experiment_id).name == "mine"
    assert mlflow_steps(client, run.info.run_id) == list(range(1, 9))
    assert run.data.params["seed"] == "7"
    assert not (tmp_path / "runs" / ".mlflow").exists()


@pytest.mark.torch
@pytest.mark.slow
def test_a_server_that_is_away_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training goes on without it, the password is shown nowhere, and the next start tells MLflow what it missed."""
    start = starter(tmp_path)
    away = {"MLFLOW_TRACKING_URI": "http://someone:hunter2-hunter2@127.0.0.1:9", "MLFLOW_HTTP_REQUEST_TIMEOUT": "2"}
    done = start("sft-2", "1.0", 8, "--trackers", "mlflow", "--stop", 4, **away)
    assert done.returncode == 85, done.stderr
    assert "[end] step=4 " in done.stdout
    assert "notice: mlflow: nothing is reported to it by this start of the job" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert not any(b"hunter2" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    uri = f"sqlite:///{tmp_path / 'back.db'}"
    done = start("sft-2", "1.1", 8, "--trackers", "mlflow", MLFLOW_TRACKING_URI=uri)
    assert done.returncode == 0, done.stderr
    client = mlflow_client(uri, monkeypatch)
    (run,) = mlflow_runs(client)
    assert {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "loss")} == logged(
        tmp_path / "runs" / "sft-2"
    )
    assert mlflow_steps(client, run.info.run_id, "learning_rate") == list(range(1, 9))


@pytest.mark.slow
def test_many_starts_at_once_make_one_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import os, sys, time
from pathlib import Path
from hpctrain.training.tracker_mlflow import make_experiment
while time.time() < float(sys.argv[2]): pass
print(make_experiment(Path(sys.argv[1]) / "mlruns", "a sweep: of 'all' #1"))
"""
    import time

    at = str(time.time() + 2)
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), at], stdout=subprocess.PIPE, text=True, env=clean_environment())
        for _ in range(12)
    ]
    said = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert len(said) == 1
    assert [process.returncode for process in processes] == [0] * 12
    client = mlflow_client((tmp_path / "mlruns").as_uri(), monkeypatch)
    (experiment,) = client.search_experiments()
    assert (experiment.name, {experiment.experiment_id}) == ("a sweep: of 'all' #1", said)
    assert client.get_run(client.create_run(experiment.experiment_id).info.run_id).info.status == "RUNNING"
    assert [path.name for path in tmp_path.iterdir()] == ["mlruns"]


# -- Weights & Biases --------------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.slow
def test_wandb_that_cannot_be_reached_goes_on_offline(tmp_path: Path) -> None:
    start = starter(tmp_path)
    away = {"WANDB_MODE": "online", "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": KEY, "WANDB_INIT_TIMEOUT": "3"}
    done = start("sweep_0", "1.0", 3, "--trackers", "wandb", **away)
    assert done.returncode == 0, done.stderr
    assert "[train] notice: wandb: goes on offline" in done.stderr
    assert KEY not in done.stdout + done.stderr
    rows = wandb_rows(tmp_path / "runs" / "sweep_0")
    assert [step for step, _ in wandb_values(rows, "train/loss")] == [1, 2, 3]
    assert {row["run"]["run_group"] for row in rows if row["type"] == "run"} == {"sweep"}


@pytest.mark.torch
@pytest.mark.slow
def test_a_wandb_service_that_gets_the_jobs_sigterm(tmp_path: Path) -> None:
    """Slurm signals every process of a step, and W&B's service ends; the training does not, and the next start tells what is missing."""
    start = starter(tmp_path)
    done = start("sft-3", "1.0", 8, "--trackers", "wandb", "--orphan", 3, "--stop", 6)
    assert done.returncode == 85, done.stderr
    assert "[end] step=6 " in done.stdout
    assert "[train] notice: wandb: " in done.stderr
    done = start("sft-3", "1.1", 8, "--trackers", "wandb")
    assert done.returncode == 0, done.stderr
    losses = wandb_values(wandb_rows(tmp_path / "runs" / "sft-3"), "train/loss")
    assert [step for step, _ in losses] == list(range(1, 9))
    assert dict(losses) == pytest.approx(logged(tmp_path / "runs" / "sft-3"))


@pytest.mark.torch
def test_a_long_wandb_file_is_read_as_its_own_reader_reads_it(tmp_path: Path) -> None:
    """Longer than several of its blocks of 32 KiB, so that records are in pieces; and cut off, as after a kill."""
    from hpctrain.training import wandb_file

    code = """
import wandb
run = wandb.init(project="p", dir=".", id="long", mode="offline", settings=wandb.Settings(console="off"))
for step in range(1, 601): wandb.log({"train/global_step": step, "train/loss": 1 / step, "text": "x" * (step % 97) * 20})
run.finish()
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=clean_environment(), check=True, capture_output=True, timeout=120)
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-long.wandb")
    assert file.stat().st_size > 200_000
    expected = {("train/loss", step) for step, _ in wandb_values(wandb_rows(tmp_path), "train/loss")}
    assert len(expected) == 600
    found = wandb_file.pairs(file, step="train/global_step")
    assert {pair for pair in found if pair[0] == "train/loss"} == expected
    half = tmp_path / "run-half.wandb"
    half.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    steps = {step for name, step in wandb_file.pairs(half, step="train/global_step") if name == "train/loss"}
    assert steps == set(range(1, max(steps) + 1))
    assert 100 < max(steps) < 600
    half.write_bytes(b"something else")
    assert wandb_file.pairs(half, step="train/global_step") == set()
