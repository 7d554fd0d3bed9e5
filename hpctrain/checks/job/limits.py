"""Rules that compare time, nodes, GPUs and array size with the limits of the partition, the QOS and
the user's association.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hpctrain.checks.job.context import Case, Fact, confirm, rule
from hpctrain.clusters.live import LiveQos
from hpctrain.finding import Finding
from hpctrain.slurm.notations import units
from hpctrain.util import shell
from hpctrain.util.text import count

_TIME = ("resources", "time")
_NODES = ("resources", "nodes")
_GPUS = ("resources", "gpus_per_node")
_CPUS = ("resources", "cpus_per_task")


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit and its owner: `partition debug`, `QOS normal`."""

    whose: str
    fact: Fact[int]


def _limits(whose: str, fact: Fact[int] | None) -> list[Limit]:
    return [Limit(whose, fact)] if fact is not None else []


def time_limits(case: Case) -> list[Limit]:
    """Return all known limits on the job's time."""
    found = [*_partition_time(case), *_qos_limits(case, "time_max")]
    name = (case.partition_name or "").lower()
    for each in case.associations(case.spec.account):
        if (each.partition or name).lower() == name and each.time_max:
            fact = Fact(each.time_max, "live", "sacctmgr show associations")
            return [*found, Limit(f"account {each.account}", fact)]
    return found


def _partition_time(case: Case) -> list[Limit]:
    name, known = case.partition_name, case.known_partition
    if known is not None and known.time_by_nodes:
        rows = [row for row in known.time_by_nodes if row.nodes_min <= case.spec.nodes]
        row = max(rows, key=lambda each: each.nodes_min, default=None)
        if row is not None:
            fact = case.fact(row.time_max, "partitions", name or "", "time_by_nodes")
            nodes = count(case.spec.nodes, "node")
            return _limits(f"partition {name}, for jobs of {nodes},", fact)
    return _partition_limits(case, "time_max")


def qos_name(case: Case) -> str | None:
    """Return the job's QOS: requested, else the default of its association, else the profile's."""
    mine = case.associations(case.spec.account or case.slurm.default_account)
    own = next((each.default_qos for each in mine if each.default_qos), None)
    return case.spec.qos or own or case.profile.defaults.qos


def _live_qos(case: Case) -> LiveQos | None:
    name = qos_name(case)
    return next((each for each in case.slurm.qos or () if each.name == name), None)


#: Flags of a QOS that lift a limit of the partition.
_LIFTING = {
    "time_max": "PartitionTimeLimit",
    "nodes_max": "PartitionMaxNodes",
    "nodes_min": "PartitionMinNodes",
}


def _partition_limits(case: Case, name: str) -> list[Limit]:
    """Return the partition's limit on `time_max`, `nodes_max` and so on, unless the job's QOS lifts
    it; with the flag OverPartQOS it may.
    """
    qos, flags = qos_name(case), {"OverPartQOS", _LIFTING.get(name)}
    live = _live_qos(case)
    known = case.profile.qos.get(qos or "")
    lifts = name == "time_max" and known is not None and bool(known.lifts_partition_time)
    if lifts if live is None else flags & set(live.flags):
        return []
    return _limits(f"partition {case.partition_name}", case.of_partition(name))


def _exceeded(asked: int, limits: Iterable[Limit]) -> Limit | None:
    over = (limit for limit in limits if asked > limit.fact.value)
    return min(over, key=lambda limit: limit.fact.value, default=None)


def _qos_limits(case: Case, name: str) -> list[Limit]:
    qos, whose = qos_name(case), f"QOS {qos_name(case)}"
    if qos not in case.profile.qos:  # merged are only those known to be the user's or a partition's
        value: int | None = getattr(_live_qos(case), name, None)
        fact = None if value is None else Fact(value, "live", f"sacctmgr show qos {qos}")
        return _limits(whose, fact)
    known = getattr(case.profile.qos[qos], name)
    return _limits(whose, case.fact(known, "qos", qos, name))


def _beyond(case: Case, id_: str, limit: Limit, what: str, *, said: str, fix: str) -> Finding:
    return case.finding(
        id_,
        limit.fact.severity,
        what,
        evidence=f"{said}; {_source(case, limit)}",
        reason="Slurm refuses such a job, or leaves it pending forever with the reason"
        f" {_REASONS[id_]}",
        fix=fix,
    )


_REASONS = {
    "time-limit": "PartitionTimeLimit or QOSMaxWallDurationPerJobLimit",
    "nodes-limit": "PartitionNodeLimit or QOSMaxNodePerJobLimit",
    "gpus-limit": "QOSMaxGRESPerJob",
    "cores-limit": "QOSMaxCpuPerJobLimit",
}


def _source(case: Case, limit: Limit) -> str:
    command = _show(case)
    if limit.whose.startswith("QOS "):
        name = shell.quote(limit.whose.removeprefix("QOS "))
        command = f"sacctmgr -nP show qos {name} format=Name,MaxWall,MaxTRES"
    return limit.fact.source + confirm(limit.fact, command)


