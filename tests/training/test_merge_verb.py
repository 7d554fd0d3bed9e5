"""`hpctrain checkpoints merge` as it is typed: a run, one of its checkpoints, a folder; and every refusal."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import adapters
import pytest
import survival

from hpctrain.runs.manifest import write_manifest

pytestmark = [pytest.mark.torch, pytest.mark.slow]

Merge = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and a run of a LoRA training: its final adapter and one checkpoint."""
    folder = tmp_path_factory.mktemp("project")
    adapters.llama(folder / "base")
    run = folder / "runs" / "lora-1"
    (run / "checkpoints").mkdir(parents=True)
    (run / "run.json").write_text(
        json.dumps({"schema": 1, "id": "lora-1", "tag": "lora-1", "name": "lora", "created": 1.0})
    )
    adapters.adapter(folder / "base", run / "model", scale=0.1)
    adapters.adapter(folder / "base", run / "checkpoints" / "checkpoint-4", scale=0.2)
    for saved in (run / "model", run / "checkpoints" / "checkpoint-4"):
        write_manifest(
            saved, step=4, world_size=1, state=("model",), run_id="lora-1", attempt="1.0"
        )
    return folder


@pytest.fixture
def merge(environment: dict[str, str]) -> Merge:
    def typed(project: Path, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [*survival.PYTHON, "-m", "hpctrain", "checkpoints", "merge", *words]
        wide = environment | {"COLUMNS": "80"}
        return subprocess.run(command, cwd=project, env=wide, capture_output=True, text=True)

    return typed


def test_a_run_and_a_checkpoint(project: Path, merge: Merge) -> None:
    done = merge(project, "lora-1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "runs/lora-1/merged\n"
    assert " in float32\n" in done.stderr
    assert "next: --model_name_or_path runs/lora-1/merged" in done.stderr
    assert all(
        len(line) <= 80 for line in done.stderr.splitlines() if not line.startswith("loading")
    ), done.stderr
    assert "it/s" not in done.stderr
    assert "Warning" not in done.stderr
    one = merge(project, "lora-1/checkpoint-4", "--json", "--dtype", "bfloat16")
    assert one.returncode == 0, one.stderr
    said = json.loads(one.stdout)
    assert (said["schema"], said["folder"], said["dtype"]) == (
        1,
        "runs/lora-1/merged-4",
        "bfloat16",
    )
    first, second = (
        json.loads((project / said / "hpctrain.json").read_text())
        for said in ("runs/lora-1/merged", "runs/lora-1/merged-4")
    )
    assert (first["run_id"], first["step"]) == ("lora-1", 4)
    assert first["files"]["model.safetensors"] != second["files"]["model.safetensors"]
    again = merge(project, "lora-1")
    assert again.returncode == 2
    assert (
        again.stderr
        == "error: runs/lora-1/merged is there already\nhint: use --to with another directory\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "error: there are no weights 'nothing'"),
        (["lora-1", "--to", "a", "--base", "gone"], "error: the base model gone is not there"),
        (["lora-1", "--to", "a", "--dtype", "int8"], "error: invalid value for '--dtype'"),
    ],
)
def test_refusals(words: list[str], message: str, project: Path, merge: Merge) -> None:
    done = merge(project, *words)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.lower().startswith(message.lower()), done.stderr
    assert done.stderr.splitlines()[-1].startswith(("fix: ", "hint: "))
    assert not (project / "a").exists()
