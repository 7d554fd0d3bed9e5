"""The preflight job's report: the lines that its ranks print, and their content as frozen facts.
Pure.

A line is a mark followed by one JSON object, short enough for one atomic write: the ranks of a job
share a pipe, and writes of up to 4096 bytes (PIPE_BUF) are not interleaved.

Unknown is None. Sizes are bytes, speeds bytes per second, durations seconds.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from hpctrain.slurm.notations import array
from hpctrain.util import stored

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """One process.

    Attributes:
        gpus_asked: GPUs per node that the job requested; `job_nodes`: nodes that Slurm allocated.
        cpus: the logical CPUs that it may run on, as ranges (`0-3,8`).
        cpus_per_task: its task's CPUs according to Slurm.
        visible: GPUs available to torch; None if torch was not reached.
        done: it finished.
    """

    rank: int
    host: str
    gpus_asked: int | None = None
    job_nodes: int | None = None
    cpus: str | None = None
    cpus_per_task: int | None = None
    version: str | None = None
    cuda: str | None = None
    hip: str | None = None
    visible: int | None = None
    on_cpu: bool | None = None
    done: bool = False

    @property
    def cpu_set(self) -> frozenset[int]:
        """The logical CPUs as numbers."""
        return frozenset(array.known(self.cpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Whether a directory could be read from or written to; `error`: why not."""

    path: str
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFacts:
    """The network of the all-reduce over all ranks, as one rank reports it.

    Attributes:
        transport: `IB`, `Socket`, or the plugin's name, such as `AWS Libfabric (cxi)`; None if NCCL
            opened none (one node).
        devices: for data: InfiniBand devices, or interfaces of sockets; none with gloo.
    """

    host: str
    transport: str | None = None
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One node.

    Attributes:
        gpus_given: SLURM_GPUS_ON_NODE.
        read: of the dataset; write: of the checkpoints.
    """

    host: str
    gpus_given: int | None = None
    read: Access | None = None
    write: Access | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceSpeed:
    """One all-reduce, over all ranks (`all`) or those of a node; `bandwidth` is NCCL's bus
    bandwidth.
    """

    group: str
    ranks: int
    bytes: int
    seconds: float
    bandwidth: float
    right: bool
    backend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """The stage at which a rank failed, and its message."""

    rank: int
    host: str
    stage: str
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The complete report, in order of rank and of appearance."""

    ranks: tuple[RankFacts, ...] = ()
    nodes: tuple[NodeFacts, ...] = ()
    speeds: tuple[AllReduceSpeed, ...] = ()
    networks: tuple[NetworkFacts, ...] = ()
    failures: tuple[RankFailure, ...] = ()

    def ranks_of(self, host: str) -> tuple[RankFacts, ...]:
        """Return the ranks of a node."""
        return tuple(rank for rank in self.ranks if rank.host == host)

    def speed_of(self, group: str) -> AllReduceSpeed | None:
        """Return the fastest all-reduce of a group, regardless of size."""
        return max(
            (speed for speed in self.speeds if speed.group == group),
            key=lambda speed: speed.bandwidth,
            default=None,
        )


def read_report(log: str) -> Report:
    """Return the facts in a job's log."""
    ranks: defaultdict[int, dict[str, Any]] = defaultdict(dict)
    nodes: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    others: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in read_lines(log):
        kind, host = row["kind"], str(row.get("host"))
        if kind in ("rank", "torch", "done"):
            ranks[int(row["rank"])] |= row | ({"done": True} if kind == "done" else {})
        elif kind in ("node", "read", "write"):
            nodes[host] |= row if kind == "node" else {"host": host, kind: row}
        else:
            others[kind].append(row)
    of_ranks = [ranks[rank] for rank in sorted(ranks)]
    hosts = dict.fromkeys([str(row.get("host")) for row in of_ranks] + list(nodes))
    return Report(
        ranks=_all(RankFacts, of_ranks),
        nodes=_all(NodeFacts, (nodes[host] for host in hosts if host in nodes)),
        speeds=_all(AllReduceSpeed, others["all_reduce"]),
        networks=_all(NetworkFacts, others["network"]),
        failures=_all(RankFailure, others["failed"]),
    )


def _all(kind: type[T], rows: Iterable[Mapping[str, Any]]) -> tuple[T, ...]:
    """Return a dataclass for each row; a row of another version that does not fit has none."""
    return tuple(facts for row in rows if (facts := stored.made(kind, row)) is not None)


# -- lines -----------------------------------------------------------------------------------------


MARK = "[doctor] "
#: Characters of a text: with two of them, each six bytes long as JSON, a line is short enough.
_LONGEST = 300


def line(kind: str, **values: object) -> str:
    """Return one line without its newline; long texts are truncated to keep it short enough."""
    short = {
        key: value[:_LONGEST] if isinstance(value, str) else value for key, value in values.items()
    }
    return MARK + json.dumps({"kind": kind, **short}, separators=(",", ":"))


def read_lines(text: str) -> list[dict[str, Any]]:
    """Return the content of the marked lines of a log, in order; a launcher may add a prefix, such
    as `[default0]:`.
    """
    found = []
    for each in text.splitlines():
        _, mark, rest = each.partition(MARK)
        try:
            value = json.loads(rest) if mark else None
        except ValueError:  # broken, or truncated at the job's end
            continue
        if isinstance(value, dict) and isinstance(value.get("kind"), str):
            found.append(value)
    return found


# -- NCCL's messages -------------------------------------------------------------------------------


# Wording of NCCL 2.18 to 2.27 with NCCL_DEBUG=INFO (src/transport/net_ib.cc, net_socket.cc; the OFI
# plugin's of aws-ofi-nccl):
#     NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:10.2.3.4<0>
#     NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth1:10.0.1.1<0>
#     NCCL INFO NET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)
#     NCCL INFO Using network AWS Libfabric
_IB = re.compile(r"NET/IB ?: Using (?P<devices>.*?)(?:; OOB .*)?$", re.MULTILINE)
_SOCKET = re.compile(r"NET/Socket ?: Using (?P<devices>.*)$", re.MULTILINE)
_OFI = re.compile(r"NET/OFI Selected [Pp]rovider is (?P<name>[^\s,]+)")
_NETWORK = re.compile(r"Using network (?P<name>.+?)\s*$", re.MULTILINE)
_DEVICE = re.compile(r"\[\d+\]([^:\s\[]+)")


def nccl_network(text: str, host: str) -> NetworkFacts:
    """Return the network in one process's log; missing values are None."""
    ib, sockets = _IB.search(text), _SOCKET.search(text)
    ofi, network = _OFI.search(text), _NETWORK.search(text)
    kinds = {"OFI": ofi, "IB": ib, "Socket": sockets}
    name = network["name"] if network else next((kind for kind in kinds if kinds[kind]), None)
    found = kinds[name] if name in ("IB", "Socket") else None
    if ofi and found is None:
        name = f"{name} ({ofi['name']})"
    return NetworkFacts(
        host=host,
        transport=name,
        devices=tuple(_DEVICE.findall(found["devices"])) if found else (),
    )
