"""The weakest layer of a job config: what the profile of the chosen cluster says about a job that says nothing itself.

Pure. It sees what the stronger layers wrote, unchecked, because the partition, the constraint or the account choose the kind of node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpctrain.clusters.profile import Cluster, NodeShape, Profile
from hpctrain.config import variables
from hpctrain.config.layers import KeyPath, Layer, written
from hpctrain.jobs.spec import Launcher
from hpctrain.scheduler.parse import memory_size
from hpctrain.yaml12 import Plain


def layer(cluster: Cluster, stronger: Sequence[Layer]) -> Layer:
    """Return what `cluster` says, below `stronger`."""
    profile = cluster.profile
    built = _Builder(cluster)
    asked = _Asked(stronger, profile)
    _resources(built, asked, profile)
    _environment(built, asked, profile)
    _launch(built, asked, profile)
    for name, value in profile.directives.default.items():
        built.put(("sbatch", name), value, "directives", "default", name)
    if profile.internet.compute == "no" or (profile.internet.compute is not None and built.level("internet", "compute") != "recalled"):
        built.put(("offline",), str(profile.internet.compute == "no").lower(), "internet", "compute")
    return Layer("profile", f"cluster profile {profile.name}", built.data, built.origins)


def shape(profile: Profile, stronger: Sequence[Layer]) -> NodeShape | None:
    """Return the kind of node that a job of these layers lands on; None where that is unknown."""
    return _Asked(stronger, profile).shape


class _Asked:
    """What the user wrote of the things that choose among the profile's facts."""

    def __init__(self, layers: Sequence[Layer], profile: Profile) -> None:
        self.layers = layers
        self.partition = self._text("resources", "partition") or profile.defaults.partition
        self.constraint = self._text("resources", "constraint")
        name = profile.shape_name(partition=self.partition, constraint=self.constraint, account=self._text("resources", "account"))
        self.shape_name = name
        self.shape = profile.nodes.get(name) if name is not None else None
        self.nodes = self._count("resources", "nodes") or 1
        self.gpus = self._count("resources", "gpus_per_node")
        self.launcher: Launcher | str = self._text("launcher") or "accelerate"

    def has(self, *path: str) -> bool:
        return written(self.layers, path) is not None

    def _text(self, *path: str) -> str | None:
        value = written(self.layers, path)
        return value if isinstance(value, str) else None

    def _count(self, *path: str) -> int | None:
        text = self._text(*path)
        return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 6 else None


class _Builder:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.data: dict[str, Any] = {}
        self.origins: dict[KeyPath, str] = {}

    def level(self, *source: str) -> str | None:
        """Return how well the value at `source` in the profile is attested."""
        origins = self.cluster.origins
        return next((origins[source[:end]].level for end in range(len(source), 0, -1) if source[:end] in origins), None)

    def put(self, path: KeyPath, value: Any, *source: str) -> None:
        """Put `value` at `path`, known from `source` in the profile; None is unknown and stays out."""
        if value is None:
            return
        section: dict[str, Any] = self.data
        for part in path[:-1]:
            section = section.setdefault(part, {})
        section[path[-1]] = Plain(str(value)) if isinstance(value, str | int) else value
        self.origins[path] = self.cluster.evidence(*source)


def _resources(built: _Builder, asked: _Asked, profile: Profile) -> None:
    node = asked.shape_name or ""
    built.put(("resources", "partition"), profile.defaults.partition, "defaults", "partition")
    built.put(("resources", "qos"), profile.defaults.qos, "defaults", "qos")
    if asked.shape is not None:
        built.put(("resources", "constraint"), asked.shape.select.constraint, "nodes", node, "select", "constraint")
        built.put(("resources", "cpus_per_gpu"), asked.shape.cpus_for_each_gpu, "nodes", node, "cpus_per_gpu")
        if _whole_nodes(profile, asked.partition) and asked.shape.gpus:
            built.put(("resources", "gpus_per_node"), asked.shape.gpus, "nodes", node, "gpus")
    dialect = profile.gpu_request.dialect
    if dialect == "gpus" and asked.nodes > 1:
        dialect = next((other for other in profile.gpu_request.also if other != "gpus"), "gpus-per-node")
    built.put(("resources", "gpu_directive"), dialect, "gpu_request", "dialect")
    built.put(("resources", "gpu_type"), profile.gpu_request.type, "gpu_request", "type")
    if not asked.has("resources", "mem_per_cpu"):
        built.put(("resources", "mem"), _memory(asked, profile), "memory", "request")


