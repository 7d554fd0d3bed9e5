"""What a job is, once every layer of configuration has had its say."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal

Launcher = Literal["accelerate", "torchrun", "srun"]
GpuDirective = Literal["gres", "gpus-per-node", "gpus", "none"]
Sharding = Literal["ddp", "fsdp", "zero2", "zero3"]
Restart = Literal["requeue", "chain", "off"]
Task = Literal["sft", "classify"]
#: What a run's end can be told for.
OUTCOMES = ("completed", "failed", "stopped")

#: Cores for each GPU where nobody said otherwise: what most GPU nodes have (32 cores and 4 GPUs on Leonardo, 64 and 8 elsewhere).
DEFAULT_CPUS_PER_GPU = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A variable whose value never stands in a script: read from `file` (mode 0600) in the job, or (None) the caller's own variable."""

    name: str
    file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The image in which the training runs.

    Attributes:
        engine: `apptainer` or `singularity` (a command in front of the training), `pyxis` or `ce` (options of srun: NVIDIA's plugin, and
            the Container Engine of CSCS, whose image is an environment file).
        binds: `HOST[:CONTAINER[:OPTIONS]]`.
        gpu: the libraries that come along: `nv`, `rocm` or `none`.
    """

    engine: Literal["apptainer", "singularity", "pyxis", "ce"]
    image: str
    binds: tuple[str, ...] = ()
    gpu: Literal["nv", "rocm", "none"] = "nv"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTable:
    """Where an array task finds its point.

    Attributes:
        file: the table, relative to the directory in which the job runs (hpctrain/jobs/sweep).
        offset: what is added to SLURM_ARRAY_TASK_ID to count points: arrays have a highest index, sweeps have none.
        how: the point reaches the script as `arguments`, as `environment`, or as a `file`.
        option: of `file`: the script's option that takes the file's name; None leaves HPCTRAIN_POINT to say it.
    """

    file: str
    offset: int = 0
    how: Literal["arguments", "environment", "file"] = "arguments"
    option: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """Who the job script tells that the run has ended. Mails are Slurm's (directives), and stand in `sbatch`.

    Attributes:
        on: the outcomes that are told, of OUTCOMES.
        command: a program that is run with the sentence as its argument.
        webhook: a file that holds the address, mode 0600, or `environment`.
    """

    on: tuple[str, ...] = ("completed", "failed")
    command: str | None = None
    webhook: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What the array tasks of a study ask for their trials.

    Attributes:
        name: of the study.
        file: its definition, relative to the directory in which the job runs (hpctrain/jobs/tune.py).
        keys: the arguments of the training that it searches.
    """

    name: str
    file: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job, resolved. Sizes are bytes, durations seconds; None means that the script says nothing and the site's default holds.

    Attributes:
        gpus_per_node: GPUs of each node, and processes of each node: always one process to a GPU.
        gpu_directive: the one dialect in which GPUs are asked for.
        cpus_per_task: as asked; `cores_per_task` is what the script says.
        chdir: absolute directory in which the job runs; logs/ and runs/ lie in it.
        script: the user's training script, relative to `chdir` or absolute; None is the training that hpctrain ships for `task`.
        task: what that one trains: `sft` (supervised fine-tuning), or `classify` (a sequence classifier).
        arguments: of the training script, in order, as argv words.
        sbatch: further directives, name to value (None for a flag).
        cluster: the name of the cluster profile that had a say, if one had.
        cpus_per_gpu: of the site's nodes; what `cores_per_task` is made of where nobody asked for cores.
        gpus_on_srun: srun asks for the GPUs, because the directives may not.
        module_start: `purge` or `reset` before the modules are loaded.
        uv, pixi: the project directory whose environment is activated.
        env, unset: variables that the batch shell sets, in order, after it has unset others.
        before, after: files of the user that the batch shell reads (`source`) before srun and after it.
        master_addr_suffix: what makes the first node's name that of the fast network.
        cpu_bind: of srun; None leaves it to the site.
        restart: what follows when the training saved and stopped before it was done: `requeue` of the same job, the next job of a `chain`
            that was submitted at once, or nothing (`off`).
        max_restarts: how often, at most.
        array: of an array job, its indices in Slurm's form, such as `0-9%4`.
        sweep: what the tasks of the array run; None leaves the index to the script.
        study: what the tasks of the array ask for their arguments: a study of `hpctrain tune`.
        stage: the name of this job among the stages of its launch.
        parents: the stages that this one comes after, directly or not.
        must_have_completed: those of them whose end alone, which is what a chain of jobs can wait for, is not enough.
        notify: who is told that the run has ended.
    """

    job_name: str
    chdir: str
    launcher: Launcher = "accelerate"
    nodes: int = 1
    gpus_per_node: int = 1
    gpu_type: str | None = None
    gpu_directive: GpuDirective = "gres"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time_s: int | None = 3600
    mem_bytes: int | None = None
    mem_per_cpu_bytes: int | None = None
    cpus_per_task: int | None = None
    constraint: str | None = None
    reservation: str | None = None
    sbatch: tuple[tuple[str, str | None], ...] = ()
    modules: tuple[str, ...] = ()
    conda: str | None = None
    venv: str | None = None
    uv: str | None = None
    pixi: str | None = None
    container: Container | None = None
    env: tuple[tuple[str, str], ...] = ()
    unset: tuple[str, ...] = ()
    secrets: tuple[Secret, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    module_start: Literal["purge", "reset"] | None = None
    module_use: tuple[str, ...] = ()
    offline: bool = True
    accelerate_config: str = "multi_gpu.yaml"
    script: str | None = None
    task: Task = "sft"
    template: str | None = None
    arguments: tuple[str, ...] = ()
    cluster: str | None = None
    shebang: str = "#!/bin/bash"
    sharding: Sharding = "ddp"
    cpus_per_gpu: int | None = None
    gpus_on_srun: bool = False
    master_addr_suffix: str = ""
    cpu_bind: str | None = None
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
        """The total number of training processes: one for each GPU of each node (accelerate's `num_processes`)."""
        return self.nodes * self.gpus_per_node

    @property
    def tasks_per_node(self) -> int:
        """Slurm tasks on each node: the launcher alone, or every training process where srun starts them."""
        return self.gpus_per_node if self.launcher == "srun" else 1

    @property
    def processes_per_task(self) -> int:
        """Training processes that share one task's cores."""
        return self.gpus_per_node // self.tasks_per_node

    @property
    def cores_per_task(self) -> int:
        """Cores of each task: as asked, else `cpus_per_gpu` (or `DEFAULT_CPUS_PER_GPU`) for each of its processes."""
        return self.cpus_per_task or (self.cpus_per_gpu or DEFAULT_CPUS_PER_GPU) * self.processes_per_task

    @property
    def layout(self) -> str:
        """The product, said aloud: `2 nodes x 4 GPUs = 8 processes`."""
        return f"{_count(self.nodes, 'node')} x {_count(self.gpus_per_node, 'GPU')} = {_count(self.processes, 'process', 'es')}"

    def digest(self) -> str:
        """Return twelve hex digits that are equal for equal specs."""
        return short_digest(json.dumps(asdict(self), sort_keys=True, ensure_ascii=True))


def short_digest(text: str) -> str:
    """Return the first twelve hex digits of the SHA-256 of `text`."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"
