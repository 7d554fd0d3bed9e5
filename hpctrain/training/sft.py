"""Supervised fine-tuning with TRL's SFTTrainer, as hpctrain's job scripts run it.

    accelerate launch --config_file multi_gpu.yaml -m hpctrain.training.sft --config sft.yaml --learning_rate 1e-5
    torchrun --standalone --nproc_per_node 4 -m hpctrain.training.sft --model_name_or_path M --dataset_name D
    python -m hpctrain.training.sft --help

The options are the fields of TRL's ScriptArguments, SFTConfig and ModelConfig, `--memory_every`, and `--config
FILE.yaml` with the same names. The model is a local folder and the dataset one that `save_to_disk` wrote with
`input_ids`; no network is touched. What is missing is said once, by rank 0, before a process group is started.

Defaults that differ from TRL's, where it would do something else without a word:
    dtype                  of LoRA's frozen base: bfloat16 on a GPU that has it. Everything else: float32, as TRL, because small
                           updates of bfloat16 weights round to nothing
    bf16                   as TRL on a GPU that has it, off elsewhere
    use_cpu                on when ACCELERATE_USE_CPU says so; without a GPU and without that word nothing is trained
    output_dir             $HPCTRAIN_RUN_DIR/checkpoints when that variable is set
    disable_tqdm           on when standard output is not a terminal
    completion_only_loss   on when the dataset has a completion_mask and no labels (TRL ignores the mask)
    logging_nan_inf_filter off: a loss that is NaN is shown as such (transformers logs 0.0)
"""

from __future__ import annotations

