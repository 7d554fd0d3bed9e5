"""The schema of config.yaml: the type of each key, and the message for invalid values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from hpctrain.clusters.fieldtypes import (
    Indices,
    JobName,
    Module,
    Name,
    Path,
    PositiveSize,
    Seconds,
    Size,
    VariableName,
    variable_problem,
    whole,
)
from hpctrain.config.fields import (
    MODELLED,
    NOT_A_JOB,
    DataStage,
    RestartMode,
)
from hpctrain.config.spec import (
    Container,
    EnvironmentKeys,
    LaunchSection,
    Notify,
    ResourceKeys,
    TrainingKeys,
)
from hpctrain.config.stages import StagesField
from hpctrain.config.study import Tune
from hpctrain.config.study import problems as tune_problems
from hpctrain.config.sweep import SweepField
from hpctrain.util import installed
from hpctrain.util.schema import (
    NO_KEYS,
    KeyPath,
    Problem,
    Section,
    as_text,
    each_item,
    kind_of,
)
from hpctrain.util.secrets import looks_secret
from hpctrain.util.text import listed
from hpctrain.util.yaml12 import Plain, YamlDocument

_OPTION = re.compile(r"[a-z][a-z0-9-]+\Z")
_ARGUMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
#: A path has to look like one, so that a pasted secret with a slash in it is not taken for a path.
_FILE = re.compile(r"(~|\.{1,2})?/.")


def _environment_variable(name: str, item: Any) -> str:
    if isinstance(item, bool | dict | list):
        raise Problem(f"must be text, not {kind_of(item)}")
    _refuse_name(name, item)
    if looks_secret(name, str(item)):
        raise Problem(
            "looks like a secret, and would be readable in the script; put it into a file, chmod 600, and"
            " name that under secrets"
        )
    return str(item)


def _secret(name: str, item: Any) -> str:
    _refuse_name(name, item)
    if not isinstance(item, str) or not (item == "environment" or _FILE.match(item)):
        # A value that looks like the secret itself is not displayed.
        raise Problem(
            "must be the file that holds the secret, such as ~/.hf_token or ./token, or the word"
            " environment; the secret itself does not belong here"
        )
    return item


def _refuse_name(name: str, item: Any) -> None:
    message = variable_problem(name)
    if message is None and any(ord(sign) < 32 or ord(sign) == 127 for sign in str(item)):
        message = "must be one line without control characters"
    if message is not None:
        raise Problem(message)


EnvironmentVariables = Annotated[
    Mapping[str, str],
    each_item("names and values, such as `NCCL_DEBUG: WARN`", _environment_variable),
]
Secrets = Annotated[
    Mapping[str, str],
    each_item(
        "names and files, such as `HF_TOKEN: ~/.hf_token`, or `HF_TOKEN: environment`", _secret
    ),
]


class Variables(Section):
    """An entry of `profiles:`, a named set of variables."""

    env: EnvironmentVariables = NO_KEYS
    unset: tuple[VariableName, ...] = ()


class EnvironmentSection(EnvironmentKeys):
    """`environment:` what is loaded and activated, in this order."""

    module_start: Literal["purge", "reset", "none"] = "none"
    modules_first: tuple[Module, ...] = ()
    container: Container | None = None
    profile: Name | None = None
    profiles: Mapping[str, Variables] = NO_KEYS
    env: EnvironmentVariables = NO_KEYS
    secrets: Secrets = NO_KEYS

    def problems(self) -> Iterator[tuple[KeyPath, str]]:
        """Yield problems with variables in two places, and with two Pythons."""
        for section in ("env", "unset"):
            if twice := sorted(set(self.secrets) & set(getattr(self, section))):
                names = ", ".join(twice)
                yield (), f"has {names} in secrets and in {section}; leave it out of {section}"
        outside = [name for name in ("conda", "venv", "uv", "pixi") if getattr(self, name)]
        if self.container is not None and outside:
            yield (
                (),
                f"has a container and {outside[0]}: the training would see the Python of the"
                f" container only; leave {outside[0]} out",
            )


class Data(Section):
    """`data:` the dataset, and where the training reads it."""

    stage: DataStage = "off"
    path: Path | None = None
    directory: Path | None = None


class Resources(ResourceKeys):
    """`resources:` the resources to request from Slurm."""

    time: Seconds = 3600
    mem: Size | None = None
    mem_per_cpu: PositiveSize | None = None
    mem_per_gpu: PositiveSize | None = None

    def problems(self) -> Iterator[tuple[KeyPath, str]]:
        """Yield a problem if the nodes may get different numbers of GPUs."""
        # Slurm split 4 GPUs on 2 nodes into 3 and 1 (tried on 22.05).
        if self.gpu_directive == "gpus" and self.nodes > 1:
            yield (
                (),
                "gpu_directive: gpus counts the whole job's GPUs, which Slurm may spread unevenly"
                " over nodes; use gres or gpus-per-node",
            )


def _finding_ids(value: Any) -> tuple[str, ...]:
    words = (
        [as_text(item) for item in value]
        if isinstance(value, list)
        else [word.strip() for word in as_text(value).split(",")]
    )
    known = installed.findings()
    for word in words:
        if word not in known:
            close = difflib.get_close_matches(word, known, n=1)
            raise Problem(
                f"names {word!r}, which is not a finding"
                + (f"; did you mean {close[0]!r}?" if close else "; see: hpctrain check --help")
            )
    return tuple(words)


class Check(Section):
    """`check:` findings that do not apply to this job."""

    ignore: Annotated[tuple[str, ...], _finding_ids] = ()


class RestartSection(Section):
    """`restart:` how to continue a training that saved and stopped before it was done."""

    mode: RestartMode = "auto"
    max: Annotated[int, whole(0, 1000)] = 10


def _sbatch_options(value: Any) -> dict[str, str | None]:
    given = value
    if isinstance(value, dict):  # `requeue: false` omits the flag
        is_off = {key for key, item in value.items() if isinstance(item, Plain) and item == "false"}
        given = {key: item for key, item in value.items() if key not in is_off}
    return each_item("sbatch options, such as `mail-type: END`", _sbatch_option)(given)


def _sbatch_option(key: str, item: Any) -> str | None:
    if not _OPTION.match(key):
        raise Problem("is not a long option name without dashes, such as mail-type")
    # sbatch accepts abbreviations such as `--gpus-per-n` for --gpus-per-node, so a prefix counts as
    # the name.
    modelled = (
        key if key in MODELLED else next((name for name in MODELLED if name.startswith(key)), None)
    )
    if modelled is not None:
        meant = "that directive" if modelled == key else f"{modelled!r}, which this abbreviates,"
        raise Problem(f"must not be here: hpctrain writes {meant} itself; use {MODELLED[modelled]}")
    if key in NOT_A_JOB:
        raise Problem(
            "must not be here: with it, sbatch does not just submit the script; use"
            f" {NOT_A_JOB[key]}"
        )
    if isinstance(item, dict | list):
        raise Problem(f"must be one value, not {kind_of(item)}")
    if (key == "gres" or key.startswith("tres-per-")) and "gpu" in str(item).lower():
        raise Problem(
            "must not request GPUs: a second GPU request makes Slurm refuse the job; use --gpus and"
            " --gpu-type"
        )
    return None if item is None or (isinstance(item, Plain) and item == "true") else as_text(item)


def _argument(key: str, item: Any) -> Any:
    if not _ARGUMENT.match(key):
        raise Problem("is not an argument name such as learning_rate")
    return item


class Config(TrainingKeys):
    """The complete config.yaml."""

    job_name: JobName = "sft"
    chdir: Path | None = None
    array: Indices | None = None
    sweep: SweepField = None
    stages: StagesField = None
    tune: Tune | None = None
    check: Check = Check()
    restart: RestartSection = RestartSection()
    notify: Notify | None = None
    resources: Resources = Resources()
    environment: EnvironmentSection = EnvironmentSection()
    data: Data = Data()
    launch: LaunchSection = LaunchSection()
    sbatch: Annotated[Mapping[str, str | None], _sbatch_options] = NO_KEYS
    training: Annotated[
        Mapping[str, Any],
        each_item("arguments of the training script, such as `max_steps: 1000`", _argument),
    ] = NO_KEYS

    def problems(self) -> Iterator[tuple[KeyPath, str]]:
        """Yield contradictions between keys."""
        if self.script is not None and self.task != "sft":
            yield (
                (),
                f"has task: {self.task} and script: {self.script}, which is another training;"
                " keep one of them",
            )
        if self.sharding != "ddp" and self.resources.gpus_per_node == 0:
            yield (
                (),
                f"has sharding: {self.sharding}, which is for GPUs, and gpus_per_node: 0; use"
                " sharding: ddp",
            )
        if self.sharding != "ddp" and self.accelerate_config != "multi_gpu.yaml":
            yield (
                (),
                f"has sharding: {self.sharding} and accelerate_config: {self.accelerate_config},"
                " which says how to shard; keep one of them",
            )
        yield from tune_problems(self)


#: With any other value, `accelerate launch` silently starts one process.
DISTRIBUTED = ("MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM")


def accelerate_problems(document: YamlDocument, file: str) -> list[str]:
    """Return problems of the accelerate config, as `file:line:col: sentence`."""
    kind, ids = (document.data.get(key) for key in ("distributed_type", "gpu_ids"))
    found = {}
    if kind not in DISTRIBUTED:
        found["distributed_type"] = (
            f"must be {listed(DISTRIBUTED, 'or')}, not {kind}: accelerate would start one process"
        )
    if ids not in (None, "all"):
        found["gpu_ids"] = (
            f"must be all, not {ids}: Slurm chooses the GPUs, and two processes would share one"
        )
    if document.data.get("compute_environment") not in (None, "LOCAL_MACHINE"):
        found["compute_environment"] = "must be LOCAL_MACHINE"
    return [f"{document.places.get((key,), file)}: {key} {words}" for key, words in found.items()]
