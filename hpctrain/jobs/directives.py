"""The `#SBATCH` lines of a job: exactly one GPU dialect, one memory rule, one task layout."""

from __future__ import annotations

from hpctrain.errors import UsageError
from hpctrain.jobs.spec import JobSpec
from hpctrain.scheduler.parse import directives as sbatch
from hpctrain.scheduler.parse import duration, log_pattern, memory_size

#: Directives that hpctrain writes itself, and what to use in their place.
MODELLED = {
    "job-name": "--job-name", "nodes": "--nodes", "partition": "--partition", "account": "--account", "qos": "--qos", "time": "--time",
    "mem": "--mem", "mem-per-cpu": "--mem-per-cpu", "cpus-per-task": "--cpus-per-task", "constraint": "--constraint",
    "reservation": "--reservation", "chdir": "--chdir", "gpus": "--gpus", "gpus-per-node": "--gpus", "gpus-per-task": "--gpus",
    "gpus-per-socket": "--gpus", "ntasks": "--nodes and --gpus", "ntasks-per-node": "--nodes and --gpus", "ntasks-per-gpu": "--gpus",
    "mem-per-gpu": "--mem", "output": "--job-name (logs/output_NAME.log follows it)",
    "error": "--job-name (logs/error_NAME.log follows it)",
    "open-mode": "nothing: logs are always appended to, so that a requeue loses none",
    "array": "--array", "requeue": "--restart requeue", "no-requeue": "--restart off",
    # Older names that sbatch still takes.
    "tasks": "--nodes and --gpus", "tasks-per-node": "--nodes and --gpus", "workdir": "--chdir",
}  # fmt: skip
#: Options that make sbatch do something else than take the script, and what to type for that.
NOT_A_JOB = {
    "help": "sbatch --help", "usage": "sbatch --usage", "version": "sbatch --version", "test-only": "hpctrain submit --test-only",
    "wait": "hpctrain submit --wait", "wrap": "--script",
}  # fmt: skip


def lines(spec: JobSpec) -> list[str]:
    """Return the `#SBATCH` lines of `spec`, in the order in which a reader asks: what, where, how much, how long, what is logged.

    Raises:
        UsageError: the directory's name holds what a directive cannot carry.
    """
    if "\\" in spec.chdir or any(ord(character) < 32 or ord(character) == 127 for character in spec.chdir):
        # Slurm takes a backslash in a log's path as "leave %j alone" and then drops it: the job ends at once, FAILED 0:53, with no log.
        raise UsageError(
            f"a job cannot run in {spec.chdir!r}: a #SBATCH line cannot carry line breaks, other control characters or backslashes",
            fix="rename the directory, or: hpctrain render --chdir DIRECTORY",
        )
    return [_line(name, value) for name, value in values(spec)]


def values(spec: JobSpec) -> list[tuple[str, str | None]]:
    """Return directive name and value (None for a flag) in order; options of the user's own come last."""
    extra = dict(spec.sbatch)
    gres = [item for item in (_gpu_gres(spec), extra.pop("gres", None)) if item]
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
        ("gpus-per-node", _gpu_count(spec, spec.gpus_per_node) if spec.gpu_directive == "gpus-per-node" else None),
        ("gpus", _gpu_count(spec, spec.processes) if spec.gpu_directive == "gpus" else None),
        ("mem", None if spec.mem_bytes is None else memory_size.format(spec.mem_bytes)),
        ("mem-per-cpu", None if spec.mem_per_cpu_bytes is None else memory_size.format(spec.mem_per_cpu_bytes)),
        ("time", None if spec.time_s is None else duration.format(spec.time_s)),
        ("array", spec.array),
        ("output", f"{logs}/output_{spec.job_name}_{number}.log"),
        ("error", f"{logs}/error_{spec.job_name}_{number}.log"),
        ("open-mode", "append"),
    ]
    # Some sites leave it off (JobRequeue=0), and then a job cannot be requeued at all. Where the training does not know how to go on, or
    # may not, a node that fails must not start it from the beginning either.
    requeue: list[tuple[str, str | None]] = [("requeue" if spec.restart == "requeue" else "no-requeue", None)]
    return [row for row in rows if row[1] is not None] + requeue + list(extra.items())


def _line(name: str, value: str | None) -> str:
    return f"{sbatch.MAGIC} --{name}" if value is None else f"{sbatch.MAGIC} --{name}={sbatch.quote(value)}"


def _gpu_gres(spec: JobSpec) -> str | None:
    return f"gpu:{_gpu_count(spec, spec.gpus_per_node)}" if spec.gpu_directive == "gres" else None


def _gpu_count(spec: JobSpec, count: int) -> str:
    return f"{spec.gpu_type}:{count}" if spec.gpu_type else str(count)
