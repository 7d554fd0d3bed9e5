"""The lowest layer of a job config: defaults from the cluster's profile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpctrain.clusters.profile import Cluster, Profile
from hpctrain.config.layers import Layer, put, written
from hpctrain.config.spec import CLUSTER
from hpctrain.slurm.notations import units
from hpctrain.util.schema import KeyPath
from hpctrain.util.text import is_number
from hpctrain.util.yaml12 import Plain

#: A key of the config, its value (None: unknown, omitted), and its source in the profile.
Fact = tuple[KeyPath, Any, KeyPath]


def cluster_layer(cluster: Cluster, stronger: Sequence[Layer]) -> Layer:
    """Return the layer of `cluster`; the layers in `stronger` select among its facts."""
    profile = cluster.profile
    query = _ProfileQuery(stronger, profile)
    facts = [
        *_resources(query, profile),
        *_environment(query, cluster),
        *_launch(query, profile),
        *(
            (("sbatch", name), value, ("directives", "default", name))
            for name, value in profile.directives.default.items()
        ),
    ]
    reached = profile.internet.compute
    source: KeyPath = ("internet", "compute")
    if reached == "no" or (reached is not None and _level(cluster, source) != "recalled"):
        facts.append((("offline",), str(reached == "no").lower(), source))
    data: dict[str, Any] = {}
    origins: dict[KeyPath, str] = {}
    for path, value, source in facts:
        if value is not None:
            put(data, path, Plain(str(value)) if isinstance(value, str | int) else value)
            origins[path] = cluster.evidence(*source)
    return Layer("profile", f"cluster profile {profile.name}", data, origins)


def _level(cluster: Cluster, source: KeyPath) -> str | None:
    found = cluster.attested(*source)
    return found.level if found is not None else None


class _ProfileQuery:
    def __init__(self, layers: Sequence[Layer], profile: Profile) -> None:
        self.layers = layers
        self.partition = self._text("resources", "partition") or profile.defaults.partition
        self.shape_name = profile.shape_name(
            partition=self.partition,
            constraint=self._text("resources", "constraint"),
            account=self._text("resources", "account"),
        )
        self.shape = profile.nodes.get(self.shape_name or "")
        self.nodes = self._count("resources", "nodes") or 1
        self.gpus = self._count("resources", "gpus_per_node")
        self.launcher = self._text("launcher") or "accelerate"

    def has(self, *path: str) -> bool:
        return written(self.layers, path) is not None

    def _text(self, *path: str) -> str | None:
        value = written(self.layers, path)
        return value if isinstance(value, str) else None

    def _count(self, *path: str) -> int | None:
        text = self._text(*path)
        return int(text) if text is not None and is_number(text) and len(text) < 6 else None


def _resources(query: _ProfileQuery, profile: Profile) -> list[Fact]:
    request, dialect = profile.gpu_request, profile.gpu_request.dialect
    if dialect == "gpus" and query.nodes > 1:
        dialect = next((other for other in request.also if other != "gpus"), "gpus-per-node")
    facts: list[Fact] = [
        (("resources", "partition"), profile.defaults.partition, ("defaults", "partition")),
        (("resources", "qos"), profile.defaults.qos, ("defaults", "qos")),
        (("resources", "gpu_directive"), dialect, ("gpu_request", "dialect")),
        (("resources", "gpu_type"), request.type, ("gpu_request", "type")),
    ]
    if not query.has("resources", "mem_per_cpu") and not query.has("resources", "mem_per_gpu"):
        facts.append((("resources", "mem"), _memory(query, profile), ("memory", "request")))
    shape, node = query.shape, ("nodes", query.shape_name or "")
    if shape is None:
        return facts
    gpus = shape.gpus or None if _whole_nodes(profile, query.partition) else None
    return [
        *facts,
        (("resources", "constraint"), shape.select.constraint, (*node, "select", "constraint")),
        (("resources", "cpus_per_gpu"), shape.cpus_for_each_gpu, (*node, "cpus_per_gpu")),
        (("resources", "gpus_per_node"), gpus, (*node, "gpus")),
    ]


def _whole_nodes(profile: Profile, partition: str | None) -> bool:
    known = profile.partitions.get(partition or "")
    if known is not None and known.whole_nodes is not None:
        return known.whole_nodes
    return profile.billing.unit == "node"


def _memory(query: _ProfileQuery, profile: Profile) -> str | None:
    if profile.memory.request != "per-gpu":
        return "0" if profile.memory.request == "all" else None
    shape = query.shape
    takes_all = shape is not None and _whole_nodes(profile, query.partition)
    gpus = query.gpus or (shape.gpus if shape is not None and takes_all else 1)
    if profile.memory.per_gpu is not None:
        return units.format_memory(profile.memory.per_gpu * gpus)
    share = shape.memory_for(gpus) if shape is not None else None
    return None if share is None else units.format_memory(share)


def _environment(query: _ProfileQuery, cluster: Cluster) -> list[Fact]:
    profile, shape = cluster.profile, query.shape
    modules, internet = profile.modules, profile.internet
    first = [*(shape.modules_first if shape is not None else ()), *modules.first]
    variables: dict[str, tuple[str, KeyPath]] = {}
    for section, values in (("network", profile.network), ("launch", profile.launch)):
        for name, value in values.variables.items():
            variables[name] = value, (section, "variables", name)
    if internet.compute == "proxy" and internet.proxy:
        for name in ("http_proxy", "https_proxy"):
            variables[name] = internet.proxy, ("internet", "proxy")
    needs_rocm = shape is not None and shape.vendor == "rocm"
    libraries = "rocm" if needs_rocm and query.has("environment", "container", "image") else None
    here = ("environment", "profiles", CLUSTER)
    return [
        (("environment", "module_start"), modules.start, ("modules", "start")),
        (("environment", "module_use"), _words(modules.use), ("modules", "use")),
        (("environment", "modules_first"), _words(first), ("modules", "first")),
        # A wrong interface ends the job with an obscure error (NVIDIA/nccl#1837), so guesses are
        # omitted.
        *(
            ((*here, "env", name), value, source)
            for name, (value, source) in variables.items()
            if _level(cluster, source) != "recalled"
        ),
        ((*here, "unset"), _words(profile.launch.unset), ("launch", "unset")),
        (
            ("environment", "container", "gpu_libraries"),
            libraries,
            ("nodes", query.shape_name or "", "vendor"),
        ),
    ]


def _words(values: Sequence[str]) -> list[Plain] | None:
    return [Plain(value) for value in values] or None


def _launch(query: _ProfileQuery, profile: Profile) -> list[Fact]:
    launch, binding = profile.launch, "cpu_bind"
    takes_all = query.shape is not None and query.gpus in (None, query.shape.gpus)
    if query.launcher == "srun":
        binding = "cpu_bind_per_gpu" if takes_all else ""
    bind = getattr(launch, binding) if binding else None
    chain = "chain" if profile.slurm.requeue_allowed is False else None
    on_srun = "true" if profile.gpu_request.on_srun else None
    suffix = "master_addr_suffix"
    return [
        (("launch", "shebang"), launch.shebang, ("launch", "shebang")),
        (("launch", suffix), launch.master_addr_suffix, ("launch", suffix)),
        (("launch", "cpu_bind"), bind, ("launch", binding)),
        (("restart", "mode"), chain, ("slurm", "requeue_allowed")),
        (("launch", "gpus_on_srun"), on_srun, ("gpu_request", "on_srun")),
    ]
