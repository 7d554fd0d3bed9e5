"""The options of the shipped trainings: parsed, checked, all problems at once; nothing is connected before they are found possible."""

from __future__ import annotations

import difflib
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hpctrain import installed
from hpctrain.errors import UsageError
from hpctrain.jobs import shell
from hpctrain.runs import layout
from hpctrain.training import preflight, trackers
from hpctrain.training.arguments import ModeArguments, MonitorArguments, SurvivalArguments
from hpctrain.training.starting import Weights, weights_problems, weights_to_start_from
from hpctrain.training.task import Task, Unasked, is_unasked
from hpctrain.training.traps_asked import REMOVED

#: Options of a LoRA adapter that have a number where nobody gives one.
_RANK = ("lora_r", "lora_alpha")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything that was asked for, parsed, and found possible.

    Attributes:
        task: which training this is.
        script, training, model: TRL's ScriptArguments, the training arguments (SFTConfig or another), and ModelConfig.
        own: the task's own dataclasses, in the order in which it names them.
        splits: the names of the splits that are read: the training split, and the evaluation split where one is evaluated.
    """

    task: Task
    script: Any
    training: Any
    model: Any
    own: tuple[Any, ...] = ()
    monitor: MonitorArguments
    mode: ModeArguments
    survival: SurvivalArguments
    weights: Weights
    splits: list[str]
    train_dataset: Any
    eval_dataset: Any


def read_options(argv: list[str], task: Task) -> Options:
    """Parse, check, and only then build the training arguments, which starts the process group.

    Args:
        argv: the words of the command line.
        task: whose options they are.

    Raises:
        UsageError: something is missing or cannot be; all problems in one error.
    """
    parser = _parser(task)
    arguments = _apply_config(parser, list(argv), task.help)
    # The exact options, as TRL's parser understands them, without building the classes: SFTConfig connects the ranks.
    asked, unknown = parser.parse_known_args(arguments)
    problems = [_unknown_option(text, parser, task.help) for text in unknown if text.startswith("-")]
    if unknown and not problems:
        problems.append(preflight.Problem(f"what is '{unknown[0]}'? it belongs to no option", task.help))
    asked.dataset_test_split = preflight.evaluation_split(asked.dataset_name, asked.dataset_test_split)
    splits = [] if asked.evaluate_only else [asked.dataset_train_split]
    splits += [asked.dataset_test_split] * (asked.eval_strategy != "no" or asked.evaluate_only)
    cpu = bool(asked.use_cpu or _says_yes(os.environ.get("ACCELERATE_USE_CPU")))
    weights = _check(asked, task, problems, splits=splits, cpu=cpu)
    train_dataset, eval_dataset = task.prepare(asked, *_load(asked.dataset_name, splits, evaluate_only=asked.evaluate_only))
    ranks = {name: int(getattr(asked, name)) for name in _RANK}  # plain numbers, for what is written of them
    chosen = {**ranks, **_defaults(asked, cpu=cpu), **task.defaults(asked, cpu=cpu, data=train_dataset)}
    parser.set_defaults(**{name: value for name, value in chosen.items() if is_unasked(getattr(asked, name))}, use_cpu=cpu)
    parser.set_defaults(dataset_test_split=asked.dataset_test_split)
    script, training, model, *own, monitor, survival, mode = _build(parser, arguments, task.help)
    model.model_name_or_path = weights.model
    _check_world(training)
    return Options(
        task=task,
        script=script,
        training=training,
        model=model,
        own=tuple(own),
        monitor=monitor,
        mode=mode,
        survival=survival,
        weights=weights,
        splits=splits,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
    )


def _check(asked: Any, task: Task, problems: list[preflight.Problem], *, splits: list[str], cpu: bool) -> Weights:
    """Return the weights to start from, once nothing is wrong.

    Args:
        asked: the options; what the task looks at in them becomes what will be loaded.
        task: which training this is.
        problems: found so far.
        splits: the splits that will be read.
        cpu: the training runs on the CPU.

    Raises:
        UsageError: all problems.
    """
    weights, wrong = weights_to_start_from(asked)
    found = [*problems, *preflight.check_launch(os.environ), *preflight.check_sharding(os.environ)]
    found += wrong or weights_problems(weights, asked, task.model_needs(asked))
    found += preflight.check_dataset(asked.dataset_name, splits)
    found += preflight.check_gpus(_visible_gpus(), cpu=cpu, environ=os.environ, host=socket.gethostname())
    asked.use_cpu, asked.model_name_or_path = cpu, weights.model
    found += _survival_problems(asked) + _adapter_problems(asked) + trackers.problems(asked.report_to) + task.problems(asked)
    if found:
        raise preflight.usage_error(found)
    return weights


def _build(parser: Any, arguments: list[str], help_: str) -> tuple[Any, ...]:
    """Return the options as the libraries' classes; this connects the ranks."""
    try:
        parsed = parser.parse_args_into_dataclasses(arguments, look_for_args_file=False)
    except (ValueError, TypeError, NotImplementedError) as error:  # options that exclude each other
        raise UsageError(f"the training cannot be set up like this: {error}", fix=help_) from error
    return tuple(parsed[:-1])  # the last is what remains: --config


