"""One demo folder for all tests, and the environment that a training process is started with."""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # survival.py, for this folder's tests


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Any:
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


@pytest.fixture(scope="session")
def warm() -> Iterator[dict[str, str]]:
    """The variables with which survival.PYTHON, and the processes of torchrun, need not import
    torch and the rest anew.
    """
    import warm_start

    environment = clean()
    server = [sys.executable, str(Path(__file__).with_name("warm_server.py"))]
    with tempfile.TemporaryDirectory() as folder:  # a short name, for the socket
        python, place = Path(folder) / "python", f"{folder}/socket"
        python.write_text(
            f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -S {shlex.quote(warm_start.__file__)}"
            ' "$@"\n'
        )
        python.chmod(0o755)
        with subprocess.Popen(
            [*server, place],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            assert process.stdout.readline() == "ready\n"
            yield {
                warm_start.SOCKET: place,
                warm_start.EARLY: warm_start.early(environment),
                "PYTHON_EXEC": str(python),
            }
            process.communicate()


@pytest.fixture(scope="session")
def surroundings(warm: dict[str, str]) -> dict[str, str]:
    """The environment without what a launcher or a job of this machine may have left in it, on the
    CPU.
    """
    return clean() | warm


@pytest.fixture
def environment(tmp_path: Path, surroundings: dict[str, str]) -> dict[str, str]:
    """The same with a cache of the test's own."""
    return surroundings | {"HF_HOME": str(tmp_path / "hf")}


def clean() -> dict[str, str]:
    unwanted = ("SLURM", "HPCTRAIN", "ACCELERATE", "HF_", "TRANSFORMERS")
    unwanted += ("WANDB", "MLFLOW", "TENSORBOARD")
    launcher = {
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
    }
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(unwanted) and name not in launcher
    }
    return kept | {
        "ACCELERATE_USE_CPU": "true",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"
