"""Tests that a training starts without a network: `hpctrain doctor` runs this in the job's Python
with the network disabled.

    python -m hpctrain.training.preflight.offline_check --task sft TRAINING_ARGUMENTS

The steps are the training's imports, its parsing of the arguments (which opens the dataset), the
tokenizer (if the task needs one), the model config, and the model's architecture on torch's meta
device, without weights. Nothing is trained or written. Standard output names the step that fails.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from typing import NoReturn

from hpctrain.errors import HpctrainError
from hpctrain.training.process import OFFLINE, leave, say

MARK = "HPCTRAIN-OFFLINE "


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the steps until one fails, and exit: 0 if all succeeded, 1 if one failed."""
    words = sys.argv[1:] if argv is None else argv
    os.environ["ACCELERATE_USE_CPU"] = "true"  # a login node has no GPU, which is not an error
    for name, value in OFFLINE.items():
        os.environ.setdefault(name, value)
    steps, title = _task_steps(words[1], words[2:]), "the arguments"
    try:
        for step in steps:
            title = step
    except BaseException as error:  # including sys.exit in an imported module
        said = (
            error.render()
            if isinstance(error, HpctrainError)
            else traceback.format_exception_only(error)[-1]
        )
        say(f"{MARK}failed {title}")
        sys.stderr.write(said.strip() + "\n")
        leave(1)
    leave(0)


def _task_steps(task: str, words: list[str]) -> Iterator[str]:
    reads_text = task == "sft"
    yield "imports"
    import torch
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
        Trainer,  # noqa: F401
    )

    if reads_text:
        from trl import SFTTrainer  # noqa: F401
    yield "arguments and dataset"
    from hpctrain.training.options import read_options

    options = read_options(words, importlib.import_module(f"hpctrain.training.{task}").TASK)
    folder = options.model.model_name_or_path
    yield "tokenizer and configuration" if reads_text else "configuration"
    # A classifier uses the libraries' code; code that comes with a model is never run.
    trust = {"trust_remote_code": options.training.trust_remote_code} if reads_text else {}
    if reads_text:
        AutoTokenizer.from_pretrained(folder, **trust)
    config = AutoConfig.from_pretrained(folder, **trust)
    yield "model"
    loader = AutoModelForCausalLM if reads_text else AutoModelForSequenceClassification
    with torch.device("meta"):
        loader.from_config(config, **trust)


if __name__ == "__main__":
    main()
