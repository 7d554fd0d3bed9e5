"""The keys of a job config: each once, with its option, its environment variable and an example;
and the permitted values of those that have some, shared by the schema, the job spec and the options.

Command line, environment, config file and the command in a script's header are all derived from
this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

# -- permitted values -------------------------------------------------------------------------------

Launcher = Literal["accelerate", "torchrun", "srun"]
GpuDirective = Literal["gres", "gpus-per-node", "gpus", "none"]
Sharding = Literal["ddp", "fsdp", "zero2", "zero3"]
Restart = Literal["requeue", "chain", "off"]
Task = Literal["sft", "classify"]
ContainerEngine = Literal["apptainer", "singularity", "pyxis", "ce"]
GpuLibraries = Literal["nv", "rocm", "none"]
DataStage = Literal["off", "local"]
#: How a sweep passes its parameters to the script.
PointForm = Literal["arguments", "environment", "file"]
#: Outcomes of a run that can be notified.
Outcome = Literal["completed", "failed", "stopped"]
RestartMode = Literal["auto", Restart]

# -- keys -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Field:
    """One scalar key.

    Attributes:
        path: its path in config.yaml.
        option: its long option; other spellings are in `aliases`.
        help: one line for --help.
    """

    path: tuple[str, ...]
    option: str
    help: str
    metavar: str = "TEXT"
    aliases: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The last part of the path, such as `gpus_per_node`."""
        return self.path[-1]

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables, the highest precedence last: `HPCTRAIN_GPUS_PER_NODE`,
        `HPCTRAIN_GPUS`.
        """
        words = [
            word.removeprefix("--")
            for word in (*self.aliases, self.option)
            if word.startswith("--")
        ]
        return tuple("HPCTRAIN_" + word.replace("-", "_").upper() for word in words)


def _one_of(kind: Any) -> str:
    return f"{{{','.join(get_args(kind))}}}"


def _resource(name: str, option: str, help_: str, metavar: str = "TEXT", *aliases: str) -> Field:
    return Field(("resources", name), option, help_, metavar, aliases)


FIELDS: tuple[Field, ...] = (
    _resource("nodes", "--nodes", "Number of nodes.", "N", "-N"),
    _resource(
        "gpus_per_node",
        "--gpus",
        "GPUs per node; one process is started per GPU. 0: one process on the CPU.",
        "N",
        "--gpus-per-node",
    ),
    _resource("partition", "--partition", "Partition.", "NAME", "-p"),
    _resource("account", "--account", "Account to charge.", "NAME", "-A"),
    _resource("qos", "--qos", "QOS.", "NAME", "-q"),
    _resource(
        "time",
        "--time",
        "Time limit: MM, HH:MM:SS or D-HH:MM:SS.",
        "TIME",
        "-t",
    ),
    _resource("mem", "--mem", "Memory per node, e.g. 64G; 0 requests all of it.", "SIZE"),
    _resource(
        "mem_per_gpu",
        "--mem-per-gpu",
        "Memory per GPU; mutually exclusive with --mem.",
        "SIZE",
    ),
    _resource(
        "mem_per_cpu",
        "--mem-per-cpu",
        "Memory per core; mutually exclusive with --mem.",
        "SIZE",
    ),
    _resource(
        "cpus_per_task",
        "--cpus-per-task",
        "Cores per task (of a launcher: per node). Default: 8 per GPU.",
        "N",
        "-c",
    ),
    _resource(
        "cpus_per_gpu",
        "--cpus-per-gpu",
        "Cores per GPU; mutually exclusive with --cpus-per-task.",
        "N",
    ),
    _resource("constraint", "--constraint", "Required node features.", "LIST", "-C"),
    _resource("reservation", "--reservation", "Reservation.", "NAME"),
    _resource(
        "gpu_type",
        "--gpu-type",
        "GPU type, if the site requires one (e.g. a100).",
        "NAME",
    ),
    _resource(
        "gpu_directive",
        "--gpu-directive",
        "Directive that requests the GPUs.",
        _one_of(GpuDirective),
    ),
    Field(("check", "ignore"), "--ignore", "Check findings to ignore.", "ID,..."),
    Field(
        ("cluster",),
        "--cluster",
        "Cluster profile; list them with `hpctrain clusters`.",
        "NAME",
    ),
    Field(
        ("job_name",),
        "--job-name",
        "Name of the job, its script and its logs.",
        "NAME",
        ("-J",),
    ),
    Field(
        ("launcher",),
        "--launcher",
        "What starts the processes. Default: accelerate.",
        _one_of(Launcher),
    ),
    Field(
        ("sharding",),
        "--sharding",
        "ddp: the whole model on each GPU; fsdp: FSDP2; zero2, zero3: DeepSpeed.",
        _one_of(Sharding),
    ),
    Field(
        ("task",),
        "--task",
        "Built-in training: fine-tuning or sequence classification. Default: sft.",
        _one_of(Task),
    ),
    Field(
        ("script",),
        "--script",
        "Training script. Default: the built-in script for --task.",
        "FILE",
    ),
    Field(
        ("template",),
        "--template",
        "Custom template, or the name of one in templates/.",
        "FILE",
    ),
    Field(
        ("chdir",),
        "--chdir",
        "Working directory of the job. Default: this one.",
        "DIR",
        ("-D",),
    ),
    Field(
        ("accelerate_config",),
        "--accelerate-config",
        "accelerate config file.",
        "FILE",
    ),
    Field(
        ("offline",),
        "--offline",
        "Set the offline variables of Hugging Face and W&B.",
        "{true,false}",
    ),
    Field(
        ("sweep",),
        "--sweep",
        "Sweep in JSON or YAML, instead of the config's.",
        "FILE",
    ),
    Field(
        ("array",),
        "--array",
        "Indices of a job array, e.g. 0-9%4; of a sweep, the combinations to run.",
        "LIST",
        ("-a",),
    ),
    Field(
        ("restart", "mode"),
        "--restart",
        "How an unfinished job continues; chain: in follow-up jobs.",
        _one_of(RestartMode),
    ),
    Field(("restart", "max"), "--max-restarts", "Maximum number of restarts.", "N"),
    Field(
        ("data", "stage"),
        "--data-stage",
        "local: copy the dataset to each node before the training.",
        _one_of(DataStage),
    ),
    Field(("environment", "conda"), "--conda", "conda environment to activate.", "NAME"),
    Field(("environment", "venv"), "--venv", "Python virtual environment to activate.", "DIR"),
    Field(("environment", "uv"), "--uv", "Project whose uv environment to activate.", "DIR"),
    Field(("environment", "pixi"), "--pixi", "Project whose pixi environment to activate.", "DIR"),
    Field(
        ("environment", "container", "image"),
        "--container",
        "Container image.",
        "FILE",
    ),
    Field(
        ("environment", "container", "engine"),
        "--container-engine",
        "Container engine. Default: apptainer.",
        _one_of(ContainerEngine),
    ),
    Field(
        ("environment", "profile"),
        "--env-profile",
        "Environment profile, e.g. debug or large-scale.",
        "NAME",
    ),
)

#: The only key that is not part of the job.
IGNORE = ("check", "ignore")
BY_PATH = {field.path: field for field in FIELDS}
#: Alternative spellings that are accepted, and their key.
ALIASES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("resources", "gpus"): ("resources", "gpus_per_node")
}
#: Names in other tools, for "did you mean"; unlike aliases, these are not accepted.
SYNONYMS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("resources", "cpus"): ("resources", "cpus_per_task"),
    ("resources", "cores"): ("resources", "cpus_per_task"),
    ("resources", "queue"): ("resources", "partition"),
    ("resources", "project"): ("resources", "account"),
    ("resources", "walltime"): ("resources", "time"),
    ("resources", "timeout"): ("resources", "time"),
    ("name",): ("job_name",),
    ("requeue",): ("restart",),
    ("strategy",): ("sharding",),
    ("site",): ("cluster",),
}
#: Mutually exclusive keys of the same section, and why.
RIVALS: dict[frozenset[tuple[str, ...]], str] = {
    frozenset(
        {("resources", "mem"), ("resources", "mem_per_cpu"), ("resources", "mem_per_gpu")}
    ): "a job has one memory request",
    frozenset(
        {("resources", "cpus_per_task"), ("resources", "cpus_per_gpu")}
    ): "one determines the other",
    frozenset(
        {("environment", name) for name in ("conda", "venv", "uv", "pixi")}
    ): "the second would hide the first",
}
#: Directives that hpctrain writes itself, and what to use instead.
MODELLED = {
    "job-name": "--job-name",
    "nodes": "--nodes",
    "partition": "--partition",
    "account": "--account",
    "qos": "--qos",
    "time": "--time",
    "mem": "--mem",
    "mem-per-cpu": "--mem-per-cpu",
    "cpus-per-task": "--cpus-per-task",
    "constraint": "--constraint",
    "reservation": "--reservation",
    "chdir": "--chdir",
    "gpus": "--gpus",
    "gpus-per-node": "--gpus",
    "gpus-per-task": "--gpus",
    "gpus-per-socket": "--gpus",
    "ntasks": "--nodes and --gpus",
    "ntasks-per-node": "--nodes and --gpus",
    "ntasks-per-gpu": "--gpus",
    "mem-per-gpu": "--mem",
    "output": "--job-name (logs/output_NAME.log follows it)",
    "error": "--job-name (logs/error_NAME.log follows it)",
    "open-mode": "nothing: logs are always appended to, so that a requeue loses none",
    "array": "--array",
    "requeue": "--restart requeue",
    "no-requeue": "--restart off",
    # Older names that sbatch still accepts.
    "tasks": "--nodes and --gpus",
    "tasks-per-node": "--nodes and --gpus",
}
#: Options with which sbatch does not submit the script, and the command to use instead.
NOT_A_JOB = {
    "help": "sbatch --help",
    "usage": "sbatch --usage",
    "version": "sbatch --version",
    "test-only": "hpctrain check",
    "wait": "hpctrain submit --wait",
    "wrap": "--script",
}
