"""The plan of a local job, from a script's directives and the machine, and the job's environment,
from the plan. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.slurm.notations import array as arrays
from hpctrain.slurm.notations import hostlist, log_pattern, units
from hpctrain.slurm.notations.directives import Directive, last_values
from hpctrain.util.text import count, is_number

#: Above Slurm's largest job id (MaxJobId is 67,043,328 by default), so that local ids and log files
#: never collide with Slurm's.
FIRST_JOB_ID = 90_000_001
#: Slurm's KillWait: seconds between SIGTERM and SIGKILL. HPCTRAIN_LOCAL_KILL_WAIT in the submitting
#: shell overrides it.
KILL_WAIT_S = 30.0
#: Directives that affect a local job. The others request what only a cluster has.
_USED = {
    "job-name",
    "chdir",
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "cpus-per-task",
    "gres",
    "gpus",
    "gpus-per-node",
    "time",
    "output",
    "error",
    "open-mode",
    "array",
    "dependency",
    "requeue",
    "no-requeue",
}
#: The largest array index of local jobs; Slurm's limit is 1,000 unless a site raises it.
_MAX_INDEX = 100_000
#: The value of %a in a job that is not an array (Slurm's NO_VAL).
_NO_INDEX = "4294967294"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalMachine:
    """The machine that runs local jobs.

    Attributes:
        gpus: free NVIDIA GPUs, as CUDA_VISIBLE_DEVICES names them.
        busy_gpus: GPUs that other local jobs hold.
        use_cpu: ACCELERATE_USE_CPU requests the CPU.
        chosen: the user named the GPUs to use (`--device`); the job has no others.
    """

    cores: int
    gpus: tuple[str, ...]
    host: str
    user: str
    busy_gpus: tuple[str, ...] = ()
    use_cpu: bool = False
    chosen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A local job, an array, or one array task.

    Durations are seconds; `gpus_per_node` is what each simulated node sees, 0 on the CPU.

    Attributes:
        job_id: as in SLURM_JOB_ID; each array task has its own.
        output, error: absolute paths; patterns for an array.
        gpus: those that it may take; once it runs, those that it holds.
        parallel: array tasks that run at the same time; None if only the GPUs limit them.
        array: the tasks, in `--array` syntax; None for a job that is not an array.
        index: the task's index; None for the array itself.
        submitted: seconds since the epoch.
    """

    job_id: str
    name: str
    chdir: str
    output: str
    error: str
    append: bool
    nodes: int
    tasks_per_node: int
    cpus_per_task: int
    gpus_per_node: int
    gpus: tuple[str, ...]
    time_limit_s: int | None
    notes: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    requeue: bool = True
    dependency: str | None = None
    command: str = ""
    submit_dir: str = ""
    user: str = ""
    host: str = ""
    parallel: int | None = 1
    array: str | None = None
    array_job_id: str | None = None
    index: int | None = None
    step: int = 1
    submitted: float | None = None

    @property
    def hosts(self) -> list[str]:
        """One loopback address per node: distinct, and resolved without DNS."""
        return [f"127.0.0.{number}" for number in range(1, self.nodes + 1)]

    @property
    def cpus(self) -> int:
        """Cores of all nodes together."""
        return self.nodes * self.tasks_per_node * self.cpus_per_task

    @property
    def total_gpus(self) -> int:
        """GPUs that one start needs."""
        return self.gpus_per_node * self.nodes

    @property
    def indices(self) -> tuple[int, ...]:
        """The indices of this array, or of the array that this task belongs to."""
        return (
            arrays.parse(self.array, max_index=_MAX_INDEX).indices if self.array is not None else ()
        )

    def task(self, index: int) -> Plan:
        """Return the plan of one task of this array; its id counts from the array's own."""
        number = int(self.job_id) + 1 + self.indices.index(index)
        return _with_logs(
            replace(
                self, job_id=str(number), array_job_id=self.job_id, index=index, dependency=None
            )
        )


