"""The text of sinfo, scontrol and sacctmgr → `clusters.live`, in the words of Slurm 20.11 to 26.05. Unknown is None.

Pure. The formats that `scheduler.discover` asks for stand here, beside what reads them. Recorded answers of seven versions are in
tests/clusters/recorded. What is not understood is passed over: one odd word must not hide the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hpctrain.clusters.live import Association, LiveCluster, LiveNodes, LivePartition, LiveQos
from hpctrain.scheduler.parse import duration

SEPARATOR = "\x1f"
#: sinfo -o, without widths, which would cut: cluster, partition, availability, time limit and default, job size, sharing, nodes, nodes
#: allocated/idle/other/total, CPUs, MB, threads per core, GRES, active features.
SINFO_FORMAT = SEPARATOR.join(("%V", "%P", "%a", "%l", "%L", "%s", "%h", "%D", "%F", "%c", "%m", "%Z", "%G", "%b"))
#: sacctmgr show user NAME withassoc, which shows the default account beside the associations.
USER_FIELDS = ("User", "DefaultAccount", "Cluster", "Account", "Partition", "QOS", "DefaultQOS", "MaxWall", "MaxSubmitJobs")
#: sacctmgr show qos.
QOS_FIELDS = ("Name", "MaxWall", "MaxTRES", "MaxTRESPU", "MaxJobsPU", "MaxSubmitPU", "MinTRES", "Flags")

_MIB = 1024**2
#: Longer than any list of GRES.
_MAX_GRES = 10_000
#: How Slurm says that something is not known, not set or not limited.
_NOTHING = frozenset({"", "(null)", "n/a", "none", "unlimited", "infinite", "notset", "invalid", "unknown"})
_GRES_GPU = re.compile(
    r"gpu(?::(?P<type>(?!no_consume:)[^:=(),]+(?=:)))?(?::no_consume)?[:=](?P<count>\d{1,9})(?P<unit>[KM]?)(?:\([^)]*\))?\Z", re.IGNORECASE
)


def printable(text: str) -> str:
    """Return `text` without what is no printable character, such as the start of a terminal's escape sequences; lines stay lines."""
    if text.replace("\n", "").replace(SEPARATOR, "").isprintable():  # as all of them should be, and fast
        return text
    return "".join(character for character in text if character.isprintable() or character in "\n\t" + SEPARATOR)


