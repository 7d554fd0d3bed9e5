"""The keys of a job config: each once, with its option, its environment variable and an example.

Command line, environment, config file and the command in a script's header are all derived from this table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Field:
    """One scalar key.

    Attributes:
        path: where it stands in config.yaml.
        option: its long option; further spellings follow in `aliases`.
        example: a value that works, for the `fix:` line.
        help: one line for --help.
    """

    path: tuple[str, ...]
    option: str
    example: str
    help: str
    metavar: str = "TEXT"
    aliases: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The key itself, such as `gpus_per_node`."""
        return self.path[-1]

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables, the strongest last: `HPCTRAIN_GPUS_PER_NODE`, `HPCTRAIN_GPUS`."""
        words = [word.removeprefix("--") for word in (*self.aliases, self.option) if word.startswith("--")]
        return tuple("HPCTRAIN_" + word.replace("-", "_").upper() for word in words)


def _resource(name: str, option: str, example: str, help_: str, metavar: str = "TEXT", *aliases: str) -> Field:
    return Field(("resources", name), option, example, help_, metavar, aliases)


FIELDS: tuple[Field, ...] = (
    _resource("nodes", "--nodes", "2", "Nodes of the job.", "N", "-N"),
    _resource(
        "gpus_per_node",
        "--gpus",
        "4",
        "GPUs of each node, and training processes of each node.",
        "N",
        "--gpus-per-node",
    ),
    _resource("partition", "--partition", "boost_usr_prod", "Slurm partition.", "NAME", "-p"),
    _resource("account", "--account", "my_project", "Slurm account that is charged.", "NAME", "-A"),
    _resource("qos", "--qos", "normal", "Slurm QOS.", "NAME", "-q"),
    _resource("time", "--time", "01:00:00", "Time limit, in Slurm's forms: MM, HH:MM:SS, D-HH:MM:SS.", "TIME", "-t"),
    _resource("mem", "--mem", "64G", "Memory of each node; 0 is all of it.", "SIZE"),
    _resource("mem_per_cpu", "--mem-per-cpu", "4G", "Memory for each core; not together with --mem.", "SIZE"),
    _resource(
        "cpus_per_task",
        "--cpus-per-task",
        "32",
        "Cores of each task (of the launcher: of the whole node). Default: 8 for each GPU.",
        "N",
        "-c",
    ),
    _resource("cpus_per_gpu", "--cpus-per-gpu", "8", "Cores for each GPU; not together with --cpus-per-task.", "N"),
    _resource("constraint", "--constraint", "a100", "Node features that the job needs.", "LIST", "-C"),
    _resource("reservation", "--reservation", "course", "Slurm reservation.", "NAME"),
    _resource("gpu_type", "--gpu-type", "a100", "GPU type, where the site wants it in the request.", "NAME"),
    _resource("gpu_directive", "--gpu-directive", "gres", "How GPUs are asked for: gres, gpus-per-node, gpus or none.", "WORD"),
    Field(("cluster",), "--cluster", "leonardo", "Cluster profile, one of: hpctrain clusters.", "NAME"),
    Field(("job_name",), "--job-name", "sft", "Name of the job, its script and its logs.", "NAME", ("-J",)),
    Field(("launcher",), "--launcher", "accelerate", "accelerate, torchrun or srun.", "WORD"),
    Field(("sharding",), "--sharding", "fsdp", "ddp (whole model on each GPU), fsdp (version 2), zero2 or zero3 (DeepSpeed).", "WORD"),
    Field(("task",), "--task", "classify", "What the shipped training does: sft (fine-tuning) or classify (sequences).", "WORD"),
    Field(
        ("script",),
        "--script",
        "train.py",
        "Your own training script; without it, that of hpctrain for the task runs.",
        "FILE",
    ),
    Field(
        ("template",),
        "--template",
        "multi_node.sbatch.j2",
        "A template of your own, or the name of one in templates/.",
        "FILE",
    ),
    Field(("chdir",), "--chdir", "/path/to/project", "Directory in which the job runs. Default: this one.", "DIR", ("-D",)),
    Field(("accelerate_config",), "--accelerate-config", "multi_gpu.yaml", "Config file of accelerate.", "FILE"),
    Field(
        ("offline",),
        "--offline",
        "true",
        "true sets the offline switches of Hugging Face and W&B; false leaves the network on.",
        "BOOL",
    ),
    Field(("sweep",), "--sweep", "points.json", "A sweep in JSON or YAML, in place of the config's.", "FILE"),
    Field(("array",), "--array", "0-9%4", "Indices of a job array, in Slurm's form; of a sweep, the points to run.", "LIST", ("-a",)),
    Field(
        ("restart", "mode"),
        "--restart",
        "requeue",
        "After a stop before the end: requeue, chain (jobs submitted at once), off, or auto.",
        "WORD",
    ),
    Field(("restart", "max"), "--max-restarts", "10", "How often at most.", "N"),
    Field(("environment", "conda"), "--conda", "base", "conda environment to activate.", "NAME"),
    Field(("environment", "venv"), "--venv", ".venv", "Python virtual environment to activate.", "DIR"),
    Field(("environment", "uv"), "--uv", ".", "Project whose uv environment to activate.", "DIR"),
    Field(("environment", "pixi"), "--pixi", ".", "Project whose pixi environment to activate.", "DIR"),
    Field(
        ("environment", "container", "image"),
        "--container",
        "image.sif",
        "Container image to train in.",
        "FILE",
    ),
    Field(("environment", "container", "engine"), "--container-engine", "apptainer", "apptainer, singularity, pyxis or ce.", "WORD"),
    Field(("environment", "profile"), "--env-profile", "large-scale", "Named set of environment variables to set and unset.", "NAME"),
)

BY_PATH = {field.path: field for field in FIELDS}
#: Keys that people also write, and the key that they mean.
ALIASES: dict[tuple[str, ...], tuple[str, ...]] = {("resources", "gpus"): ("resources", "gpus_per_node")}
#: What other tools call it, for "did you mean"; unlike aliases, these are not taken.
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
#: Keys of which a job may have only one, and why; they stand in the same section.
RIVALS: dict[frozenset[tuple[str, ...]], str] = {
    frozenset({("resources", "mem"), ("resources", "mem_per_cpu")}): "Slurm refuses a job with both",
    frozenset({("resources", "cpus_per_task"), ("resources", "cpus_per_gpu")}): "one says what the other is made of",
    frozenset({("environment", name) for name in ("conda", "venv", "uv", "pixi")}): "the second would hide the first",
}