def _show(case: Case) -> str:
    name = case.partition_name
    return f"scontrol show partition {name}" if name else "sinfo -o '%P %l %D'"


@rule("time-limit", on="site")
def _time(case: Case) -> Iterator[Finding]:
    asked = case.spec.time_s or 0
    limit = _exceeded(asked, time_limits(case))
    if limit is None:
        return
    said, allowed = units.format_time(asked), units.format_time(limit.fact.value)
    what = f"time {said} is more than {limit.whose} allows: {allowed}"
    fix = case.fix((_TIME, allowed))
    yield _beyond(case, "time-limit", limit, what, said=case.said(*_TIME, value=said), fix=fix)


@rule("time-default", on="site")
def _no_time(case: Case) -> Iterator[Finding]:
    fact = case.of_partition("time_default")
    if case.spec.time_s is not None or fact is None or not fact.value:
        return
    given = units.format_time(fact.value)
    yield case.finding(
        "time-default",
        "warning",
        f"no time is requested, so partition {case.partition_name} gives its default: {given}",
        evidence=f"{fact.source}{confirm(fact, _show(case))}",
        reason="Slurm ends the training at that limit",
        fix=case.fix((_TIME, units.format_time(max(fact.value, 3600)))),
    )


def _node_limits(case: Case) -> Iterator[tuple[Limit, bool]]:
    for name in ("nodes_max", "nodes_min"):
        for limit in (*_partition_limits(case, name), *_qos_limits(case, name)):
            yield limit, name == "nodes_min"
    there = sum(group.count for group in case.live_nodes)
    if there and case.live_partition is not None:
        fact = Fact(there, "live", f"sinfo -p {case.partition_name}")
        yield Limit(f"partition {case.partition_name}, which has no more,", fact), False


def nodes_max(case: Case) -> int | None:
    """Return the maximum nodes per job; None: unknown."""
    return min((limit.fact.value for limit, least in _node_limits(case) if not least), default=None)


@rule("nodes-limit", on="site")
def _nodes(case: Case) -> Iterator[Finding]:
    asked = case.spec.nodes
    wrong = [
        (limit, least)
        for limit, least in _node_limits(case)
        if (asked < limit.fact.value if least else asked > limit.fact.value)
    ]
    if wrong:
        limit, least = min(wrong, key=lambda each: each[0].fact.value)
        allowed = f"{limit.fact.value} at {'least' if least else 'most'}"
        what = f"{count(asked, 'node')}, and {limit.whose} allows {allowed}"
        fix = case.fix((_NODES, limit.fact.value))
        yield _beyond(
            case, "nodes-limit", limit, what, said=case.said(*_NODES, value=asked), fix=fix
        )


@rule("gpus-limit", on="site")
def _gpus(case: Case) -> Iterator[Finding]:
    each, asked = case.spec.gpus_per_node, case.spec.nodes * case.spec.gpus_per_node
    limits = [*_qos_limits(case, "gpus_max"), *_partition_limits(case, "gpus_max")]
    limit = _exceeded(asked, limits)
    if limit is not None:
        most = limit.fact.value
        what = f"{case.spec.layout}, and {limit.whose} allows {most} GPUs to a job"
        fix = case.fix((_NODES, max(1, most // each)), (_GPUS, min(each, most)))
        yield _beyond(case, "gpus-limit", limit, what, said=case.said(*_GPUS, value=each), fix=fix)


@rule("cores-limit", on="site")
def _cores(case: Case) -> Iterator[Finding]:
    """Cores over all nodes: some sites limit a job by them (BSC's acc_debug: 640)."""
    spec = case.spec
    each = spec.cores_per_task * spec.tasks_per_node
    for limit in _qos_limits(case, "cpus_max"):
        most = limit.fact.value
        fewer: tuple[tuple[tuple[str, ...], int], ...] = ((_NODES, most // each),)
        if most < each:
            fewer = ((_NODES, 1), (_CPUS, max(1, most // spec.tasks_per_node)))
        if each * spec.nodes > most:
            what = (
                f"{each * spec.nodes} cores on {count(spec.nodes, 'node')}, and {limit.whose}"
                f" allows {most} to a job"
            )
            said = f"{cores_said(case)}, {each} on each node"
            yield _beyond(case, "cores-limit", limit, what, said=said, fix=case.fix(*fewer))


def cores_said(case: Case) -> str:
    """Return the cores per task as written, with their origin, including the form per GPU."""
    spec = case.spec
    if spec.cpus_per_task is not None or spec.cpus_per_gpu is None:
        return case.said(*_CPUS, value=spec.cores_per_task)
    said = case.said("resources", "cpus_per_gpu", value=spec.cpus_per_gpu)
    return f"{said} x {count(spec.processes_per_task, 'GPU')}"
