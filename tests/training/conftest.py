"""One demo folder for all tests, and the environment that a training process is started with."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # survival.py, for this folder's tests


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The real demo, made once."""
    pytest.importorskip("torch")
    from hpctrain.training.demo import make_demo

    return make_demo(tmp_path_factory.mktemp("demo") / "demo")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The folders of a model and a dataset with which a training takes a second."""
    pytest.importorskip("torch")
    import survival

    model, dataset = survival.make(tmp_path_factory.mktemp("tiny"))
    return str(model), str(dataset)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment without what a launcher or a job of this machine may have left in it, on the CPU."""
    unwanted = ("SLURM", "HPCTRAIN", "ACCELERATE", "HF_", "TRANSFORMERS")
    launcher = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted) and name not in launcher}
    return kept | {
        "ACCELERATE_USE_CPU": "true",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HOME": str(tmp_path / "hf"),
        "OMP_NUM_THREADS": "1",
    }
