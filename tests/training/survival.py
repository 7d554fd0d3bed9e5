"""A training that is small enough to be started many times: its model and data, its process, and
what it leaves to be compared.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import warm_start

SFT = "hpctrain.training.sft"
#: A Python that needs no five seconds for its imports where the `environment` of the tests is its
#: own.
PYTHON = [sys.executable, "-S", str(Path(__file__).with_name("warm_start.py"))]
#: What differs between two runs that do the same: durations, and what is computed from them.
_TIMED = ("runtime", "per_second", "elapsed")

BASE: dict[str, Any] = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "learning_rate": 1e-2,
    "max_length": 32,
    "max_steps": 14,
    "logging_steps": 3,
    "eval_strategy": "steps",
    "eval_steps": 4,
    "save_strategy": "steps",
    "save_steps": 8,
    "memory_every": 0,
    "warmup_steps": 3,
    "lr_scheduler_type": "cosine",
    "gradient_checkpointing": "false",
    "ddp_find_unused_parameters": "false",
    "seed": 7,
}


def make(directory: Path) -> tuple[Path, Path]:
    """Write a model with dropout and a dataset of 23 + 6 rows, whose last batch and last
    accumulation are not full.
    """
    import datasets
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    model, data = directory / "model", directory / "dataset"
    words = {f"w{number}": number for number in range(60)} | {"<pad>": 60, "</s>": 61, "<unk>": 62}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(model)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attention_dropout=0.1,
        pad_token_id=60,
        eos_token_id=61,
    )
    LlamaForCausalLM(config).save_pretrained(model)
    draw = torch.Generator().manual_seed(1)

    def rows(count: int) -> Any:
        lengths = torch.randint(5, 30, (count,), generator=draw).tolist()
        return datasets.Dataset.from_dict(
            {"input_ids": [torch.randint(0, 60, (n,), generator=draw).tolist() for n in lengths]}
        )

    datasets.DatasetDict({"train": rows(23), "test": rows(6)}).save_to_disk(str(data))
    return model, data


def words(values: Mapping[str, Any]) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def run_environment(
    environment: Mapping[str, str], run: Path, attempt: str = "1.0", **more: str
) -> dict[str, str]:
    (run / "attempts" / attempt).mkdir(parents=True, exist_ok=True)
    ours = {
        "HPCTRAIN_RUN_DIR": str(run),
        "HPCTRAIN_RUN_ID": run.name,
        "HPCTRAIN_TAG": run.name,
        "HPCTRAIN_ATTEMPT": attempt,
    }
    return {**environment, **ours, **more}


def argv(*options: str, ranks: int = 1, program: str = SFT) -> list[str]:
    launch = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
        if ranks > 1
        else []
    )
    return [*PYTHON, *launch, "-m", program, *options]


def start(arguments: list[str], environment: Mapping[str, str], cwd: Path) -> subprocess.Popen[str]:
    """Start a training as the job script does: with the signals ignored, in a process of its own,
    for signals are what it is about.
    """
    own = {name: value for name, value in environment.items() if name != warm_start.SOCKET}
    return subprocess.Popen(
        ["bash", "-c", "trap '' TERM USR1 USR2; exec \"$@\"", "bash", *arguments],
        env=own,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def exit_word(run: Path, attempt: str) -> str:
    return (run / "attempts" / attempt / "exit").read_text()


def logged(run: Path) -> list[tuple[str, dict[str, str]]]:
    """Return every log line of all attempts of a run in order, each value as it was, to the last
    bit.
    """
    found = []
    for attempt in sorted(
        (run / "attempts").iterdir(), key=lambda path: [int(part) for part in path.name.split(".")]
    ):
        for line in (
            (attempt / "metrics.jsonl").read_text().splitlines()
            if (attempt / "metrics.jsonl").exists()
            else ()
        ):
            value = json.loads(line)
            if value["event"] in ("log", "evaluate"):
                kept = {
                    name: repr(each)
                    for name, each in value.items()
                    if name not in ("at", "time") and not any(t in name for t in _TIMED)
                }
                found.append((value["event"], kept))
    return found


def digests(directory: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.glob("*.safetensors"))
    }


def listed(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