def _parser(task: Task) -> Any:
    """Return TRL's parser for the options, which raises UsageError instead of printing six hundred lines of usage."""
    try:
        from trl import TrlParser

        classes = (*task.classes(), MonitorArguments, SurvivalArguments, ModeArguments)
    except ImportError as error:
        raise UsageError(f"cannot import TRL: {error}", fix=installed.command("train")) from error

    class Parser(TrlParser):  # type: ignore[misc]  # TRL is not there on the login node
        def error(self, message: str) -> NoReturn:
            raise UsageError(message, fix=task.help)

    parser = Parser(classes, prog=f"python -m {task.module}", allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE.yaml", help="Read options from a YAML file; the command line wins.")
    ours: dict[str, Any] = {"dtype": None, "logging_nan_inf_filter": False, "dataset_test_split": None, "use_peft": None}
    ours |= {name: Unasked(parser.get_default(name)) for name in _RANK}  # so that the same number, given, can be told from it
    parser.set_defaults(**{**ours, **task.parser_defaults})
    return parser


def _apply_config(parser: Any, argv: list[str], help_: str) -> list[str]:
    """Make the values of `--config FILE` the parser's defaults, and return the command line without it.

    Raises:
        UsageError: the file is missing, is no YAML mapping, or has keys that are no options.
    """
    import yaml

    path: str | None = None
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--config":
            path = next(words, "")
        elif word.startswith("--config="):
            path = word.partition("=")[2]
        else:
            rest.append(word)
    if path is None:
        return rest
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"cannot read --config {path}", details=(str(error),), fix=f"ls -l {shell.quote(path)}") from error
    if not isinstance(values, dict):
        raise UsageError(f"--config {path} must hold names and values, like 'learning_rate: 1.0e-5'", fix=f"cat {shell.quote(path)}")
    os.environ.update({name: str(value) for name, value in (values.pop("env", None) or {}).items()})
    unused = parser.set_defaults_with_config(**values)
    if unused:
        raise preflight.usage_error([_unknown_option(name, parser, help_) for name in unused[::2]])
    return rest


def _unknown_option(text: str, parser: Any, help_: str) -> preflight.Problem:
    name = text.partition("=")[0]
    now = REMOVED.get(name.removeprefix("--").replace("-", "_"))
    if now is not None:
        return preflight.Problem(f"the option {name} is gone from transformers and TRL", now)
    close = difflib.get_close_matches(name, parser._option_string_actions, n=1)
    if not close:
        return preflight.Problem(f"unknown option {name}", help_)
    fix = f"{close[0]} in its place, in config.yaml under training or behind --; all of them: {help_}"
    return preflight.Problem(f"unknown option {name}; did you mean {close[0]}?", fix)


