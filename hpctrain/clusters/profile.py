"""What a cluster profile can say. The values are those of the site; unknown is None, never a guess.

The sections about the ways of a site, from directives to billing, are those of `clusters.site`.

Pure: a profile is a frozen value. `clusters.load` reads it from YAML, `clusters.live` lays what Slurm says over it.
Sizes are bytes and durations seconds, in the units of their types; limits are defaults that the live scheduler overrides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BeforeValidator, Field

from hpctrain.clusters import evidence
from hpctrain.clusters.site import (
    Account,
    Billing,
    Count,
    Defaults,
    Directives,
    Internet,
    Launch,
    Login,
    Memory,
    Modules,
    Network,
    Pattern,
    Storage,
    Texts,
)
from hpctrain.fieldtypes import (
    Boolean,
    Features,
    Module,
    Name,
    Seconds,
    Section,
    Size,
    SlurmName,
    Text,
    as_list,
    choice,
    whole,
)  # fmt: skip

#: How well a value is attested, and where it comes from: defined there so that a list of profiles needs no pydantic.
EVIDENCE = evidence.EVIDENCE
Evidence = evidence.Evidence

Names = Annotated[tuple[SlurmName, ...], BeforeValidator(as_list)]
Patterns = Annotated[tuple[Pattern, ...], BeforeValidator(as_list)]
Dialect = Annotated[Text, choice("gres", "gpus-per-node", "gpus", "none")]


class Detect(Section):
    """How a login node of the cluster is recognised; any one that matches is enough.

    Attributes:
        cluster_names: ClusterName of `scontrol show config`.
        hosts: regular expressions that match the whole of `hostname -f` or `hostname`.
        variables: environment variables that the site sets, and the pattern that their whole value matches.
    """

    cluster_names: Names = ()
    hosts: Patterns = ()
    variables: dict[str, Pattern] = Field(default_factory=dict)


class Slurm(Section):
    """The site's Slurm, where it differs from the usual.

    `array_tasks_are_jobs`: each task of an array counts by itself where the number of jobs is limited.
    """

    version: Text | None = None
    kill_wait: Annotated[int, whole(0, 86_400)] | None = None  # seconds between SIGTERM and SIGKILL
    max_array_size: Count | None = None  # the highest index is one less
    requeue_by_default: Boolean | None = None  # JobRequeue
    requeued_on_node_failure: Boolean | None = None
    requeue_allowed: Boolean | None = None  # false: neither `scontrol requeue` nor --requeue
    array_tasks_are_jobs: Boolean | None = None
    daemon: Text | None = None  # on compute nodes, where it is not slurmd
    note: Text | None = None


class TimeByNodes(Section):
    """A limit of time that holds for jobs of at least `nodes_min` nodes (and up to the next row)."""

    nodes_min: Count
    time_max: Seconds


class Partition(Section):
    """A partition. `whole_nodes` means that a job gets, and pays, every node whole, whatever it asked for.

    A preempted job has run for `preempted_after` seconds at least, and ends `grace` seconds after SIGTERM.
    """

    nodes: SlurmName | None = None  # key of `nodes:` at the profile's top
    default: Boolean = False
    time_max: Seconds | None = None
    time_default: Seconds | None = None
    time_by_nodes: Annotated[tuple[TimeByNodes, ...], BeforeValidator(as_list)] = ()
    nodes_min: Count | None = None
    nodes_max: Count | None = None
    jobs_max: Count | None = None  # submitted at a time, by one user
    running_max: Count | None = None  # of these, running
    gpus_max: Count | None = None
    whole_nodes: Boolean | None = None
    preemptible: Boolean | None = None
    preempted_after: Count | None = None
    grace: Count | None = None
    qos: Names = ()  # that it takes; empty: unknown
    accounts: Names = ()  # that it takes; empty: unknown
    note: Text | None = None


class Qos(Section):
    """A QOS and its limits. `lifts_partition_time`: its jobs may be longer than the partition allows (flag PartitionTimeLimit)."""

    time_max: Seconds | None = None
    lifts_partition_time: Boolean | None = None
    nodes_min: Count | None = None
    nodes_max: Count | None = None
    gpus_max: Count | None = None
    cpus_max: Count | None = None  # of all nodes of a job together
    jobs_max: Count | None = None  # submitted at a time, by one user
    note: Text | None = None


class Select(Section):
    """What lands a job on these nodes, where the partition alone does not."""

    constraint: Features | None = None
    account_suffix: Text | None = None  # the account must end so, such as @h100
    qos: Names = ()  # that go with these nodes


class NodeShape(Section):
    """One kind of GPU node. `cpus` are those that one job can have, as Slurm counts them.

    `memory_installed` means that `memory` is what is built into the node: an upper bound, of which a job gets somewhat less.
    `cpus_per_gpu_required`: the site wants no fewer than `cpus_per_gpu`.
    """

    gpus: Count
    gpu: Text | None = None
    gpu_memory: Size | None = None  # of each GPU
    vendor: Annotated[Text, choice("cuda", "rocm")] | None = None
    arch: Annotated[Text, choice("x86_64", "aarch64")] | None = None
    cpus: Count | None = None
    cpus_per_gpu: Count | None = None
    cpus_per_gpu_required: Boolean | None = None
    threads_per_core: Count | None = None
    memory: Size | None = None  # that one job can have
    memory_installed: Boolean = False
    count: Count | None = None
    modules_first: Annotated[tuple[Module, ...], BeforeValidator(as_list)] = ()  # that these nodes need before all others
    select: Select = Field(default_factory=Select)
    note: Text | None = None

    @property
    def cpus_for_each_gpu(self) -> int | None:
        """CPUs to ask for with each GPU: what the site says, else the GPU's share of the node."""
        return self.cpus_per_gpu or ((self.cpus or 0) // self.gpus if self.gpus else 0) or None

    @property
    def memory_for_each_gpu(self) -> int | None:
        """Bytes to ask for with one GPU, as `memory_for` says."""
        return self.memory_for(1)

    def memory_for(self, gpus: int) -> int | None:
        """Return the bytes to ask for with so many GPUs: their share of the node in whole GiB, rounded down once for all of them.

        Of what is built in, a tenth is left to the system. None where the memory is unknown, or the share is less than a GiB.
        """
        if not self.memory or not self.gpus:
            return None
        usable = self.memory * 9 // 10 if self.memory_installed else self.memory
        return usable * gpus // self.gpus >> 30 << 30 or None


class GpuRequest(Section):
    """How a job asks for GPUs.

    Attributes:
        dialect: the one directive, or `none` where the site forbids it or whole nodes make it needless.
        type: what stands before the count, such as `a100`.
        on_srun: srun needs `--gpus-per-node` although the directives have none.
        also: other dialects that the site takes.
    """

    dialect: Dialect | None = None
    type: Name | None = None
    on_srun: Boolean = False
    also: Annotated[tuple[Dialect, ...], BeforeValidator(as_list)] = ()
    note: Text | None = None


class Profile(Section):
    """A cluster. Every value in a shipped profile carries the level of its evidence and its source (`clusters.load`)."""

    name: Name  # of the file, without .yaml
    title: Text
    centre: Text | None = None
    docs: Text | None = None
    detect: Detect = Field(default_factory=Detect)
    slurm: Slurm = Field(default_factory=Slurm)
    partitions: dict[str, Partition] = Field(default_factory=dict)
    partition_required: Boolean = False
    qos: dict[str, Qos] = Field(default_factory=dict)
    qos_required: Boolean = False
    nodes: dict[str, NodeShape] = Field(default_factory=dict)
    defaults: Defaults = Field(default_factory=Defaults)
    gpu_request: GpuRequest = Field(default_factory=GpuRequest)
    directives: Directives = Field(default_factory=Directives)
    account: Account = Field(default_factory=Account)
    memory: Memory = Field(default_factory=Memory)
    modules: Modules = Field(default_factory=Modules)
    network: Network = Field(default_factory=Network)
    launch: Launch = Field(default_factory=Launch)
    internet: Internet = Field(default_factory=Internet)
    storage: dict[str, Storage] = Field(default_factory=dict)
    billing: Billing = Field(default_factory=Billing)
    login: Login = Field(default_factory=Login)
    poll_seconds_min: Count | None = None  # squeue may not be asked more often
    traps: Texts = ()

    def shape_name(self, *, partition: str | None, constraint: str | None = None, account: str | None = None) -> str | None:
        """Return the key of the node shape that a job lands on, or None where that is unknown.

        The constraint decides, then the partition, then the account's suffix, then the profile's default.
        """
        features = set(re.split(r"[&|,*()\[\]]+", constraint or "")) - {""}
        matching = [
            (len(set((shape.select.constraint or "").split("&"))), name)
            for name, shape in self.nodes.items()
            if shape.select.constraint and set(shape.select.constraint.split("&")) <= features
        ]
        if matching:
            return max(matching)[1]
        known = self.partitions.get(partition or "")
        if known is not None and known.nodes:
            return known.nodes
        for name, shape in self.nodes.items():
            if account and shape.select.account_suffix and account.lower().endswith(shape.select.account_suffix.lower()):
                return name
        if self.defaults.nodes:
            return self.defaults.nodes
        return next(iter(self.nodes)) if len(self.nodes) == 1 else None


@dataclass(frozen=True, slots=True)
class Cluster:
    """A profile with the evidence of its values, by path."""

    profile: Profile
    origins: Mapping[tuple[str, ...], Evidence] = field(default_factory=dict)

    def evidence(self, *path: str) -> str:
        """Return the words that say where the value at `path` (or the nearest section around it) comes from."""
        found = next((self.origins[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.origins), None)
        if found is None:
            return f"profile {self.profile.name}"
        return found.source if found.level == "live" else f"profile {self.profile.name}: {found}"
