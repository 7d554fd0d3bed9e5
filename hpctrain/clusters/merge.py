"""A cluster profile with what the live scheduler says laid over it.

Pure. What Slurm says wins, what it does not say stays as the profile has it, and every value that came from Slurm says so: its evidence
is `live`, its source the command that shows it.

Two numbers are taken only where they are smaller than the profile's, the CPUs and the memory of a node: Slurm shows those that a node
has, a profile those that a job can have, and what the system keeps for itself is in neither sinfo nor scontrol show partition.
GPUs that Slurm does not show are no proof that there are none: some sites hand out whole nodes, and configure no GRES.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from hpctrain.clusters.evidence import Evidence, KeyPath
from hpctrain.clusters.live import LiveCluster, LiveNodes, LivePartition
from hpctrain.clusters.profile import Cluster, GpuRequest, NodeShape, Partition, Profile, Qos
from hpctrain.clusters.site import Account, Memory

ACCOUNTS_COMMAND = "sacctmgr -nP show assoc user=$USER format=account"
#: Of a GPU type, which may hold characters that no key has.
_ODD = re.compile(r"[^A-Za-z0-9._-]+")


def merge(cluster: Cluster | None, live: LiveCluster) -> Cluster:
    """Return `cluster` with the facts of `live` over it; without a profile, one that is made of live facts alone."""
    merged = _Merged(cluster if cluster is not None else _unknown_site(live), live)
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
    """Return the partitions that are up and have GPUs: the default one first, then those with the most GPU nodes."""
    found = [each for each in live.partitions or () if each.up is not False and each.gpus_max]
    return tuple(sorted(found, key=lambda each: (not each.default, -_gpu_nodes(each))))


def typical(groups: Iterable[LiveNodes]) -> LiveNodes | None:
    """Return the kind of nodes that a GPU job of a partition most likely lands on: the most numerous one with GPUs, else of all."""
    known = list(groups)
    return max(known, key=lambda group: (group.gpu_count > 0, group.count, -(group.memory or 0)), default=None)


def _gpu_nodes(partition: LivePartition) -> int:
    return sum(group.count for group in partition.nodes if group.gpu_count)


def _unknown_site(live: LiveCluster) -> Cluster:
    """Return the profile of a site that nobody has written one for."""
    name = _ODD.sub("-", live.cluster_name or "").lstrip("-._")[:64] or "this-cluster"
    profile = Profile(
        name=name,
        title=f"Slurm cluster {live.cluster_name}" if live.cluster_name else "this cluster",
        account=Account(list_command=ACCOUNTS_COMMAND),
        memory=Memory(request="per-gpu"),  # what Slurm gives unasked is often a few GB
    )
    return Cluster(
        profile, {("account",): Evidence("recalled", "man sacctmgr"), ("memory", "request"): Evidence("recalled", "a fair share")}
    )


class _Merged:
    """A profile that is changed piece by piece, and the evidence of every piece."""

    def __init__(self, cluster: Cluster, live: LiveCluster) -> None:
        self.profile, self.live = cluster.profile, live
        self.origins: dict[KeyPath, Evidence] = dict(cluster.origins)
        self.has_gres = any(partition.gpus_max for partition in live.partitions or ())
        self.nodes: dict[str, NodeShape] = dict(self.profile.nodes)
        #: Shapes that Slurm has had its say about, so that the next partition with other nodes gets a shape of its own.
        self.settled: dict[str, LiveNodes] = {}

    def cluster(self, *, gpus_by_gres: bool) -> Cluster:
        """Return what came of it."""
        self._update("nodes", self.nodes)
        if gpus_by_gres and self.has_gres:
            self._update("gpu_request", GpuRequest(dialect="gres"))
            self._say(("gpu_request",), "sinfo, which shows GPUs as GRES")
        return Cluster(self.profile, self.origins)

    def slurm(self) -> None:
        """Lay the settings of slurm.conf over the profile's."""
        live = self.live
        facts = {
            "version": None if live.version is None else "{}.{:02}".format(*live.version),
            "kill_wait": live.kill_wait, "max_array_size": live.max_array_size, "requeue_by_default": live.job_requeue,
        }  # fmt: skip
        self._update("slurm", self._laid_over(self.profile.slurm, facts, ("slurm",), "scontrol show config"))

    def partitions(self) -> None:
        """Lay the partitions over the profile's; what Slurm does not show does not exist, or is not for this user."""
        partitions = self.live.partitions or ()
        # The partition that most jobs go to is the first to say what a shape of the profile is.
        by_weight = sorted(partitions, key=lambda each: (each.name != self.profile.defaults.partition, -_gpu_nodes(each)))
        found = {each.name: self._partition(each) for each in by_weight}
        for gone in set(self.profile.partitions) - set(found):
            self._forget(("partitions", gone))
        self._update("partitions", {each.name: found[each.name] for each in partitions})

    def _partition(self, live: LivePartition) -> Partition:
        path, known = ("partitions", live.name), self.profile.partitions.get(live.name, Partition())
        facts: dict[str, Any] = {
            "default": live.default, "time_max": live.time_max, "time_default": live.time_default, "nodes_min": live.nodes_min,
            "nodes_max": live.nodes_max, "whole_nodes": live.exclusive, "qos": live.allow_qos, "accounts": live.allow_accounts,
        }  # fmt: skip
        if known.whole_nodes or self.live.whole_nodes:
            facts["whole_nodes"] = live.exclusive or None  # a job_submit plugin, or the bill, may make whole what Slurm would share
        silent = any(sentence.startswith("scontrol show partition") for sentence in self.live.silent)
        part: Partition = self._laid_over(known, facts, path, f"{'sinfo -p' if silent else 'scontrol show partition'} {live.name}")
        if self.live.whole_nodes and not part.whole_nodes:
            part = self._laid_over(part, {"whole_nodes": True}, path, "scontrol show config: SelectType=select/linear")
        part = self._limits_of_its_qos(part, live)
        shape = self._shape_of(live, part)
        if shape != part.nodes:
            part = part.model_copy(update={"nodes": shape})
            self._say((*path, "nodes"), f"sinfo -p {live.name}")
        return part

    def shapes_by_constraint(self) -> None:
        """Lay the nodes that have a shape's features over that shape."""
        groups = [group for partition in self.live.partitions or () for group in partition.nodes]
        for name, shape in self.profile.nodes.items():
            features = set((shape.select.constraint or "").split("&")) - {""}
            group = typical(group for group in groups if features and features <= set(group.features) and group.gpu_count)
            if group is not None:
                self._settle(name, group, "sinfo -o '%P %G %c %m %f'")

    def default_partition(self) -> None:
        """Choose where GPU jobs go, unless the profile's own choice is there."""
        chosen = self.profile.defaults.partition
        if chosen is not None and self.live.partition(chosen) is not None:
            return
        best = next(iter(gpu_partitions(self.live)), None)
        self._forget(("defaults", "partition"))
        self._update("defaults", self.profile.defaults.model_copy(update={"partition": best.name if best is not None else None}))
        if best is not None:
            self._say(("defaults", "partition"), f"sinfo -p {best.name}, which has GPUs")

    def qos(self) -> None:
        """Lay the QOS over the profile's: those that it knows, those of the user, and those that a partition names."""
        partitions = self.live.partitions or ()
        wanted = {name for each in self.live.associations or () for name in each.qos}
        wanted |= {name for each in partitions for name in (*(each.allow_qos or ()), each.qos) if name}
        known = {name.lower(): name for name in self.profile.qos}
        found: dict[str, Qos] = {}
        for live in self.live.qos or ():
            name = known.get(live.name.lower(), live.name)
            if name in self.profile.qos or not wanted or live.name in wanted:
                facts = {"time_max": live.time_max, "nodes_max": live.nodes_max, "gpus_max": live.gpus_max, "nodes_min": live.nodes_min,
                         "jobs_max": live.submit_max, "cpus_max": live.cpus_max}  # fmt: skip
                old = self.profile.qos.get(name, Qos())
                if old.lifts_partition_time is not None or "PartitionTimeLimit" in live.flags:
                    facts["lifts_partition_time"] = "PartitionTimeLimit" in live.flags
                found[name] = self._laid_over(old, facts, ("qos", name), f"sacctmgr show qos {live.name}")
        for gone in set(self.profile.qos) - set(found):
            self._forget(("qos", gone))
        self._update("qos", found)

    def memory(self) -> None:
        """Lay over what a job gets that asks for no memory: the partition's word, else the whole cluster's; never both kinds."""
        default = self.live.partition(self.profile.defaults.partition)
        for source, place in ((default, f"scontrol show partition {default.name if default else ''}"), (self.live, "scontrol show config")):
            if source is not None and (source.default_memory_per_cpu or source.default_memory_per_node):
                facts = {"default_per_cpu": source.default_memory_per_cpu, "default_per_node": source.default_memory_per_node}
                self._update("memory", self.profile.memory.model_copy(update=facts))
                for key, value in facts.items():
                    self._say(("memory", key), place) if value else self._forget(("memory", key))
                return

    def _limits_of_its_qos(self, part: Partition, live: LivePartition) -> Partition:
        """Return `part` with the limits of the partition's own QOS, where they are tighter: they hold for every job in it."""
        qos = next((each for each in self.live.qos or () if live.qos and each.name.lower() == live.qos.lower()), None)
        changes: dict[str, Any] = {}
        for key in ("time_max", "nodes_max", "gpus_max"):
            limit, known = getattr(qos, key, None), getattr(part, key)
            if limit is not None and (known is None or limit < known):
                changes[key] = limit
                self._say(("partitions", live.name, key), f"sacctmgr show qos {live.qos}, the QOS of the partition")
        return part.model_copy(update=changes)

    def _shape_of(self, live: LivePartition, part: Partition) -> str | None:
        """Return the key of the nodes of a partition, after Slurm has had its say about them."""
        group = typical(live.nodes)
        if group is None or any(shape.select.constraint for shape in self.nodes.values()):
            return part.nodes  # where features choose among the nodes of a partition, no one kind stands for it
        source = f"sinfo -p {live.name}"
        if part.nodes in self.nodes:
            return self._settle(part.nodes, group, source, of=live.name)
        if not self.has_gres:
            return part.nodes
        like = next((name for name, settled in self.settled.items() if _alike(settled, group)), None)
        if like is not None:
            return like
        kinds = [kind for kind, _ in group.gpus if kind]
        name = self._free_name(_ODD.sub("-", kinds[0]) if len(kinds) == 1 else live.name)
        self.nodes[name] = NodeShape(gpus=group.gpu_count)
        return self._settle(name, group, source)

    def _settle(self, name: str, group: LiveNodes, source: str, *, of: str = "") -> str:
        """Lay live nodes over the shape `name`, or over a copy where other nodes have been laid over it; return the key."""
        if name in self.settled and not _alike(self.settled[name], group):
            base, others = self.profile.nodes.get(name, self.nodes[name]), self.settled[name]
            if others.gpus != group.gpus:  # another GPU: only what a site has but one of is still known
                base = NodeShape(gpus=group.gpu_count, vendor=base.vendor, arch=base.arch)
            name = self._free_name(f"{name}-{of}")
        else:
            base = self.nodes[name]
        facts = {"gpus": group.gpu_count or None, "threads_per_core": group.threads_per_core}
        for key, value in (("cpus", group.cpus), ("memory", group.memory)):
            known = getattr(base, key)
            facts[key] = value if value and (known is None or value < known or base.gpus != (group.gpu_count or base.gpus)) else None
        if facts["memory"]:
            base = base.model_copy(update={"memory_installed": False})  # it is what Slurm hands out
        if facts["gpus"] not in (None, base.gpus):
            facts["cpus_per_gpu"] = None  # was the share of another number of GPUs
            base = base.model_copy(update={"cpus_per_gpu": None, "cpus_per_gpu_required": None})
        kinds = [kind for kind, _ in group.gpus if kind]
        if base.gpu is None and len(kinds) == 1:
            facts["gpu"] = kinds[0]  # type: ignore[assignment]
        self.nodes[name] = self._laid_over(base, facts, ("nodes", name), source)
        self.settled[name] = group
        return name

    def _free_name(self, wanted: str) -> str:
        names = [wanted, *(f"{wanted}-{number}" for number in range(2, len(self.nodes) + 3))]
        return next(name for name in names if name not in self.nodes)

    def _laid_over(self, section: Any, facts: Mapping[str, Any], path: KeyPath, source: str) -> Any:
        """Return a section with the facts that are known; each of them says where it comes from, changed or not."""
        known = {key: value for key, value in facts.items() if value is not None}
        for key in known:
            self._say((*path, key), source)
        return section.model_copy(update=known)

    def _update(self, key: str, value: Any) -> None:
        self.profile = self.profile.model_copy(update={key: value})

    def _say(self, path: KeyPath, source: str) -> None:
        self._forget(path)
        self.origins[path] = Evidence("live", source)

    def _forget(self, path: KeyPath) -> None:
        """Drop the evidence of a value, and of all below it."""
        for known in [known for known in self.origins if known[: len(path)] == path]:
            del self.origins[known]


def _alike(one: LiveNodes, other: LiveNodes) -> bool:
    """Whether a job sees no difference; a tenth of the memory is none."""
    near = abs((one.memory or 0) - (other.memory or 0)) * 10 <= max(one.memory or 0, other.memory or 0)
    return (one.gpus, one.cpus, one.threads_per_core) == (other.gpus, other.cpus, other.threads_per_core) and near
