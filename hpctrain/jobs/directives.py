"""The `#SBATCH` lines of a job: exactly one GPU syntax, one memory option, one task layout."""

from __future__ import annotations

from hpctrain.config.spec import JobSpec
from hpctrain.errors import UsageError
from hpctrain.slurm.notations import directives as sbatch
from hpctrain.slurm.notations import log_pattern, units

#: For options that hpctrain does not set itself.
_OTHER = "from config.yaml or the cluster's profile"
#: Comments are aligned at this column; after longer lines they follow directly.
_COMMENT_COLUMN = 50


def lines(spec: JobSpec) -> list[str]:
    """Return the `#SBATCH` lines of `spec`, each with a comment, in the order: what, where, how
    much, how long, logs.

    Raises:
        UsageError: the directory's name contains characters that a directive cannot hold.
    """
    if "\\" in spec.chdir or any(
        ord(character) < 32 or ord(character) == 127 for character in spec.chdir
    ):
        # Slurm takes a backslash in a log path to mean "do not expand %j" and then drops it: the
        # job ends at once, FAILED 0:53, without a log.
        raise UsageError(
            f"a job cannot run in {spec.chdir!r}: a #SBATCH line cannot carry line breaks, other"
            " control characters or backslashes",
            hint="rename the directory, or use another one: hpctrain render --chdir DIRECTORY",
        )
    # sbatch ignores a trailing comment.
    comments = {
        "job-name": "its name in squeue and in its logs",
        "chdir": "the directory in which it runs",
        "account": "the project that is charged",
        "partition": "the set of nodes, and their queue",
        "qos": "its priority and its limits",
        "reservation": "nodes reserved beforehand",
        "constraint": "only nodes with these features",
        "nodes": "how many nodes",
        "ntasks-per-node": (
            "one launcher on each node"
            if spec.launcher != "srun"
            else "one process for each GPU"
            if spec.gpus_per_node
            else "one process on each node"
        ),
        "cpus-per-task": (
            f"cores per node, for {spec.processes_per_task} processes"
            if spec.processes_per_task > 1
            else "cores of the process"
            if spec.launcher != "srun"
            else "cores of each process"
        ),
        "gres": "per node, not in total",
        "gpus-per-node": "per node, not in total",
        "gpus": "in total, over all nodes",
        "mem": "host memory per node",
        "mem-per-cpu": "host memory per core",
        "time": "the time limit; short jobs start sooner",
        "array": "the tasks; after %, how many run at a time",
        "output": "%A_%a: the array job and the task" if spec.array else "%j: the job ID",
        "error": "stderr, apart from stdout",
        "open-mode": "a requeued job keeps its earlier log",
        "requeue": "queued again after preemption or a node failure",
        "no-requeue": (
            "the next job of the chain continues"
            if spec.restart == "chain"
            else "a node failure does not start it from scratch"
        ),
    }
    written = []
    for name, value in values(spec):
        assigned = "" if value is None else f"={sbatch.quote(value)}"
        written.append((f"{sbatch.MAGIC} --{name}{assigned}", comments.get(name, _OTHER)))
    column = max(len(line) for line, _ in written if len(line) <= _COMMENT_COLUMN)
    return [f"{line:{column}} # {comment}" for line, comment in written]


def values(spec: JobSpec) -> list[tuple[str, str | None]]:
    """Return directive names and values (None for a flag) in order; custom options come last."""
    extra = dict(spec.sbatch)
    dialect = spec.gpu_directive if spec.gpus_per_node else "none"
    kind = f"{spec.gpu_type}:" if spec.gpu_type else ""
    per_node = f"{kind}{spec.gpus_per_node}"
    gres = [f"gpu:{per_node}"] if dialect == "gres" else []
    gres += filter(None, [extra.pop("gres", None)])
    logs, number = f"{log_pattern.escape(spec.chdir)}/logs", "%A_%a" if spec.array else "%j"
    rows: list[tuple[str, str | None]] = [
        ("job-name", spec.job_name),
        ("chdir", spec.chdir),
        ("account", spec.account),
        ("partition", spec.partition),
        ("qos", spec.qos),
        ("reservation", spec.reservation),
        ("constraint", spec.constraint),
        ("nodes", str(spec.nodes)),
        ("ntasks-per-node", str(spec.tasks_per_node)),
        ("cpus-per-task", str(spec.cores_per_task)),
        ("gres", ",".join(gres) or None),
        ("gpus-per-node", per_node if dialect == "gpus-per-node" else None),
        ("gpus", f"{kind}{spec.processes}" if dialect == "gpus" else None),
        ("mem", None if spec.mem_bytes is None else units.format_memory(spec.mem_bytes)),
        (
            "mem-per-cpu",
            None if spec.mem_per_cpu_bytes is None else units.format_memory(spec.mem_per_cpu_bytes),
        ),
        ("time", None if spec.time_s is None else units.format_time(spec.time_s)),
        ("array", spec.array),
        ("output", f"{logs}/output_{spec.job_name}_{number}.log"),
        ("error", f"{logs}/error_{spec.job_name}_{number}.log"),
        ("open-mode", "append"),
    ]
    # Some sites disable requeueing (JobRequeue=0), and then no job can be requeued. If the training
    # cannot or must not resume, a node failure must not restart it from scratch either.
    requeue: list[tuple[str, str | None]] = [
        ("requeue" if spec.restart == "requeue" else "no-requeue", None)
    ]
    return [row for row in rows if row[1] is not None] + requeue + list(extra.items())