def _survival_problems(asked: Any) -> list[preflight.Problem]:
    """Return what would keep the training from stopping and going on as it should."""
    problems = []
    if asked.early_stopping_patience is not None:
        if asked.early_stopping_patience < 1:
            what = f"--early_stopping_patience must be at least 1, not {asked.early_stopping_patience}"
            problems.append(preflight.Problem(what, "--early_stopping_patience 3"))
        if asked.eval_strategy == "no":
            what = "--early_stopping_patience looks at evaluations, and there are none (eval_strategy is no)"
            problems.append(preflight.Problem(what, "--eval_strategy steps --eval_steps 50"))
    if asked.save_only_model and os.environ.get(layout.RUN_DIR_VARIABLE):
        what = "with --save_only_model a checkpoint has no optimizer state: a requeued job could not go on"
        problems.append(preflight.Problem(what, "leave --save_only_model out; runs/RUN_ID/model has the weights alone"))
    if getattr(asked, "enable_jit_checkpoint", False):
        what = "--enable_jit_checkpoint stops each process by itself, at steps that may differ, and then they wait for each other"
        problems.append(preflight.Problem(what, "leave it out: this training saves at SIGTERM by agreement"))
    return problems


def _adapter_problems(asked: Any) -> list[preflight.Problem]:
    """Return options of an adapter that nobody asked for: TRL leaves them unread, and trains all weights without a word."""
    if asked.use_peft is not None or asked.evaluate_only:  # an adapter that is evaluated has its own
        return []
    others = ("lora_target_modules", "lora_target_parameters", "lora_modules_to_save", "use_rslora", "use_dora")
    given = [name for name in _RANK if not is_unasked(getattr(asked, name))] + [name for name in others if getattr(asked, name)]
    if not given:
        return []
    what = f"--{given[0]} is given without --use_peft true: there would be no adapter, and all weights would be trained"
    return [preflight.Problem(what, "--use_peft true; or --use_peft false, to train all weights knowingly")]


def _says_yes(text: str | None) -> bool:
    return (text or "").strip().lower() in {"1", "true", "yes", "y", "on"}


def _visible_gpus() -> int:
    import torch

    return int(torch.cuda.device_count())


def _load(name: str, splits: list[str], *, evaluate_only: bool) -> tuple[Any, Any]:
    """Return the training split and the evaluation split (or None) of a folder that was checked; one that is only evaluated is both.

    Raises:
        UsageError: the data cannot be read, or the first split is empty.
    """
    import datasets

    # Truncation and packing would write their caches into the dataset's folder, which is shared and often read-only.
    datasets.disable_caching()
    try:
        data = datasets.load_from_disk(name)
    except Exception as error:
        raise UsageError(f"cannot read the dataset '{name}'", details=(str(error),), fix=f"ls -lR {name}") from error
    parts = [data[split] if isinstance(data, datasets.DatasetDict) else data for split in splits]
    if len(parts[0]) == 0:
        option = "test" if evaluate_only else "train"
        raise UsageError(f"the dataset '{name}' has no rows in split '{splits[0]}'", fix=f"--dataset_{option}_split NAME")
    # The libraries want something to train on even where nothing is trained.
    return parts[0], parts[-1] if len(parts) > 1 or evaluate_only else None


def _defaults(asked: Any, *, cpu: bool) -> dict[str, Any]:
    """Return our defaults that hold for every task; hpctrain/training/rails.py lists them."""
    import torch

    bf16 = not cpu and torch.cuda.is_bf16_supported(including_emulation=False)
    ours: dict[str, Any] = {
        "bf16": bf16 and not asked.fp16,
        "dtype": "bfloat16" if bf16 and asked.use_peft and not asked.fp16 else "float32",
        "disable_tqdm": not sys.stdout.isatty(),
        "use_peft": False,
    }
    if os.environ.get(layout.RUN_DIR_VARIABLE):
        ours["output_dir"] = str(Path(os.environ[layout.RUN_DIR_VARIABLE]) / "checkpoints")
    if getattr(asked, "early_stopping_patience", None) is not None:
        ours["metric_for_best_model"] = "eval_loss"
    return ours


def _check_world(training: Any) -> None:
    """Refuse to train with another number of processes than the launcher started.

    Raises:
        UsageError: the Trainer would train alone, or in a smaller group.
    """
    world = int(os.environ.get("WORLD_SIZE") or 1)
    if training.world_size != world:
        raise UsageError(
            f"the launcher started {world} processes and the Trainer found {training.world_size}",
            details=("each group would train its own model and write to the same folder",),
            fix="ACCELERATE_USE_CPU=true to train on the CPU, else check that every rank sees a GPU",
        )
