"""The evaluation-only mode: what it measures is what the training measured; it writes nothing else,
and disturbs no run.
"""

import json
import math
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import survival

from hpctrain.runs import history, metrics

pytestmark = [pytest.mark.torch, pytest.mark.slow]

TRAINING = {
    **survival.BASE,
    "eval_steps": 7,
    "save_steps": 7,
    "per_device_eval_batch_size": 4,
    "activation_checkpointing": "false",
}
EVALUATING = {
    "evaluate_only": "true",
    "max_length": 32,
    "per_device_eval_batch_size": 4,
    "memory_every": 0,
}


def start(
    environment: dict[str, str],
    run: Path,
    options: dict[str, Any],
    *,
    ranks: int = 1,
    attempt: str = "1.0",
) -> subprocess.CompletedProcess[str]:
    argv, variables = (
        survival.argv(*survival.words(options), ranks=ranks),
        survival.run_environment(environment, run, attempt),
    )
    return subprocess.run(
        argv, env=variables, cwd=run.parent.parent, capture_output=True, text=True, timeout=600
    )


def result(run: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((run / "evaluation.json").read_text())
    return value


@pytest.fixture(scope="module")
def trained(
    tiny: tuple[str, str], warm: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, str]]:
    """A run with full weights, and one with an adapter: `full` and `lora` in the directory that is
    returned.
    """
    directory = tmp_path_factory.mktemp("trained")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM", "HPCTRAIN", "HF_"))
    }
    alone = {
        "ACCELERATE_USE_CPU": "true",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HOME": str(directory / "hf"),
        "OMP_NUM_THREADS": "1",
    }
    environment = kept | warm | alone
    given = {"model_name_or_path": tiny[0], "dataset_name": tiny[1]}
    lora = {
        "use_peft": "true",
        "lora_r": 2,
        "lora_alpha": 8,
        "lora_target_modules": "all-linear",
        "learning_rate": 0.1,
    }
    for name, more in {"full": {}, "lora": lora}.items():
        done = start(environment, directory / "runs" / name, {**given, **TRAINING, **more})
        assert done.returncode == 0, done.stderr
    return directory / "runs", environment


def last_eval(run: Path) -> dict[str, float]:
    rows = [row for row in history.read_rows(run) if row["event"] == "evaluate"]
    return metrics.values(rows[-1]) if rows else {}


@pytest.mark.parametrize(
    ("name", "word"), [("full", "full"), ("lora", "lora"), ("full", "full/checkpoint-14")]
)
def test_it_measures_what_the_training_measured(
    name: str, word: str, trained: tuple[Path, dict[str, str]], tiny: tuple[str, str]
) -> None:
    """Of an adapter, its shape need not be said again."""
    runs, environment = trained
    run = runs / f"evaluates-{word.replace('/', '-')}"
    base = {"model_name_or_path": tiny[0]} if name == "lora" else {}
    done = start(
        environment, run, {**base, "dataset_name": tiny[1], **EVALUATING, "init_from": word}
    )
    assert done.returncode == 0, done.stderr
    found, before = result(run), last_eval(runs / name)
    assert found["metrics"]["eval_loss"] == before["eval_loss"]
    assert found["metrics"]["eval_mean_token_accuracy"] == before["eval_mean_token_accuracy"]
    assert found["metrics"]["eval_perplexity"] == math.exp(found["metrics"]["eval_loss"])
    assert (found["step"], found["rows"], found["split"], found["processes"]) == (14, 6, "test", 1)
    assert found["metrics"]["eval_samples_per_second"] > 0
    assert (run / "attempts" / "1.0" / "exit").read_text() == "0 evaluated\n"
    *_, row = history.read_rows(run)
    assert (row["event"], row["step"], row["eval_loss"]) == ("evaluate", 14, before["eval_loss"])
    assert re.search(
        r"^\[train\] evaluated: loss=\S+ perplexity=\S+ .*mean_token_accuracy=",
        done.stdout,
        re.MULTILINE,
    )
    written = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    assert written == [
        "attempts/1.0/environment.json",
        "attempts/1.0/exit",
        "attempts/1.0/metrics.jsonl",
        "evaluation.json",
    ]


def test_a_model_as_it_lies_there_and_a_dataset_without_a_training_split(
    trained: tuple[Path, dict[str, str]], tiny: tuple[str, str], tmp_path: Path
) -> None:
    import datasets

    _, environment = trained
    split = datasets.load_from_disk(tiny[1])["test"]
    datasets.DatasetDict({"held_out": split}).save_to_disk(str(tmp_path / "held"))
    options = {
        "model_name_or_path": tiny[0],
        "dataset_name": tmp_path / "held",
        **EVALUATING,
        "dataset_test_split": "held_out",
    }
    words = survival.argv(*survival.words({**options, "output_dir": "out"}))
    done = subprocess.run(
        words, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert found["step"] == 0
    assert found["metrics"]["eval_perplexity"] > 30, "untrained: about as many as there are words"


def test_an_evaluation_in_a_run_leaves_its_training_as_it_is(
    trained: tuple[Path, dict[str, str]], tiny: tuple[str, str], tmp_path: Path
) -> None:
    runs, environment = trained
    run = tmp_path / "runs" / "run"
    shutil.copytree(runs / "full", run)
    logged = [row for row in history.read_rows(run) if row["event"] == "log"]
    saved = survival.digests(run / "model")
    options = {"dataset_name": tiny[1], **EVALUATING, "init_from": "run/checkpoint-7"}
    done = start(environment, run, options, attempt="2.0")
    assert done.returncode == 0, done.stderr
    assert [row for row in history.read_rows(run) if row["event"] == "log"] == logged
    assert survival.digests(run / "model") == saved


def test_a_signal_breaks_it_off_on_all_processes(
    trained: tuple[Path, dict[str, str]], tiny: tuple[str, str]
) -> None:
    """Between two batches, by agreement; the job script is told to start it again."""
    runs, environment = trained
    run = runs / "signalled"
    program = f"""
import os, signal, sys
from hpctrain.training import sft
from hpctrain.training.survival.sft_trainer import SurvivorSFTTrainer
inner = SurvivorSFTTrainer.compute_loss
def loss(self, *args, **named):
    if os.environ.get("RANK") == "1":
        os.kill(os.getpid(), {int(signal.SIGUSR1)})
    return inner(self, *args, **named)
SurvivorSFTTrainer.compute_loss = loss
sft.main(sys.argv[1:])
"""
    (runs / "program.py").write_text(program)
    words = survival.words(
        {
            "dataset_name": tiny[1],
            **EVALUATING,
            "init_from": "full",
            "per_device_eval_batch_size": 1,
        }
    )
    launch = [
        *survival.PYTHON,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        str(runs / "program.py"),
        *words,
    ]
    done = subprocess.run(
        launch,
        env=survival.run_environment(environment, run),
        cwd=runs.parent,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (run / "attempts" / "1.0" / "exit").read_text() == "85 signal\n", (
        done.stdout + done.stderr
    )
    assert "[train] the evaluation is interrupted (signal)" in done.stdout
    assert not (run / "evaluation.json").exists()
