"""Rules that compare time, nodes, GPUs and cores with the limits of the partition, the QOS and the
user's association.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpctrain.checks.job.context import Case, Fact, confirm, rule
from hpctrain.finding import Finding
from hpctrain.slurm.notations import units
from hpctrain.util.schema import KeyPath
from hpctrain.util.text import count

_TIME = ("resources", "time")
_NODES = ("resources", "nodes")
_GPUS = ("resources", "gpus_per_node")
_CPUS = ("resources", "cpus_per_task")
#: Flags of a QOS that lift a limit of the partition; with OverPartQOS it may lift any.
_LIFTING = {
    "time_max": "PartitionTimeLimit",
    "nodes_max": "PartitionMaxNodes",
    "nodes_min": "PartitionMinNodes",
}
_REASONS = {
    "time-limit": "PartitionTimeLimit or QOSMaxWallDurationPerJobLimit",
    "nodes-limit": "PartitionNodeLimit or QOSMaxNodePerJobLimit",
    "gpus-limit": "QOSMaxGRESPerJob",
    "cores-limit": "QOSMaxCpuPerJobLimit",
}


def limits_on(case: Case, name: str) -> Iterator[tuple[str, Fact[int]]]:
    """Yield all known limits on `time_max` (seconds), `nodes_max`, `nodes_min`, `gpus_max` or
    `cpus_max` of one job, each with its owner: `partition debug`, `QOS normal`.
    """
    mine = case.associations(case.spec.account or case.slurm.default_account)
    own = next((each.default_qos for each in mine if each.default_qos), None)
    qos = case.spec.qos or own or case.profile.defaults.qos or ""
    live = next((each for each in case.slurm.qos or () if each.name == qos), None)
    known, partition = case.profile.qos.get(qos), f"partition {case.partition_name}"
    lifts = name == "time_max" and known is not None and bool(known.lifts_partition_time)
    if live is not None:
        lifts = bool({"OverPartQOS", _LIFTING.get(name)} & set(live.flags))
    of_partition = case.of_partition(name)
    if name == "time_max" and case.known_partition is not None:
        bins = [b for b in case.known_partition.time_by_nodes if b.nodes_min <= case.spec.nodes]
        if bins:
            most = max(bins, key=lambda each: each.nodes_min).time_max
            path = ("partitions", case.partition_name or "", "time_by_nodes")
            of_partition = case.fact(most, *path)
    if of_partition is not None and not lifts:
        yield (partition, of_partition)
    if known is not None:  # merged are only those known to be the user's or a partition's
        of_qos = case.fact(getattr(known, name), "qos", qos, name)
    else:
        value: int | None = getattr(live, name, None)
        of_qos = None if value is None else Fact(value, "live", f"sacctmgr show qos {qos}")
    if of_qos is not None:
        yield (f"QOS {qos}", of_qos)
    if name == "time_max":
        for each in case.associations(case.spec.account):
            here = case.partition_name or ""  # slurmdbd stores names in lower case
            if (each.partition or here).lower() == here.lower() and each.time_max:
                fact = Fact(each.time_max, "live", "sacctmgr show associations")
                yield (f"account {each.account}", fact)
    there = sum(group.count for group in case.live_nodes)
    if name == "nodes_max" and there and case.live_partition is not None:
        yield (f"{partition}, which has no more,", Fact(there, "live", "sinfo"))


def nodes_max(case: Case) -> int | None:
    """Return the maximum nodes per job; None: unknown."""
    return min((fact.value for _, fact in limits_on(case, "nodes_max")), default=None)


@rule("time-limit", "nodes-limit", "gpus-limit", "cores-limit", on="site")
def _limits(case: Case) -> Iterator[Finding]:
    """What the whole job requests, against each limit; cores over all nodes are limited at BSC."""
    spec, cores = case.spec, case.spec.cores_per_task * case.spec.tasks_per_node
    for id_, name, path, value, asked, words in (
        ("time-limit", "time_max", _TIME, spec.time_s or 0, spec.time_s or 0, "time {}"),
        ("nodes-limit", "nodes_max", _NODES, spec.nodes, spec.nodes, "{} nodes"),
        ("nodes-limit", "nodes_min", _NODES, spec.nodes, spec.nodes, "{} nodes"),
        (
            "gpus-limit",
            "gpus_max",
            _GPUS,
            spec.gpus_per_node,
            spec.nodes * spec.gpus_per_node,
            "{} GPUs",
        ),
        ("cores-limit", "cpus_max", _CPUS, spec.cores_per_task, spec.nodes * cores, "{} cores"),
    ):
        wrong = [
            (whose, fact)
            for whose, fact in limits_on(case, name)
            if (asked < fact.value if name == "nodes_min" else asked > fact.value)
        ]
        if not wrong:
            continue
        whose, fact = min(wrong, key=lambda each: each[1].value)
        most, show = fact.value, units.format_time if path == _TIME else str
        changes: list[tuple[KeyPath, object]] = [(path, show(most))]
        if path in (_GPUS, _CPUS):  # fewer nodes; where one node is too much, less of it
            changes = [(_NODES, max(1, most // (asked // spec.nodes)))]
            parts = spec.tasks_per_node if path == _CPUS else 1
            too_much = asked // spec.nodes > most
            changes += [(path, max(1, most // parts))] if too_much else []
        bound = f"{show(most)} at {'least' if name == 'nodes_min' else 'most'}"
        command = "sacctmgr show qos" if whose[:3] == "QOS" else "scontrol show partition"
        yield case.finding(
            id_,
            fact.severity,
            f"{words.format(show(asked))}, and {whose} allows {bound}",
            evidence=(
                f"{case.said(*path, value=show(value))}; {fact.source}"
                f"{confirm(fact, f'{command} {whose.split()[-1]}')}"
            ),
            reason="Slurm refuses such a job, or leaves it pending forever with the reason"
            f" {_REASONS[id_]}",
            fix=case.fix(*changes),
        )


def cores_said(case: Case) -> str:
    """Return the cores per task as written, with their origin, including the form per GPU."""
    spec = case.spec
    if spec.cpus_per_task is not None or spec.cpus_per_gpu is None:
        return case.said(*_CPUS, value=spec.cores_per_task)
    said = case.said("resources", "cpus_per_gpu", value=spec.cpus_per_gpu)
    return f"{said} x {count(spec.processes_per_task, 'GPU')}"
