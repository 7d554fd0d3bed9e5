"""The programs of the doctor that run in the training's environment: node_check under a real
launcher, offline_check by itself.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain.logs import preflight

PROGRAM = Path(hpctrain.__file__).parent / "training" / "preflight" / "node_check.py"


def launch(
    environment: dict[str, str], cwd: Path, *words: str, ranks: int = 2
) -> subprocess.CompletedProcess[str]:
    argv = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        str(ranks),
        str(PROGRAM),
        *words,
    ]
    return subprocess.run(
        argv, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600
    )


@pytest.mark.torch
@pytest.mark.slow
def test_ranks_of_one_node_report_and_reduce(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/part").write_bytes(bytes(2 << 20))
    done = launch(
        environment | {"SLURM_GPUS_ON_NODE": "2"},
        tmp_path,
        "--learning_rate",
        "1e-5",
        "--doctor-gpus",
        "2",
        "--doctor-dataset",
        "data",
    )
    assert done.returncode == 0, done.stderr
    found = preflight.read_report(done.stdout)
    assert [(rank.rank, rank.done, rank.visible) for rank in found.ranks] == [
        (0, True, 0),
        (1, True, 0),
    ]
    assert all(rank.cpu_set == os.sched_getaffinity(0) for rank in found.ranks)
    assert [node.gpus_given for node in found.nodes] == [2]
    assert found.nodes[0].read == preflight.Access(path="data")
    assert found.nodes[0].write is None, (
        "there is no place to write: no run directory, and none was named"
    )
    assert [speed.bytes for speed in found.speeds] == [1 << 20, 64 << 20]
    assert all(
        speed.right and speed.ranks == 2 and speed.backend == "gloo" for speed in found.speeds
    )
    assert found.failures == ()


@pytest.mark.torch
@pytest.mark.slow
def test_a_rank_that_never_comes_is_no_hang(environment: dict[str, str], tmp_path: Path) -> None:
    """A world of two of which one exists: the connection is given up, and what the node had said by
    then is there.
    """
    code = (
        f"import sys\nsys.path.insert(0, {str(PROGRAM.parents[3])!r})\nfrom hpctrain.training.preflight"
        " import node_check\n"
    )
    code += "node_check._CONNECT_S = 3\nnode_check.main([])\n"
    alone = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**environment, **alone},
        capture_output=True,
        text=True,
        timeout=600,
    )
    found = preflight.read_report(done.stdout)
    assert done.returncode == 1
    assert [failure.stage for failure in found.failures] == ["connecting the ranks"]
    assert found.nodes
    assert found.ranks[0].version is not None


@pytest.mark.torch
@pytest.mark.slow
def test_one_process_without_any_launcher(environment: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--doctor-checkpoint", "out"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    found = preflight.read_report(done.stdout)
    assert (done.returncode, len(found.ranks), found.speeds) == (0, 1, ())
    assert found.nodes[0].write == preflight.Access(path="out")
    assert list(tmp_path.glob("out")) == []


def offline(
    environment: dict[str, str], cwd: Path, *words: str
) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "hpctrain.training.preflight.offline_check", *words]
    return subprocess.run(
        argv, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600
    )


@pytest.mark.torch
@pytest.mark.slow
def test_the_demo_starts_without_a_network_and_writes_nothing(
    environment: dict[str, str], demo: Any, tmp_path: Path
) -> None:
    before = sorted(demo.directory.rglob("*"))
    words = (
        "--model_name_or_path",
        str(demo.directory / "model"),
        "--dataset_name",
        str(demo.directory / "dataset"),
    )
    done = offline(environment, tmp_path, "--task", "sft", *words)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert sorted(demo.directory.rglob("*")) == before
    assert [path for path in tmp_path.rglob("*") if "hf" not in path.parts] == []


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.extended
def test_a_classifier_needs_neither_tokenizer_nor_weights_of_its_own(
    environment: dict[str, str], tmp_path: Path
) -> None:
    import datasets

    rows = datasets.Dataset.from_dict({"input_ids": [[1, 2], [2, 3]], "label": [0, 1]})
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(str(tmp_path / "dataset"))
    model = Path(__file__).parents[2] / "examples/classify/model"
    words = (
        "--model_name_or_path",
        str(model),
        "--dataset_name",
        "dataset",
        "--from_scratch",
        "true",
        "--pad_token_id",
        "0",
    )
    done = offline(environment, tmp_path, "--task", "classify", *words)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    other = offline(environment, tmp_path, "--task", "sft", *words)
    assert other.stdout == "HPCTRAIN-OFFLINE failed arguments and dataset\n"
    assert "has no tokenizer" in other.stderr
