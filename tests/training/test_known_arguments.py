"""The table of options that `check` has is that of the parsers."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from hpctrain.jobs.check import known_arguments, training
from hpctrain.jobs.check.case import Case
from hpctrain.jobs.check.surroundings import PathFacts, PythonFacts, Surroundings
from hpctrain.jobs.spec import JobSpec
from hpctrain.training import options

AROUND = Surroundings(
    python=PythonFacts(
        kind="venv", said=".venv", prefix=PathFacts(said=".venv", path="/x/.venv", real="/x/.venv", exists=True),
        distributions={"trl": "1.16.0", "transformers": "5.23.0"},
    )
)  # fmt: skip
pytestmark = pytest.mark.torch


@pytest.mark.parametrize("task", ["sft", "classify"])
def test_what_check_knows_is_what_the_training_takes(task: str) -> None:
    module: Any = importlib.import_module(f"hpctrain.training.{task}")
    parser = options._parser(module.TASK)
    takes = {word[2:].replace("-", "_") for word in parser._option_string_actions if word.startswith("--")}
    assert known_arguments.known(task) == takes


WORDS = [
    "--learning-rate 1e-4", "--learning_rate=1e-4", "--no-stop-on-nan", "--no_stop_on_nan", "--bf16 true", "--lora_target_modules q k",
    "--optim_args=--odd", "--report_to wandb mlflow", "--warmup_steps -1", '--model_init_kwargs {"a":1}', "--trackio-space-id x",
    "--learnig_rate 1", "--learning_rat 1", "--learn 1", "--no-bf16", "--no_learning_rate", "--class_names a b", "--packing",
    "--max-events 4", "--adam_beta3 0.9", "--foo", "--no_packing", "--e 1",
]  # fmt: skip


@pytest.mark.parametrize("task", ["sft", "classify"])
@pytest.mark.parametrize("words", WORDS)
def test_check_finds_what_the_parser_refuses_and_nothing_else(task: str, words: str) -> None:
    parser = options._parser(importlib.import_module(f"hpctrain.training.{task}").TASK)  # type: ignore[arg-type]
    parser._actions = [action for action in parser._actions if not setattr(action, "required", False)]
    refused = [word for word in parser.parse_known_args(words.split())[1] if word.startswith("--")]
    spec = JobSpec(job_name="x", chdir="/x", arguments=tuple(words.split()), task=task)  # type: ignore[arg-type]
    found = [each.level for each in training.rules(Case(spec, None, None, AROUND)) if each.id == "argument-unknown"]
    assert found == ["error"] * len(refused)
