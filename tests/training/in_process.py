"""The SFT training built and run in this process, which has imported the libraries already: a
second instead of ten.
"""

import math
from pathlib import Path
from typing import Any

import pytest


def options(
    monkeypatch: pytest.MonkeyPatch, folder: Path, model: object, dataset: object, **values: Any
) -> Any:
    from hpctrain.training import sft
    from hpctrain.training.options import read_options

    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "HPCTRAIN_RUN_DIR", "HPCTRAIN_ATTEMPT"):
        monkeypatch.delenv(name, raising=False)
    given = {
        "model_name_or_path": model,
        "dataset_name": dataset,
        "output_dir": folder / "out",
        "save_strategy": "no",
        "logging_steps": 1,
    }
    given |= {
        "per_device_train_batch_size": 4,
        "max_steps": 2,
        "lr_scheduler_type": "constant",
        "learning_rate": 1e-2,
    }
    words = [
        word
        for name, value in {**given, **values}.items()
        if value is not None
        for word in (f"--{name}", *_words(value))
    ]
    return read_options(words, sft.TASK)


def _words(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list | tuple) else [str(value)]


def trainer(found: Any, callbacks: tuple[Any, ...] = ()) -> Any:
    from hpctrain.training.survival import ResilienceContext

    return found.task.trainer(found, ResilienceContext(), list(callbacks))


def losses(built: Any) -> list[float]:
    """Train, and return the loss of each step."""
    built.train()
    found = [entry["loss"] for entry in built.state.log_history if "loss" in entry]
    assert all(math.isfinite(loss) for loss in found)
    return found


def norms(built: Any) -> list[float]:
    return [entry["grad_norm"] for entry in built.state.log_history if "grad_norm" in entry]
