"""Sharding where no accelerate config is read: what `accelerate launch` makes of templates/accelerate.yaml.j2, as variables.

torchrun and srun start the training without accelerate's launcher; its plugins then read these variables themselves
(accelerate 1.15, utils/launch.py: prepare_multi_gpu_env and prepare_deepspeed_cmd_env; a test compares the two).
"""

from __future__ import annotations

from hpctrain.jobs.arguments import Arguments
from hpctrain.jobs.spec import JobSpec

_FSDP = {
    "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_RESHARD_AFTER_FORWARD": "true", "FSDP_OFFLOAD_PARAMS": "false", "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
    "FSDP_SYNC_MODULE_STATES": "true", "FSDP_ACTIVATION_CHECKPOINTING": "false",
}  # fmt: skip


def variables(spec: JobSpec) -> list[tuple[str, str]]:
    """Return the variables that make torchrun's and srun's processes shard as `spec` says; none for ddp."""
    if spec.sharding == "ddp":
        return []
    if spec.sharding == "fsdp":
        return list(_FSDP.items())
    values = {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3" if spec.sharding == "zero3" else "2",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": training_argument(spec, "gradient_accumulation_steps", "auto"),
        "ACCELERATE_GRADIENT_CLIPPING": training_argument(spec, "max_grad_norm", "auto"),
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "none",
        "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "none",
    }
    if spec.sharding == "zero3":
        values |= {"ACCELERATE_DEEPSPEED_ZERO3_INIT": "true", "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true"}
    return list(values.items())


def training_argument(spec: JobSpec, name: str, default: str) -> str:
    """Return the number behind `--name` among the training's arguments, the last one winning; `default` where there is no number."""
    number = Arguments(spec).get(name) or ""
    return number if number.replace(".", "", 1).isascii() and number.replace(".", "", 1).isdecimal() else default
