"""A training that is divided among processes is the training that is not, and leaves whole weights
behind.
"""

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import in_process
import pytest
import survival

from hpctrain.errors import HpctrainError
from hpctrain.jobs import render

pytestmark = pytest.mark.torch
OPTIONS: dict[str, Any] = {
    "per_device_train_batch_size": 2,
    "max_steps": 4,
    "logging_steps": 1,
    "save_strategy": "steps",
    "save_steps": 2,
    "max_length": 32,
    "lr_scheduler_type": "constant",
    "learning_rate": 1e-2,
    "seed": 7,
}


def _fsdp(run: Path, model: str, dataset: str, environment: dict[str, str], attempt: str) -> str:
    words = survival.words({"model_name_or_path": model, "dataset_name": dataset, **OPTIONS})
    launch = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        str(Path(__file__).parent / "sharded_cpu.py"),
    ]
    job: Any = SimpleNamespace(sharding="fsdp")
    env = {
        name: value for name, value in environment.items() if name != "ACCELERATE_USE_CPU"
    } | dict(render.variables(job))
    env = survival.run_environment(env, run, attempt) | {
        "HPCTRAIN_SHARDING": "fsdp",
        "HPCTRAIN_WORLD_SIZE": "2",
    }
    done = subprocess.run(
        [*survival.PYTHON, *launch, *words],
        env=env,
        cwd=run,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "sharding         fsdp over 1 node x 2 GPUs" in done.stdout
    return done.stdout


def _losses(log: str) -> list[float]:
    return [
        float(line.split("loss=")[1].split()[0])
        for line in log.splitlines()
        if " loss=" in line and "step=" in line
    ]


@pytest.mark.slow
@pytest.mark.extended
def test_fsdp_trains_saves_and_goes_on_as_one_process_does(
    tiny: tuple[str, str],
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its checkpoints are in parts, one for each process; `RUN/model` is whole, and equal to that
    of a training in one process.
    """
    from safetensors.torch import load_file

    run = tmp_path / "run"
    run.mkdir()
    model = (
        tmp_path / "steady"
    )  # without dropout, whose random numbers depend on the number of processes
    shutil.copytree(tiny[0], model)
    text = (model / "config.json").read_text()
    (model / "config.json").write_text(
        text.replace('"attention_dropout": 0.1', '"attention_dropout": 0.0')
    )
    alone = in_process.trainer(
        in_process.options(
            monkeypatch, tmp_path, model, tiny[1], **{**OPTIONS, "per_device_train_batch_size": 4}
        )
    )
    expected = in_process.losses(alone)

    found = _losses(_fsdp(run, str(model), tiny[1], environment, "1.0"))
    assert found == pytest.approx(expected, abs=2e-4)
    saved = load_file(run / "model" / "model.safetensors")
    weights = {name: value for name, value in alone.model.state_dict().items() if name in saved}
    assert len(weights) == len(saved) > 10
    assert all(
        value.sub(saved[name]).abs().max() < 1e-4 for name, value in weights.items()
    )  # of 4 steps of 1e-2

    assert (run / "checkpoints" / "checkpoint-2" / "pytorch_model_fsdp_0").is_dir()
    shutil.rmtree(run / "checkpoints" / "checkpoint-4")
    shutil.rmtree(run / "model")
    log = _fsdp(run, str(model), tiny[1], environment, "1.1")
    assert "resumes run run at step 2" in log
    assert _losses(log) == found[2:]
    again = load_file(run / "model" / "model.safetensors")
    assert all(value.equal(saved[name]) for name, value in again.items())


def test_a_model_without_weights_is_no_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the reason: the training says so, and nothing of an older model is replaced."""
    from hpctrain.training.survival import saving

    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "training_args.bin").write_text("x")
    with pytest.raises(HpctrainError, match="have written no weights"):
        saving._look_for_weights(tmp_path)
    (tmp_path / "global_step4").mkdir()
    saving._look_for_weights(tmp_path)
    assert "are in DeepSpeed's parts" in capsys.readouterr().out
    (tmp_path / "model-00001-of-00002.safetensors").write_text("x")
    saving._look_for_weights(tmp_path)
    assert capsys.readouterr().out == ""
    written: list[str] = []
    saving.save_whole(SimpleNamespace(is_fsdp_enabled=False, save_model=written.append), tmp_path)
    assert written == [str(tmp_path)]
