"""Supervised fine-tuning with TRL's SFTTrainer, as hpctrain's job scripts run it.

    accelerate launch --config_file multi_gpu.yaml -m hpctrain.training.sft --config sft.yaml --learning_rate 1e-5
    torchrun --standalone --nproc_per_node 4 -m hpctrain.training.sft --model_name_or_path M --dataset_name D
    python -m hpctrain.training.sft --help

The options are the fields of TRL's ScriptArguments, SFTConfig and ModelConfig, our own (hpctrain/training/arguments.py), and `--config
FILE.yaml` with the same names. The model is a local folder and the dataset one that `save_to_disk` wrote with
`input_ids`; no network is touched. What is missing is said once, by rank 0, before a process group is started.

Defaults that differ from TRL's, besides those of all trainings (hpctrain/training/rails.py):
    completion_only_loss   on when the dataset has a completion_mask and no labels (TRL ignores the mask)
"""

from __future__ import annotations

from typing import Any, NoReturn

from hpctrain.training import rails
from hpctrain.training.options import Options
from hpctrain.training.preflight import Problem
from hpctrain.training.task import Task


def main(argv: list[str] | None = None) -> NoReturn:
    """Train, and end the process; see `rails.main`."""
    rails.main(TASK, argv)


def _classes() -> tuple[type, ...]:
    from trl import ModelConfig, ScriptArguments, SFTConfig

    return ScriptArguments, SFTConfig, ModelConfig


def _problems(asked: Any) -> list[Problem]:
    del asked
    return []


def _prepare(asked: Any, train: Any, evaluation: Any) -> tuple[Any, Any]:
    del asked
    return train, evaluation


def _defaults(asked: Any, *, cpu: bool, data: Any) -> dict[str, Any]:
    """Return our defaults for what was not asked for; the module's docstring lists them."""
    del cpu
    columns = data.column_names
    ours: dict[str, Any] = {"completion_only_loss": True if "completion_mask" in columns and "labels" not in columns else None}
    if hasattr(asked, "activation_checkpointing"):  # the new name, without the warning that TRL's default causes
        ours["activation_checkpointing"] = asked.gradient_checkpointing
    return ours


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
    return SurvivorSFTTrainer(
        model=options.weights.model,
        args=training,
        train_dataset=options.train_dataset,
        eval_dataset=options.eval_dataset,
        quantization_config=get_quantization_config(model),
        peft_config=get_peft_config(model),
        callbacks=callbacks,
        survival=survival,
    )


TASK = Task(module="hpctrain.training.sft", classes=_classes, problems=_problems, prepare=_prepare, defaults=_defaults, trainer=_trainer)

if __name__ == "__main__":
    main()