def make(
    directives: Sequence[Directive],
    *,
    job_id: str,
    directory: str,
    script: str,
    machine: LocalMachine,
    arguments: Sequence[str] = (),
    dependency: str | None = None,
    array: str | None = None,
    parallel: int | None = None,
) -> Plan:
    """Return the plan of `script`, a path, with `directives`, submitted in `directory`.

    Args:
        directives: the script's `#SBATCH` options.
        job_id: id of the job or the array.
        directory: working directory of the submission.
        script: its path.
        machine: this one.
        arguments: the script's own.
        dependency: overrides the directive, as does `array`.
        array: the indices.
        parallel: array tasks that run at the same time.

    Raises:
        UsageError: a directive's value is not valid in Slurm.
        HpctrainError: the machine has GPUs, but fewer than the job requests.
    """
    values = last_values(list(directives))
    nodes = _number(values, "nodes", 1)
    tasks_per_node = _number(
        values, "ntasks-per-node", max(1, _number(values, "ntasks", nodes) // nodes)
    )
    text, limit = array if array is not None else values.get("array"), values.get("time")
    try:
        tasks = None if text is None else arrays.parse(text, max_index=_MAX_INDEX)
        time_limit_s = None if limit is None else units.parse_time(limit)
    except ValueError as error:
        raise UsageError(str(error), hint="as in: --array 0,3,7-9 --time 01:00:00") from error
    dependency = dependency if dependency is not None else values.get("dependency")
    waits = dependency is not None or tasks is not None
    gpus, notes = _share_gpus(
        _gpus_per_node(values, nodes), nodes, machine, waits=waits, is_array=tasks is not None
    )
    every_gpu = machine.gpus + machine.busy_gpus
    if parallel is not None and parallel < 1:
        raise UsageError(
            f"--parallel must be at least 1, got {parallel}",
            fix="hpctrain submit --local --parallel 1",
        )
    # As many as the GPUs allow (None), or one on the CPU.
    parallel = parallel or (tasks.limit if tasks is not None else None) or (None if gpus else 1)
    at_once = (parallel or len(every_gpu) // (gpus * nodes)) if tasks else 1
    asked_cores = _number(values, "cpus-per-task", 1)
    cores = max(1, min(asked_cores, machine.cores // (nodes * tasks_per_node * max(1, at_once))))
    if cores < asked_cores:
        notes.append(
            f"{cores} of {asked_cores} cores for each task: this machine has {machine.cores}"
        )
    if ignored := sorted(set(values) - _USED):
        notes.append("ignored for local jobs: " + ", ".join(f"--{option}" for option in ignored))
    requeue = [each.name for each in directives if each.name in ("requeue", "no-requeue")]
    output = values.get("output") or ("slurm-%A_%a.out" if tasks else "slurm-%j.out")
    plan = Plan(
        job_id=job_id,
        name=values.get("job-name") or script.rpartition("/")[2],
        chdir=values.get("chdir") or directory,
        output=output,
        error=values.get("error") or output,
        append=values.get("open-mode") == "append",
        nodes=nodes,
        tasks_per_node=tasks_per_node,
        cpus_per_task=cores,
        gpus_per_node=gpus,
        # A job that waits may take any GPU; one that starts at once takes free ones.
        gpus=() if not gpus else every_gpu if waits else machine.gpus[: gpus * nodes],
        time_limit_s=time_limit_s,
        notes=tuple(notes),
        arguments=tuple(arguments),
        requeue=requeue[-1:] != ["no-requeue"],
        dependency=dependency,
        command=script if script.startswith("/") else f"{directory}/{script}",
        submit_dir=directory,
        user=machine.user,
        host=machine.host,
        parallel=parallel,
        array=None if tasks is None else str(tasks),
        step=1 if tasks is None else tasks.step,
    )
    return plan if tasks else _with_logs(plan)


def environment(plan: Plan, *, start_s: int, restarts: int = 0) -> dict[str, str]:
    """Return the variables that Slurm would set for the batch script (sbatch(1), OUTPUT ENVIRONMENT
    VARIABLES).
    """
    tasks = plan.nodes * plan.tasks_per_node
    cores = plan.cpus_per_task * plan.tasks_per_node
    per_node = f"(x{plan.nodes})" if plan.nodes > 1 else ""
    nodelist = hostlist.compress(plan.hosts)
    variables = {
        "ENVIRONMENT": "BATCH",
        "SLURM_CLUSTER_NAME": "local",
        "SLURM_CPUS_ON_NODE": str(cores),
        "SLURM_CPUS_PER_TASK": str(plan.cpus_per_task),
        "SLURM_GTIDS": "0",
        "SLURM_JOBID": plan.job_id,
        "SLURM_JOB_CPUS_PER_NODE": f"{cores}{per_node}",
        "SLURM_JOB_ID": plan.job_id,
        "SLURM_JOB_NAME": plan.name,
        "SLURM_JOB_NODELIST": nodelist,
        "SLURM_JOB_NUM_NODES": str(plan.nodes),
        "SLURM_JOB_PARTITION": "local",
        "SLURM_JOB_START_TIME": str(start_s),
        "SLURM_JOB_USER": plan.user,
        "SLURM_LOCALID": "0",
        "SLURM_NNODES": str(plan.nodes),
        "SLURM_NODEID": "0",
        "SLURM_NODELIST": nodelist,
        "SLURM_NPROCS": str(tasks),
        "SLURM_NTASKS": str(tasks),
        "SLURM_NTASKS_PER_NODE": str(plan.tasks_per_node),
        "SLURM_PROCID": "0",
        "SLURM_SUBMIT_DIR": plan.submit_dir,
        "SLURM_SUBMIT_HOST": plan.host,
        "SLURM_TASKS_PER_NODE": f"{plan.tasks_per_node}{per_node}",
        "SLURMD_NODENAME": plan.hosts[0],
    }
    if plan.index is not None:
        indices = plan.indices
        variables |= {
            "SLURM_ARRAY_JOB_ID": str(plan.array_job_id),
            "SLURM_ARRAY_TASK_ID": str(plan.index),
            "SLURM_ARRAY_TASK_COUNT": str(len(indices)),
            "SLURM_ARRAY_TASK_MIN": str(indices[0]),
            "SLURM_ARRAY_TASK_MAX": str(indices[-1]),
            "SLURM_ARRAY_TASK_STEP": str(plan.step),
        }
    if restarts:  # unset at the first start, as in every Slurm before 26.11
        variables["SLURM_RESTART_COUNT"] = str(restarts)
    if plan.time_limit_s is not None:
        variables["SLURM_JOB_END_TIME"] = str(start_s + plan.time_limit_s)
    if plan.gpus_per_node:
        variables["SLURM_GPUS_ON_NODE"] = str(plan.gpus_per_node)
    else:
        # accelerate's own switch. Without it, a machine with no GPU starts processes that never
        # connect.
        variables["ACCELERATE_USE_CPU"] = "true"
    return variables


def node_environment(plan: Plan, node: int) -> dict[str, str]:
    """Return the variables specific to node `node` (from 0): its name and its part of the job's
    GPUs.
    """
    variables = {"SLURM_NODEID": str(node), "SLURMD_NODENAME": plan.hosts[node]}
    if plan.gpus_per_node:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(
            plan.gpus[node * plan.gpus_per_node : (node + 1) * plan.gpus_per_node]
        )
    return variables


def _share_gpus(
    asked: int, nodes: int, machine: LocalMachine, *, waits: bool, is_array: bool
) -> tuple[int, list[str]]:
    """Return the GPUs of each node, and a note on them.

    Args:
        asked: requested per node.
        nodes: simulated nodes.
        machine: this one.
        waits: wait for GPUs that other jobs hold; if false, the job is refused.
        is_array: several tasks share them.
    """
    here = len(machine.gpus) + len(machine.busy_gpus)
    if asked == 0 and machine.chosen:
        # The script requests none and the user named some: an array task gets one, a job all.
        asked = 1 if is_array else max(1, here // nodes)
    wanted, total = count(asked * nodes, "GPU"), asked * nodes
    if asked and (machine.use_cpu or not here):
        why = (
            "--device cpu, or ACCELERATE_USE_CPU is set"
            if machine.use_cpu
            else "this machine has none"
        )
        return 0, [f"on the CPU instead of {wanted}: {why}"]
    if (here if waits else len(machine.gpus)) < total:
        in_use = f", {len(machine.busy_gpus)} of them in use by other local jobs"
        what = "--device names" if machine.chosen else "this machine has"
        raise HpctrainError(
            f"the job requests {wanted} and {what} {here}{in_use if machine.busy_gpus else ''}",
            fix="hpctrain ps" if here >= total else f"hpctrain render --nodes 1 --gpus {here}",
            hint="or on the CPU: hpctrain submit --local --device cpu",
        )
    return asked, []


def _gpus_per_node(values: Mapping[str, str | None], nodes: int) -> int:
    """Return the count in `4`, `a100:4` or `gpu:a100:4`; a bare name counts as one."""
    per_node, total = values.get("gpus-per-node"), values.get("gpus")
    gres = (item for item in (values.get("gres") or "").split(",") if item.split(":")[0] == "gpu")
    request = per_node or total or next(gres, None)
    if request is None:
        return 0
    last = request.rpartition(":")[2]
    amount = int(last) if is_number(last) else 1
    return -(-amount // nodes) if request is total and not per_node else amount


def _number(values: Mapping[str, str | None], name: str, default: int) -> int:
    text = values.get(name)
    if text is None:
        return default
    if not is_number(text) or int(text) < 1:
        raise UsageError(
            f"--{name}={text} is not a number that the local scheduler can simulate",
            hint=f"edit --{name} in the script",
        )
    return int(text)


def _with_logs(plan: Plan) -> Plan:
    values = {
        "j": plan.job_id,
        "A": plan.array_job_id or plan.job_id,
        "J": plan.job_id,
        "x": plan.name,
        "u": plan.user,
        "N": plan.host,
        "n": "0",
        "t": "0",
        "s": "batch",
        "a": _NO_INDEX if plan.index is None else str(plan.index),
    }
    paths = (log_pattern.expand(path, values) for path in (plan.output, plan.error))
    output, error = (path if path.startswith("/") else f"{plan.chdir}/{path}" for path in paths)
    return replace(plan, output=output, error=error)
