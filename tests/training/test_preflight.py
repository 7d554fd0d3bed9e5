"""What is wrong with a model folder, a dataset folder or a launch is found without torch."""

import json
from pathlib import Path

import pytest

from hpctrain.training import preflight
from hpctrain.training.preflight import (
    Problem,
    check_dataset,
    check_gpus,
    check_launch,
    check_model,
    evaluation_split,
    usage_error,
)


def whats(problems: list[Problem]) -> list[str]:
    assert all(problem.fix for problem in problems)
    return [problem.what for problem in problems]


def model(folder: Path, *files: str, index: dict[str, object] | None = None) -> str:
    folder.mkdir()
    for name in files:
        (folder / name).write_text("{}")
    if index is not None:
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return str(folder)


def test_a_whole_model_has_no_problems(tmp_path: Path) -> None:
    assert (
        check_model(model(tmp_path / "a", "config.json", "model.safetensors", "tokenizer.json"))
        == []
    )
    index = {"weight_map": {"x": "m-1.safetensors", "y": "m-2.safetensors"}}
    shards = ("m-1.safetensors", "m-2.safetensors")
    assert (
        check_model(model(tmp_path / "b", "config.json", "tokenizer.model", *shards, index=index))
        == []
    )


def test_what_a_model_lacks(tmp_path: Path) -> None:
    assert whats(check_model(None)) == ["--model_name_or_path is missing"]
    [problem] = check_model("Qwen/Qwen3-0.6B")
    assert problem.what.startswith("there is no model directory 'Qwen/Qwen3-0.6B'; ")
    assert problem.fix.startswith("hf download Qwen/Qwen3-0.6B --local-dir ")
    name = model(tmp_path / "a", "model.safetensors")
    assert whats(check_model(name)) == [f"the model directory '{name}' has no config.json"]
    name = model(tmp_path / "b", "config.json")
    assert whats(check_model(name)) == [
        f"the model directory '{name}' has no weights (*.safetensors or pytorch_model*.bin)",
        f"the model directory '{name}' has no tokenizer (tokenizer.json, for instance)",
    ]
    index = {"weight_map": {"x": "m-1.safetensors", "y": "m-2.safetensors"}}
    name = model(tmp_path / "c", "config.json", "tokenizer.json", "m-1.safetensors", index=index)
    assert whats(check_model(name)) == [
        f"the model directory '{name}' lacks 1 of 2 weight files: m-2.safetensors"
    ]
    name = model(tmp_path / "d", "config.json", "tokenizer.json")
    (tmp_path / "d" / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:1\n"
    )
    assert (
        "has a git-lfs pointer where weights should be: model.safetensors"
        in whats(check_model(name))[0]
    )


def split(folder: Path, *columns: str, data: bool = True) -> None:
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text(json.dumps({"features": dict.fromkeys(columns)}))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    if data:
        (folder / "data.arrow").write_bytes(b"")


def test_datasets(tmp_path: Path) -> None:
    name = str(tmp_path / "both")
    split(tmp_path / "both" / "train", "input_ids")
    split(tmp_path / "both" / "test", "text")
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert check_dataset(name, ["train"]) == []
    assert whats(check_dataset(name, ["train", "test"])) == [
        f"the dataset '{name}' is not tokenized: split 'test' has text, and no input_ids"
    ]
    assert whats(check_dataset(name, ["main", "valid"])) == [
        f"the dataset '{name}' has no split 'main'; it has train, test",
        f"the dataset '{name}' has no split 'valid'; it has train, test",
    ]
    name = str(tmp_path / "plain")
    split(tmp_path / "plain", "input_ids", "labels")
    assert check_dataset(name, ["train"]) == []
    assert whats(check_dataset(name, ["train", "test"])) == [
        f"the dataset '{name}' has no split 'test'; it has no splits at all"
    ]
    name = str(tmp_path / "cut")
    split(tmp_path / "cut", "input_ids", data=False)
    assert whats(check_dataset(name, ["train"])) == [
        f"the dataset '{name}' is not complete: split 'train' lacks data.arrow"
    ]
    (tmp_path / "csv").mkdir()
    assert (
        "is not a dataset saved by save_to_disk"
        in whats(check_dataset(str(tmp_path / "csv"), ["train"]))[0]
    )
    assert (
        "there is no dataset directory"
        in whats(check_dataset(str(tmp_path / "none"), ["train"]))[0]
    )
    assert whats(check_dataset(None, ["train"])) == ["--dataset_name is missing"]