import difflib
import os
import socket
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.training import preflight
from hpctrain.training.process import leave, refuse, say

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@dataclass
class MonitorArguments:
    """Our own option."""

    memory_every: int = field(default=10, metadata={"help": "Steps between two memory samples of each rank; 0 takes none."})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything that was asked for, parsed, and found possible."""

    script: Any
    training: Any
    model: Any
    monitor: MonitorArguments
    train_dataset: Any
    eval_dataset: Any


def main(argv: list[str] | None = None) -> NoReturn:
    """Train, and end the process: 0 trained, 1 the training failed, 2 it could not begin."""
    for name, value in OFFLINE.items():
        os.environ.setdefault(name, value)
    try:
        train(read_options(sys.argv[1:] if argv is None else argv))
        code = 0
    except HpctrainError as error:
        refuse(error)
    except SystemExit as exit_:  # --help
        code = exit_.code if isinstance(exit_.code, int) else 1
    except KeyboardInterrupt:
        code = 130
    except BaseException:  # shown here, because os._exit shows nothing
        sys.stdout.flush()
        sys.stderr.write(traceback.format_exc())
        code = 1
    leave(code)


# -- before the process group ------------------------------------------------------------------------------------------


def read_options(argv: list[str]) -> Options:
    """Parse, check, and only then build the training arguments, which starts the process group.

    Raises:
        UsageError: something is missing or cannot be; all problems in one error.
    """
    parser = _parser()
    arguments = _apply_config(parser, list(argv))
    # The exact options, as TRL's parser understands them, without building the classes: SFTConfig connects the ranks.
    asked, unknown = parser.parse_known_args(arguments)
    problems = [_unknown_option(text, parser) for text in unknown if text.startswith("-")]
    if unknown and not problems:
        problems.append(preflight.Problem(f"what is '{unknown[0]}'? it belongs to no option", _HELP))
    problems += preflight.check_launch(os.environ)
    problems += preflight.check_sharding(os.environ)
    problems += preflight.check_model(asked.model_name_or_path)
    splits = [asked.dataset_train_split] + [asked.dataset_test_split] * (asked.eval_strategy != "no")
    problems += preflight.check_dataset(asked.dataset_name, splits)
    cpu = asked.use_cpu or _says_yes(os.environ.get("ACCELERATE_USE_CPU"))
    problems += preflight.check_gpus(_visible_gpus(), cpu=cpu, environ=os.environ, host=socket.gethostname())
    if problems:
        raise preflight.usage_error(problems)
    train_dataset, eval_dataset = _load(asked.dataset_name, splits)
    parser.set_defaults(**_defaults(asked, cpu=cpu, columns=train_dataset.column_names))
    try:
        parsed = parser.parse_args_into_dataclasses(arguments, look_for_args_file=False)
    except (ValueError, TypeError, NotImplementedError) as error:  # options that exclude each other
        raise UsageError(f"the training cannot be set up like this: {error}", fix=_HELP) from error
    script, training, model, monitor = parsed[:4]  # behind them is what remains: --config
    _check_world(training)
    return Options(
        script=script,
        training=training,
        model=model,
        monitor=monitor,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
    )


_HELP = "python -m hpctrain.training.sft --help"


def _parser() -> Any:
    """Return TRL's parser for the options, which raises UsageError instead of printing six hundred lines of usage."""
    try:
        from trl import ModelConfig, ScriptArguments, SFTConfig, TrlParser
    except ImportError as error:
        raise UsageError(f"cannot import TRL: {error}", fix="pip install 'hpctrain[train]'") from error

    class Parser(TrlParser):  # type: ignore[misc]  # TRL is not there on the login node
        def error(self, message: str) -> NoReturn:
            raise UsageError(message, fix=_HELP)

    parser = Parser((ScriptArguments, SFTConfig, ModelConfig, MonitorArguments), prog="python -m hpctrain.training.sft", allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE.yaml", help="Read options from a YAML file; the command line wins.")
    parser.set_defaults(dtype=None, logging_nan_inf_filter=False)
    return parser


def _apply_config(parser: Any, argv: list[str]) -> list[str]:
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
        raise UsageError(f"cannot read --config {path}", details=(str(error),), fix=f"ls -l {path}") from error
    if not isinstance(values, dict):
        raise UsageError(f"--config {path} must hold names and values, like 'learning_rate: 1.0e-5'", fix=f"cat {path}")
    os.environ.update({name: str(value) for name, value in (values.pop("env", None) or {}).items()})
    unused = parser.set_defaults_with_config(**values)
    if unused:
        raise preflight.usage_error([_unknown_option(name, parser) for name in unused[::2]])
    return rest


def _unknown_option(text: str, parser: Any) -> preflight.Problem:
    name = text.partition("=")[0]
    close = difflib.get_close_matches(name, parser._option_string_actions, n=1)
    return preflight.Problem(f"unknown option {name}" + (f"; did you mean {close[0]}?" if close else ""), _HELP)


def _says_yes(text: str | None) -> bool:
    return (text or "").strip().lower() in {"1", "true", "yes", "y", "on"}


def _visible_gpus() -> int:
    import torch

    return int(torch.cuda.device_count())


def _load(name: str, splits: list[str]) -> tuple[Any, Any]:
    """Return the training split and the evaluation split (or None) of a folder that was checked.

    Raises:
        UsageError: the data cannot be read, or the training split is empty.
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
        raise UsageError(f"the dataset '{name}' has no rows in split '{splits[0]}'", fix="--dataset_train_split NAME")
    return parts[0], parts[1] if len(parts) > 1 else None


def _defaults(asked: Any, *, cpu: bool, columns: list[str]) -> dict[str, Any]:
    """Return our defaults for what was not asked for; the module's docstring lists them."""
    import torch

    bf16 = not cpu and torch.cuda.is_bf16_supported(including_emulation=False)
    ours: dict[str, Any] = {
        "bf16": bf16 and not asked.fp16,
        "dtype": "bfloat16" if bf16 and asked.use_peft and not asked.fp16 else "float32",
        "disable_tqdm": not sys.stdout.isatty(),
        "completion_only_loss": True if "completion_mask" in columns and "labels" not in columns else None,
    }
    if os.environ.get("HPCTRAIN_RUN_DIR"):
        ours["output_dir"] = str(Path(os.environ["HPCTRAIN_RUN_DIR"]) / "checkpoints")
    if hasattr(asked, "activation_checkpointing"):  # the new name, without the warning that TRL's default causes
        ours["activation_checkpointing"] = asked.gradient_checkpointing
    chosen = {name: value for name, value in ours.items() if getattr(asked, name) is None}
    return {**chosen, "use_cpu": cpu}


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


def _check_sharding(trainer: Any) -> None:
    """Refuse to train unsharded where the job asked for shards; on the CPU, where accelerate leaves FSDP out, say so.

    Raises:
        UsageError: on a GPU.
    """
    problem = preflight.sharding_problem(os.environ, trainer.accelerator.distributed_type.name)
    if problem is None:
        return
    if not trainer.args.use_cpu:
        raise preflight.usage_error([problem])
    if trainer.is_world_process_zero():
        say(f"warning: {problem.what}; that is all there is on the CPU")


# -- the training ------------------------------------------------------------------------------------------------------


def train(options: Options) -> None:
    """Train, save the model into output_dir, and say how it went.

    Raises:
        Exception: whatever the libraries raise.
    """
    from transformers import PrinterCallback
    from trl import SFTTrainer, get_peft_config, get_quantization_config

    from hpctrain.training.memory_callback import MemoryCallback
    from hpctrain.training.process import disable_progress_bars
    from hpctrain.training.train_log import TrainLogCallback

    training, model = options.training, options.model
    if training.disable_tqdm:
        disable_progress_bars()
    training.model_init_kwargs = {
        "revision": model.model_revision,
        "trust_remote_code": training.trust_remote_code,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(training.model_init_kwargs or {}),
    }
    trainer = SFTTrainer(
        model=model.model_name_or_path,
        args=training,
        train_dataset=options.train_dataset,
        eval_dataset=options.eval_dataset,
        quantization_config=get_quantization_config(model),
        peft_config=get_peft_config(model),
        callbacks=[MemoryCallback(every=options.monitor.memory_every)] if options.monitor.memory_every > 0 else [],
    )
    if training.disable_tqdm:
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(TrainLogCallback())
    _check_sharding(trainer)
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model(training.output_dir)
    if trainer.is_world_process_zero():
        say(_summary(trainer.state, training.output_dir))


def _summary(state: Any, output_dir: str) -> str:
    """Return the last line: finished, or stopped early, with the first and the last loss that were logged."""
    losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
    went = f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, " if losses else ""
    word = "finished" if state.global_step >= state.max_steps else "stopped early"
    return f"[train] {word}: {state.global_step} of {state.max_steps} steps, {went}model saved in {output_dir}"


if __name__ == "__main__":
    main()
