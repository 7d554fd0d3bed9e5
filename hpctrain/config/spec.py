"""The job spec: a job after all layers of its config are resolved."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from hpctrain.clusters.fieldtypes import (
    CpuBind,
    Features,
    HostSuffix,
    Module,
    Name,
    Path,
    Shebang,
    SlurmName,
    Text,
    VariableName,
    Word,
    matching,
    whole,
)
from hpctrain.config.fields import (
    ContainerEngine,
    DataStage,
    GpuDirective,
    GpuLibraries,
    Launcher,
    Outcome,
    PointForm,
    Restart,
    Sharding,
    Task,
)
from hpctrain.slurm.notations import units
from hpctrain.util.schema import KeyPath, Problem, Section
from hpctrain.util.secrets import HIDDEN, hidden_in, named_secret
from hpctrain.util.text import count

#: The environment profile from the cluster's layer; every other one overrides it.
CLUSTER = "cluster"
#: Keys of `resources:` that hold sizes.
SIZES = ("mem", "mem_per_cpu", "mem_per_gpu")
#: Default cores per GPU: what most GPU nodes have (32 cores and 4 GPUs on Leonardo, 64 and 8
#: elsewhere).
DEFAULT_CPUS_PER_GPU = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A variable whose value is never in a script: the job reads it from `file` (mode 0600), or
    (None) the submitting user has set it.
    """

    name: str
    file: str | None = None


_BIND = re.compile(r"[^,]+\Z")
Bind = Annotated[
    Word, matching(_BIND, "HOST, HOST:CONTAINER or HOST:CONTAINER:OPTIONS without commas")
]


class Container(Section):
    """`container:` the image in which the training runs.

    Attributes:
        engine: `apptainer` or `singularity` (a command before the training), `pyxis` or `ce`
            (options of srun: NVIDIA's plugin, and the Container Engine of CSCS, whose image is an
            environment file).
        binds: `HOST[:CONTAINER[:OPTIONS]]`.
        gpu_libraries: of the host, to mount: `nv`, `rocm` or `none`.
    """

    image: Path = ""
    engine: ContainerEngine = "apptainer"
    binds: tuple[Bind, ...] = ()
    gpu_libraries: GpuLibraries = "nv"

    def problems(self) -> Iterator[tuple[KeyPath, str]]:
        """Yield a problem if the image is missing."""
        if not self.image:
            yield (), "needs an image, such as `image: images/training.sif`"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTable:
    """Where an array task finds its point.

    Attributes:
        file: the table, relative to the job's working directory (hpctrain/config/sweep.py).
        offset: added to SLURM_ARRAY_TASK_ID to get the point's index: the index of an array is
            limited, that of a sweep is not.
        how: the point is passed to the script as `arguments`, as `environment`, or as a `file`.
        option: for `file`: the script's option for the file's name; if None, only HPCTRAIN_POINT
            has it.
    """

    file: str
    offset: int = 0
    how: PointForm = "arguments"
    option: str | None = None


