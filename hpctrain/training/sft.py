"""Supervised fine-tuning with TRL's SFTTrainer, as hpctrain's job scripts run it.

    accelerate launch --config_file multi_gpu.yaml -m hpctrain.training.sft --config sft.yaml
    torchrun --standalone --nproc_per_node 4 -m hpctrain.training.sft --dataset_name D ...
    python -m hpctrain.training.sft --help

The options are the fields of TRL's ScriptArguments, SFTConfig and ModelConfig, hpctrain's own
(hpctrain/training/options.py), and `--config FILE.yaml` with the same names. The model is a local
directory and the dataset one that `hpctrain prepare` wrote, or that `save_to_disk` wrote with
`input_ids`; no network is used. docs/training.md lists the defaults that differ from TRL's.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

from hpctrain.errors import HpctrainError
from hpctrain.fit.training_options import MAX_LENGTH, MICRO_BATCH
from hpctrain.training import entry_point
from hpctrain.training.options import Options, Task
from hpctrain.training.preflight import (
    LibraryDefault,
    Problem,
    is_default,
    rules,
    text_config,
    usage_error,
)
from hpctrain.training.process import nodes_of, note, own_rank, say


def main(argv: list[str] | None = None) -> NoReturn:
    """Train, and end the process; see `entry_point.main`."""
    entry_point.main(TASK, argv)


def _classes() -> tuple[type, ...]:
    from trl import ModelConfig, ScriptArguments, SFTConfig

    return ScriptArguments, SFTConfig, ModelConfig


def _problems(asked: Any) -> list[Problem]:
    return list(rules.option_problems(rules.option_facts(asked)))


def _half(asked: Any, here: rules.Machine) -> bool:
    return rules.half(asked) or (asked.bf16 is None and here.bf16)


def _prepare(asked: Any, train: Any, evaluation: Any) -> tuple[Any, Any, None]:
    problems = list(rules.row_problems(rules.row_facts(asked, train)))
    if evaluation is not None and len(evaluation):
        problems += [
            replace(each, what=f"evaluation: {each.what}")
            for each in rules.row_problems(rules.row_facts(asked, evaluation))
        ]
    if problems:
        raise usage_error(problems)
    return train, evaluation, None


def _defaults(asked: Any, *, cpu: bool, data: Any) -> dict[str, Any]:
    facts = rules.option_facts(asked)
    columns, manifest = data.column_names, facts.manifest
    free = bool(asked.padding_free) or "seq_lengths" in columns
    ours: dict[str, Any] = {
        "completion_only_loss": (
            True if "completion_mask" in columns and "labels" not in columns else None
        ),
        "max_length": None if free and not asked.packing else MAX_LENGTH,
        "padding_free": free,
        **dict.fromkeys(rules.BATCHES, MICRO_BATCH),
        "train_sampling_strategy": "random",
        **(rules.prepared_defaults(manifest) if manifest is not None else {}),
    }
    if asked.packing and is_default(asked.max_length):
        ours["max_length"] = (manifest.max_length if manifest is not None else None) or MAX_LENGTH
    if every_weight_is_used(facts.config):
        ours["ddp_find_unused_parameters"] = False
    ours["attn_implementation"] = rules.choose(
        facts.here,
        facts.config,
        apart=free or bool(asked.packing),
        half=_half(asked, facts.here),
    )
    ours["bnb_4bit_quant_storage"] = (
        "bfloat16" if facts.sharding == "fsdp" and asked.load_in_4bit else None
    )
    wanted = asked.activation_checkpointing
    if wanted is None:
        wanted = asked.gradient_checkpointing
    if wanted is None:
        wanted = not cpu and _needs_checkpointing(asked, ours, facts, _gpu_bytes())
    ours["activation_checkpointing"] = wanted
    return ours


def every_weight_is_used(config: Mapping[str, Any]) -> bool:
    """Return whether each step uses all weights of a model: its config.json has no experts and is
    text only.
    """
    other = [
        name
        for name in config
        if name.endswith("_config") and name not in {"text_config", "quantization_config"}
    ]
    experts = [name for name, value in text_config(config).items() if "expert" in name and value]
    return bool(config) and not other and not experts


def _gpu_bytes() -> int:
    import torch

    return int(
        torch.cuda.get_device_properties(int(os.environ.get("LOCAL_RANK") or 0)).total_memory
    )


def _needs_checkpointing(asked: Any, ours: dict[str, Any], facts: Any, gpu_bytes: int) -> bool:
    """Return whether the estimate without gradient checkpointing exceeds the GPU's memory; true,
    TRL's default, without an estimate.
    """
    from hpctrain.fit import training_options as fit
    from hpctrain.fit.shape import read_shape

    nodes, each = nodes_of(facts.world)
    words = {
        **vars(asked),
        **{name: value for name, value in ours.items() if is_default(getattr(asked, name, None))},
    }
    try:
        layout = fit.layout_of(
            words,
            nodes=nodes,
            gpus_per_node=each,
            sharding=facts.sharding or "ddp",
            shape=(shape := read_shape(facts.config)),
            bf16=_half(asked, facts.here),
            dataset=facts.manifest,
            stored=str(facts.config.get("dtype") or facts.config.get("torch_dtype") or "") or None,
        )
        return fit.needs_checkpointing(shape, layout, gpu_bytes)
    except HpctrainError as error:
        if own_rank() == 0:
            say(
                f"[train] notice: the memory cannot be estimated ({error.what}): activation"
                " checkpointing stays on"
            )
        return True


def _trainer(options: Options, survival: Any, callbacks: list[Any]) -> Any:
    from trl import get_quantization_config

    from hpctrain.training.survival.sft_trainer import SurvivorSFTTrainer

    training, model = options.training, options.model
    training.model_init_kwargs = {
        "revision": model.model_revision,
        "trust_remote_code": training.trust_remote_code,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(training.model_init_kwargs or {}),
    }
    # TRL turns a single name into a regular expression, which matches no full module path.
    if isinstance(model.lora_target_modules, str) and re.fullmatch(
        r"\w+", model.lora_target_modules
    ):
        model.lora_target_modules = [model.lora_target_modules]
    # peft itself uses the deprecated name.
    warnings.filterwarnings(
        "ignore", message=".is_gradient_checkpointing. is deprecated", category=FutureWarning
    )
    if "seq_lengths" in options.train_dataset.column_names:
        # TRL warns that padding-free has no use at batch size 1, which is wrong for packed rows.
        logging.getLogger("trl.trainer.sft_trainer").addFilter(
            lambda record: "annihilate" not in record.getMessage()
        )
    trainer = SurvivorSFTTrainer(
        model=options.weights.model,
        args=training,
        train_dataset=options.train_dataset,
        eval_dataset=options.eval_dataset,
        quantization_config=get_quantization_config(model),
        peft_config=options.peft_config(),
        callbacks=callbacks,
        survival=survival,
    )
    warned = rules.check_trainer(trainer, options)
    if trainer.is_world_process_zero() and not options.common.evaluate_only:
        for each in warned:
            note(f"warning: {each.what}")
            note(f"{'fix' if each.command else 'hint'}: {each.fix}")
    return trainer


TASK = Task(
    name="sft",
    classes=_classes,
    # None, to distinguish set from unset options.
    parser_defaults={
        **dict.fromkeys(
            (
                "padding_free",
                "train_sampling_strategy",
                "gradient_checkpointing",
            )
        ),
        "max_length": LibraryDefault(MAX_LENGTH),
        **dict.fromkeys(rules.BATCHES, LibraryDefault(MICRO_BATCH)),
    },
    problems=_problems,
    prepare=_prepare,
    defaults=_defaults,
    trainer=_trainer,
)

if __name__ == "__main__":
    main()
