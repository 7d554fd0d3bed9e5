"""Time, nodes, GPUs and array size against what the partition, the QOS and the user's association allow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpctrain.jobs import shell
from hpctrain.jobs.check.case import Case, Fact, confirm
from hpctrain.jobs.finding import Finding
from hpctrain.scheduler.parse import duration

if TYPE_CHECKING:
    from hpctrain.clusters.live import LiveQos
    from hpctrain.clusters.profile import Qos

_TIME = ("resources", "time")
_NODES = ("resources", "nodes")
_GPUS = ("resources", "gpus_per_node")
_CPUS = ("resources", "cpus_per_task")


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit, and whose it is: `partition debug`, `QOS normal`."""

    whose: str
    fact: Fact[int]


def rules(case: Case) -> Iterator[Finding]:
    """Return what is wrong with how much, and how long, the job asks."""
    yield from _time(case)
    yield from _no_time(case)
    yield from _nodes(case)
    yield from _gpus(case)
    yield from _cores(case)
    yield from _array(case)


def time_limits(case: Case) -> list[Limit]:
    """Return every limit on the job's time that somebody knows."""
    return [limit for limit in (_partition_time(case), *_qos_limits(case, "time_max"), _association_time(case)) if limit is not None]


def _partition_time(case: Case) -> Limit | None:
    name, live, known = case.partition_name, case.live_partition, case.known_partition
    whose = f"partition {name}"
    if known is not None and known.time_by_nodes:
        rows = [row for row in known.time_by_nodes if row.nodes_min <= case.spec.nodes]
        row = max(rows, key=lambda each: each.nodes_min, default=None)
        fact = case.fact(row.time_max, "partitions", name or "", "time_by_nodes") if row is not None else None
        if fact is not None:
            return Limit(f"{whose}, for jobs of {_count(case.spec.nodes, 'node')},", fact)
    if _lifted(case, "PartitionTimeLimit"):
        return None
    if live is not None and live.time_max is not None:
        return Limit(whose, Fact(live.time_max, "live", f"scontrol show partition {live.name}"))
    fact = case.fact(known.time_max, "partitions", name or "", "time_max") if known is not None else None
    return Limit(whose, fact) if fact is not None else None


def qos_name(case: Case) -> str | None:
    """Return the QOS that the job runs under: its own, else the default of its association, else the profile's."""
    if case.spec.qos is not None:
        return case.spec.qos
    account = (case.spec.account or (case.live.default_account if case.live else None) or "").lower()
    for each in (case.live.associations or ()) if case.live is not None else ():
        if each.account.lower() == account and each.default_qos:
            return each.default_qos
    return case.profile.defaults.qos if case.profile is not None else None


def _live_qos(case: Case) -> LiveQos | None:
    qos = qos_name(case)
    return next((each for each in (case.live.qos or ()) if each.name == qos), None) if case.live is not None else None


def _lifted(case: Case, flag: str) -> bool:
    """Whether the job's QOS lets it go beyond a limit of the partition: `PartitionTimeLimit`, `PartitionMaxNodes`, `PartitionMinNodes`."""
    live = _live_qos(case)
    if live is not None:
        return flag in live.flags
    known = case.profile.qos.get(qos_name(case) or "") if case.profile is not None else None
    return flag == "PartitionTimeLimit" and known is not None and bool(known.lifts_partition_time)


def _qos_limits(case: Case, name: str) -> list[Limit]:
    """Return what the job's QOS says of `time_max`, `nodes_max` and the like: Slurm's word, else the profile's."""
    qos, live = qos_name(case), _live_qos(case)
    value: int | None = getattr(live, name, None)
    if value is not None:
        return [Limit(f"QOS {qos}", Fact(value, "live", f"sacctmgr show qos {qos}"))]
    known: Qos | None = case.profile.qos.get(qos or "") if case.profile is not None else None
    fact = case.fact(getattr(known, name), "qos", qos or "", name) if known is not None else None
    return [Limit(f"QOS {qos}", fact)] if fact is not None else []


def _association_time(case: Case) -> Limit | None:
    name, account = (case.partition_name or "").lower(), (case.spec.account or "").lower()
    for each in (case.live.associations or ()) if case.live is not None else ():
        # slurmdbd keeps both names in lower case.
        if each.account.lower() == account and (each.partition or name).lower() == name and each.time_max:
            return Limit(f"account {each.account}", Fact(each.time_max, "live", "sacctmgr show associations"))
    return None


