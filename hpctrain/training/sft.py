"""Supervised fine-tuning with TRL's SFTTrainer, as hpctrain's job scripts run it.

    accelerate launch --config_file multi_gpu.yaml -m hpctrain.training.sft --config sft.yaml --learning_rate 1e-5
    torchrun --standalone --nproc_per_node 4 -m hpctrain.training.sft --model_name_or_path M --dataset_name D
    python -m hpctrain.training.sft --help

The options are the fields of TRL's ScriptArguments, SFTConfig and ModelConfig, our own (hpctrain/training/arguments.py), and `--config
FILE.yaml` with the same names. The model is a local folder and the dataset one that `hpctrain prepare` made, or that `save_to_disk`
wrote with `input_ids`; no network is touched. What is missing is said once, by rank 0, before a process group is started.

Defaults that differ from TRL's, besides those of all trainings (hpctrain/training/rails.py); docs/training.md has the reasons at length:
    activation_checkpointing  off, unless the estimate says that the GPU's memory does not suffice without (TRL: always on); it costs a
                              fifth to a third of the speed. Where the model's shape is not known: on a GPU, as TRL
    attn_implementation       flash 3 or 2 where installed; else flex for rows of several examples; else sdpa. Never from the hub, and never
                              eager where there is another
    completion_only_loss      on when the dataset has a completion_mask and no labels (TRL ignores the mask)
    max_length                none for a dataset of `hpctrain prepare`, which is cut already; none with padding_free, which cuts nothing.
                              Otherwise TRL's 1024, and what it cuts is said
    per_device_*_batch_size   of rows that `hpctrain prepare` packed, as many as have the tokens of TRL's 8 rows of 1024: 2 rows of 4096
    padding_free              on for packed datasets, whose examples would see each other otherwise
    train_sampling_strategy   group_by_length for datasets of `hpctrain prepare` that are not packed: less padding
    ddp_find_unused_parameters  off for a dense model of text: each step uses every weight, and to look for others costs time and a
                              warning. Otherwise as transformers: of experts, or of a part that sees images, a step may use none
    use_liger_kernel          on where liger-kernel is installed, there is a GPU, and it knows the model
    bnb_4bit_quant_storage    the dtype of the weights under FSDP, which cannot divide anything else
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Mapping
from typing import Any, NoReturn

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.fit.asked import MICRO_BATCH, rows_unasked
from hpctrain.training import kernels, prepared, rails, traps
from hpctrain.training.options import Options
from hpctrain.training.preflight import Problem, text_config, usage_error
from hpctrain.training.process import own_rank, say
from hpctrain.training.task import Task, Unasked, is_unasked

MAX_LENGTH = 1024
"""TRL's own default."""


def main(argv: list[str] | None = None) -> NoReturn:
    """Train, and end the process; see `rails.main`."""
    rails.main(TASK, argv)


def _classes() -> tuple[type, ...]:
    from trl import ModelConfig, ScriptArguments, SFTConfig

    return ScriptArguments, SFTConfig, ModelConfig


def _problems(asked: Any) -> list[Problem]:
    facts = traps.asked_facts(asked)
    of = kernels.model(facts.config)
    found = traps.problems_of_asked(facts)
    found += kernels.attention_problems(asked.attn_implementation, facts.here, of, half=_half(asked, facts.here))
    return found + kernels.liger_problems(asked, facts.here)


def _half(asked: Any, here: kernels.Machine) -> bool:
    """Say whether attention will be computed in 16 bits, before the defaults are known."""
    default = here.gpu and (here.capability is None or here.capability >= (8, 0))
    return kernels.half(asked) or (asked.bf16 is None and default)


def _prepare(asked: Any, train: Any, evaluation: Any) -> tuple[Any, Any]:
    problems = traps.problems_of_rows(asked, train)
    if evaluation is not None and len(evaluation):
        problems += [Problem(f"evaluation: {each.what}", each.fix) for each in traps.problems_of_rows(asked, evaluation)]
    if problems:
        raise usage_error(problems)
    return train, evaluation


def _defaults(asked: Any, *, cpu: bool, data: Any) -> dict[str, Any]:
    """Return our defaults for what was not asked for; the module's docstring lists them."""
    facts = traps.asked_facts(asked)
    columns, manifest = data.column_names, facts.manifest
    free = bool(asked.padding_free) or "seq_lengths" in columns
    ours: dict[str, Any] = {
        "completion_only_loss": True if "completion_mask" in columns and "labels" not in columns else None,
        "max_length": None if (free and not asked.packing) or facts.skips else MAX_LENGTH,
        "padding_free": free,
        **dict.fromkeys(prepared.BATCHES, MICRO_BATCH),
        "train_sampling_strategy": "random",
        "use_liger_kernel": kernels.takes_liger(facts.here, str(facts.config.get("model_type"))),
        **(prepared.defaults(manifest) if manifest is not None else {}),
    }
    if asked.packing and is_unasked(asked.max_length):
        ours["max_length"] = (manifest.max_length if manifest is not None else None) or MAX_LENGTH
    if every_weight_is_used(facts.config):
        ours["ddp_find_unused_parameters"] = False
    apart = free or bool(asked.packing)
    choice = kernels.choose(facts.here, kernels.model(facts.config), apart=apart, half=_half(asked, facts.here))
    ours["attn_implementation"] = asked.attn_implementation or choice.attention
    ours["bnb_4bit_quant_storage"] = "bfloat16" if facts.sharding == "fsdp" and asked.load_in_4bit else None
    wanted = asked.activation_checkpointing if asked.activation_checkpointing is not None else asked.gradient_checkpointing
    if wanted is None:
        wanted = not cpu and _needs_checkpointing(asked, ours, facts, _gpu_bytes())
    ours["activation_checkpointing"] = wanted
    return ours