#: The value of sbatch's --mail-user: an address, or a user name of the cluster; several are
#: separated by commas.
_ADDRESS = re.compile(
    r"[A-Za-z0-9._%+-]+(@[A-Za-z0-9.-]+)?(,[A-Za-z0-9._%+-]+(@[A-Za-z0-9.-]+)?)*\Z"
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def _some(value: Any) -> Any:
    if value == []:
        raise Problem(f"must be a list of {', '.join(get_args(Outcome))}")
    return value


def _webhook(value: Any) -> Any:
    if isinstance(value, str) and _URL.match(value):
        # The address grants write access to the channel, so it is a secret, and others can read
        # scripts.
        raise Problem(
            "must be a file that holds the address, which is a secret (chmod 600), or"
            " `environment`, not the address itself"
        )
    return value


class Notify(Section):
    """`notify:` who is notified of the end of a run, and when.

    Attributes:
        on: the outcomes to notify.
        mail: sent by Slurm; in a job spec, this is in `sbatch` instead.
        command: a program that is run with the message as its argument.
        webhook: a file that contains the address, mode 0600, or `environment`.
    """

    on: Annotated[tuple[Outcome, ...], _some] = ("completed", "failed")
    mail: Annotated[Text, matching(_ADDRESS, "an address such as me@example.org")] | None = None
    command: Path | None = None
    webhook: Annotated[Path, _webhook] | None = None

    def problems(self) -> Iterator[tuple[KeyPath, str]]:
        """Yield a problem if there is no recipient."""
        if not (self.mail or self.command or self.webhook):
            yield (), "has no recipient: give one of mail, command and webhook"


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The study that provides the arguments of the array tasks.

    Attributes:
        name: of the study.
        file: its definition, relative to the job's working directory (hpctrain/config/study.py).
        keys: the training arguments that it optimizes.
    """

    name: str
    file: str
    keys: tuple[str, ...] = ()


class ResourceKeys(Section):
    """Keys of `resources:` that are copied to the job spec unchanged."""

    nodes: Annotated[int, whole(1, 10_000)] = 1
    gpus_per_node: Annotated[int, whole(0, 64)] = 1
    cpus_per_gpu: Annotated[int, whole(1, 1024)] | None = None
    gpu_type: Name | None = None
    gpu_directive: GpuDirective = "gres"
    partition: SlurmName | None = None
    account: SlurmName | None = None
    qos: SlurmName | None = None
    cpus_per_task: Annotated[int, whole(1, 4096)] | None = None
    constraint: Features | None = None
    reservation: SlurmName | None = None


class EnvironmentKeys(Section):
    """Keys of `environment:` that are copied to the job spec, with `~` replaced by the home
    directory.
    """

    module_use: tuple[Path, ...] = ()
    modules: tuple[Module, ...] = ()
    conda: Word | None = None
    venv: Path | None = None
    uv: Path | None = None
    pixi: Path | None = None
    unset: tuple[VariableName, ...] = ()
    before: tuple[Path, ...] = ()
    before_each_node: tuple[Path, ...] = ()
    after: tuple[Path, ...] = ()


class LaunchSection(Section):
    """`launch:` how the processes start; set by the cluster's profile."""

    shebang: Shebang = "#!/bin/bash"
    master_addr_suffix: HostSuffix | None = None
    cpu_bind: CpuBind | None = None
    gpus_on_srun: bool = False


class TrainingKeys(Section):
    """Top-level keys of config.yaml that are copied to the job spec unchanged."""

    cluster: Name | None = None
    launcher: Launcher = "accelerate"
    sharding: Sharding = "ddp"
    task: Task = "sft"
    script: Path | None = None
    template: Path | None = None
    accelerate_config: Path = "multi_gpu.yaml"
    offline: bool = True


class JobSpec(ResourceKeys, EnvironmentKeys, LaunchSection, TrainingKeys):
    """One job, resolved.

    Sizes are bytes, durations seconds; None means that the script sets nothing and the site's
    default applies.

    Attributes:
        gpus_per_node: GPUs per node, with one process each; 0: the job runs on the CPU, with one
            process per node.
        gpu_directive: the only directive that requests GPUs.
        cpus_per_task: as requested; `cores_per_task` is the value in the script.
        chdir: absolute working directory of the job, with logs/ and runs/.
        script: the user's training script, relative to `chdir` or absolute; None is hpctrain's own
            training for `task`.
        task: of hpctrain's own training: `sft` (supervised fine-tuning), or `classify` (a sequence
            classifier).
        arguments: of the training script, in order, as argv words.
        sbatch: further directives, name to value (None for a flag).
        cluster: the name of the cluster profile that was used, if any.
        cpus_per_gpu: of the site's nodes; `cores_per_task` is computed from it unless cores are
            requested.
        gpus_on_srun: srun requests the GPUs, because the directives may not.
        module_start: `purge` or `reset` before the modules are loaded.
        uv, pixi: the project directory whose environment is activated.
        env, unset: variables that the batch shell sets, in order, after it has unset others.
        before, after: the user's files that the batch shell sources before and after srun.
        before_each_node: the user's files that run once per node (`bash FILE`), inside srun, before
            the launcher starts.
        data: the dataset that the training finds as HPCTRAIN_DATA; None for none.
        data_stage: `local` copies it to each node before the training starts there.
        data_directory: the destination on the node; None lets the script choose.
        master_addr_suffix: turns the first node's name into its name on the fast network.
        cpu_bind: of srun; None leaves it to the site.
        restart: how a training that saved and stopped before it was done continues: `requeue` of
            the same job, the next job of a `chain` that was submitted at once, or not (`off`).
        max_restarts: maximum number of restarts.
        array: of an array job, its indices in Slurm's notation, such as `0-9%4`.
        sweep: what the tasks of the array run; None leaves the index to the script.
        study: the study of `hpctrain tune` that provides the arguments of the array tasks.
        stage: the name of this job's stage in its launch.
        parents: all direct and indirect predecessors of the stage.
        must_have_completed: predecessors that must have completed: a chain of jobs can only wait
            for their end.
        notify: how to notify the user of the end of the run.
    """

    job_name: str
    chdir: str
    time_s: int | None = 3600
    mem_bytes: int | None = None
    mem_per_cpu_bytes: int | None = None
    sbatch: tuple[tuple[str, str | None], ...] = ()
    container: Container | None = None
    env: tuple[tuple[str, str], ...] = ()
    secrets: tuple[Secret, ...] = ()
    data: str | None = None
    data_stage: DataStage = "off"
    data_directory: str | None = None
    module_start: Literal["purge", "reset"] | None = None
    arguments: tuple[str, ...] = ()
    restart: Restart = "requeue"
    max_restarts: int = 10
    array: str | None = None
    sweep: SweepTable | None = None
    study: Study | None = None
    stage: str | None = None
    parents: tuple[str, ...] = ()
    must_have_completed: tuple[str, ...] = ()
    notify: Notify | None = None

    @property
    def processes(self) -> int:
        """The total number of training processes (accelerate's `num_processes`)."""
        return self.nodes * self.processes_per_node

    @property
    def processes_per_node(self) -> int:
        """Training processes per node: one per GPU, or one on the CPU."""
        return self.gpus_per_node or 1

    @property
    def tasks_per_node(self) -> int:
        """Slurm tasks per node: only the launcher, or every training process if srun starts
        them.
        """
        return self.processes_per_node if self.launcher == "srun" else 1

    @property
    def processes_per_task(self) -> int:
        """Training processes that share one task's cores."""
        return self.processes_per_node // self.tasks_per_node

    @property
    def cores_per_task(self) -> int:
        """Cores per task: as requested, else `cpus_per_gpu` (or `DEFAULT_CPUS_PER_GPU`) for each of
        its processes.
        """
        return (
            self.cpus_per_task
            or (self.cpus_per_gpu or DEFAULT_CPUS_PER_GPU) * self.processes_per_task
        )

    @property
    def layout(self) -> str:
        """`2 nodes x 4 GPUs = 8 processes`."""
        return layout_text(self.nodes, self.gpus_per_node)

    def digest(self) -> str:
        """Return twelve hex digits that are equal for equal specs."""
        return short_digest(json.dumps(self.to_data(), sort_keys=True, ensure_ascii=True))


def layout_text(nodes: int, gpus_per_node: int) -> str:
    """Return `2 nodes x 4 GPUs = 8 processes`; without GPUs, each node has one process."""
    each = count(gpus_per_node, "GPU") if gpus_per_node else "1 process on the CPU"
    processes = count(nodes * max(gpus_per_node, 1), "process", "processes")
    return f"{count(nodes, 'node')} x {each} = {processes}"


def short_digest(text: str) -> str:
    """Return the first twelve hex digits of the SHA-256 of `text`."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def shown_value(path: tuple[str, ...], value: Any) -> Any:
    """Return a value of a config in Slurm's units, without secrets."""
    if isinstance(value, int) and path == ("resources", "time"):
        return units.format_time(value)
    if isinstance(value, int) and path[0] == "resources" and path[-1] in SIZES:
        return units.format_memory(value)
    if path[:2] == ("environment", "env") and isinstance(value, str) and named_secret(path[-1]):
        return HIDDEN  # a path too: the variable itself is the secret
    return hidden_in(path[-1], value)
