"""One run of ours is one run of each tracker, over a kill, a stop and a resume; a tracker that
fails does nothing to the training.

The libraries are the real ones, and what they wrote is read back by their own readers.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import survival

from hpctrain.runs import history

TRAINING = Path(__file__).with_name("tracked_training.py")
Run = Callable[..., "subprocess.CompletedProcess[str]"]
KEY = "0123456789abcdef0123456789abcdef01234567"


def starter(project: Path, environment: dict[str, str]) -> Run:

    def start(
        run: str, attempt: str, *words: object, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        run_dir = project / "runs" / run
        run_dir.mkdir(parents=True, exist_ok=True)
        job = {
            "HPCTRAIN_RUN_DIR": str(run_dir),
            "HPCTRAIN_RUN_ID": run,
            "HPCTRAIN_ATTEMPT": attempt,
            "HPCTRAIN_TAG": run.partition("_")[0],
            "SLURM_JOB_NAME": "sft",
            "HF_DATASETS_OFFLINE": "1",  # W&B is offline then, too
        }
        return subprocess.run(
            [*survival.PYTHON, str(TRAINING), *map(str, words)],
            env=environment | job | variables,
            cwd=project,
            capture_output=True,
            text=True,
            timeout=600,
        )

    return start


# -- reading back ----------------------------------------------------------------------------------


def mlflow_client(uri: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return mlflow.MlflowClient(tracking_uri=uri)


def mlflow_runs(client: Any) -> list[Any]:
    return [
        run
        for experiment in client.search_experiments()
        for run in client.search_runs([experiment.experiment_id])
    ]


def wandb_rows(run_dir: Path) -> list[dict[str, Any]]:
    """What W&B's own reader finds in all folders of the run, in the order in which `wandb sync`
    uploads them.
    """
    rows = []
    for file in sorted((run_dir / "wandb").glob("offline-run-*/run-*.wandb")):
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
        done = subprocess.run(
            command,
            env=os.environ | {"WANDB_MODE": "offline"},
            capture_output=True,
            text=True,
            timeout=600,
        )
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
    return {row["step"]: row["loss"] for row in history.read_rows(run_dir) if "loss" in row}


# -- one run over a kill, a stop and a resume ------------------------------------------------------


@pytest.fixture(scope="module")
def survived(
    surroundings: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> SimpleNamespace:
    """A run that was killed at step 7 (checkpoint 4), stopped at step 8, and brought to its end at
    step 10; the statuses between.
    """
    pytest.importorskip("torch")
    project = tmp_path_factory.mktemp("tracked")
    start = starter(project, surroundings)
    uri = (project / "runs" / ".mlflow" / "mlruns").as_uri()
    statuses, done = [], []
    with pytest.MonkeyPatch.context() as patch:
        for attempt, words, code in (
            ("1.0", ("--kill", 7), -9),
            ("1.1", ("--stop", 8), 85),
            ("1.2", (), 0),
        ):
            done.append(start("sft-1", attempt, 10, *words, WANDB_API_KEY=KEY))
            assert done[-1].returncode == code, done[-1].stderr
            client = mlflow_client(uri, patch)
            statuses.append([run.info.status for run in mlflow_runs(client)])
    return SimpleNamespace(
        directory=project / "runs" / "sft-1", uri=uri, statuses=statuses, done=done, project=project
    )


@pytest.mark.extended
@pytest.mark.torch
@pytest.mark.slow
def test_one_mlflow_run(survived: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = mlflow_client(survived.uri, monkeypatch)
    (run,) = mlflow_runs(client)
    history = client.get_metric_history(run.info.run_id, "loss")
    assert {metric.step: metric.value for metric in history} == logged(survived.directory)
    assert (run.info.run_name, run.data.tags["hpctrain.run_id"]) == ("sft-1", "sft-1")
    assert client.get_experiment(run.info.experiment_id).name == "sft"
    assert run.data.params["max_steps"] == "10"
    # Killed: nobody could say so. Stopped to be requeued: waiting. Then done.
    assert survived.statuses == [["RUNNING"], ["SCHEDULED"], ["FINISHED"]]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.extended
def test_one_wandb_run(survived: Any) -> None:
    rows = wandb_rows(survived.directory)
    runs = [row["run"] for row in rows if row["type"] == "run"]
    assert {
        (run["run_id"], run["project"], run["display_name"], run["resume"]) for run in runs
    } == {("sft-1", "sft", "sft-1", True)}
    losses = dict(wandb_values(rows, "train/loss"))
    # The killed start left a file without anything in it: W&B writes every 15 s.
    assert set(losses) >= set(range(5, 11))
    assert losses == pytest.approx({step: logged(survived.directory)[step] for step in losses})
    assert [row["exit"]["exit_code"] for row in rows if row["type"] == "exit"] == [85, 0]
    assert [row["type"] for row in rows].count("preempting") == 1


@pytest.mark.torch
@pytest.mark.slow
def test_one_tensorboard_directory(survived: Any) -> None:
    folder = survived.directory / "tensorboard"
    assert len(list(folder.glob("events.*"))) == 3
    losses = tensorboard_values(folder, "train/loss")
    assert {step for step, _ in losses} == set(range(1, 11))
    assert dict(losses) == pytest.approx(logged(survived.directory))


@pytest.mark.torch
@pytest.mark.slow
def test_no_secret_is_written(survived: Any) -> None:
    files = [path for path in survived.project.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    assert not any(KEY in done.stdout + done.stderr for done in survived.done)


# -- MLflow ----------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.torch
@pytest.mark.slow
def test_a_server_that_is_away(environment: dict[str, str], tmp_path: Path) -> None:
    """The training goes on without it, and the password is shown nowhere."""
    away = {
        "MLFLOW_TRACKING_URI": "http://someone:hunter2-hunter2@127.0.0.1:9",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "2",
    }
    done = starter(tmp_path, environment)(
        "sft-2", "1.0", 8, "--trackers", "mlflow", "--stop", 4, **away
    )
    assert done.returncode == 85, done.stderr
    assert "[end] step=4 " in done.stdout
    assert "notice: mlflow: nothing is reported to it by this start of the job" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert not any(
        b"hunter2" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    )


@pytest.mark.torch
@pytest.mark.slow
def test_starts_at_the_same_time_make_one_experiment(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = (tmp_path / "runs" / ".mlflow" / "mlruns").as_uri()
    code = """
import sys
from pathlib import Path
import mlflow
from hpctrain.training.trackers import Identity
from hpctrain.training.trackers.callback import mlflow_experiment
runs, number = Path(sys.argv[1]), sys.argv[2]
identity = Identity(name=f"r_{number}", project="a sweep", group=None,
    directory=runs / f"r_{number}", runs=runs, continues=True)
client = mlflow.MlflowClient(sys.argv[3])
mlflow.set_tracking_uri(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
client.create_run(mlflow_experiment(identity, sys.argv[3]))
"""
    command = [*survival.PYTHON, "-c", code, str(tmp_path / "runs")]
    processes = [
        subprocess.Popen(
            [*command, str(number), uri],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment | {"MLFLOW_ALLOW_FILE_STORE": "true"},
        )
        for number in range(3)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        assert (process.communicate(timeout=600)[1], process.returncode)[1] == 0
    client = mlflow_client(uri, monkeypatch)
    assert {experiment.name for experiment in client.search_experiments()} >= {"a sweep"}
    assert len(mlflow_runs(client)) == 3
    assert len({run.info.experiment_id for run in mlflow_runs(client)}) == 1
