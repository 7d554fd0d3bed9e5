"""Parse the output of sinfo, scontrol and sacctmgr of Slurm 20.11 to 26.05. Unknown is None.

Pure; `clusters.discover` runs the programs. The formats of its queries are defined here, next to their
parsers. Recorded output of seven versions is in tests/clusters/recorded. Unrecognized input is
skipped: one unexpected value must not hide the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hpctrain.slurm.notations import units

SEPARATOR = "\x1f"
#: sinfo -o, without widths, which would truncate: cluster, partition, availability, time limit and
#: default, job size, sharing, nodes, nodes allocated/idle/other/total, CPUs, MB, threads per core,
#: GRES, active features.
SINFO_FORMAT = SEPARATOR.join(
    ("%V", "%P", "%a", "%l", "%L", "%s", "%h", "%D", "%F", "%c", "%m", "%Z", "%G", "%b")
)
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
    "MaxSubmitJobs",
)
#: sacctmgr show qos.
QOS_FIELDS = (
    "Name",
    "MaxWall",
    "MaxTRES",
    "MaxTRESPU",
    "MaxJobsPU",
    "MaxSubmitPU",
    "MinTRES",
    "Flags",
)

_MIB = 1024**2
#: Longer than any real list of GRES.
_MAX_GRES = 10_000
#: Slurm's values for unknown, not set or unlimited.
_NOTHING = frozenset(
    {"", "(null)", "n/a", "none", "unlimited", "infinite", "notset", "invalid", "unknown"}
)
_GRES_GPU = re.compile(
    r"gpu(?::(?P<type>(?!no_consume:)[^:=(),]+(?=:)))?(?::no_consume)?[:=](?P<count>\d{1,9})(?P<unit>[KM]?)(?:\([^)]*\))?\Z",
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
    exclusive: bool | None = None  # OverSubscribe=EXCLUSIVE: whole nodes
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
    submit_max: int | None = None
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
    kill_wait: int | None = None  # `init --json` prints all of it
    job_requeue: bool | None = None
    enforces_accounts: bool | None = None  # AccountingStorageEnforce contains associations
    default_memory_per_cpu: int | None = None
    default_memory_per_node: int | None = None
    whole_nodes: bool | None = None  # select/linear: whole nodes in every partition
    partitions: tuple[LivePartition, ...] | None = None
    qos: tuple[LiveQos, ...] | None = None
    associations: tuple[Association, ...] | None = None
    default_account: str | None = None
    silent: tuple[str, ...] = ()

    def partition(self, name: str | None) -> LivePartition | None:
        """Return the partition of that name; without a name, the default one."""
        return next(
            (
                each
                for each in self.partitions or ()
                if each.name == name or (name is None and each.default)
            ),
            None,
        )

    @property
    def accounts(self) -> tuple[str, ...] | None:
        """The user's own accounts, in order; None if accounting did not answer."""
        return (
            None
            if self.associations is None
            else tuple(dict.fromkeys(each.account for each in self.associations))
        )


def printable(text: str) -> str:
    """Return `text` without unprintable characters, such as terminal escapes; line breaks stay."""
    if text.replace("\n", "").replace(SEPARATOR, "").isprintable():  # the usual case, and fast
        return text
    return "".join(
        character
        for character in text
        if character.isprintable() or character in "\n\t" + SEPARATOR
    )


def parse_sinfo(text: str) -> tuple[LivePartition, ...]:
    """Return the partitions of `sinfo -h -e -o SINFO_FORMAT`, each with its kinds of nodes.

    If SLURM_CLUSTERS makes sinfo list several clusters, only the first one's are returned.
    """
    found: dict[str, LivePartition] = {}
    first: str | None = None
    for line in printable(text).splitlines():
        fields = [field.strip() for field in line.split(SEPARATOR)]
        if len(fields) != 14 or not fields[1]:
            continue  # a warning, or the `CLUSTER:` line
        first = fields[0] if first is None else first
        if fields[0] != first:
            continue
        name, (low, high) = fields[1].rstrip("*"), _range(fields[5])
        known = found.get(name) or LivePartition(
            name=name,
            default=fields[1].endswith("*"),
            up=_up(fields[2]),
            time_max=_seconds(fields[3]),
            time_default=_seconds(fields[4]),
            nodes_min=low,
            nodes_max=high,
            # From 26.05 on, sinfo also reports NO for partitions that allocate whole nodes, so NO
            # means unknown.
            exclusive=_exclusive(fields[6]) or None,
        )
        nodes = _nodes(fields)
        found[name] = replace(known, nodes=_with(known.nodes, nodes)) if nodes else known
    return tuple(found.values())


