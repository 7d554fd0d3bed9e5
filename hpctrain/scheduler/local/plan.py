"""What the local scheduler makes of a script's directives: pure functions from directives and this machine to a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.scheduler.parse import duration, hostlist, log_pattern
from hpctrain.scheduler.parse.directives import Directive, last_values

#: Above Slurm's largest job id (MaxJobId is 67,043,328 by default), so that local ids never meet Slurm's, nor their log files.
FIRST_JOB_ID = 90_000_001
#: Slurm's KillWait: seconds between SIGTERM and SIGKILL.
KILL_WAIT_S = 30
#: Directives that shape a local job. The others ask for what only a cluster has.
_USED = {
    "job-name", "chdir", "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gres", "gpus", "gpus-per-node", "time", "output", "error",
    "open-mode",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """This machine.

    Attributes:
        gpus: the NVIDIA GPUs that no other local job holds, as CUDA_VISIBLE_DEVICES names them.
        busy_gpus: how many others hold.
        use_cpu: ACCELERATE_USE_CPU asks for the CPU.
    """

    cores: int
    gpus: tuple[str, ...]
    host: str
    user: str
    busy_gpus: int = 0
    use_cpu: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A local job. Durations are seconds; `gpus_per_node` is what each played node sees, 0 on the CPU."""

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

    @property
    def hosts(self) -> list[str]:
        """One loopback address for each node: they need no name service, and differ."""
        return [f"127.0.0.{number}" for number in range(1, self.nodes + 1)]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        """Return the plan that `to_json` wrote."""
        return cls(**{**value, "notes": tuple(value["notes"]), "gpus": tuple(value["gpus"])})


def make(directives: Sequence[Directive], *, job_id: str, directory: str, script: str, machine: Machine) -> Plan:
    """Return the plan of `script`, a file name, with `directives`, submitted in `directory`.

    Raises:
        UsageError: a directive's value is not of Slurm's form, or asks for an array.
        HpctrainError: this machine has GPUs, but not as many as the job wants.
    """
    values = last_values(list(directives))
    if "array" in values:
        raise UsageError("the local scheduler does not run job arrays", fix="take --array out of the script, or submit it to Slurm")
    name = values.get("job-name") or script
    nodes = _number(values, "nodes", 1)
    tasks_per_node = _number(values, "ntasks-per-node", max(1, _number(values, "ntasks", nodes) // nodes))
    asked_gpus = _gpus_per_node(values, nodes)
    gpus, notes = _share_gpus(asked_gpus, nodes, machine)
    asked_cores = _number(values, "cpus-per-task", 1)
    cores = max(1, min(asked_cores, machine.cores // (nodes * tasks_per_node)))
    if cores < asked_cores:
        notes.append(f"{cores} of {asked_cores} cores for each task: this machine has {machine.cores}")
    ignored = sorted(set(values) - _USED)
    if ignored:
        notes.append("without meaning here: " + ", ".join(f"--{option}" for option in ignored))
    chdir = values.get("chdir") or directory
    patterns = {
        "j": job_id,
        "A": job_id,
        "J": job_id,
        "x": name,
        "u": machine.user,
        "N": machine.host,
        "n": "0",
        "t": "0",
        "s": "batch",
        "a": "4294967294",
    }
    error = values.get("error")
    output = _log(values.get("output") or "slurm-%j.out", patterns, chdir)
    return Plan(
        job_id=job_id,
        name=name,
        chdir=chdir,
        output=output,
        error=_log(error, patterns, chdir) if error else output,
        append=values.get("open-mode") == "append",
        nodes=nodes,
        tasks_per_node=tasks_per_node,
        cpus_per_task=cores,
        gpus_per_node=gpus,
        gpus=machine.gpus[: gpus * nodes],
        time_limit_s=_time_limit(values.get("time")),
        notes=tuple(notes),
    )


def environment(plan: Plan, *, start_s: int, machine: Machine, submit_dir: str) -> dict[str, str]:
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
        "SLURM_JOB_START_TIME": str(start_s), "SLURM_JOB_USER": machine.user, "SLURM_LOCALID": "0", "SLURM_NNODES": str(plan.nodes),
        "SLURM_NODEID": "0", "SLURM_NODELIST": nodelist, "SLURM_NPROCS": str(tasks), "SLURM_NTASKS": str(tasks),
        "SLURM_NTASKS_PER_NODE": str(plan.tasks_per_node), "SLURM_PROCID": "0", "SLURM_SUBMIT_DIR": submit_dir,
        "SLURM_SUBMIT_HOST": machine.host,
        "SLURM_TASKS_PER_NODE": f"{plan.tasks_per_node}{per_node}", "SLURMD_NODENAME": plan.hosts[0],
    }  # fmt: skip
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


def _share_gpus(asked: int, nodes: int, machine: Machine) -> tuple[int, list[str]]:
    total = asked * nodes
    if asked == 0:
        return 0, []
    if machine.use_cpu:
        return 0, [f"on the CPU in place of {_gpus(total)}: ACCELERATE_USE_CPU is set"]
    if not machine.gpus and not machine.busy_gpus:
        return 0, [f"on the CPU in place of {_gpus(total)}: this machine has none"]
    if len(machine.gpus) < total:
        busy = f", {machine.busy_gpus} of them in use by other local jobs" if machine.busy_gpus else ""
        here = len(machine.gpus) + machine.busy_gpus
        fit = "hpctrain ps, and wait for them" if here >= total else f"hpctrain render --nodes 1 --gpus {here}"
        raise HpctrainError(
            f"the job wants {_gpus(total)} and this machine has {here}{busy}",
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


def _log(pattern: str, values: Mapping[str, str], chdir: str) -> str:
    path = log_pattern.expand(pattern, values)
    return path if path.startswith("/") else f"{chdir}/{path}"
