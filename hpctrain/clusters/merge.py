"""Merge what the live scheduler reports into a cluster profile.

Pure. Slurm's values override the profile's, the others stay, and each value from Slurm is marked:
its evidence is `live`, its source the command that prints it.

The CPUs and the memory of a node are only overridden by smaller numbers: Slurm reports what a node
has, a profile what a job can get, and neither sinfo nor scontrol show partition reports what is
reserved for the system. Missing GPUs in Slurm do not mean that there are none: some sites allocate
whole nodes, and configure no GRES.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from hpctrain.clusters.live import LiveCluster, LiveNodes, LivePartition
from hpctrain.clusters.load import Attestation
from hpctrain.clusters.profile import (
    AccountPolicy,
    Cluster,
    GpuRequest,
    Memory,
    NodeShape,
    Partition,
    Profile,
    Qos,
)
from hpctrain.util.schema import KeyPath

ACCOUNTS_COMMAND = "sacctmgr -nP show assoc user=$USER format=account"
#: Characters of a GPU type that a key cannot contain.
_ODD = re.compile(r"[^A-Za-z0-9._-]+")


def merge(cluster: Cluster | None, live: LiveCluster) -> Cluster:
    """Return `cluster` with the facts of `live` merged in; without a profile, only live facts."""
    merged = _Merger(cluster if cluster is not None else _unknown_site(live), live)
    merged.slurm()
    if live.partitions:
        merged.shapes_by_constraint()
        merged.partitions()
        merged.default_partition()
    if live.qos:
        merged.qos()
    merged.memory()
    return merged.cluster(gpus_by_gres=cluster is None)


def gpu_partitions(live: LiveCluster) -> tuple[LivePartition, ...]:
    """Return the partitions that are up and have GPUs: the default first, then by GPU nodes."""
    found = [each for each in live.partitions or () if each.up is not False and each.gpus_max]
    return tuple(sorted(found, key=lambda each: (not each.default, -_gpu_nodes(each))))


def typical(groups: Iterable[LiveNodes]) -> LiveNodes | None:
    """Return the kind of nodes that a GPU job in a partition most likely runs on: the most frequent
    one with GPUs, else the most frequent of all.
    """
    known = list(groups)
    return max(
        known,
        key=lambda group: (group.gpu_count > 0, group.count, -(group.memory or 0)),
        default=None,
    )


def _gpu_nodes(partition: LivePartition) -> int:
    return sum(group.count for group in partition.nodes if group.gpu_count)


def _unknown_site(live: LiveCluster) -> Cluster:
    name = _ODD.sub("-", live.cluster_name or "").lstrip("-._")[:64] or "this-cluster"
    profile = Profile(
        name=name,
        title=f"Slurm cluster {live.cluster_name}" if live.cluster_name else "this cluster",
        account=AccountPolicy(list_command=ACCOUNTS_COMMAND),
        memory=Memory(request="per-gpu"),  # Slurm's default is often a few GB
    )
    return Cluster(
        profile,
        {
            ("account",): Attestation("recalled", "man sacctmgr"),
            ("memory", "request"): Attestation("recalled", "a fair share"),
        },
    )


class _Merger:
    def __init__(self, cluster: Cluster, live: LiveCluster) -> None:
        self.profile, self.live = cluster.profile, live
        self.origins: dict[KeyPath, Attestation] = dict(cluster.origins)
        self.has_gres = any(partition.gpus_max for partition in live.partitions or ())
        self.nodes: dict[str, NodeShape] = dict(self.profile.nodes)
        #: Shapes that already have live values; a partition with other nodes gets its own.
        self.settled: dict[str, LiveNodes] = {}

    def cluster(self, *, gpus_by_gres: bool) -> Cluster:
        self._update("nodes", self.nodes)
        if gpus_by_gres and self.has_gres:
            self._update("gpu_request", GpuRequest(dialect="gres"))
            self._say(("gpu_request",), "sinfo, which shows GPUs as GRES")
        return Cluster(self.profile, self.origins)

    def slurm(self) -> None:
        version = self.live.version
        facts = {
            "version": None if version is None else "{}.{:02}".format(*version),
            "max_array_size": self.live.max_array_size,
        }
        self._update(
            "slurm", self._laid_over(self.profile.slurm, facts, ("slurm",), "scontrol show config")
        )

    def partitions(self) -> None:
        partitions = self.live.partitions or ()
        # The partition with the most jobs determines a shape of the profile first.
        by_weight = sorted(
            partitions,
            key=lambda each: (each.name != self.profile.defaults.partition, -_gpu_nodes(each)),
        )
        found = {each.name: self._partition(each) for each in by_weight}
        for gone in set(self.profile.partitions) - set(found):
            self._forget(("partitions", gone))
        self._update("partitions", {each.name: found[each.name] for each in partitions})

    def _partition(self, live: LivePartition) -> Partition:
        path, known = ("partitions", live.name), self.profile.partitions.get(live.name, Partition())
        facts: dict[str, Any] = {
            "default": live.default,
            "time_max": live.time_max,
            "time_default": live.time_default,
            "nodes_min": live.nodes_min,
            "nodes_max": live.nodes_max,
            "whole_nodes": live.exclusive,
            "qos": live.allow_qos,
            "accounts": live.allow_accounts,
        }
        if known.whole_nodes or self.live.whole_nodes:
            facts["whole_nodes"] = (
                live.exclusive or None
            )  # a job_submit plugin, or billing, may still make nodes exclusive
        silent = any(
            sentence.startswith("scontrol show partition") for sentence in self.live.silent
        )
        part: Partition = self._laid_over(
            known, facts, path, f"{'sinfo -p' if silent else 'scontrol show partition'} {live.name}"
        )
        if self.live.whole_nodes and not part.whole_nodes:
            part = self._laid_over(
                part, {"whole_nodes": True}, path, "scontrol show config: SelectType=select/linear"
            )
        part = self._limits_of_its_qos(part, live)
        shape = self._shape_of(live, part)
        if shape != part.nodes:
            part = part.replace(nodes=shape)
            self._say((*path, "nodes"), f"sinfo -p {live.name}")
        return part

    def shapes_by_constraint(self) -> None:
        groups = [group for partition in self.live.partitions or () for group in partition.nodes]
        for name, shape in self.profile.nodes.items():
            features = set((shape.select.constraint or "").split("&")) - {""}
            group = typical(
                group
                for group in groups
                if features and features <= set(group.features) and group.gpu_count
            )
            if group is not None:
                self._settle(name, group, "sinfo -o '%P %G %c %m %f'")

    def default_partition(self) -> None:
        chosen = self.profile.defaults.partition
        if chosen is not None and self.live.partition(chosen) is not None:
            return
        best = next(iter(gpu_partitions(self.live)), None)
        self._forget(("defaults", "partition"))
        self._update(
            "defaults",
            self.profile.defaults.replace(partition=best.name if best is not None else None),
        )
        if best is not None:
            self._say(("defaults", "partition"), f"sinfo -p {best.name}, which has GPUs")

    def qos(self) -> None:
        partitions = self.live.partitions or ()
        wanted = {name for each in self.live.associations or () for name in each.qos}
        wanted |= {
            name for each in partitions for name in (*(each.allow_qos or ()), each.qos) if name
        }
        known = {name.lower(): name for name in self.profile.qos}
        found: dict[str, Qos] = {}
        for live in self.live.qos or ():
            name = known.get(live.name.lower(), live.name)
            if name in self.profile.qos or not wanted or live.name in wanted:
                facts = {
                    "time_max": live.time_max,
                    "nodes_max": live.nodes_max,
                    "gpus_max": live.gpus_max,
                    "nodes_min": live.nodes_min,
                    "cpus_max": live.cpus_max,
                }
                old = self.profile.qos.get(name, Qos())
                if old.lifts_partition_time is not None or "PartitionTimeLimit" in live.flags:
                    facts["lifts_partition_time"] = "PartitionTimeLimit" in live.flags
                found[name] = self._laid_over(
                    old, facts, ("qos", name), f"sacctmgr show qos {live.name}"
                )
        for gone in set(self.profile.qos) - set(found):
            self._forget(("qos", gone))
        self._update("qos", found)

    def memory(self) -> None:
        default = self.live.partition(self.profile.defaults.partition)
        for source, place in (
            (default, f"scontrol show partition {default.name if default else ''}"),
            (self.live, "scontrol show config"),
        ):
            if source is not None and (
                source.default_memory_per_cpu or source.default_memory_per_node
            ):
                facts = {
                    "default_per_cpu": source.default_memory_per_cpu,
                    "default_per_node": source.default_memory_per_node,
                }
                self._update("memory", self.profile.memory.replace(**facts))
                for key, value in facts.items():
                    self._say(("memory", key), place) if value else self._forget(("memory", key))
                return

    def _limits_of_its_qos(self, part: Partition, live: LivePartition) -> Partition:
        """Return `part` with the limits of the partition's own QOS if they are tighter: they apply
        to every job in it.
        """
        qos = next(
            (
                each
                for each in self.live.qos or ()
                if live.qos and each.name.lower() == live.qos.lower()
            ),
            None,
        )
        changes: dict[str, Any] = {}
        for key in ("time_max", "nodes_max", "gpus_max"):
            limit, known = getattr(qos, key, None), getattr(part, key)
            if limit is not None and (known is None or limit < known):
                changes[key] = limit
                self._say(
                    ("partitions", live.name, key),
                    f"sacctmgr show qos {live.qos}, the QOS of the partition",
                )
        return part.replace(**changes)

    def _shape_of(self, live: LivePartition, part: Partition) -> str | None:
        group = typical(live.nodes)
        if group is None or any(shape.select.constraint for shape in self.nodes.values()):
            return (
                part.nodes
            )  # features select among the nodes, so no single kind represents the partition
        source = f"sinfo -p {live.name}"
        if part.nodes in self.nodes:
            return self._settle(part.nodes, group, source, of=live.name)
        if not self.has_gres:
            return part.nodes
        like = next(
            (name for name, settled in self.settled.items() if _alike(settled, group)), None
        )
        if like is not None:
            return like
        kinds = [kind for kind, _ in group.gpus if kind]
        name = self._free_name(_ODD.sub("-", kinds[0]) if len(kinds) == 1 else live.name)
        self.nodes[name] = NodeShape(gpus=group.gpu_count)
        return self._settle(name, group, source)

    def _settle(self, name: str, group: LiveNodes, source: str, *, of: str = "") -> str:
        """Merge live nodes into the shape `name`, or into a copy if it already has the values of
        other nodes; return the key.
        """
        if name in self.settled and not _alike(self.settled[name], group):
            base, others = self.profile.nodes.get(name, self.nodes[name]), self.settled[name]
            if (
                others.gpus != group.gpus
            ):  # another GPU: keep only the values that are common to a site
                base = NodeShape(gpus=group.gpu_count, vendor=base.vendor, arch=base.arch)
            name = self._free_name(f"{name}-{of}")
        else:
            base = self.nodes[name]
        facts: dict[str, Any] = {"gpus": group.gpu_count or None}
        for key, value in (("cpus", group.cpus), ("memory", group.memory)):
            known = getattr(base, key)
            facts[key] = (
                value
                if value
                and (known is None or value < known or base.gpus != (group.gpu_count or base.gpus))
                else None
            )
        if facts["memory"]:
            base = base.replace(memory_installed=False)  # now it is the amount that Slurm allocates
        if facts["gpus"] not in (None, base.gpus):
            facts["cpus_per_gpu"] = None  # applied to another number of GPUs
            base = base.replace(cpus_per_gpu=None, cpus_per_gpu_required=None)
        kinds = [kind for kind, _ in group.gpus if kind]
        if base.gpu is None and len(kinds) == 1:
            facts["gpu"] = kinds[0]
        self.nodes[name] = self._laid_over(base, facts, ("nodes", name), source)
        self.settled[name] = group
        return name

    def _free_name(self, wanted: str) -> str:
        names = [wanted, *(f"{wanted}-{number}" for number in range(2, len(self.nodes) + 3))]
        return next(name for name in names if name not in self.nodes)

    def _laid_over(self, section: Any, facts: Mapping[str, Any], path: KeyPath, source: str) -> Any:
        known = {key: value for key, value in facts.items() if value is not None}
        for key in known:
            self._say((*path, key), source)
        return section.replace(**known)

    def _update(self, key: str, value: Any) -> None:
        self.profile = self.profile.replace(**{key: value})

    def _say(self, path: KeyPath, source: str) -> None:
        self._forget(path)
        self.origins[path] = Attestation("live", source)

    def _forget(self, path: KeyPath) -> None:
        for known in [known for known in self.origins if known[: len(path)] == path]:
            del self.origins[known]


def _alike(one: LiveNodes, other: LiveNodes) -> bool:
    """Whether the nodes are equivalent for a job; up to a tenth of the memory may differ."""
    near = abs((one.memory or 0) - (other.memory or 0)) * 10 <= max(
        one.memory or 0, other.memory or 0
    )
    return (one.gpus, one.cpus, one.threads_per_core) == (
        other.gpus,
        other.cpus,
        other.threads_per_core,
    ) and near
