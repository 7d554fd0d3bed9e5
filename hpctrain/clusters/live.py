"""What the live scheduler says about itself: frozen facts as parsed from sinfo, scontrol and sacctmgr. Unknown is None.

Pure. `clusters.slurm_text` makes these from text, `scheduler.discover` runs the programs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveNodes:
    """Nodes of one partition that are alike (sinfo groups them).

    Attributes:
        gpus: GRES `gpu` type → count per node; the type is "" where the site names none.
        memory: bytes of RealMemory.
        cpus: as Slurm counts them, hardware threads where the site hands those out.
        threads_per_core: ThreadsPerCore.
        features: active features.
        idle: how many of `count` are idle now.
    """

    count: int
    cpus: int | None = None
    threads_per_core: int | None = None
    memory: int | None = None
    gpus: tuple[tuple[str, int], ...] = ()
    features: tuple[str, ...] = ()
    idle: int | None = None

    @property
    def gpu_count(self) -> int:
        """GPUs of one node, all types together."""
        return sum(count for _, count in self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePartition:
    """One partition; None where Slurm says UNLIMITED, NONE or n/a, or nothing."""

    name: str
    default: bool = False
    up: bool | None = None
    time_max: int | None = None  # seconds
    time_default: int | None = None
    nodes_max: int | None = None
    nodes_min: int | None = None
    default_memory_per_cpu: int | None = None  # bytes
    default_memory_per_node: int | None = None
    memory_max_per_node: int | None = None
    memory_max_per_cpu: int | None = None
    exclusive: bool | None = None  # OverSubscribe=EXCLUSIVE: whole nodes
    allow_accounts: tuple[str, ...] | None = None  # None: all
    deny_accounts: tuple[str, ...] = ()
    allow_qos: tuple[str, ...] | None = None
    deny_qos: tuple[str, ...] = ()
    qos: str | None = None  # the partition's own QOS, whose limits hold for every job in it
    nodes: tuple[LiveNodes, ...] = ()

    @property
    def gpus_max(self) -> int | None:
        """The most GPUs that one node has; None where no node is known."""
        return max((group.gpu_count for group in self.nodes), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveQos:
    """A QOS as sacctmgr shows it."""

    name: str
    time_max: int | None = None
    nodes_max: int | None = None
    gpus_max: int | None = None  # per job
    cpus_max: int | None = None  # per job
    jobs_max: int | None = None  # running, per user
    submit_max: int | None = None
    flags: tuple[str, ...] = ()
    gpus_max_per_user: int | None = None  # of all running jobs together
    nodes_max_per_user: int | None = None
    nodes_min: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """One of the user's own: account and partition (None: all) and the QOS that go with it."""

    account: str
    partition: str | None = None
    qos: tuple[str, ...] = ()
    default_qos: str | None = None
    time_max: int | None = None
    submit_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCluster:
    """Everything that Slurm said. A whole query that failed leaves None (not an empty tuple), and a sentence in `silent`."""

    cluster_name: str | None = None
    version: tuple[int, int] | None = None  # (22, 5)
    max_array_size: int | None = None
    kill_wait: int | None = None
    job_requeue: bool | None = None
    enforces_accounts: bool | None = None  # AccountingStorageEnforce holds associations
    enforces_part_limits: bool | None = None
    default_memory_per_cpu: int | None = None
    default_memory_per_node: int | None = None
    whole_nodes: bool | None = None  # select/linear: a job gets its nodes whole in every partition
    partitions: tuple[LivePartition, ...] | None = None
    qos: tuple[LiveQos, ...] | None = None
    associations: tuple[Association, ...] | None = None
    default_account: str | None = None
    silent: tuple[str, ...] = ()

    def partition(self, name: str | None) -> LivePartition | None:
        """Return the partition of that name; without a name, the default one."""
        return next((each for each in self.partitions or () if each.name == name or (name is None and each.default)), None)

    @property
    def accounts(self) -> tuple[str, ...] | None:
        """The user's own accounts, in order; None where accounting did not answer."""
        return None if self.associations is None else tuple(dict.fromkeys(each.account for each in self.associations))