def parse_partitions(text: str) -> tuple[LivePartition, ...]:
    """Return the partitions of `scontrol show partition -o`, without their nodes."""
    found = []
    for line in printable(text).replace(SEPARATOR, "").splitlines():
        if not line.startswith("PartitionName="):
            continue
        fields = dict(re.findall(r"(?<!\w)(\w+)=(\S*)", line))
        found.append(
            LivePartition(
                name=fields["PartitionName"],
                default=fields.get("Default", "").upper() == "YES",
                up=_up(fields.get("State")),
                time_max=_seconds(fields.get("MaxTime")),
                time_default=_seconds(fields.get("DefaultTime")),
                nodes_max=_count(fields.get("MaxNodes")),
                nodes_min=_count(fields.get("MinNodes")) or None,
                default_memory_per_cpu=_mebibytes(fields.get("DefMemPerCPU")),
                default_memory_per_node=_mebibytes(fields.get("DefMemPerNode")),
                memory_max_per_node=_mebibytes(fields.get("MaxMemPerNode")),
                exclusive=_whole_nodes(fields),
                allow_accounts=_allowed(fields.get("AllowAccounts")),
                deny_accounts=_names(fields.get("DenyAccounts")),
                allow_qos=_allowed(fields.get("AllowQos")),
                deny_qos=_names(fields.get("DenyQos")),
                qos=_known(fields.get("QoS")),
            )
        )
    return tuple(found)


def parse_config(text: str) -> LiveCluster:
    """Return the facts of `scontrol show config`; all others are unknown."""
    text = printable(text).replace(SEPARATOR, "")
    fields = {
        key: value.strip()
        for key, value in re.findall(r"^(\w[\w\[\]]*)\s*= ?(.*)$", text, re.MULTILINE)
    }
    version = re.match(r"(\d{1,4})\.(\d{1,4})(?!\d)", fields.get("SLURM_VERSION", ""))
    enforce = fields.get("AccountingStorageEnforce")
    select = _known(fields.get("SelectType"))
    return LiveCluster(
        cluster_name=_known(fields.get("ClusterName")),
        version=(int(version[1]), int(version[2])) if version else None,
        max_array_size=_count(fields.get("MaxArraySize")),
        kill_wait=_count(fields.get("KillWait", "").removesuffix(" sec")),
        job_requeue={"1": True, "0": False}.get(fields.get("JobRequeue", "")),
        enforces_accounts=(
            None
            if enforce is None
            else bool({"associations", "limits", "qos", "safe", "all"} & set(enforce.split(",")))
        ),
        default_memory_per_cpu=_mebibytes(fields.get("DefMemPerCPU")),
        default_memory_per_node=_mebibytes(fields.get("DefMemPerNode")),
        whole_nodes=None if select is None else select == "select/linear",
    )


def parse_users(text: str, *, cluster: str | None) -> tuple[tuple[Association, ...], str | None]:
    """Return the associations on `cluster` (None: on all) and the default account, from `sacctmgr
    -nP show user NAME withassoc`.
    """
    found: list[Association] = []
    default = None
    for row in _rows(text, USER_FIELDS):
        if not row["Account"] or (
            cluster is not None and row["Cluster"].lower() != cluster.lower()
        ):
            continue
        default = _known(row["DefaultAccount"]) or default
        found.append(
            Association(
                account=row["Account"],
                partition=_known(row["Partition"]),
                qos=_names(row["QOS"]),
                default_qos=_known(row["DefaultQOS"]),
                time_max=_seconds(row["MaxWall"]),
            )
        )
    return tuple(found), default


def parse_qos(text: str) -> tuple[LiveQos, ...]:
    """Return the QOS of `sacctmgr -nP show qos format=QOS_FIELDS`."""
    found = []
    for row in _rows(text, QOS_FIELDS):
        job = tres(row["MaxTRES"])
        found.append(
            LiveQos(
                name=row["Name"],
                time_max=_seconds(row["MaxWall"]),
                nodes_max=job.get("node"),
                gpus_max=job.get("gres/gpu"),
                submit_max=_count(row["MaxSubmitPU"]),
                flags=_names(row["Flags"]),
                nodes_min=tres(row["MinTRES"]).get("node"),
                cpus_max=job.get("cpu"),
            )
        )
    return tuple(found)