def _time(case: Case) -> Iterator[Finding]:
    asked = case.spec.time_s
    over = [limit for limit in time_limits(case) if asked is not None and asked > limit.fact.value]
    if asked is None or not over:
        return
    limit = min(over, key=lambda each: each.fact.value)
    allowed = duration.format(limit.fact.value)
    roomy = _roomier(case, asked) if limit.whose.startswith("partition") else ""
    fix = case.fix((_TIME, allowed))
    yield case.finding(
        "time-limit", limit.fact.severity, f"time {duration.format(asked)} is more than {limit.whose} allows: {allowed}",
        evidence=f"{case.said(*_TIME, value=duration.format(asked))}; {limit.fact.source}{confirm(limit.fact, _shown_by(case, limit))}",
        reason="Slurm refuses such a job, or lets it wait for ever with the reason PartitionTimeLimit or QOSMaxWallDurationPerJobLimit",
        fix=f"{fix}{roomy}",
    )  # fmt: skip


def _roomier(case: Case, asked: int) -> str:
    """Return where a job of this length would be allowed, if somebody knows."""
    gpus, nodes = case.spec.gpus_per_node, case.spec.nodes
    for each in (case.live.partitions or ()) if case.live is not None else ():
        long_enough = each.time_max is not None and each.time_max >= asked
        if each.up and long_enough and (each.gpus_max or 0) >= gpus and _fits(nodes, each.nodes_max):
            return f"; or keep the time in another partition: --partition {each.name}"
    for name, qos in (case.profile.qos if case.profile is not None and case.live is None else {}).items():
        if qos.time_max is not None and qos.time_max >= asked and _fits(nodes, qos.nodes_max) and nodes >= (qos.nodes_min or 0):
            return f"; or keep the time with --qos {name}"
    return ""


def _fits(value: int, maximum: int | None) -> bool:
    return maximum is None or value <= maximum


def _no_time(case: Case) -> Iterator[Finding]:
    if case.spec.time_s is not None:
        return
    live, known = case.live_partition, case.known_partition
    fact = Fact(live.time_default, "live", f"scontrol show partition {live.name}") if live is not None and live.time_default else None
    if fact is None and known is not None:
        fact = case.fact(known.time_default, "partitions", case.partition_name or "", "time_default")
    if fact is None:
        return
    given = duration.format(fact.value)
    yield case.finding(
        "time-default", "warning", f"no time is asked for, so partition {case.partition_name} gives its default: {given}",
        evidence=f"{fact.source}{confirm(fact, _show(case))}",
        reason="at the end of it the training is stopped, wherever it is",
        fix=case.fix((_TIME, duration.format(max(fact.value, 3600)))),
    )  # fmt: skip


def _node_limits(case: Case) -> Iterable[tuple[Limit, bool]]:
    """Return the limits on nodes: (limit, whether it is a minimum)."""
    name, live, known = case.partition_name, case.live_partition, case.known_partition
    for field, flag in (("nodes_max", "PartitionMaxNodes"), ("nodes_min", "PartitionMinNodes")):
        value = getattr(live, field) if live is not None else None
        fact = Fact(value, "live", f"scontrol show partition {name}") if value is not None else None
        if fact is None and known is not None:
            fact = case.fact(getattr(known, field), "partitions", name or "", field)
        if fact is not None and not _lifted(case, flag):
            yield Limit(f"partition {name}", fact), field == "nodes_min"
        for limit in _qos_limits(case, field):
            yield limit, field == "nodes_min"
    there = sum(group.count for group in case.live_nodes)
    if there and live is not None:
        yield Limit(f"partition {name}, which has no more,", Fact(there, "live", f"sinfo -p {name}")), False


def nodes_max(case: Case) -> int | None:
    """Return the most nodes that a job may have here; None where nobody knows."""
    return min((limit.fact.value for limit, least in _node_limits(case) if not least), default=None)


def _nodes(case: Case) -> Iterator[Finding]:
    asked = case.spec.nodes
    wrong = [(limit, least) for limit, least in _node_limits(case) if (asked < limit.fact.value if least else asked > limit.fact.value)]
    if not wrong:
        return
    limit, least = min(wrong, key=lambda each: each[0].fact.value)
    bound = "least" if least else "most"
    yield case.finding(
        "nodes-limit", limit.fact.severity, f"{_count(asked, 'node')}, and {limit.whose} allows {limit.fact.value} at {bound}",
        evidence=f"{case.said(*_NODES, value=asked)}; {limit.fact.source}{confirm(limit.fact, _shown_by(case, limit))}",
        reason="Slurm refuses such a job, or lets it wait for ever with the reason PartitionNodeLimit or QOSMaxNodePerJobLimit",
        fix=case.fix((_NODES, limit.fact.value)),
    )  # fmt: skip


