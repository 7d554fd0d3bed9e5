"""The table of options that `check` has is that of the parsers."""

import importlib
from typing import Any

import pytest

from hpctrain.checks.job import check
from hpctrain.checks.job.context import Case, PathFacts, PythonFacts, Surroundings
from hpctrain.config import arguments as training_arguments
from hpctrain.config.spec import JobSpec
from hpctrain.errors import UsageError
from hpctrain.training import options

AROUND = Surroundings(
    python=PythonFacts(
        kind="venv",
        said=".venv",
        prefix=PathFacts(said=".venv", path="/x/.venv", real="/x/.venv", exists=True),
        packages={"trl": "1.16.0", "transformers": "5.23.0"},
    )
)
pytestmark = pytest.mark.torch


@pytest.mark.parametrize("task", ["sft", "classify"])
def test_what_check_knows_is_what_the_training_takes(task: str) -> None:
    module: Any = importlib.import_module(f"hpctrain.training.{task}")
    parser = options._parser(module.TASK)
    takes = {
        word[2:].replace("-", "_")
        for word in parser._option_string_actions
        if word.startswith("--")
    }
    assert training_arguments.known(task) == takes


WORDS = [
    "--learning-rate 1e-4",
    "--learning_rate=1e-4",
    "--no-stop-on-nan",
    "--no_stop_on_nan",
    "--bf16 true",
    "--lora_target_modules q k",
    "--optim_args=--odd",
    "--report_to wandb mlflow",
    "--warmup_steps -1",
    '--model_init_kwargs {"a":1}',
    "--trackio-space-id x",
    "--learnig_rate 1",
    "--learning_rat 1",
    "--learn 1",
    "--no-bf16",
    "--no_learning_rate",
    "--class_names a b",
    "--packing",
    "--max-events 4",
    "--adam_beta3 0.9",
    "--foo",
    "--no_packing",
    "--e 1",
]
VALUES = [
    "--max_steps 10",
    "--max_steps 1e3",
    "--max_steps 1_000",
    "--max_steps -1",
    "--max_steps ten",
    "--learning_rate 1e-4",
    "--learning_rate fast",
    "--learning_rate nan",
    "--warmup_steps 0.1",
    "--bf16 true",
    "--bf16 YES",
    "--bf16 on",
    "--bf16 0",
    "--optim sgd",
    "--optim adamw",
    "--optim SGD",
    "--eval_strategy epoch",
    "--eval_strategy best",
    "--save_strategy best",
    "--lr_scheduler_type cosine",
    "--lr_scheduler_type Cosine",
    "--dtype bf16",
    "--dtype bfloat16",
    "--report_to nope",
    "--seed 1.0",
    "--save_total_limit None",
    "--dataloader_num_workers 2",
    "--ddp_backend gloo",
    "--include_num_input_tokens_seen all",
    "--max_steps=ten",
    "--model_init_kwargs {}",
    "--include_for_metrics loss",
    "--fsdp full_shard",
    "--tf32 maybe",
    "--log_level trace",
    "--eval_steps half",
    "--num_train_epochs 0.5",
    "--per_device_train_batch_size 2.5",
    "--use_peft maybe",
]


def test_several_trackers_are_one_option() -> None:
    parser = options._parser(importlib.import_module("hpctrain.training.sft").TASK)
    words = ["--model_name_or_path", "m", "--report_to", "tensorboard", "mlflow"]
    asked, unknown = parser.parse_known_args(words)
    assert (asked.report_to, unknown) == (["tensorboard", "mlflow"], [])


def test_the_optimizers_that_need_a_package_are_known() -> None:
    from transformers import trainer_optimizer

    lists = ("BITSANDBYTES", "GALORE", "APOLLO", "TORCHAO", "SCHEDULE_FREE")
    for name in (
        each.value for which in lists for each in getattr(trainer_optimizer, f"_{which}_OPTIMIZERS")
    ):
        known = training_arguments.expected("optim", name) is None
        assert not known or training_arguments.needs("optim", name) is not None, name


@pytest.mark.parametrize(
    ("task", "words", "rule"),
    [
        *[(task, each, "argument-unknown") for task in ("sft", "classify") for each in WORDS],
        *[("sft", each, "argument-value") for each in VALUES],
    ],
)
def test_check_finds_what_the_parser_refuses_and_nothing_else(
    task: str, words: str, rule: str
) -> None:
    parser = options._parser(importlib.import_module(f"hpctrain.training.{task}").TASK)  # type: ignore[arg-type]
    parser._actions = [
        action for action in parser._actions if not setattr(action, "required", False)
    ]
    try:
        unknown = parser.parse_known_args(words.split())[1]
    except UsageError:
        unknown = [words]
    refused = [word for word in unknown if word.startswith("--")]
    spec = JobSpec(job_name="x", chdir="/x", arguments=tuple(words.split()), task=task)  # type: ignore[arg-type]
    found = [
        each.level
        for each in check(Case(spec, cluster=None, live=None, around=AROUND, origins={}))
        if each.id == rule
    ]
    assert found == ["error"] * len(refused)


def test_a_run_may_not_save_weights_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--model_name_or_path", "m", "--dataset_name", "d", "--save_only_model", "true"]
    task = importlib.import_module("hpctrain.training.sft").TASK
    with pytest.raises(UsageError) as outside:
        options.read_options(words, task)
    monkeypatch.setenv("HPCTRAIN_RUN_DIR", "runs/r")
    with pytest.raises(UsageError) as inside:
        options.read_options(words, task)
    refusal = "with --save_only_model a checkpoint has no optimizer state"
    assert (refusal in outside.value.render(), refusal in inside.value.render()) == (False, True)