def _whole_nodes(profile: Profile, partition: str | None) -> bool:
    known = profile.partitions.get(partition or "")
    if known is not None and known.whole_nodes is not None:
        return known.whole_nodes
    return profile.billing.unit == "node"


def _memory(asked: _Asked, profile: Profile) -> str | None:
    if profile.memory.request == "all":
        return "0"
    if profile.memory.request != "per-gpu":
        return None
    whole = asked.shape.gpus if asked.shape is not None and _whole_nodes(profile, asked.partition) else 1
    gpus = asked.gpus or whole
    if profile.memory.per_gpu is not None:
        return memory_size.format(profile.memory.per_gpu * gpus)
    share = asked.shape.memory_for(gpus) if asked.shape is not None else None
    return None if share is None else memory_size.format(share)


def _environment(built: _Builder, asked: _Asked, profile: Profile) -> None:
    modules = profile.modules
    built.put(("environment", "module_start"), modules.start, "modules", "start")
    built.put(("environment", "module_use"), [Plain(path) for path in modules.use] or None, "modules", "use")
    first = [*(asked.shape.modules_first if asked.shape is not None else ()), *modules.first]
    built.put(("environment", "modules_first"), [Plain(module) for module in first] or None, "modules", "first")
    sets = _variables(profile)
    cluster = ("environment", "profiles", variables.CLUSTER)
    for name, (value, source) in sets.items():
        # An interface that does not exist ends the job with an obscure error (NVIDIA/nccl#1837), so a guess stays out of the script.
        if built.level(*source) != "recalled":
            built.put((*cluster, "env", name), value, *source)
    unset = [Plain(name) for name in profile.launch.unset]
    built.put((*cluster, "unset"), unset or None, "launch", "unset")
    vendor = asked.shape.vendor if asked.shape is not None else None
    if vendor == "rocm" and asked.has("environment", "container", "image"):
        built.put(("environment", "container", "gpu_libraries"), "rocm", "nodes", asked.shape_name or "", "vendor")


def _variables(profile: Profile) -> Mapping[str, tuple[str, tuple[str, ...]]]:
    """Return name → value and the place in the profile that it comes from."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for name, value in profile.network.variables.items():
        found[name] = (value, ("network", "variables", name))
    for name, value in profile.launch.variables.items():
        found[name] = (value, ("launch", "variables", name))
    if profile.internet.compute == "proxy" and profile.internet.proxy:
        for name in ("http_proxy", "https_proxy"):
            found[name] = (profile.internet.proxy, ("internet", "proxy"))
    return found


def _launch(built: _Builder, asked: _Asked, profile: Profile) -> None:
    built.put(("launch", "shebang"), profile.launch.shebang, "launch", "shebang")
    built.put(("launch", "master_addr_suffix"), profile.launch.master_addr_suffix, "launch", "master_addr_suffix")
    whole = asked.shape is not None and asked.gpus in (None, asked.shape.gpus)
    if asked.launcher != "srun":
        built.put(("launch", "cpu_bind"), profile.launch.cpu_bind, "launch", "cpu_bind")
    elif whole:
        built.put(("launch", "cpu_bind"), profile.launch.cpu_bind_per_gpu, "launch", "cpu_bind_per_gpu")
    if profile.slurm.requeue_allowed is False:
        built.put(("restart", "mode"), "chain", "slurm", "requeue_allowed")
    if profile.gpu_request.on_srun:
        built.put(("launch", "gpus_on_srun"), "true", "gpu_request", "on_srun")
