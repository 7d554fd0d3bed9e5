"""Proves that a training starts without a network: `hpctrain doctor` runs this in the job's Python with the network switched off.

    python -m hpctrain.training.offline_check --task sft TRAINING_ARGUMENTS
    python -m hpctrain.training.offline_check --script train.py

The least that shows it: the imports of the training, its own reading of the arguments (which opens the dataset), tokenizer (where the
task needs one) and model configuration, and the model's architecture on torch's meta device, which holds no weights. Nothing is trained
and nothing is written.
Each finished step is one line on standard output; the network interfaces that this process sees come first.
"""

from __future__ import annotations

import ast
import importlib
import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from hpctrain.errors import HpctrainError

MARK = "HPCTRAIN-OFFLINE "


def main(argv: list[str] | None = None) -> NoReturn:
    """Take the steps until one fails, and end the process: 0 all done, 1 one failed."""
    words = sys.argv[1:] if argv is None else argv
    _say(f"interfaces {','.join(name for _, name in socket.if_nameindex())}")
    os.environ["ACCELERATE_USE_CPU"] = "true"  # a login node has no GPU, and that is no fault
    for name, value in (("HF_HUB_OFFLINE", "1"), ("HF_DATASETS_OFFLINE", "1"), ("TRANSFORMERS_OFFLINE", "1")):
        os.environ.setdefault(name, value)
    if words[:1] == ["--task"]:
        task, words = words[1], words[2:]
    else:
        task = "sft"
    for title, step in _script_steps(words[1]) if words[:1] == ["--script"] else _task_steps(task, words):
        try:
            step()
        except BaseException as error:  # sys.exit in an imported module too
            said = error.render() if isinstance(error, HpctrainError) else traceback.format_exception_only(error)[-1]
            _say(f"failed {title}")
            sys.stderr.write(said.strip() + "\n")
            _leave(1)
        _say(f"done {title}")
    _leave(0)


def _task_steps(task: str, words: list[str]) -> list[tuple[str, Callable[[], None]]]:
    """Return the steps of one of the shipped trainings: `sft` or `classify`."""
    state: dict[str, Any] = {}
    reads_text = task == "sft"

    def imports() -> None:
        from transformers import Trainer  # noqa: F401

        if reads_text:
            from trl import SFTTrainer  # noqa: F401

    def arguments() -> None:
        from hpctrain.training.options import read_options

        state["options"] = read_options(words, importlib.import_module(f"hpctrain.training.{task}").TASK)

    def configuration() -> None:
        from transformers import AutoConfig, AutoTokenizer

        options = state["options"]
        # A classifier's code comes with the libraries, and what ships with a model is never run.
        trust = {"trust_remote_code": options.training.trust_remote_code} if reads_text else {}
        if reads_text:
            AutoTokenizer.from_pretrained(options.model.model_name_or_path, **trust)
        state["config"] = AutoConfig.from_pretrained(options.model.model_name_or_path, **trust), trust

    def model() -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

        config, trust = state["config"]
        with torch.device("meta"):
            (AutoModelForCausalLM if reads_text else AutoModelForSequenceClassification).from_config(config, **trust)

    return [
        ("imports", imports),
        ("arguments and dataset", arguments),
        ("tokenizer and configuration" if reads_text else "configuration", configuration),
        ("model", model),
    ]


def _script_steps(script: str) -> list[tuple[str, Callable[[], None]]]:
    """Return one step for each module that the script imports; what is beside the script is found as it would be in the job."""
    sys.path.insert(0, str(Path(script).resolve().parent))
    return [(f"import {name}", lambda name=name: _import(name)) for name in imported(Path(script).read_text(encoding="utf-8"))]  # type: ignore[misc]


def _import(name: str) -> None:
    importlib.import_module(name)


def imported(text: str) -> list[str]:
    """Return the modules that a script imports unconditionally, in order; what is inside `try`, `if` or a function may never be reached.

    Raises:
        SyntaxError: the text is no Python.
    """
    names: list[str] = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0 and node.module != "__future__":
            names.append(node.module)
    return list(dict.fromkeys(names))


def _say(line: str) -> None:
    sys.stdout.write(f"{MARK}{line}\n")
    sys.stdout.flush()


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
