"""What the local scheduler makes of a script's directives: pure functions from directives and this machine to a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.scheduler.parse import array, duration, hostlist, log_pattern
from hpctrain.scheduler.parse.directives import Directive, last_values

#: Above Slurm's largest job id (MaxJobId is 67,043,328 by default), so that local ids never meet Slurm's, nor their log files.
FIRST_JOB_ID = 90_000_001
#: Slurm's KillWait: seconds between SIGTERM and SIGKILL; HPCTRAIN_LOCAL_KILL_WAIT in the submitting shell says otherwise.
KILL_WAIT_S = 30.0
#: Directives that shape a local job. The others ask for what only a cluster has.
_USED = {
    "job-name", "chdir", "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gres", "gpus", "gpus-per-node", "time", "output", "error",
    "open-mode", "array", "dependency", "requeue", "no-requeue",
}  # fmt: skip
#: Of a job that is no array, what %a stands for (Slurm's NO_VAL).
_NO_INDEX = "4294967294"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """This machine.

    Attributes:
        gpus: the NVIDIA GPUs that no other local job holds, as CUDA_VISIBLE_DEVICES names them.
        busy_gpus: those that others hold.
        use_cpu: ACCELERATE_USE_CPU asks for the CPU.
        chosen: whether somebody named the GPUs to use (`--device`): these are all that there are.
    """

    cores: int
    gpus: tuple[str, ...]
    host: str
    user: str
    busy_gpus: tuple[str, ...] = ()
    use_cpu: bool = False
    chosen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is asked for besides the script.

    Attributes:
        arguments: the script's own.
        dependency, array: as for sbatch, in place of the directives.
        index: SLURM_ARRAY_TASK_ID as somebody set it by hand: this task alone.
        parallel: how many tasks of an array run at the same time.
    """

    arguments: tuple[str, ...] = ()
    dependency: str | None = None
    array: str | None = None
    index: int | None = None
    parallel: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A local job, an array, or one task of an array. Durations are seconds; `gpus_per_node` is what each played node sees, 0 on the CPU.

    Attributes:
        job_id: as in SLURM_JOB_ID: each task of an array has its own.
        output, error: absolute; of an array, patterns.
        gpus: those that it may take; once it runs, those that it has.
        parallel: how many tasks of an array run at the same time; None where the GPUs alone decide.
        array: the tasks, as `--array` takes them; None for a job that is no array.
        index: of the task; None for the array itself.
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

    @property
    def hosts(self) -> list[str]:
        """One loopback address for each node: they need no name service, and differ."""
        return [f"127.0.0.{number}" for number in range(1, self.nodes + 1)]

    @property
    def shown_id(self) -> str:
        """The id that squeue shows: ARRAY_INDEX for a task."""
        return self.job_id if self.index is None else f"{self.array_job_id}_{self.index}"

    @property
    def total_gpus(self) -> int:
        """How many GPUs a start needs."""
        return self.gpus_per_node * self.nodes

    @property
    def indices(self) -> tuple[int, ...]:
        """The indices of the array that this is, or is a task of."""
        return array.parse(self.array).indices if self.array is not None else ()

    def task(self, index: int) -> Plan:
        """Return the plan of one task of this array; its id counts from the array's own."""
        number = int(self.job_id) + 1 + self.indices.index(index)
        task = replace(self, job_id=str(number), array_job_id=self.job_id, index=index, dependency=None)
        return replace(task, output=_log(self.output, task), error=_log(self.error, task))

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        """Return the plan that `to_json` wrote."""
        return cls(**{**value, **{name: tuple(value[name]) for name in ("notes", "gpus", "arguments") if name in value}})


