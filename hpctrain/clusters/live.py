"""Parse the output of sinfo, scontrol and sacctmgr of Slurm 20.11 to 26.05. Unknown is None.

Pure; `clusters.discover` runs the programs. The formats of its queries are defined here, next to their
parsers. Recorded output of seven versions is in tests/clusters/recorded. Unrecognized input is
skipped: one unexpected value must not hide the rest.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hpctrain.slurm.notations import units

SEPARATOR = "\x1f"
#: sinfo -o, without widths, which would truncate: cluster, partition, availability, time limit,
#: nodes, CPUs, MB, threads per core, GRES, active features.
SINFO_FORMAT = SEPARATOR.join(("%V", "%P", "%a", "%l", "%D", "%c", "%m", "%Z", "%G", "%b"))
#: sacctmgr show user NAME withassoc, which lists the default account with the associations.
USER_FIELDS = (
    "User",
    "DefaultAccount",
    "Cluster",
    "Account",
    "Partition",
    "QOS",
    "DefaultQOS",
    "MaxWall",
)
#: sacctmgr show qos.
QOS_FIELDS = ("Name", "MaxWall", "MaxTRES", "MinTRES", "Flags")

#: Longer than any real list of GRES.
_MAX_GRES = 10_000
#: Slurm's values for unknown, not set or unlimited.
_NOTHING = frozenset(
    {"", "(null)", "n/a", "none", "unlimited", "infinite", "notset", "invalid", "unknown"}
)
_GRES_GPU = re.compile(
    r"gpu(?::(?P<type>(?!no_consume:)[^:=(),]+(?=:)))?(?::no_consume)?[:=](?P<count>\d{1,9})(?:\([^)]*\))?\Z",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveNodes:
    """Identical nodes of one partition (sinfo groups them).

    Attributes:
        gpus: GRES `gpu` type → count per node; the type is "" if the site defines none.
        memory: bytes of RealMemory.
        cpus: as Slurm counts them: hardware threads at sites that allocate threads.
        threads_per_core: ThreadsPerCore.
        features: active features.
    """

    count: int
    cpus: int | None = None
    threads_per_core: int | None = None
    memory: int | None = None
    gpus: tuple[tuple[str, int], ...] = ()
    features: tuple[str, ...] = ()

    @property
    def gpu_count(self) -> int:
        """GPUs of one node, all types together."""
        return sum(count for _, count in self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePartition:
    """One partition; None if Slurm reports UNLIMITED, NONE, n/a, or nothing."""

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
    exclusive: bool | None = None  # each job gets whole nodes
    allow_accounts: tuple[str, ...] | None = None  # None: all
    deny_accounts: tuple[str, ...] = ()
    allow_qos: tuple[str, ...] | None = None
    deny_qos: tuple[str, ...] = ()
    qos: str | None = None  # the partition's own QOS; its limits apply to every job
    nodes: tuple[LiveNodes, ...] = ()

    @property
    def gpus_max(self) -> int | None:
        """The most GPUs of any node; None if no node is known."""
        return max((group.gpu_count for group in self.nodes), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveQos:
    """A QOS as sacctmgr reports it."""

    name: str
    time_max: int | None = None
    nodes_max: int | None = None
    gpus_max: int | None = None  # per job
    cpus_max: int | None = None  # per job
    flags: tuple[str, ...] = ()
    nodes_min: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """An association of the user: account and partition (None: all) and their QOS."""

    account: str
    partition: str | None = None
    qos: tuple[str, ...] = ()
    default_qos: str | None = None
    time_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCluster:
    """All facts reported by Slurm.

    A failed query leaves None (not an empty tuple), and a sentence in `silent`.
    """

    cluster_name: str | None = None
    version: tuple[int, int] | None = None  # (22, 5)
    max_array_size: int | None = None
    job_requeue: bool | None = None
    enforces_accounts: bool | None = None  # AccountingStorageEnforce contains associations
    default_memory_per_cpu: int | None = None
    default_memory_per_node: int | None = None
    partitions: tuple[LivePartition, ...] | None = None
    qos: tuple[LiveQos, ...] | None = None
    associations: tuple[Association, ...] | None = None
    default_account: str | None = None
    silent: tuple[str, ...] = ()

    def partition(self, name: str | None) -> LivePartition | None:
        """Return the partition of that name; without a name, the default one."""
        for each in self.partitions or ():
            if each.name == name or (name is None and each.default):
                return each
        return None

    @property
    def accounts(self) -> tuple[str, ...] | None:
        """The user's own accounts, in order; None if accounting did not answer."""
        if self.associations is None:
            return None
        return tuple(dict.fromkeys(each.account for each in self.associations))


