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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from hpctrain.clusters.live import LiveCluster, LiveNodes, LivePartition, LiveQos
from hpctrain.clusters.load import Attestation
from hpctrain.clusters.profile import (
    AccountPolicy,
    Cluster,
    Memory,
    NodeShape,
    Partition,
    Profile,
    Qos,
)
from hpctrain.util.schema import KeyPath, Section

S = TypeVar("S", bound=Section)
ACCOUNTS_COMMAND = "sacctmgr -nP show assoc user=$USER format=account"
#: Characters of a GPU type that a key cannot contain.
_ODD = re.compile(r"[^A-Za-z0-9._-]+")


def merge(cluster: Cluster | None, live: LiveCluster) -> Cluster:
    """Return `cluster` with the facts of `live` merged in; without a profile, only live facts."""
    merged = _Merger(cluster if cluster is not None else _unknown_site(live), live)
    slurm = {
        "version": None if live.version is None else "{}.{:02}".format(*live.version),
        "max_array_size": live.max_array_size,
    }
    merged.lay_over(("slurm",), slurm, "scontrol show config")
    if live.partitions:
        merged.partitions(live.partitions)
    if live.qos:
        merged.qos(live.qos)
    merged.memory()
    if cluster is None and merged.has_gres:
        merged.lay_over(("gpu_request",), {"dialect": "gres"}, "sinfo, which shows GPUs as GRES")
    return Cluster(merged.profile, merged.origins)


def gpu_partitions(live: LiveCluster) -> tuple[LivePartition, ...]:
    """Return the partitions that are up and have GPUs: the default first, then by GPU nodes."""
    found = [each for each in live.partitions or () if each.up is not False and each.gpus_max]
    return tuple(sorted(found, key=lambda each: (not each.default, -_gpu_nodes(each))))


