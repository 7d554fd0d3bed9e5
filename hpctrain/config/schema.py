"""The schema of config.yaml: what each key may be, and the sentence that says so (`hpctrain.fieldtypes`)."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from hpctrain.config.environment import Environment, Launch
from hpctrain.config.notify import Notify
from hpctrain.config.stages import StagesField
from hpctrain.config.sweep import SweepField
from hpctrain.config.tune import Tune
from hpctrain.config.tune import check as check_tune
from hpctrain.fieldtypes import (
    Boolean,
    Features,
    Indices,
    JobName,
    Name,
    Path,
    PositiveSize,
    Seconds,
    Section,
    Size,
    SlurmName,
    Text,
    as_text,
    choice,
    kind,
    problem,
    problems,
    whole,
)  # fmt: skip
from hpctrain.jobs.directives import MODELLED, NOT_A_JOB
from hpctrain.yaml12 import Plain

_OPTION = re.compile(r"[a-z][a-z0-9-]+\Z")
_ARGUMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")


class Resources(Section):
    """`resources:` what is asked of Slurm."""

    nodes: Annotated[int, whole(1, 10_000)] = 1
    gpus_per_node: Annotated[int, whole(1, 64)] = 1
    cpus_per_gpu: Annotated[int, whole(1, 1024)] | None = None
    gpu_type: Name | None = None
    gpu_directive: Annotated[Text, choice("gres", "gpus-per-node", "gpus", "none")] = "gres"
    partition: SlurmName | None = None
    account: SlurmName | None = None
    qos: SlurmName | None = None
    time: Seconds = 3600
    mem: Size | None = None
    mem_per_cpu: PositiveSize | None = None
    cpus_per_task: Annotated[int, whole(1, 4096)] | None = None
    constraint: Features | None = None
    reservation: SlurmName | None = None

    @model_validator(mode="after")
    def _even_gpus(self) -> Resources:
        # Slurm gave 4 GPUs on 2 nodes out as 3 and 1 (tried on 22.05).
        if self.gpu_directive == "gpus" and self.nodes > 1:
            raise problem(
                "gpu_directive: gpus counts the whole job's GPUs, which Slurm may spread unevenly over nodes; use gres or gpus-per-node"
            )
        return self


class Restart(Section):
    """`restart:` what follows when a training saved and stopped before it was done."""

    mode: Annotated[Text, choice("auto", "requeue", "chain", "off")] = "auto"
    max: Annotated[int, whole(0, 1000)] = 10


def _sbatch_options(value: Any) -> dict[str, str | None]:
    if not isinstance(value, dict):
        raise problem("must hold sbatch options, such as `mail-type: END`")
    checked: dict[str, str | None] = {}
    wrong: dict[str, str] = {}
    for key, item in value.items():
        if isinstance(item, Plain) and item == "false":
            continue  # `requeue: false`: the flag is not given
        try:
            checked[key] = _sbatch_option(key, item)
        except PydanticCustomError as error:
            wrong[key] = error.message()
    if wrong:
        raise problems(wrong)
    return checked


def _sbatch_option(key: str, item: Any) -> str | None:
    if not _OPTION.match(key):
        raise problem("is no long option name without dashes, such as mail-type")
    # sbatch takes `--gpus-per-n` for --gpus-per-node, so the beginning of a name counts as the name.
    modelled = key if key in MODELLED else next((name for name in MODELLED if name.startswith(key)), None)
    if modelled is not None:
        meant = "that directive" if modelled == key else f"{modelled!r}, which this begins,"
        raise problem(f"must not be here: hpctrain writes {meant} itself; use {MODELLED[modelled]}")
    if key in NOT_A_JOB:
        raise problem(f"must not be here: with it, sbatch does not just submit the script; use {NOT_A_JOB[key]}")
    if isinstance(item, dict | list):
        raise problem(f"must be one value, not {kind(item)}")
    if (key == "gres" or key.startswith("tres-per-")) and "gpu" in str(item).lower():
        raise problem("must not ask for GPUs: a second GPU request makes Slurm refuse the job; use --gpus and --gpu-type")
    return None if item is None or (isinstance(item, Plain) and item == "true") else as_text(item)


def _arguments(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise problem("must hold arguments of the training script, such as `max_steps: 1000`")
    wrong = {key: "holds a NUL character, which no command line can carry" for key, item in value.items() if _holds_nul(item)}
    wrong |= {key: "is no argument name such as learning_rate" for key in value if not _ARGUMENT.match(key)}
    if wrong:
        raise problems(wrong)
    return value


def _holds_nul(item: Any) -> bool:
    if isinstance(item, list):
        return any(_holds_nul(part) for part in item)
    return isinstance(item, str) and "\0" in item  # JSON, which mappings become, escapes it


class Config(Section):
    """config.yaml as a whole."""

    cluster: Name | None = None
    job_name: JobName = "sft"
    launcher: Annotated[Text, choice("accelerate", "torchrun", "srun")] = "accelerate"
    sharding: Annotated[Text, choice("ddp", "fsdp", "zero2", "zero3")] = "ddp"
    task: Annotated[Text, choice("sft", "classify")] = "sft"
    script: Path | None = None
    template: Path | None = None
    chdir: Path | None = None
    accelerate_config: Path = "multi_gpu.yaml"
    offline: Boolean = True
    array: Indices | None = None
    sweep: SweepField = None
    stages: StagesField = None
    tune: Tune | None = None
    restart: Restart = Field(default_factory=Restart)
    notify: Notify | None = None
    resources: Resources = Field(default_factory=Resources)
    environment: Environment = Field(default_factory=Environment)
    launch: Launch = Field(default_factory=Launch)
    sbatch: Annotated[dict[str, str | None], BeforeValidator(_sbatch_options)] = Field(default_factory=dict)
    training: Annotated[dict[str, Any], BeforeValidator(_arguments)] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_training(self) -> Config:
        if self.script is not None and self.task != "sft":
            raise problem(f"has task: {self.task} and script: {self.script}, which is a training of its own; keep one of them")
        return self

    @model_validator(mode="after")
    def _one_study(self) -> Config:
        check_tune(self)
        return self

    @model_validator(mode="after")
    def _one_word_on_sharding(self) -> Config:
        if self.sharding != "ddp" and self.accelerate_config != "multi_gpu.yaml":
            raise problem(
                f"has sharding: {self.sharding} and accelerate_config: {self.accelerate_config}, which says how to shard; keep one of them"
            )
        return self