def printable(text: str) -> str:
    """Return `text` without unprintable characters, such as terminal escapes; line breaks stay."""
    return "".join(each for each in text if each.isprintable() or each in "\n\t" + SEPARATOR)


def parse_sinfo(text: str) -> tuple[LivePartition, ...]:
    """Return the partitions of `sinfo -h -e -o SINFO_FORMAT`, each with its kinds of nodes.

    If SLURM_CLUSTERS makes sinfo list several clusters, only the first one's are returned.
    """
    found: dict[str, LivePartition] = {}
    groups: dict[str, Counter[LiveNodes]] = {}
    rows = [
        fields
        for line in printable(text).splitlines()
        if len(fields := [field.strip() for field in line.split(SEPARATOR)]) == 10
    ]
    for cluster, label, state, limit, count, cpus, memory, threads, gres, features in rows:
        if cluster != rows[0][0] or not label:
            continue
        name = label.rstrip("*")
        found[name] = LivePartition(
            name=name,
            default=label != name,
            up=_up(state),
            time_max=units.parse_reported_time(limit),
        )
        kind = LiveNodes(
            count=0,
            cpus=_count(cpus.rstrip("+")),
            memory=_mebibytes(memory.rstrip("+")),
            threads_per_core=_count(threads.rstrip("+")),
            gpus=gpus_in(gres),
            features=_names(features),
        )
        # sinfo separates nodes whose GPUs are on other sockets.
        groups.setdefault(name, Counter())[kind] += _count(count) or 0
    return tuple(
        replace(
            partition,
            nodes=tuple(replace(kind, count=n) for kind, n in groups[name].items() if n),
        )
        for name, partition in found.items()
    )


def parse_partitions(text: str) -> tuple[LivePartition, ...]:
    """Return the partitions of `scontrol show partition -o`, without their nodes."""
    found = []
    for line in printable(text).replace(SEPARATOR, "").splitlines():
        fields = defaultdict(str, re.findall(r"(?<!\w)(\w+)=(\S*)", line))
        if not line.startswith("PartitionName="):
            continue
        # Exclusive=NODE since 26.05, OverSubscribe=EXCLUSIVE before; EXCLUSIVE:USER shares nodes
        # among one user's jobs.
        sharing = fields["Exclusive"] or fields["OverSubscribe"]
        found.append(
            LivePartition(
                name=fields["PartitionName"],
                default=fields["Default"].upper() == "YES",
                up=_up(fields["State"]),
                time_max=units.parse_reported_time(fields["MaxTime"]),
                time_default=units.parse_reported_time(fields["DefaultTime"]),
                nodes_max=_count(fields["MaxNodes"]),
                nodes_min=_count(fields["MinNodes"]) or None,
                default_memory_per_cpu=_mebibytes(fields["DefMemPerCPU"]),
                default_memory_per_node=_mebibytes(fields["DefMemPerNode"]),
                memory_max_per_node=_mebibytes(fields["MaxMemPerNode"]),
                exclusive=sharing.upper() in ("NODE", "EXCLUSIVE") if sharing else None,
                allow_accounts=_allowed(fields["AllowAccounts"]),
                deny_accounts=_names(fields["DenyAccounts"]),
                allow_qos=_allowed(fields["AllowQos"]),
                deny_qos=_names(fields["DenyQos"]),
                qos=_known(fields["QoS"]),
            )
        )
    return tuple(found)