def _gpus(case: Case) -> Iterator[Finding]:
    asked = case.spec.processes
    known = case.known_partition
    limits = _qos_limits(case, "gpus_max")
    fact = case.fact(known.gpus_max, "partitions", case.partition_name or "", "gpus_max") if known is not None else None
    if fact is not None:
        limits.append(Limit(f"partition {case.partition_name}", fact))
    over = [limit for limit in limits if asked > limit.fact.value]
    if not over:
        return
    limit = min(over, key=lambda each: each.fact.value)
    nodes = max(1, limit.fact.value // case.spec.gpus_per_node)
    gpus = case.spec.gpus_per_node if nodes * case.spec.gpus_per_node <= limit.fact.value else limit.fact.value
    yield case.finding(
        "gpus-limit", limit.fact.severity, f"{case.spec.layout}, and {limit.whose} allows {limit.fact.value} GPUs to a job",
        evidence=f"{case.said(*_GPUS, value=case.spec.gpus_per_node)}; {limit.fact.source}{confirm(limit.fact, _shown_by(case, limit))}",
        reason="Slurm refuses such a job, or lets it wait for ever with a reason such as QOSMaxGRESPerJob",
        fix=case.fix((_NODES, nodes), (_GPUS, gpus)),
    )  # fmt: skip


def _cores(case: Case) -> Iterator[Finding]:
    """The cores of all nodes together: some sites count a job by them (BSC's acc_debug: 640)."""
    each = case.spec.cores_per_task * case.spec.tasks_per_node
    asked = each * case.spec.nodes
    over = [limit for limit in _qos_limits(case, "cpus_max") if asked > limit.fact.value]
    for limit in over:
        what = f"{asked} cores on {_count(case.spec.nodes, 'node')}, and {limit.whose} allows {limit.fact.value} to a job"
        nodes = limit.fact.value // each
        fewer = ((_NODES, nodes),) if nodes else ((_NODES, 1), (_CPUS, max(1, limit.fact.value // case.spec.tasks_per_node)))
        yield case.finding(
            "cores-limit", limit.fact.severity, what,
            evidence=f"{cores_said(case)}, {each} on each node; "
            f"{limit.fact.source}{confirm(limit.fact, _shown_by(case, limit))}",
            reason="Slurm refuses such a job, or lets it wait for ever with the reason QOSMaxCpuPerJobLimit",
            fix=case.fix(*fewer),
        )  # fmt: skip


def cores_said(case: Case) -> str:
    """Return the words that show the cores of a task where they were written, also as so many for each GPU."""
    spec = case.spec
    if spec.cpus_per_task is not None or spec.cpus_per_gpu is None:
        return case.said(*_CPUS, value=spec.cores_per_task)
    gpus = spec.processes_per_task
    return f"{case.said('resources', 'cpus_per_gpu', value=spec.cpus_per_gpu)} x {_count(gpus, 'GPU')}"


def _array(case: Case) -> Iterator[Finding]:
    value = case.spec.array
    live = case.live.max_array_size if case.live is not None else None
    fact = Fact(live, "live", "scontrol show config: MaxArraySize") if live is not None else None
    if fact is None and case.profile is not None:
        fact = case.fact(case.profile.slurm.max_array_size, "slurm", "max_array_size")
    highest = _highest_index(value)
    if fact is None or highest is None or highest < fact.value:
        return
    yield case.finding(
        "array-limit", fact.severity, f"array index {highest}, and the highest that this Slurm takes is {fact.value - 1}",
        evidence=f"{case.said('array', value=value)}; {fact.source}{confirm(fact, 'scontrol show config | grep MaxArraySize')}",
        reason="Slurm refuses the whole array: MaxArraySize is one more than the highest index",
        fix=f"{case.command(('--array', f'0-{fact.value - 1}'))}, and let each task do more",
    )  # fmt: skip


def _highest_index(value: str | None) -> int | None:
    """Return the highest index of `0-15:4`, `1,3,5-7%2`; None for what is no array."""
    numbers = [part.partition(":")[0].rpartition("-")[2] for part in (value or "").partition("%")[0].split(",")]
    return max(map(int, numbers)) if numbers and all(number.isdecimal() for number in numbers) else None


def _shown_by(case: Case, limit: Limit) -> str:
    """Return the command that shows a limit."""
    if limit.whose.startswith("QOS "):
        return shell.join(("sacctmgr", "-nP", "show", "qos", limit.whose.removeprefix("QOS "), "format=Name,MaxWall,MaxTRES"))
    return _show(case)


def _show(case: Case) -> str:
    return f"scontrol show partition {case.partition_name}" if case.partition_name else "sinfo -o '%P %l %D'"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
