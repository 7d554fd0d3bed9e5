"""What this process, its descendants and the node use of the host's memory.

Reads /proc directly where psutil would scan every process of the node: a sample has to cost well under a millisecond.
Linux only, as Slurm's compute nodes are; elsewhere psutil answers. May not import torch.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20

RESCAN_S = 10.0
"""How old the list of this process's threads and children may be, in seconds; see `ChildrenMemory`."""


def own_rss_mib() -> int:
    """Return the resident memory of this process, in MiB.

    Raises:
        OSError: /proc cannot be read.
    """
    return _rss_bytes("self") // MIB


def node_mib() -> tuple[int, int]:
    """Return the node's used memory (total minus available) and its total, in MiB.

    On a shared node this counts everybody's processes; the job's own share is the cgroup's.
    """
    memory = psutil.virtual_memory()
    return (memory.total - memory.available) // MIB, memory.total // MIB


class ChildrenMemory:
    """The resident memory of all descendants of one process: data loader workers, mostly.

    The kernel lists the children of each thread in /proc/PID/task/TID/children. A training process has a hundred
    threads or more and almost none of them has a child, so all of them are read only every `rescan_s` seconds, and in
    between those that had one, and the main thread. A child that a new thread starts is therefore seen up to `rescan_s`
    late; one that ended is never counted. A kernel without that file (CONFIG_PROC_CHILDREN) is asked through psutil,
    equally seldom.

    Args:
        pid: the process whose descendants count; this one by default.
        rescan_s: seconds between two full scans.
        clock: seconds that only grow; for tests.
    """

    def __init__(self, pid: int | None = None, *, rescan_s: float = RESCAN_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._pid = os.getpid() if pid is None else pid
        self._rescan_s = rescan_s
        self._clock = clock
        self._scanned: float | None = None
        self._parents: dict[int, set[int]] = {}
        self._by_psutil: list[psutil.Process] = []
        own = os.getpid()
        self._kernel_lists_children = Path(f"/proc/{own}/task/{own}/children").exists()

    def read_mib(self, *, rescan: bool = False) -> int:
        """Return the sum in MiB; 0 when there are no children.

        Args:
            rescan: read every thread's list now, however young the last scan is.
        """
        now = self._clock()
        full = rescan or self._scanned is None or now - self._scanned >= self._rescan_s
        if full:
            self._scanned = now
        total = self._walk(full) if self._kernel_lists_children else self._ask_psutil(full)
        return total // MIB

    def _walk(self, full: bool) -> int:
        """Add up the descendants' memory in bytes, breadth first."""
        total = 0
        seen: dict[int, set[int]] = {}
        waiting = [self._pid]
        while waiting:
            pid = waiting.pop()
            if pid in seen:
                continue
            threads = _threads(pid) if full or pid not in self._parents else self._parents[pid] | {pid}
            children = {thread: _children_of(pid, thread) for thread in threads}
            seen[pid] = {thread for thread, pids in children.items() if pids}
            for found in children.values():
                waiting.extend(found)
                total += sum(_rss_or_zero(child) for child in found)
        self._parents = seen
        return total

    def _ask_psutil(self, full: bool) -> int:
        if full:
            self._by_psutil = psutil.Process(self._pid).children(recursive=True)
        total = 0
        for child in self._by_psutil:
            try:
                total += child.memory_info().rss
            except psutil.Error:
                continue
        return total


def _rss_bytes(pid: int | str) -> int:
    """Return the second number of /proc/PID/statm, resident pages, in bytes (proc_pid_statm(5))."""
    with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:  # noqa: PTH123 - Path.open costs as much as the read
        return int(file.read(128).split()[1]) * _PAGE


def _rss_or_zero(pid: int) -> int:
    try:
        return _rss_bytes(pid)
    except (OSError, IndexError):  # it ended between the listing and the reading
        return 0


def _threads(pid: int) -> set[int]:
    try:
        return {int(name) for name in os.listdir(f"/proc/{pid}/task")}  # noqa: PTH208 - names, not a hundred Paths
    except OSError:
        return set()


def _children_of(pid: int, thread: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:  # noqa: PTH123 - see _rss_bytes
            return [int(child) for child in file.read(1 << 20).split()]
    except OSError:
        return []


_PAGE = os.sysconf("SC_PAGE_SIZE")
