"""The options of the built-in trainings: parsed, and checked with all problems in one error, before
the ranks connect.
"""

from __future__ import annotations

import argparse
import difflib
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from hpctrain.errors import UsageError
from hpctrain.runs import checkpoints, layout
from hpctrain.training import preflight, trackers
from hpctrain.training.preflight.rules import REMOVED
from hpctrain.training.process import cpu_requested
from hpctrain.util import files, installed, shell


@dataclass
class CommonArguments:
    """hpctrain's options of every training."""

    memory_every: int = field(
        default=10,
        metadata={"help": "Steps between two memory samples of each rank; 0 takes none."},
    )
    speed_every: int | None = field(
        default=None,
        metadata={
            "help": (
                "Steps between two lines of the speed; by default as logging_steps; 0 writes none."
            )
        },
    )
    init_from: str | None = field(
        default=None,
        metadata={
            "help": (
                "Start from these weights only: a directory, RUN_ID,"
                " RUN_ID/checkpoint-40, or stage:NAME."
            )
        },
    )
    early_stopping_patience: int | None = field(
        default=None,
        metadata={
            "help": (
                "Stop after this many evaluations in a row without a better metric_for_best_model."
            )
        },
    )
    early_stopping_threshold: float = field(
        default=0.0, metadata={"help": "Minimum improvement that counts."}
    )
    stop_on_nan: bool = field(
        default=True,
        metadata={"help": "End with an error when the gradient norm is NaN or infinite."},
    )
    resume_with_missing_state: bool = field(
        default=False,
        metadata={
            "help": "Resume without the optimizer's, the scheduler's or the random numbers' state."
        },
    )
    resume_with_other_world_size: bool = field(
        default=False, metadata={"help": "Resume with another number of processes."}
    )
    resume_with_other_data: bool = field(
        default=False, metadata={"help": "Resume with another dataset."}
    )
    evaluate_only: bool = field(
        default=False,
        metadata={"help": "Evaluate the weights on the evaluation split, train nothing, and end."},
    )
    trial: str | None = field(
        default=None,
        metadata={
            "help": (
                "The file of a trial of `hpctrain tune`: it names the study that the evaluations"
                " are told to."
            )
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A built-in training. The functions are called on every rank and do not print.

    Attributes:
        name: `sft` or `classify`, the module in hpctrain.training.
        classes: imports the libraries, and returns the dataclasses of the options: those of
            ScriptArguments, the training arguments and ModelConfig first, then the task's own
            (`Options.own`).
        parser_defaults: replace the defaults of those classes before parsing.
        problems: returns the problems in a namespace of all options, before anything is loaded.
        prepare: takes the namespace and the loaded splits (the second may be None), and returns the
            splits to train on, and facts for `trainer`; may raise UsageError.
        defaults: returns values for unset options, from the namespace, whether the training runs on
            the CPU, and the training split.
        trainer: builds the Trainer from the options, `survival` and the callbacks.
    """

    name: str
    classes: Callable[[], tuple[type, ...]]
    parser_defaults: Mapping[str, Any] = field(default_factory=dict)
    problems: Callable[[Any], Iterable[preflight.Problem]]
    prepare: Callable[[Any, Any, Any], tuple[Any, Any, Any]]
    defaults: Callable[..., dict[str, Any]]
    trainer: Callable[[Options, Any, list[Any]], Any]

    @property
    def help(self) -> str:
        """The command that prints the options."""
        return f"python -m hpctrain.training.{self.name} --help"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The weights to load before the first step.

    Attributes:
        model: the model's directory.
        adapter: the directory of a LoRA adapter whose weights initialize the new adapter, or None.
        word: the value of `--init_from`.
    """

    model: str | None
    adapter: Path | None = None
    word: str | None = None

    def in_words(self) -> str:
        """Return the first log line of a training that starts with these weights, without the
        prefix.
        """
        if self.word is None:
            return f"starts from scratch with the weights of {self.model}"
        found = f"starts from the weights of {self.word}: {self.adapter or self.model}"
        return f"{found} (weights only: optimizer, learning rate and data start from scratch)"


def weights_to_start_from(asked: Any) -> tuple[Weights, list[preflight.Problem]]:
    """Return the weights that the options request, and the problems of `--init_from`.

    A run that resumes from its own checkpoint does not need the weights of its first start. If they
    no longer exist, the model's directory provides the architecture.
    """
    plain = Weights(model=asked.model_name_or_path)
    if asked.init_from is None:
        return plain, []
    run_dir, tag = os.environ.get(layout.RUN_DIR_VARIABLE), os.environ.get(layout.TAG_VARIABLE)
    runs = Path(run_dir).absolute().parent if run_dir else Path(layout.RUNS)
    try:
        folder = checkpoints.weights_of(asked.init_from, runs=runs, tag=tag)
    except UsageError as error:
        own = Path(asked.output_dir or Path(run_dir or ".") / checkpoints.CHECKPOINTS)
        resumes = run_dir and checkpoints.newest_complete(own, digests=False)[0] is not None
        if resumes and plain.model is not None:
            return plain, []
        what = "; ".join([f"--init_from: {error.what}", *map(str.strip, error.details)])
        return plain, [
            preflight.Problem(what, error.fix or error.hint or "", command=error.fix is not None)
        ]
    config = files.read_json(folder / "adapter_config.json")
    if config is None:
        return Weights(model=str(folder), word=asked.init_from), []
    return Weights(
        model=plain.model or config.get("base_model_name_or_path"),
        adapter=folder,
        word=asked.init_from,
    ), []


def _weights_problems(
    weights: Weights, asked: Any, needs: frozenset[str]
) -> Iterator[preflight.Problem]:
    yield from preflight.check_model(weights.model, needs)
    if weights.adapter is None:
        return
    if not (weights.adapter / "adapter_model.safetensors").is_file():
        yield preflight.Problem(
            f"{weights.adapter} has no adapter_model.safetensors",
            f"ls {shell.quote(weights.adapter)}",
            command=True,
        )
    if not asked.use_peft and not asked.evaluate_only:  # it takes the adapter's settings
        config = files.read_json(weights.adapter / "adapter_config.json") or {}
        yield preflight.Problem(
            f"--init_from {weights.word} is a LoRA adapter, and this training has none",
            f"use --use_peft true --lora_r {config.get('r', 'R')}, or merge the adapter into its"
            " model first",
        )


#: LoRA options whose default is a number.
_RANK = ("lora_r", "lora_alpha")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All options, parsed and checked.

    Attributes:
        task: which training this is.
        script, training, model: TRL's ScriptArguments, the training arguments (SFTConfig or
            another), and ModelConfig.
        own: the task's own dataclasses, in the order of `Task.classes`.
        splits: names of the splits to read: the training split, and the evaluation split if there
            is an evaluation.
        facts: from `Task.prepare`.
    """

    task: Task
    script: Any
    training: Any
    model: Any
    own: tuple[Any, ...] = ()
    common: CommonArguments
    weights: Weights
    splits: list[str]
    train_dataset: Any
    eval_dataset: Any
    facts: Any

    def peft_config(self) -> Any:
        """Return the settings of the adapter to evaluate, else those of the options; None without
        LoRA.

        Raises:
            UsageError: the adapter's settings cannot be read.
        """
        adapter = self.weights.adapter
        if not self.common.evaluate_only or adapter is None:
            from trl import get_peft_config

            return get_peft_config(self.model)
        from peft import PeftConfig

        try:
            found = PeftConfig.from_pretrained(str(adapter))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UsageError(
                f"the config of the adapter {adapter} cannot be read",
                details=(str(error),),
                fix=f"ls -l {shell.quote(adapter)}",
            ) from error
        found.inference_mode = False  # as in the training: its head is computed in float32
        found.base_model_name_or_path = None  # peft warns of another name, in every process
        return found


def read_options(argv: list[str], task: Task) -> Options:
    """Parse and check the options, then build the training arguments, which starts the process
    group.

    Args:
        argv: the command line.
        task: the task that they belong to.

    Raises:
        UsageError: options are missing or invalid; all problems in one error.
    """
    parser = _parser(task)
    arguments = _apply_config(parser, list(argv), task.help)
    # TRL's parser, but without building the classes, because SFTConfig connects the ranks.
    asked, unknown = parser.parse_known_args(arguments)
    problems = [
        _unknown_option(text, parser, task.help) for text in unknown if text.startswith("-")
    ]
    if unknown and not problems:
        problems.append(
            preflight.Problem(
                f"what is '{unknown[0]}'? it belongs to no option", task.help, command=True
            )
        )
    # The node-local copy, if the job script made one.
    asked.dataset_name = os.environ.get(layout.DATA_VARIABLE) or asked.dataset_name
    asked.dataset_test_split = preflight.evaluation_split(
        asked.dataset_name, asked.dataset_test_split
    )
    splits = [] if asked.evaluate_only else [asked.dataset_train_split]
    splits += [asked.dataset_test_split] * (asked.eval_strategy != "no" or asked.evaluate_only)
    cpu = bool(asked.use_cpu or cpu_requested())
    weights = _check(asked, task, problems, splits=splits, cpu=cpu)
    train_dataset, eval_dataset, facts = task.prepare(
        asked, *_load(asked.dataset_name, splits, evaluate_only=asked.evaluate_only)
    )
    chosen = {
        **{name: int(getattr(asked, name)) for name in _RANK},  # as plain numbers
        **_defaults(asked, cpu=cpu),
        **task.defaults(asked, cpu=cpu, data=train_dataset),
    }
    unset = {
        name: value for name, value in chosen.items() if preflight.is_default(getattr(asked, name))
    }
    try:
        script, training, model, *own, common = parser.parse_dict(
            {**vars(asked), **unset}, allow_extra_keys=True
        )
    except (ValueError, TypeError, NotImplementedError) as error:  # mutually exclusive options
        raise UsageError(
            f"the training cannot be set up like this: {error}", fix=task.help
        ) from error
    _check_world(training)
    return Options(
        task=task,
        script=script,
        training=training,
        model=model,
        own=tuple(own),
        common=common,
        weights=weights,
        splits=splits,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        facts=facts,
    )


def _check(
    asked: Any, task: Task, problems: list[preflight.Problem], *, splits: list[str], cpu: bool
) -> Weights:
    import torch

    weights, wrong = weights_to_start_from(asked)
    needs = preflight.model_needs(
        task.name, from_scratch=bool(getattr(asked, "from_scratch", False))
    )
    gpus = int(torch.cuda.device_count())
    asked.use_cpu, asked.model_name_or_path = cpu, weights.model
    if found := [
        *problems,
        *preflight.check_launch(os.environ),
        *(wrong or _weights_problems(weights, asked, needs)),
        *preflight.check_dataset(asked.dataset_name, splits),
        *preflight.check_gpus(gpus, cpu=cpu, environ=os.environ, host=socket.gethostname()),
        *_survival_problems(asked),
        *_adapter_problems(asked),
        *trackers.problems(asked.report_to),
        *task.problems(asked),
    ]:
        raise preflight.usage_error(found)
    return weights


def _parser(task: Task) -> Any:
    try:
        from trl import TrlParser

        classes = (*task.classes(), CommonArguments)
    except ImportError as error:
        raise UsageError(f"cannot import TRL: {error}", fix=installed.command("train")) from error

    class Parser(TrlParser):  # type: ignore[misc]  # TRL is not there on the login node
        def error(self, message: str) -> NoReturn:
            raise UsageError(message, fix=task.help)

    parser = Parser(classes, prog=f"python -m hpctrain.training.{task.name}", allow_abbrev=False)
    # transformers accepts a list, but its parser one value
    parser._option_string_actions["--report_to"].nargs = "+"
    parser.add_argument(
        "--config",
        metavar="FILE.yaml",
        help="Read options from a YAML file; the command line wins.",
    )
    parser.set_defaults(
        dtype=None,
        logging_nan_inf_filter=False,
        dataset_test_split=None,
        use_peft=None,
        # distinguishable from the same number set explicitly
        **{name: preflight.LibraryDefault(parser.get_default(name)) for name in _RANK},
        **task.parser_defaults,
    )
    return parser


def _apply_config(parser: Any, argv: list[str], help_: str) -> list[str]:
    """Use the values of `--config FILE` as the parser's defaults, and return the command line
    without it.

    Raises:
        UsageError: the file is missing, is not a YAML mapping, or has unknown keys.
    """
    import yaml

    of_file = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    of_file.add_argument("--config", nargs="?", const="", dest="path")
    given, rest = of_file.parse_known_args(argv)
    if given.path is None:
        return rest
    try:
        values = yaml.safe_load(Path(given.path).read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise yaml.YAMLError("it must hold names and values, like 'learning_rate: 1.0e-5'")
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(
            f"cannot read --config {given.path}",
            details=(str(error),),
            fix=f"ls -l {shell.quote(given.path)}",
        ) from error
    os.environ.update({name: str(value) for name, value in (values.pop("env", None) or {}).items()})
    unused = parser.set_defaults_with_config(**values)
    if unused:
        raise preflight.usage_error([_unknown_option(name, parser, help_) for name in unused[::2]])
    return rest


def _unknown_option(text: str, parser: Any, help_: str) -> preflight.Problem:
    name = text.partition("=")[0]
    now = REMOVED.get(name.removeprefix("--").replace("-", "_"))
    if now is not None:
        return preflight.Problem(f"the option {name} was removed from transformers and TRL", now)
    close = difflib.get_close_matches(name, parser._option_string_actions, n=1)
    if not close:
        return preflight.Problem(f"unknown option {name}", help_, command=True)
    return preflight.Problem(
        f"unknown option {name}; did you mean {close[0]}?",
        f"use {close[0]} in its place, in config.yaml under training or after --; all of them: {help_}",
    )


def _survival_problems(asked: Any) -> Iterator[preflight.Problem]:
    if asked.save_only_model and os.environ.get(layout.RUN_DIR_VARIABLE):
        yield preflight.Problem(
            "with --save_only_model a checkpoint has no optimizer state: a requeued job could not"
            " go on",
            "leave --save_only_model out; runs/RUN_ID/model has the weights alone",
        )
    if getattr(asked, "enable_jit_checkpoint", False):
        yield preflight.Problem(
            "--enable_jit_checkpoint stops each process on its own, at steps that may differ, and"
            " then they wait for each other",
            "leave it out: this training saves at SIGTERM by agreement",
        )


def _adapter_problems(asked: Any) -> Iterator[preflight.Problem]:
    """Yield a problem for LoRA options without `--use_peft`: TRL ignores them and silently trains
    all weights.
    """
    if asked.use_peft is not None or asked.evaluate_only:
        return  # an adapter to evaluate has its own settings
    others = ("target_modules", "target_parameters", "modules_to_save")
    given = [name for name in _RANK if not preflight.is_default(getattr(asked, name))]
    given += [
        name
        for name in (*(f"lora_{each}" for each in others), "use_rslora", "use_dora")
        if getattr(asked, name)
    ]
    if given:
        yield preflight.Problem(
            f"--{given[0]} is given without --use_peft true: there would be no adapter, and all"
            " weights would be trained",
            "use --use_peft true; or --use_peft false, to train all weights knowingly",
        )


def _load(name: str, splits: list[str], *, evaluate_only: bool) -> tuple[Any, Any]:
    """Return the training split and the evaluation split (or None) of a checked dataset; in an
    evaluation-only run one split is both.

    Raises:
        UsageError: the data cannot be read, or the first split is empty.
    """
    import datasets

    # Truncation and packing would write caches to the dataset's directory, which is shared and
    # often read-only.
    datasets.disable_caching()
    try:
        data = datasets.load_from_disk(name)
    except Exception as error:
        raise UsageError(
            f"cannot read the dataset '{name}'",
            details=(str(error),),
            fix=f"ls -lR {shell.quote(name)}",
        ) from error
    parts = [data[split] if isinstance(data, datasets.DatasetDict) else data for split in splits]
    if len(parts[0]) == 0:
        option = "test" if evaluate_only else "train"
        raise UsageError(
            f"the dataset '{name}' has no rows in split '{splits[0]}'",
            hint=f"use --dataset_{option}_split NAME",
        )
    # The libraries require a training split even for an evaluation.
    return parts[0], parts[-1] if len(parts) > 1 or evaluate_only else None


def _defaults(asked: Any, *, cpu: bool) -> dict[str, Any]:
    import torch

    bf16 = not cpu and torch.cuda.is_bf16_supported(including_emulation=False)
    run_dir, ours = os.environ.get(layout.RUN_DIR_VARIABLE), dict[str, Any]()
    if run_dir:
        ours["output_dir"] = str(Path(run_dir) / checkpoints.CHECKPOINTS)
    if asked.early_stopping_patience is not None:
        ours["metric_for_best_model"] = "eval_loss"
    return ours | {
        "bf16": bf16 and not asked.fp16,
        "dtype": "bfloat16" if bf16 and asked.use_peft and not asked.fp16 else "float32",
        "disable_tqdm": not sys.stdout.isatty(),
        "use_peft": False,
    }


def _check_world(training: Any) -> None:
    """Refuse to train if the world size differs from the number of processes started.

    Raises:
        UsageError: the Trainer would train alone, or in a smaller group.
    """
    world = int(os.environ.get("WORLD_SIZE") or 1)
    if training.world_size != world:
        raise UsageError(
            f"the launcher started {world} processes and the Trainer found {training.world_size}",
            details=("each group would train its own model and write to the same directory",),
            hint=(
                "set ACCELERATE_USE_CPU=true to train on the CPU; else check that every rank sees a"
                " GPU"
            ),
        )