def typical(groups: Iterable[LiveNodes]) -> LiveNodes | None:
    """Return the kind of nodes that a GPU job in a partition most likely runs on: the most frequent
    one with GPUs, else the most frequent of all.
    """
    return max(
        groups,
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

    def lay_over(self, path: KeyPath, facts: Mapping[str, Any], source: str) -> None:
        """Set the known ones of `facts` in the section at `path`, a key of the profile."""
        (key,) = path
        section = self._replaced(getattr(self.profile, key), path, facts, source)
        self.profile = self.profile.replace(**{key: section})

    def partitions(self, partitions: Sequence[LivePartition]) -> None:
        groups = [group for each in partitions for group in each.nodes if group.gpu_count]
        for name, shape in self.profile.nodes.items():
            features = set((shape.select.constraint or "").split("&")) - {""}
            chosen = [each for each in groups if features and features <= set(each.features)]
            group = typical(chosen)
            if group is not None:
                self._settle(name, shape, group, "sinfo -o '%P %G %c %m %f'")
        default = self.profile.defaults.partition
        # The partition with the most jobs determines a shape of the profile first.
        by_weight = sorted(partitions, key=lambda each: (each.name != default, -_gpu_nodes(each)))
        found = {each.name: self._partition(each) for each in by_weight}
        for gone in set(self.profile.partitions) - set(found):
            self._forget(("partitions", gone))
        known = {each.name: found[each.name] for each in partitions}
        self.profile = self.profile.replace(partitions=known, nodes=self.nodes)
        if default not in known:
            best = next((each.name for each in gpu_partitions(self.live)), None)
            defaults = self.profile.defaults.replace(partition=best)
            self.profile = self.profile.replace(defaults=defaults)
            self._say(("defaults", "partition"), f"sinfo -p {best}, which has GPUs")

    def _partition(self, live: LivePartition) -> Partition:
        path, known = ("partitions", live.name), self.profile.partitions.get(live.name, Partition())
        facts: dict[str, Any] = {
            "default": live.default,
            "time_max": live.time_max,
            "time_default": live.time_default,
            "nodes_min": live.nodes_min,
            "nodes_max": live.nodes_max,
            # A job_submit plugin, or billing, may make nodes exclusive that Slurm would share.
            "whole_nodes": live.exclusive or (None if known.whole_nodes else live.exclusive),
            "qos": live.allow_qos,
            "accounts": live.allow_accounts,
        }
        part = self._replaced(known, path, facts, f"scontrol show partition {live.name}")
        # The limits of the partition's own QOS apply to every job in it.
        own = [
            each for each in self.live.qos or () if each.name.lower() == (live.qos or "").lower()
        ]
        tighter = {
            key: limit
            for qos in own[:1]
            for key in ("time_max", "nodes_max", "gpus_max")
            if (limit := getattr(qos, key)) is not None
            and limit < (getattr(part, key) or limit + 1)
        }
        source = f"sacctmgr show qos {live.qos}, the QOS of the partition"
        part = self._replaced(part, path, tighter, source)
        shape = self._shape_of(live, part)
        if shape == part.nodes:
            return part
        return self._replaced(part, path, {"nodes": shape}, f"sinfo -p {live.name}")

    def _shape_of(self, live: LivePartition, part: Partition) -> str | None:
        group = typical(live.nodes)
        # Where features select among the nodes, no single kind represents the partition.
        by_feature = any(shape.select.constraint for shape in self.nodes.values())
        name, kinds = part.nodes, [kind for kind, _ in group.gpus if kind] if group else []
        if group is None or by_feature or (name not in self.nodes and not self.has_gres):
            return name
        if name in self.nodes:
            base, other = self.nodes[name], self.settled.get(name, group)
            if not _alike(other, group):
                base, name = self.profile.nodes[name], f"{name}-{live.name}"
            if other.gpus != group.gpus:  # keep only the values that are common to a site
                base = NodeShape(gpus=group.gpu_count, vendor=base.vendor, arch=base.arch)
        else:
            for like, settled in self.settled.items():
                if _alike(settled, group):
                    return like
            base = NodeShape(gpus=group.gpu_count)
            name = _ODD.sub("-", kinds[0]) if len(kinds) == 1 else live.name
            name = f"{name}-{live.name}" if name in self.nodes else name
        self._settle(name, base, group, f"sinfo -p {live.name}")
        return name

    def _settle(self, name: str, base: NodeShape, group: LiveNodes, source: str) -> None:
        kinds = [kind for kind, _ in group.gpus if kind]
        facts: dict[str, Any] = {"gpus": group.gpu_count or None}
        is_other = base.gpus != (group.gpu_count or base.gpus)
        for key, value in (("cpus", group.cpus), ("memory", group.memory)):
            known = getattr(base, key)
            if value and (known is None or value < known or is_other):
                facts[key] = value
        if "memory" in facts:  # now it is the amount that Slurm allocates
            base = base.replace(memory_installed=False)
        if is_other:  # they applied to another number of GPUs
            base = base.replace(cpus_per_gpu=None, cpus_per_gpu_required=None)
        if base.gpu is None and len(kinds) == 1:
            facts["gpu"] = kinds[0]
        self.nodes[name] = self._replaced(base, ("nodes", name), facts, source)
        self.settled[name] = group

    def qos(self, listed: Sequence[LiveQos]) -> None:
        """Merge the QOS of the profile, of the user, and of partitions; all, if none is known."""
        wanted = {name for each in self.live.associations or () for name in each.qos}
        for each in self.live.partitions or ():
            wanted |= {*(each.allow_qos or ()), each.qos or ""} - {""}
        known = {name.lower(): name for name in self.profile.qos}
        found: dict[str, Qos] = {}
        for live in listed:
            name = known.get(live.name.lower(), live.name)
            if name not in self.profile.qos and wanted and live.name not in wanted:
                continue
            old, lifts = self.profile.qos.get(name, Qos()), "PartitionTimeLimit" in live.flags
            facts = {
                "time_max": live.time_max,
                "nodes_max": live.nodes_max,
                "gpus_max": live.gpus_max,
                "nodes_min": live.nodes_min,
                "cpus_max": live.cpus_max,
                "lifts_partition_time": lifts
                if old.lifts_partition_time is not None
                else lifts or None,
            }
            path = ("qos", name)
            found[name] = self._replaced(old, path, facts, f"sacctmgr show qos {live.name}")
        for gone in set(self.profile.qos) - set(found):
            self._forget(("qos", gone))
        self.profile = self.profile.replace(qos=found)

    def memory(self) -> None:
        """Merge the default memory: of the default partition, else of the cluster."""
        default = self.live.partition(self.profile.defaults.partition)
        for source, place in (
            (default, "scontrol show partition"),
            (self.live, "scontrol show config"),
        ):
            if source and (source.default_memory_per_cpu or source.default_memory_per_node):
                self.profile = self.profile.replace(
                    memory=self.profile.memory.replace(default_per_cpu=None, default_per_node=None)
                )
                facts = {
                    "default_per_cpu": source.default_memory_per_cpu,
                    "default_per_node": source.default_memory_per_node,
                }
                self.lay_over(("memory",), facts, place)
                return

    def _replaced(self, section: S, path: KeyPath, facts: Mapping[str, Any], source: str) -> S:
        """Return a section with the known ones of `facts`, and note where they are from."""
        known = {key: value for key, value in facts.items() if value is not None}
        for key in known:
            self._say((*path, key), source)
        return section.replace(**known)

    def _say(self, path: KeyPath, source: str) -> None:
        self._forget(path)
        self.origins[path] = Attestation("live", source)

    def _forget(self, path: KeyPath) -> None:
        for known in [known for known in self.origins if known[: len(path)] == path]:
            del self.origins[known]


def _alike(one: LiveNodes, other: LiveNodes) -> bool:
    """Whether the nodes are equivalent for a job; up to a tenth of the memory may differ."""
    least, most = sorted((one.memory or 0, other.memory or 0))
    of_one, of_other = ((each.gpus, each.cpus, each.threads_per_core) for each in (one, other))
    return of_one == of_other and (most - least) * 10 <= most
