"""What the ranks of a preflight job have said: frozen facts from the lines in its log. Pure. Unknown is None.

Sizes are bytes, speeds bytes per second, durations seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from hpctrain.doctor import lines

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """One process.

    Attributes:
        gpus_asked: of each node, by the job; `job_nodes`: the nodes that Slurm gave it;
            `mem_asked`: it asked for memory, so its limit is no default of the site.
        cpus: the logical CPUs that it may run on, as ranges (`0-3,8`).
        cpus_per_task: what Slurm says its task has.
        task: the number of its task (SLURM_PROCID).
        omp: OMP_NUM_THREADS; `threads`: what torch makes of it.
        memlock, nofile: soft limits; None is none.
        visible: GPUs that torch can use; None where torch was not reached.
        done: it came to its end.
    """

    rank: int
    host: str
    local_rank: int = 0
    world: int = 1
    gpus_asked: int | None = None
    job_nodes: int | None = None
    mem_asked: bool = False
    cpus: str | None = None
    cpus_per_task: int | None = None
    task: int | None = None
    omp: int | None = None
    memlock: int | None = None
    nofile: int | None = None
    version: str | None = None
    cuda: str | None = None
    hip: str | None = None
    nccl: str | None = None
    python: str | None = None
    visible: int | None = None
    on_cpu: bool | None = None
    threads: int | None = None
    done: bool = False

    @property
    def cpu_set(self) -> frozenset[int]:
        """The logical CPUs as numbers."""
        found: set[int] = set()
        for part in (self.cpus or "").split(","):
            first, _, last = part.partition("-")
            if first.isdecimal():
                found.update(range(int(first), int(last or first) + 1))
        return frozenset(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One GPU's health, as its driver says it, before the job has touched it."""

    host: str
    index: int | None = None
    name: str | None = None
    uuid: str | None = None
    used: int | None = None
    total: int | None = None
    ecc_volatile: int | None = None
    ecc_aggregate: int | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    throttled: tuple[str, ...] | None = None
    celsius: int | None = None
    processes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A place for temporary files."""

    path: str
    total: int | None = None
    free: int | None = None
    type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Reading or writing; `dropped`: the node's page cache had been told to forget the files; `error` in place of a measurement."""

    path: str
    bytes: int | None = None
    seconds: float | None = None
    dropped: bool | None = None
    error: str | None = None

    @property
    def speed(self) -> float | None:
        """Bytes per second."""
        return self.bytes / self.seconds if self.bytes and self.seconds else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFacts:
    """Over what the all-reduce of all ranks went, as one rank says it."""

    host: str
    transport: str | None = None
    devices: tuple[str, ...] = ()
    bootstrap: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One node.

    Attributes:
        gpus: those that NVML lists for the job; `gpus_given`: SLURM_GPUS_ON_NODE.
        cores: logical CPUs of the whole node.
        memory_limit: of the job's cgroup.
        ahead_s: how much its clock is ahead of the first node's, with `ahead_error_s` at most.
        played: it is this machine, playing a node.
    """

    host: str
    hostname: str | None = None
    kernel: str | None = None
    machine: str | None = None
    cores: int | None = None
    memory: int | None = None
    memory_limit: int | None = None
    driver: str | None = None
    gpus: int | None = None
    gpus_given: int | None = None
    infiniband: tuple[str, ...] = ()
    played: bool = False
    shm: Room | None = None
    tmp: Room | None = None
    read: Transfer | None = None
    write: Transfer | None = None
    ahead_s: float | None = None
    ahead_error_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """One all-reduce: of all ranks (`all`) or of one node's; `bandwidth` is NCCL's bus bandwidth."""

    group: str
    ranks: int
    bytes: int
    seconds: float
    bandwidth: float
    right: bool
    backend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Where a rank stopped, and what it said."""

    rank: int
    host: str
    stage: str
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All of it, in order of rank and of appearance."""

    ranks: tuple[RankFacts, ...] = ()
    nodes: tuple[NodeFacts, ...] = ()
    gpus: tuple[GpuFacts, ...] = ()
    speeds: tuple[Speed, ...] = ()
    networks: tuple[NetworkFacts, ...] = ()
    failures: tuple[Failure, ...] = ()

    def ranks_of(self, host: str) -> tuple[RankFacts, ...]:
        """Return the ranks of a node."""
        return tuple(rank for rank in self.ranks if rank.host == host)

    def speed_of(self, group: str) -> Speed | None:
        """Return the best all-reduce of a group, whatever its size."""
        return max((speed for speed in self.speeds if speed.group == group), key=lambda speed: speed.bandwidth, default=None)


def read(log: str) -> Report:
    """Return what stands in a job's log."""
    rows = lines.read(log)
    ranks: dict[int, dict[str, Any]] = {}
    nodes: dict[str, dict[str, Any]] = {}
    for row in rows:
        kind, host = row["kind"], str(row.get("host"))
        if kind in ("rank", "torch", "done"):
            merged = ranks.setdefault(int(row["rank"]), {})
            merged |= {**row, "done": kind == "done" or merged.get("done", False)}
        elif kind == "node":
            nodes.setdefault(host, {}).update(row)
        elif kind in ("read", "write"):
            nodes.setdefault(host, {"host": host})[kind] = row
        elif kind == "clock":
            nodes.setdefault(host, {"host": host}).update(ahead_s=row["ahead_s"], ahead_error_s=row["error_s"])
    return Report(
        ranks=tuple(_make(RankFacts, ranks[rank]) for rank in sorted(ranks)),
        nodes=tuple(_node(nodes[host]) for host in sorted(nodes, key=_in_order)),
        gpus=_all(GpuFacts, rows, "gpu"),
        speeds=_all(Speed, rows, "all_reduce"),
        networks=_all(NetworkFacts, rows, "network"),
        failures=_all(Failure, rows, "failed"),
    )


def _in_order(name: str) -> list[tuple[int, str]]:
    """Return the key that puts node2 before node10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _node(row: Mapping[str, Any]) -> NodeFacts:
    inner = {"shm": Room, "tmp": Room, "read": Transfer, "write": Transfer}
    made: dict[str, Any] = {key: _make(kind, row[key]) for key, kind in inner.items() if isinstance(row.get(key), dict)}
    return _make(NodeFacts, {**row, **made})


def _all(kind: type[T], rows: Iterable[Mapping[str, Any]], name: str) -> tuple[T, ...]:
    return tuple(_make(kind, row) for row in rows if row["kind"] == name)


def _make(kind: type[T], row: Mapping[str, Any]) -> T:
    """Return the dataclass of a row; keys that it does not know, from another version, are left out."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in row.items() if key in known})