def parse_sinfo(text: str) -> tuple[LivePartition, ...]:
    """Return the partitions of `sinfo -h -e -o SINFO_FORMAT`, each with its kinds of nodes.

    Where SLURM_CLUSTERS makes sinfo show several clusters, those of the first are returned.
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
            name=name, default=fields[1].endswith("*"), up=_up(fields[2]),
            time_max=_seconds(fields[3]), time_default=_seconds(fields[4]), nodes_min=low, nodes_max=high,
            # From 26.05 on sinfo says NO of partitions that hand out whole nodes too, so its NO says nothing.
            exclusive=_exclusive(fields[6]) or None,
        )  # fmt: skip
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
                name=fields["PartitionName"], default=fields.get("Default", "").upper() == "YES", up=_up(fields.get("State")),
                time_max=_seconds(fields.get("MaxTime")), time_default=_seconds(fields.get("DefaultTime")),
                nodes_max=_count(fields.get("MaxNodes")), nodes_min=_count(fields.get("MinNodes")) or None,
                default_memory_per_cpu=_mebibytes(fields.get("DefMemPerCPU")),
                default_memory_per_node=_mebibytes(fields.get("DefMemPerNode")),
                memory_max_per_node=_mebibytes(fields.get("MaxMemPerNode")), memory_max_per_cpu=_mebibytes(fields.get("MaxMemPerCPU")),
                exclusive=_whole_nodes(fields), allow_accounts=_allowed(fields.get("AllowAccounts")),
                deny_accounts=_names(fields.get("DenyAccounts")), allow_qos=_allowed(fields.get("AllowQos")),
                deny_qos=_names(fields.get("DenyQos")), qos=_known(fields.get("QoS")),
            )
        )  # fmt: skip
    return tuple(found)


def parse_config(text: str) -> LiveCluster:
    """Return what `scontrol show config` says; everything else of the cluster is unknown."""
    text = printable(text).replace(SEPARATOR, "")
    fields = {key: value.strip() for key, value in re.findall(r"^(\w[\w\[\]]*)\s*= ?(.*)$", text, re.MULTILINE)}
    version = re.match(r"(\d{1,4})\.(\d{1,4})(?!\d)", fields.get("SLURM_VERSION", ""))
    enforce = fields.get("AccountingStorageEnforce")
    select = _known(fields.get("SelectType"))
    return LiveCluster(
        cluster_name=_known(fields.get("ClusterName")),
        version=(int(version[1]), int(version[2])) if version else None,
        max_array_size=_count(fields.get("MaxArraySize")),
        kill_wait=_count(fields.get("KillWait", "").removesuffix(" sec")),
        job_requeue=_flag(fields.get("JobRequeue")),
        enforces_accounts=None if enforce is None else bool({"associations", "limits", "qos", "safe", "all"} & set(enforce.split(","))),
        enforces_part_limits=_flag(fields.get("EnforcePartLimits")),
        default_memory_per_cpu=_mebibytes(fields.get("DefMemPerCPU")),
        default_memory_per_node=_mebibytes(fields.get("DefMemPerNode")),
        whole_nodes=None if select is None else select == "select/linear",
    )


def parse_users(text: str, *, cluster: str | None) -> tuple[tuple[Association, ...], str | None]:
    """Return the associations on `cluster` (None: on all) and the default account, of `sacctmgr -nP show user NAME withassoc`."""
    found: list[Association] = []
    default = None
    for row in _rows(text, USER_FIELDS):
        if not row["Account"] or (cluster is not None and row["Cluster"].lower() != cluster.lower()):
            continue
        default = _known(row["DefaultAccount"]) or default
        found.append(
            Association(
                account=row["Account"], partition=_known(row["Partition"]), qos=_names(row["QOS"]),
                default_qos=_known(row["DefaultQOS"]), time_max=_seconds(row["MaxWall"]), submit_max=_count(row["MaxSubmitJobs"]),
            )
        )  # fmt: skip
    return tuple(found), default


def parse_qos(text: str) -> tuple[LiveQos, ...]:
    """Return the QOS of `sacctmgr -nP show qos format=QOS_FIELDS`."""
    found = []
    for row in _rows(text, QOS_FIELDS):
        job, user = tres(row["MaxTRES"]), tres(row["MaxTRESPU"])
        found.append(
            LiveQos(
                name=row["Name"], time_max=_seconds(row["MaxWall"]), nodes_max=job.get("node"), gpus_max=job.get("gres/gpu"),
                jobs_max=_count(row["MaxJobsPU"]), submit_max=_count(row["MaxSubmitPU"]), flags=_names(row["Flags"]),
                gpus_max_per_user=user.get("gres/gpu"), nodes_max_per_user=user.get("node"), nodes_min=tres(row["MinTRES"]).get("node"),
                cpus_max=job.get("cpu"),
            )
        )  # fmt: skip
    return tuple(found)


def gpus_in(gres: str) -> tuple[tuple[str, int], ...]:
    """Return GPU type ("" where none is named) → count of a GRES string: `gpu:a100:4(S:0-1),mps:400` has four a100.

    MPS and shards are parts of GPUs, and no GPUs. Slices by MIG are counted: Slurm hands them out as GPUs.
    """
    counts: dict[str, int] = {}
    for item in re.split(r",(?![^(]*\))", gres.strip()) if len(gres) <= _MAX_GRES else ():
        match = _GRES_GPU.match(item.strip())
        if match is not None:
            count = int(match["count"]) * {"": 1, "K": 1024, "M": _MIB}[match["unit"].upper()]
            counts[match["type"] or ""] = counts.get(match["type"] or "", 0) + count
    return tuple((kind, count) for kind, count in counts.items() if count)


def tres(text: str) -> dict[str, int]:
    """Return the counts of a TRES string: `cpu=64,gres/gpu=8,node=4`; memory, which has units, stays out."""
    return {key: int(count) for key, count in re.findall(r"(?:^|,)([^=,]+)=(\d{1,18})(?=,|$)", text)}


def joined(shown: Sequence[LivePartition] | None, configured: Sequence[LivePartition] | None) -> tuple[LivePartition, ...] | None:
    """Return the partitions of sinfo and scontrol as one; scontrol knows more, sinfo alone has seen the nodes."""
    if shown is None or configured is None:
        either = shown if configured is None else configured
        return None if either is None else tuple(either)
    nodes = {each.name: each.nodes for each in shown}
    known = {each.name for each in configured}
    return (*(replace(each, nodes=nodes.get(each.name, ())) for each in configured), *(each for each in shown if each.name not in known))


def _nodes(fields: Sequence[str]) -> LiveNodes | None:
    """Return the nodes in one row of sinfo; None for a partition without any."""
    count, states = _count(fields[7]), fields[8].split("/")
    if not count:
        return None
    return LiveNodes(
        count=count, cpus=_count(fields[9].rstrip("+")), memory=_mebibytes(fields[10].rstrip("+")),
        threads_per_core=_count(fields[11].rstrip("+")), gpus=gpus_in(fields[12]), features=_names(fields[13]),
        idle=_count(states[1]) if len(states) == 4 else None,
    )  # fmt: skip


def _with(groups: tuple[LiveNodes, ...], more: LiveNodes) -> tuple[LiveNodes, ...]:
    """Return `groups` with `more` in it; sinfo keeps nodes apart that differ in nothing but the sockets of their GPUs."""
    for index, group in enumerate(groups):
        if replace(group, count=0, idle=None) == replace(more, count=0, idle=None):
            idle = None if group.idle is None or more.idle is None else group.idle + more.idle
            return (*groups[:index], replace(group, count=group.count + more.count, idle=idle), *groups[index + 1 :])
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
    return duration.parse_reported(text or "")


def _mebibytes(text: str | None) -> int | None:
    """Return the bytes of a number of MB, which are MiB; 0 means no limit, as UNLIMITED does."""
    count = _count(text)
    return count * _MIB if count else None


def _range(text: str) -> tuple[int | None, int | None]:
    """Return the smallest and the largest job in `1-2`, `1-infinite` or `1`; one node is the least anyway, and says nothing."""
    low, dash, high = text.partition("-")
    least = _count(low)
    return (least if least and least > 1 else None), _count(high if dash else low)


def _exclusive(text: str | None) -> bool | None:
    """Return whether each job gets its nodes whole. EXCLUSIVE:USER, which sinfo never says, shares them among one user's jobs."""
    return None if text is None or text.lower() in _NOTHING - {"none"} else text.upper() == "EXCLUSIVE"


def _whole_nodes(fields: Mapping[str, str]) -> bool | None:
    """Return whether each job of a partition gets its nodes whole: Exclusive=NODE since 26.05, OverSubscribe=EXCLUSIVE before."""
    if "Exclusive" in fields:
        return fields["Exclusive"].upper() == "NODE"
    return _exclusive(fields.get("OverSubscribe"))


def _up(text: str | None) -> bool | None:
    return None if _known(text) is None else str(text).upper() == "UP"


def _flag(text: str | None) -> bool | None:
    """Return whether a switch is on; EnforcePartLimits has three more words for it."""
    word = (text or "").strip().lower()
    return {"1": True, "yes": True, "all": True, "any": True, "0": False, "no": False}.get(word)


def _names(text: str | None) -> tuple[str, ...]:
    known = _known(text)
    return () if known is None else tuple(name for name in known.split(",") if name)


def _allowed(text: str | None) -> tuple[str, ...] | None:
    """Return the names that are allowed; None for all, and where nothing is said."""
    return None if _known(text) is None or str(text).upper() == "ALL" else _names(text)