def gpus_in(gres: str) -> tuple[tuple[str, int], ...]:
    """Return GPU type ("" if unnamed) → count of a GRES string: `gpu:a100:4(S:0-1),mps:400` has
    four a100.

    MPS and shards are parts of GPUs, not GPUs, and do not count. MIG slices do: Slurm allocates
    them as GPUs.
    """
    counts: dict[str, int] = {}
    for item in re.split(r",(?![^(]*\))", gres.strip()) if len(gres) <= _MAX_GRES else ():
        match = _GRES_GPU.match(item.strip())
        if match is not None:
            count = int(match["count"]) * {"": 1, "K": 1024, "M": _MIB}[match["unit"].upper()]
            counts[match["type"] or ""] = counts.get(match["type"] or "", 0) + count
    return tuple((kind, count) for kind, count in counts.items() if count)


def tres(text: str) -> dict[str, int]:
    """Return the counts of a TRES string without memory: `cpu=64,gres/gpu=8,node=4`."""
    return {
        key: int(count) for key, count in re.findall(r"(?:^|,)([^=,]+)=(\d{1,18})(?=,|$)", text)
    }


def joined(
    shown: Sequence[LivePartition] | None, configured: Sequence[LivePartition] | None
) -> tuple[LivePartition, ...] | None:
    """Merge the partitions of sinfo and scontrol: scontrol reports more fields, only sinfo lists
    the nodes.
    """
    if shown is None or configured is None:
        either = shown if configured is None else configured
        return None if either is None else tuple(either)
    nodes = {each.name: each.nodes for each in shown}
    known = {each.name for each in configured}
    return (
        *(replace(each, nodes=nodes.get(each.name, ())) for each in configured),
        *(each for each in shown if each.name not in known),
    )


def _nodes(fields: Sequence[str]) -> LiveNodes | None:
    count, states = _count(fields[7]), fields[8].split("/")
    if not count:
        return None
    return LiveNodes(
        count=count,
        cpus=_count(fields[9].rstrip("+")),
        memory=_mebibytes(fields[10].rstrip("+")),
        threads_per_core=_count(fields[11].rstrip("+")),
        gpus=gpus_in(fields[12]),
        features=_names(fields[13]),
        idle=_count(states[1]) if len(states) == 4 else None,
    )


def _with(groups: tuple[LiveNodes, ...], more: LiveNodes) -> tuple[LiveNodes, ...]:
    """Return `groups` with `more` added; sinfo separates nodes whose GPUs are on other sockets."""
    for index, group in enumerate(groups):
        if replace(group, count=0, idle=None) == replace(more, count=0, idle=None):
            idle = None if group.idle is None or more.idle is None else group.idle + more.idle
            return (
                *groups[:index],
                replace(group, count=group.count + more.count, idle=idle),
                *groups[index + 1 :],
            )
    return (*groups, more)


def _rows(text: str, names: Sequence[str]) -> Iterator[Mapping[str, str]]:
    for line in printable(text).replace(SEPARATOR, "").splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) == len(names):
            yield dict(zip(names, fields, strict=True))


def _known(text: str | None) -> str | None:
    return None if text is None or text.strip().lower() in _NOTHING else text.strip()


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,12}", text.strip()) else None


def _seconds(text: str | None) -> int | None:
    return units.parse_reported_time(text or "")


def _mebibytes(text: str | None) -> int | None:
    """Convert Slurm's MB, which are MiB, to bytes; 0 means no limit, like UNLIMITED."""
    count = _count(text)
    return count * _MIB if count else None


def _range(text: str) -> tuple[int | None, int | None]:
    low, dash, high = text.partition("-")
    least = _count(low)
    return (least if least and least > 1 else None), _count(high if dash else low)


def _exclusive(text: str | None) -> bool | None:
    """Return whether each job gets whole nodes.

    EXCLUSIVE:USER, which sinfo never prints, shares them among one user's jobs.
    """
    return (
        None if text is None or text.lower() in _NOTHING - {"none"} else text.upper() == "EXCLUSIVE"
    )


def _whole_nodes(fields: Mapping[str, str]) -> bool | None:
    """Return whether each job of a partition gets whole nodes: Exclusive=NODE since 26.05,
    OverSubscribe=EXCLUSIVE before.
    """
    if "Exclusive" in fields:
        return fields["Exclusive"].upper() == "NODE"
    return _exclusive(fields.get("OverSubscribe"))


def _up(text: str | None) -> bool | None:
    return None if _known(text) is None else str(text).upper() == "UP"


def _names(text: str | None) -> tuple[str, ...]:
    known = _known(text)
    return () if known is None else tuple(name for name in known.split(",") if name)


def _allowed(text: str | None) -> tuple[str, ...] | None:
    return None if _known(text) is None or str(text).upper() == "ALL" else _names(text)