def make(directives: Sequence[Directive], *, job_id: str, directory: str, script: str, machine: Machine, wish: Wish | None = None) -> Plan:
    """Return the plan of `script`, a path, with `directives`, submitted in `directory`.

    Raises:
        UsageError: a directive's value is not of Slurm's form.
        HpctrainError: this machine has GPUs, but not as many as the job wants.
    """
    wish = wish or Wish()
    values = last_values(list(directives))
    nodes = _number(values, "nodes", 1)
    tasks_per_node = _number(values, "ntasks-per-node", max(1, _number(values, "ntasks", nodes) // nodes))
    tasks, notes = _array(wish, values)
    dependency = wish.dependency if wish.dependency is not None else values.get("dependency")
    waits = dependency is not None or tasks is not None
    gpus, more = _share_gpus(_gpus_per_node(values, nodes), nodes, machine, waits=waits, is_array=tasks is not None)
    notes += more
    parallel = _parallel(wish, tasks, gpus)
    at_once = (parallel or len(machine.gpus + machine.busy_gpus) // (gpus * nodes)) if tasks else 1
    asked_cores = _number(values, "cpus-per-task", 1)
    cores = max(1, min(asked_cores, machine.cores // (nodes * tasks_per_node * max(1, at_once))))
    if cores < asked_cores:
        notes.append(f"{cores} of {asked_cores} cores for each task: this machine has {machine.cores}")
    ignored = sorted(set(values) - _USED)
    if ignored:
        notes.append("without meaning here: " + ", ".join(f"--{option}" for option in ignored))
    plan = Plan(
        job_id=job_id,
        name=values.get("job-name") or script.rpartition("/")[2],
        chdir=values.get("chdir") or directory,
        output=values.get("output") or ("slurm-%A_%a.out" if tasks else "slurm-%j.out"),
        error=values.get("error") or "",
        append=values.get("open-mode") == "append",
        nodes=nodes,
        tasks_per_node=tasks_per_node,
        cpus_per_task=cores,
        gpus_per_node=gpus,
        # What waits may take any of them; what starts at once takes of the free ones.
        gpus=() if not gpus else machine.gpus + machine.busy_gpus if waits else machine.gpus[: gpus * nodes],
        time_limit_s=_time_limit(values.get("time")),
        notes=tuple(notes),
        arguments=wish.arguments,
        requeue=not _last_of(directives, "no-requeue", "requeue"),
        dependency=dependency,
        command=script if script.startswith("/") else f"{directory}/{script}",
        submit_dir=directory,
        user=machine.user,
        host=machine.host,
        parallel=parallel,
        array=None if tasks is None else str(tasks),
        step=1 if tasks is None else tasks.step,
    )
    plan = replace(plan, error=plan.error or plan.output)
    return plan if tasks else replace(plan, output=_log(plan.output, plan), error=_log(plan.error, plan))


def _array(wish: Wish, values: Mapping[str, str | None]) -> tuple[array.Array | None, list[str]]:
    """Return the tasks of the array, None for a job that is none, and what is to be said of them."""
    text = wish.array if wish.array is not None else values.get("array")
    if wish.index is not None:
        of = f", not all of {text}" if text is not None else ""
        return array.Array((wish.index,)), [f"SLURM_ARRAY_TASK_ID is set: task {wish.index} runs{of}"]
    if text is None:
        return None, []
    try:
        return array.parse(text), []
    except ValueError as error:
        raise UsageError(str(error), fix="hpctrain submit --array 0,3,7-9, or edit --array in the script") from error


def _parallel(wish: Wish, tasks: array.Array | None, gpus: int) -> int | None:
    """Return how many tasks run at a time: what is asked for, else what the array says, else what the GPUs allow (None); one on the CPU."""
    if wish.parallel is not None and wish.parallel < 1:
        raise UsageError(f"{wish.parallel} tasks at the same time are none", fix="hpctrain submit --local --parallel 1")
    limit = tasks.limit if tasks is not None else None
    return wish.parallel or limit or (None if gpus else 1)


def _last_of(directives: Sequence[Directive], name: str, other: str) -> bool:
    """Whether `name` stands behind the last `other`."""
    said = [directive.name for directive in directives if directive.name in (name, other)]
    return said[-1:] == [name]


def environment(plan: Plan, *, start_s: int, restarts: int = 0) -> dict[str, str]:
    """Return the variables that Slurm would set for the batch script (sbatch(1), OUTPUT ENVIRONMENT VARIABLES)."""
    tasks = plan.nodes * plan.tasks_per_node
    cores = plan.cpus_per_task * plan.tasks_per_node
    per_node = f"(x{plan.nodes})" if plan.nodes > 1 else ""
    nodelist = hostlist.compress(plan.hosts)
    variables = {
        "ENVIRONMENT": "BATCH", "SLURM_CLUSTER_NAME": "local", "SLURM_CPUS_ON_NODE": str(cores),
        "SLURM_CPUS_PER_TASK": str(plan.cpus_per_task),
        "SLURM_GTIDS": "0", "SLURM_JOBID": plan.job_id, "SLURM_JOB_CPUS_PER_NODE": f"{cores}{per_node}", "SLURM_JOB_ID": plan.job_id,
        "SLURM_JOB_NAME": plan.name, "SLURM_JOB_NODELIST": nodelist, "SLURM_JOB_NUM_NODES": str(plan.nodes), "SLURM_JOB_PARTITION": "local",
        "SLURM_JOB_START_TIME": str(start_s), "SLURM_JOB_USER": plan.user, "SLURM_LOCALID": "0", "SLURM_NNODES": str(plan.nodes),
        "SLURM_NODEID": "0", "SLURM_NODELIST": nodelist, "SLURM_NPROCS": str(tasks), "SLURM_NTASKS": str(tasks),
        "SLURM_NTASKS_PER_NODE": str(plan.tasks_per_node), "SLURM_PROCID": "0", "SLURM_SUBMIT_DIR": plan.submit_dir,
        "SLURM_SUBMIT_HOST": plan.host,
        "SLURM_TASKS_PER_NODE": f"{plan.tasks_per_node}{per_node}", "SLURMD_NODENAME": plan.hosts[0],
    }  # fmt: skip
    if plan.index is not None:
        indices = plan.indices
        variables |= {
            "SLURM_ARRAY_JOB_ID": str(plan.array_job_id), "SLURM_ARRAY_TASK_ID": str(plan.index),
            "SLURM_ARRAY_TASK_COUNT": str(len(indices)), "SLURM_ARRAY_TASK_MIN": str(indices[0]),
            "SLURM_ARRAY_TASK_MAX": str(indices[-1]), "SLURM_ARRAY_TASK_STEP": str(plan.step),
        }  # fmt: skip
    if restarts:  # unset at the first start, as in every Slurm before 26.11
        variables["SLURM_RESTART_COUNT"] = str(restarts)
    if plan.time_limit_s is not None:
        variables["SLURM_JOB_END_TIME"] = str(start_s + plan.time_limit_s)
    if plan.gpus_per_node:
        variables["SLURM_GPUS_ON_NODE"] = str(plan.gpus_per_node)
    else:
        # accelerate's own switch; without it, a machine with no GPU would start processes that do not know of one another.
        variables["ACCELERATE_USE_CPU"] = "true"
    return variables


def node_environment(plan: Plan, node: int) -> dict[str, str]:
    """Return the variables that differ on node `node` (from 0): its name, and its share of the job's GPUs."""
    variables = {"SLURM_NODEID": str(node), "SLURMD_NODENAME": plan.hosts[node]}
    if plan.gpus_per_node:
        mine = plan.gpus[node * plan.gpus_per_node : (node + 1) * plan.gpus_per_node]
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
    return variables


def _share_gpus(asked: int, nodes: int, machine: Machine, *, waits: bool, is_array: bool) -> tuple[int, list[str]]:
    """Return the GPUs of each node, and what is to be said of them.

    Args:
        asked: for each node.
        nodes: that are played.
        machine: what is there.
        waits: whether the job waits for GPUs that others hold; if not, it is refused.
        is_array: whether several tasks share them.
    """
    here = len(machine.gpus) + len(machine.busy_gpus)
    if asked == 0 and machine.chosen and not machine.use_cpu:
        # The script asks for none, and somebody named some: a task of an array gets one, a job gets all.
        asked = 1 if is_array else max(1, here // nodes)
    total = asked * nodes
    if asked == 0:
        return 0, []
    if machine.use_cpu:
        return 0, [f"on the CPU in place of {_gpus(total)}: ACCELERATE_USE_CPU is set"]
    if not here:
        return 0, [f"on the CPU in place of {_gpus(total)}: this machine has none"]
    if (here if waits else len(machine.gpus)) < total:
        busy = f", {len(machine.busy_gpus)} of them in use by other local jobs" if machine.busy_gpus else ""
        fit = "hpctrain ps, and wait for them" if here >= total else f"hpctrain render --nodes 1 --gpus {here}"
        what = "--device names" if machine.chosen else "this machine has"
        raise HpctrainError(
            f"the job wants {_gpus(total)} and {what} {here}{busy}",
            fix=f"{fit}, or on the CPU: ACCELERATE_USE_CPU=true hpctrain submit --local",
        )
    return asked, []


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


def _gpus_per_node(values: Mapping[str, str | None], nodes: int) -> int:
    per_node = values.get("gpus-per-node")
    if per_node:
        return _count(per_node)
    total = values.get("gpus")
    if total:
        return -(-_count(total) // nodes)
    for item in (values.get("gres") or "").split(","):
        if item.split(":")[0] == "gpu":
            return _count(item)
    return 0


def _count(request: str) -> int:
    """Return the number in `4`, `gpu:4`, `a100:4` or `gpu:a100:4`; a bare name is one."""
    last = request.rpartition(":")[2]
    return int(last) if last.isdigit() else 1


def _number(values: Mapping[str, str | None], name: str, default: int) -> int:
    text = values.get(name)
    if text is None:
        return default
    if not text.isdigit() or int(text) < 1:
        raise UsageError(
            f"--{name}={text} is not a number that the local scheduler can play", fix=f"hpctrain render, or edit --{name} in the script"
        )
    return int(text)


def _time_limit(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return duration.parse(text)
    except ValueError as error:
        raise UsageError(str(error), fix="hpctrain render --time 01:00:00") from error


def _log(pattern: str, plan: Plan) -> str:
    path = log_pattern.expand(
        pattern,
        {
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
        },
    )
    return path if path.startswith("/") else f"{plan.chdir}/{path}"
