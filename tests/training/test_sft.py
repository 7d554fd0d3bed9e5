"""The SFT script really trains, alone and with two processes, and says what is wrong before it
begins.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import survival
import yaml

from hpctrain.errors import UsageError
from hpctrain.memory import Sample, from_json, parse_line
from hpctrain.training import sft
from hpctrain.training.demo import DEMO_TRAINING
from hpctrain.training.options import _check_world, _defaults, _parser

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SFT = "hpctrain.training.sft"
MULTI_GPU = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "MULTI_GPU",
    "machine_rank": 0,
    "main_training_function": "main",
    "mixed_precision": "no",
    "num_machines": 1,
    "num_processes": 2,
    "rdzv_backend": "static",
    "use_cpu": False,
}

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(environment: dict[str, str], tmp_path: Path) -> Run:
    def start(*argv: object, **variables: str) -> "subprocess.CompletedProcess[str]":
        command, env = [*survival.PYTHON, *map(str, argv)], environment | variables
        return subprocess.run(
            command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=600
        )

    return start


@pytest.fixture
def whole(run: Run, environment: dict[str, str], warm: dict[str, str]) -> Run:
    for name in warm:
        del environment[name]
    return run


def options(values: dict[str, Any]) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def given(demo: Any, **more: Any) -> list[str]:
    return options({"model_name_or_path": demo.model, "dataset_name": demo.dataset, **more})


def losses(output: str) -> list[float]:
    return [
        float(found)
        for found in re.findall(r"^\[train\] step=\d+/\d+ loss=(\S+)", output, re.MULTILINE)
    ]


def samples(output: str) -> list[Sample]:
    lines = [line for line in output.splitlines() if "[memory]" in line]
    found = [parse_line(line) for line in lines]
    assert None not in found, lines
    return found  # type: ignore[return-value]


def content(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def test_one_process_with_a_config_file(demo: Any, whole: Run, tmp_path: Path) -> None:
    before = content(demo.dataset)
    config = {
        **DEMO_TRAINING,
        "max_steps": 20,
        "eval_steps": 20,
        "save_steps": 20,
        "packing": True,
        "max_length": 128,
    }
    config |= {
        "model_name_or_path": str(demo.model),
        "dataset_name": str(demo.dataset),
        "memory_every": 5,
    }
    config |= {"per_device_train_batch_size": 2, "learning_rate": "nonsense: the command line wins"}
    (tmp_path / "sft.yaml").write_text(yaml.safe_dump(config))
    done = whole(
        "-m",
        SFT,
        "--config",
        "sft.yaml",
        "--learning_rate",
        "2e-3",
        HPCTRAIN_RUN_DIR=str(tmp_path / "run"),
    )
    assert done.returncode == 0, done.stderr
    first, *_, last = losses(done.stdout)
    assert last < first - 1
    assert done.stdout.splitlines()[-1].startswith("[train] finished: 20 of 20 steps, loss ")
    assert content(demo.dataset) == before, "packing wrote into the dataset's folder"
    saved = tmp_path / "run" / "model"
    assert (saved / "model.safetensors").is_file()
    assert (saved / "tokenizer.json").is_file()
    assert (saved / "hpctrain.json").is_file()
    assert (tmp_path / "run" / "checkpoints" / "checkpoint-20" / "trainer_state.json").is_file()
    assert json.loads((saved / "config.json").read_text())["dtype"] == "float32"
    events = [(sample.step, sample.event) for sample in samples(done.stdout)]
    assert events == [
        (0, "train_begin"),
        (1, "first_step"),
        (5, "step"),
        (10, "step"),
        (15, "step"),
        (20, "step"),
        (20, "evaluate"),
        (20, "save"),
        (20, "train_end"),
    ]
    assert "it/s" not in done.stdout + done.stderr  # no progress bars in a log
    assert "Warning" not in done.stderr


def test_two_processes_of_accelerate(demo: Any, whole: Run, tmp_path: Path) -> None:
    (tmp_path / "multi_gpu.yaml").write_text(yaml.safe_dump(MULTI_GPU))
    launch = [
        "accelerate.commands.launch",
        "--config_file",
        "multi_gpu.yaml",
        "--main_process_port",
        0,
    ]
    training = {
        **DEMO_TRAINING,
        "max_steps": 20,
        "eval_strategy": "no",
        "save_strategy": "no",
        "logging_steps": 5,
    }
    training |= {"per_device_train_batch_size": 4, "memory_every": 2}
    done = whole(
        "-m",
        *launch,
        "-m",
        SFT,
        *given(demo, **training),
        HPCTRAIN_RUN_DIR=str(tmp_path / "run"),
        SLURMD_NODENAME="nid0001",
        HPCTRAIN_WORLD_SIZE="2",
    )
    assert done.returncode == 0, done.stderr
    assert losses(done.stdout)[-1] < losses(done.stdout)[0] - 1
    assert done.stdout.count("[train] finished: 20 of 20 steps") == 1
    seen = samples(done.stdout)
    steps = [0, 1, *range(2, 21, 2), 20]
    for rank in (0, 1):
        own = [sample for sample in seen if sample.rank == rank]
        assert [sample.step for sample in own] == steps
        assert {(s.host, s.world_size, s.local_rank) for s in own} == {("nid0001", 2, rank)}
        assert all(sample.rss_mib and sample.rss_mib > 200 for sample in own)
        file = tmp_path / "run" / "memory" / f"rank-{rank}.jsonl"
        assert [from_json(line) for line in file.read_text().splitlines()] == own
    assert len(seen) == 2 * len(steps)


def test_everything_that_is_missing_is_said_once_by_rank_0(
    demo: Any, run: Run, tmp_path: Path
) -> None:
    """Both ranks see it; nothing is started, and nobody but rank 0 speaks."""
    shutil.copytree(demo.model, tmp_path / "half", ignore=shutil.ignore_patterns("*.safetensors"))
    import datasets

    datasets.Dataset.from_dict({"text": ["a", "b"]}).save_to_disk(str(tmp_path / "raw"))
    launch = ["torch.distributed.run", "--standalone", "--nproc_per_node", 2]
    arguments = ["--model_name_or_path", "half", "--dataset_name", "raw", "--max_step_s", "3"]
    done = run(
        "-m",
        *launch,
        "-m",
        SFT,
        *arguments,
        TORCH_DISTRIBUTED_DEBUG="DETAIL",
        TORCH_CPP_LOG_LEVEL="INFO",
    )
    assert done.returncode == 1  # torchrun's own; it hides the 2
    assert "exitcode  : 2" in done.stderr
    message = (
        "error: 3 problems before training\n"
        "unknown option --max_step_s; did you mean --max_steps?\n"
        "the model directory 'half' has no weights (*.safetensors or pytorch_model*.bin)\n"
        "the dataset 'raw' is not tokenized: split 'train' has text, and no input_ids\n"
        "fix: "
    )
    assert done.stderr.count("error: ") == 1
    assert message in done.stderr
    assert "hpctrain/training" not in done.stderr.replace("\\", "/")  # no traceback of ours
    assert "ProcessGroup" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        ([], {"ACCELERATE_USE_CPU": ""}, "error: no GPU is visible on "),
        (
            [
                "--load_best_model_at_end",
                "true",
                "--save_strategy",
                "no",
                "--eval_strategy",
                "steps",
            ],
            {},
            "error: the tr",
        ),
        (["--config", "nowhere.yaml"], {}, "error: cannot read --config nowhere.yaml\n"),
    ],
)
def test_one_error_and_no_training(
    demo: Any, run: Run, arguments: list[str], variables: dict[str, str], message: str
) -> None:
    done = run("-m", SFT, *given(demo, output_dir="out"), *arguments, **variables)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(message), done.stderr
    assert done.stderr.splitlines()[-1].startswith(("fix: ", "hint: "))


def test_another_world_than_the_launchers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    _check_world(SimpleNamespace(world_size=2))
    with pytest.raises(UsageError, match="started 2 processes and the Trainer found 1"):
        _check_world(SimpleNamespace(world_size=1))


def test_a_completion_mask_is_not_ignored(demo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCTRAIN_RUN_DIR", "/run")
    parser = _parser(sft.TASK)
    asked, _ = parser.parse_known_args(given(demo))
    asked.use_cpu = True
    chosen = sft._defaults(
        asked, cpu=True, data=SimpleNamespace(column_names=["input_ids", "completion_mask"])
    )
    assert chosen["completion_only_loss"] is True
    chosen = sft._defaults(
        asked,
        cpu=True,
        data=SimpleNamespace(column_names=["input_ids", "completion_mask", "labels"]),
    )
    assert chosen["completion_only_loss"] is None
    chosen = _defaults(asked, cpu=True)
    assert (chosen["dtype"], chosen["bf16"], chosen["output_dir"]) == (
        "float32",
        False,
        "/run/checkpoints",
    )


@pytest.mark.parametrize(("lora", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_only_a_frozen_base_is_loaded_in_bfloat16(
    monkeypatch: pytest.MonkeyPatch, lora: bool, dtype: str
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    asked = SimpleNamespace(fp16=False, use_peft=lora, early_stopping_patience=None)
    chosen = _defaults(asked, cpu=False)
    assert (chosen["dtype"], chosen["bf16"]) == (dtype, True)


def test_help_lists_all_options_and_trains_nothing(run: Run) -> None:
    done = run("-m", SFT, "--help")
    assert done.returncode == 0
    for option in (
        "--memory_every",
        "--learning_rate",
        "--use_peft",
        "--dataset_test_split",
        "--config",
    ):
        assert option in done.stdout
