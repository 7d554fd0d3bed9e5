"""After a stop and a resume everything goes on as if there had been none: to the last bit, on the
CPU.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import survival

pytestmark = [pytest.mark.torch, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("stopped_everywhere.py")
LORA = {"use_peft": "true", "lora_r": 2, "lora_dropout": 0.2, "learning_rate": 0.1}
EPOCHS = {
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "logging_strategy": "epoch",
    "load_best_model_at_end": "true",
}
BEST = {
    "load_best_model_at_end": "true",
    "save_steps": 4,
    "early_stopping_patience": 2,
    "per_device_eval_batch_size": 1,
}

#: processes, where it is stopped (stopped_everywhere.py), what differs from survival.BASE. An epoch
#: has 6 steps, or 3 with two processes.
CASES: dict[str, tuple[int, str, dict[str, Any]]] = {
    "each step": (1, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,3+4,6+7", {}),
    "two processes": (2, "1,3,4,8,14,5+6", {}),
    "all by epochs": (1, "1,6,7,12,14", EPOCHS),
    "log by epochs, evaluate by steps": (
        1,
        "4,6,12,14",
        {"eval_steps": 2, "logging_strategy": "epoch"},
    ),
    "in an evaluation at an epoch's end": (
        1,
        "6e,12e",
        {**EPOCHS, "per_device_eval_batch_size": 1},
    ),
    "best weights, patience": (2, "4,4e,4+8e,12,12e", BEST),
    "LoRA": (2, "2,7", {**LORA, "save_total_limit": 1}),
    "packing, workers": (
        1,
        "2,6,7",
        {"packing": "true", "max_length": 24, "dataloader_num_workers": 2},
    ),
    "by length": (2, "2,7,8", {"train_sampling_strategy": "group_by_length"}),
    "rebalanced": (2, "2,7,8", {"train_sampling_strategy": "batch_rebalance"}),
    "in order, part of an epoch": (
        1,
        "3,8",
        {"train_sampling_strategy": "sequential", "max_steps": -1, "num_train_epochs": 1.6},
    ),
    "save the best only": (
        2,
        "3e,4",
        {**BEST, "save_strategy": "best", "eval_strategy": "epoch", "max_steps": 6},
    ),
}
#: The others are variants of these.
FIRST = ("each step", "two processes")
EACH = [pytest.param(case, marks=() if case in FIRST else pytest.mark.extended) for case in CASES]


@pytest.mark.parametrize("case", EACH)
def test_stopped_and_resumed_is_never_stopped(
    case: str, tiny: tuple[str, str], environment: dict[str, str], tmp_path: Path
) -> None:
    ranks, steps, options = CASES[case]
    words = survival.words(
        {"model_name_or_path": tiny[0], "dataset_name": tiny[1], **survival.BASE, **options}
    )
    launch = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
        if ranks > 1
        else []
    )
    command = [*survival.PYTHON, *launch, str(PROGRAM), str(tmp_path), steps, *words]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-6000:]
    compared = json.loads((tmp_path / "compared.json").read_text())
    assert compared == {step: [] for step in steps.split(",")}
    lines = survival.logged(tmp_path / "whole")
    assert len([line for line in lines if "loss" in line[1]]) >= 2, "there is something to compare"
    assert any("eval_loss" in line[1] for line in lines)


def test_without_a_stop_it_is_what_trl_does(
    tiny: tuple[str, str], environment: dict[str, str], tmp_path: Path
) -> None:
    """Saves, watching and agreeing change nothing."""
    options = {**survival.BASE, "output_dir": "plain"}
    program = f"""
import json, sys, torch, datasets, transformers
datasets.disable_caching()
from trl import SFTConfig, SFTTrainer
torch.manual_seed(0)
data = datasets.load_from_disk({tiny[1]!r})
parser = transformers.HfArgumentParser(SFTConfig)
args = parser.parse_args_into_dataclasses(sys.argv[1:])[0]
args.model_init_kwargs = {{"dtype": "float32"}}
trainer = SFTTrainer(model={tiny[0]!r}, args=args, train_dataset=data["train"], eval_dataset=data["test"])
trainer.train()
trainer.save_model("plain")
json.dump(trainer.state.log_history, open("plain.json", "w"))
"""
    plain = survival.words(
        {
            **{k: v for k, v in options.items() if k != "memory_every"},
            "use_cpu": "true",
            "bf16": "false",
        }
    )
    done = subprocess.run(
        [*survival.PYTHON, "-c", program, *plain],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "ours"
    words = survival.words(
        {"model_name_or_path": tiny[0], "dataset_name": tiny[1], **survival.BASE}
    )
    ours = subprocess.run(
        survival.argv(*words),
        env=survival.run_environment(environment, run),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ours.returncode == 0, ours.stderr
    assert survival.digests(tmp_path / "plain") == survival.digests(run / "model")
    names = {
        "loss",
        "eval_loss",
        "grad_norm",
        "learning_rate",
        "entropy",
        "mean_token_accuracy",
        "num_tokens",
        "train_loss",
    }
    theirs = [
        {name: repr(each) for name, each in line.items() if name in names}
        for line in json.loads((tmp_path / "plain.json").read_text())
    ]
    mine = [
        {name: each for name, each in line.items() if name in names}
        for _, line in survival.logged(run)
    ]
    assert mine == theirs