LAUNCHED = {
    "WORLD_SIZE": "2",
    "RANK": "1",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "2",
}


@pytest.mark.parametrize(
    ("environ", "what"),
    [
        ({}, None),
        (LAUNCHED, None),
        (LAUNCHED | {"SLURM_STEP_NUM_TASKS": "2", "HPCTRAIN_WORLD_SIZE": "2"}, None),
        (
            {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "2"},
            None,
        ),  # the batch script of a job with two tasks
        ({"WORLD_SIZE": "1"}, None),
        (
            {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "n", "MASTER_PORT": "1"},
            "without LOCAL_RANK: each process",
        ),
        ({"SLURM_STEP_NUM_TASKS": "8"}, "srun started 8 tasks and WORLD_SIZE is not set"),
        ({"HPCTRAIN_WORLD_SIZE": "8"}, "the job requests 8 processes and the launcher started 1"),
        (
            LAUNCHED | {"HPCTRAIN_WORLD_SIZE": "8"},
            "requests 8 processes and the launcher started 2",
        ),
    ],
)
def test_launches(environ: dict[str, str], what: str | None) -> None:
    found = whats(list(check_launch(environ)))
    assert found == [] if what is None else len(found) == 1 and what in found[0], found


@pytest.mark.parametrize(
    ("visible", "cpu", "environ", "what"),
    [
        (0, True, {}, None),
        (1, False, {}, None),
        (4, False, {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}, None),
        (4, False, {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, None),
        (0, False, LAUNCHED, "no GPU is visible on n1"),
        (
            2,
            False,
            {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"},
            "4 processes on n1 see 2 GPUs: some would share",
        ),
        (
            1,
            False,
            {"LOCAL_RANK": "1"},
            "2 processes on n1 see 1 GPU: some would share",
        ),  # --gpus-per-task=1
        (4, False, {}, "4 GPUs are visible on n1 and one process was started without a launcher"),
    ],
)
def test_gpus(visible: int, cpu: bool, environ: dict[str, str], what: str | None) -> None:
    found = whats(check_gpus(visible, cpu=cpu, environ=environ, host="n1"))
    assert found == [] if what is None else len(found) == 1 and what in found[0], found


def test_one_problem_is_the_error_and_several_are_its_details() -> None:
    one, two, three = Problem("a", "do x"), Problem("b", "do y"), Problem("c", "ls", command=True)
    assert usage_error([one]).render() == "error: a\nhint: do x"
    assert (
        usage_error([one, two, three]).render()
        == "error: 3 problems before training\na\nb\nc\nfix: ls\nhint: do x; do y"
    )
    assert usage_error([one]).exit_code == 2


@pytest.mark.parametrize(
    ("asked", "found", "wrong"),
    [
        ("", "MULTI_GPU", False),
        ("ddp", "MULTI_GPU", False),
        ("fsdp", "FSDP", False),
        ("fsdp", "MULTI_CPU", True),
    ],
)
def test_sharding_that_is_not_in_effect(asked: str, found: str, wrong: bool) -> None:
    problem = preflight.sharding_problem({"HPCTRAIN_SHARDING": asked}, found)
    assert (problem is not None) == wrong
    assert problem is None or asked in problem.what


@pytest.mark.parametrize(
    ("has", "asked", "found"),
    [
        (["train", "validation"], None, "validation"),
        (["train", "validation", "test"], None, "test"),
        (["train"], None, "test"),
        (None, None, "test"),
        (["train", "validation"], "test", "test"),
        (["train", "validation", "test"], "dev", "dev"),
    ],
)
def test_the_evaluation_split(
    has: list[str] | None, asked: str | None, found: str, tmp_path: Path
) -> None:
    if has is not None:
        (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": has}))
    assert evaluation_split(str(tmp_path), asked) == found
    assert evaluation_split(None, asked) == (asked or "test")