def every_weight_is_used(config: Mapping[str, Any]) -> bool:
    """Say whether each step uses all weights of a model: by its config.json it has no experts, and reads nothing but text."""
    other = [name for name in config if name.endswith("_config") and name not in {"text_config", "quantization_config"}]
    experts = [name for name, value in text_config(config).items() if "expert" in name and value]
    return bool(config) and not other and not experts


def _gpu_bytes() -> int:
    import torch

    return int(torch.cuda.get_device_properties(int(os.environ.get("LOCAL_RANK") or 0)).total_memory)


def _needs_checkpointing(asked: Any, ours: dict[str, Any], facts: Any, gpu_bytes: int) -> bool:
    """Say whether the estimate without checkpointing is above what a GPU has; where nothing can be estimated, TRL's own default: yes."""
    from hpctrain.fit import asked as fit
    from hpctrain.fit.shape import read_shape

    nodes = max(1, facts.world // int(os.environ.get("LOCAL_WORLD_SIZE") or facts.world))
    words = {**vars(asked), **{name: value for name, value in ours.items() if is_unasked(getattr(asked, name, None))}}
    try:
        layout = fit.layout_of(
            words,
            nodes=nodes,
            gpus_per_node=facts.world // nodes,
            sharding=facts.sharding or "ddp",
            shape=(shape := read_shape(facts.config)),
            bf16=_half(asked, facts.here),
            dataset=facts.manifest,
            stored=str(facts.config.get("dtype") or facts.config.get("torch_dtype") or "") or None,
        )
        return fit.needs_checkpointing(shape, layout, gpu_bytes)
    except HpctrainError as error:
        if own_rank() == 0:
            say(f"[train] notice: the memory cannot be estimated ({error.what}): activation checkpointing stays on")
        return True


def _trainer(options: Options, survival: Any, callbacks: list[Any]) -> Any:
    from trl import get_peft_config, get_quantization_config

    from hpctrain.training.survivor_sft import SurvivorSFTTrainer

    training, model = options.training, options.model
    training.model_init_kwargs = {
        "revision": model.model_revision,
        "trust_remote_code": training.trust_remote_code,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(training.model_init_kwargs or {}),
    }
    # TRL makes one name a regular expression, which matches no whole path.
    if isinstance(model.lora_target_modules, str) and re.fullmatch(r"\w+", model.lora_target_modules):
        model.lora_target_modules = [model.lora_target_modules]
    # peft asks for the old name; nobody here can do anything about that.
    warnings.filterwarnings("ignore", message=".is_gradient_checkpointing. is deprecated", category=FutureWarning)
    if "seq_lengths" in options.train_dataset.column_names:
        logging.getLogger("trl.trainer.sft_trainer").addFilter(_is_of_use)
    try:
        trainer = SurvivorSFTTrainer(
            model=options.weights.model,
            args=training,
            train_dataset=options.train_dataset,
            eval_dataset=options.eval_dataset,
            quantization_config=get_quantization_config(model),
            peft_config=get_peft_config(model),
            callbacks=callbacks,
            survival=survival,
        )
    except ValueError as error:
        if model.use_peft and "target modules" in str(error).lower().replace("_", " "):
            targets = model.lora_target_modules
            what = f"LoRA finds nothing in this model to put adapters on ({targets or 'its default for the model'})"
            raise UsageError(what, details=(str(error),), fix="--lora_target_modules all-linear") from error
        raise
    _look_for_traps(trainer, options)
    return trainer


def _is_of_use(record: logging.LogRecord) -> bool:
    """TRL says that padding-free rows are of no use one by one, which is not so of packed ones."""
    return "annihilate" not in record.getMessage()


def _look_for_traps(trainer: Any, options: Options) -> None:
    """Note what a person should know before the first step, on rank 0.

    Raises:
        UsageError: it must not train like this.
    """
    problems, known = traps.check(trainer, options)
    if problems:
        raise usage_error(problems)
    if not trainer.is_world_process_zero() or options.mode.evaluate_only:
        return
    args, manifest = trainer.args, prepared.of(options)
    rows = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    packed = prepared.in_words(manifest, options.script.dataset_train_split, rows=rows) if manifest is not None else None
    if manifest is not None and packed is not None:
        trainer.notes.add(packed)
        if (taken := args.per_device_train_batch_size) == rows_unasked(manifest) != MICRO_BATCH:
            long = f"{taken} packed row{'s' * (taken > 1)} of {manifest.max_length} tokens a pass"
            trainer.notes.add(f"{long}: as many tokens as TRL's 8 rows of {MAX_LENGTH}; --per_device_train_batch_size changes that")
    for each in known:
        trainer.notes.add(f"warning: {each.what}", f"fix: {each.fix}")


TASK = Task(
    module="hpctrain.training.sft",
    classes=_classes,
    # None, so that what somebody gave can be told from what nobody did.
    parser_defaults={
        **dict.fromkeys(("padding_free", "use_liger_kernel", "train_sampling_strategy", "gradient_checkpointing")),
        "max_length": Unasked(MAX_LENGTH),
        **dict.fromkeys(prepared.BATCHES, Unasked(MICRO_BATCH)),
    },
    problems=_problems,
    prepare=_prepare,
    defaults=_defaults,
    trainer=_trainer,
)

if __name__ == "__main__":
    main()