def parse_config(text: str) -> LiveCluster:
    """Return the facts of `scontrol show config`; all others are unknown."""
    lines = re.findall(r"^(\w[\w\[\]]*)\s*= ?(.*)$", printable(text), re.MULTILINE)
    fields = defaultdict(str, ((key, value.strip()) for key, value in lines))
    version = re.match(r"(\d{1,4})\.(\d{1,4})(?!\d)", fields["SLURM_VERSION"])
    enforced = set(fields["AccountingStorageEnforce"].split(",")) - {""}
    return LiveCluster(
        cluster_name=_known(fields["ClusterName"]),
        version=(int(version[1]), int(version[2])) if version else None,
        max_array_size=_count(fields["MaxArraySize"]),
        job_requeue={"1": True, "0": False}.get(fields["JobRequeue"]),
        enforces_accounts=(
            bool({"associations", "limits", "qos", "safe", "all"} & enforced) if enforced else None
        ),
        default_memory_per_cpu=_mebibytes(fields["DefMemPerCPU"]),
        default_memory_per_node=_mebibytes(fields["DefMemPerNode"]),
    )


def parse_users(text: str, *, cluster: str | None) -> tuple[tuple[Association, ...], str | None]:
    """Return the associations on `cluster` (None: on all) and the default account, from `sacctmgr
    -nP show user NAME withassoc`.
    """
    found: list[Association] = []
    default = None
    for row in _rows(text, USER_FIELDS):
        elsewhere = cluster is not None and row["Cluster"].lower() != cluster.lower()
        if not row["Account"] or elsewhere:
            continue
        default = _known(row["DefaultAccount"]) or default
        found.append(
            Association(
                account=row["Account"],
                partition=_known(row["Partition"]),
                qos=_names(row["QOS"]),
                default_qos=_known(row["DefaultQOS"]),
                time_max=units.parse_reported_time(row["MaxWall"]),
            )
        )
    return tuple(found), default


def parse_qos(text: str) -> tuple[LiveQos, ...]:
    """Return the QOS of `sacctmgr -nP show qos format=QOS_FIELDS`."""
    return tuple(
        LiveQos(
            name=row["Name"],
            time_max=units.parse_reported_time(row["MaxWall"]),
            nodes_max=tres(row["MaxTRES"]).get("node"),
            gpus_max=tres(row["MaxTRES"]).get("gres/gpu"),
            cpus_max=tres(row["MaxTRES"]).get("cpu"),
            flags=_names(row["Flags"]),
            nodes_min=tres(row["MinTRES"]).get("node"),
        )
        for row in _rows(text, QOS_FIELDS)
    )


def gpus_in(gres: str) -> tuple[tuple[str, int], ...]:
    """Return GPU type ("" if unnamed) → count of a GRES string: `gpu:a100:4(S:0-1),mps:400` has
    four a100.

    MPS and shards are parts of GPUs, not GPUs, and do not count. MIG slices do: Slurm allocates
    them as GPUs.
    """
    counts = Counter[str]()
    for item in re.split(r",(?![^(]*\))", gres.strip()) if len(gres) <= _MAX_GRES else ():
        match = _GRES_GPU.match(item.strip())
        if match is not None:
            counts[match["type"] or ""] += int(match["count"])
    return tuple((kind, count) for kind, count in counts.items() if count)


def tres(text: str) -> dict[str, int]:
    """Return the counts of a TRES string without memory: `cpu=64,gres/gpu=8,node=4`."""
    return {
        key: int(count) for key, count in re.findall(r"(?:^|,)([^=,]+)=(\d{1,18})(?=,|$)", text)
    }


def _rows(text: str, names: Sequence[str]) -> Iterator[Mapping[str, str]]:
    for line in printable(text).replace(SEPARATOR, "").splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) == len(names):
            yield dict(zip(names, fields, strict=True))


def _known(text: str) -> str | None:
    return None if text.strip().lower() in _NOTHING else text.strip()


def _count(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,12}", text.strip()) else None


def _mebibytes(text: str) -> int | None:
    """Convert Slurm's MB, which are MiB, to bytes; 0 means no limit, like UNLIMITED."""
    return (_count(text) or 0) * 1024**2 or None


def _up(text: str) -> bool | None:
    return None if _known(text) is None else text.upper() == "UP"


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in (_known(text) or "").split(",") if name)


def _allowed(text: str) -> tuple[str, ...] | None:
    return None if _known(text) is None or text.upper() == "ALL" else _names(text)
