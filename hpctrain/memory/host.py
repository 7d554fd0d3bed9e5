"""Host memory used by this process, its descendants, the cgroup and the node.

Reads /proc directly because psutil would scan every process of the node, and a sample must cost
well under a millisecond. This module must not import torch.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

MIB = 1 << 20


def own_rss_mib() -> int:
    """Return the resident memory of this process, in MiB.

    Raises:
        OSError: /proc cannot be read.
    """
    return _rss_bytes("self") // MIB


def node_mib() -> tuple[int, int]:
    """Return the node's used memory (total minus available) and its total, in MiB.

    On a shared node this includes other users' processes; the cgroup counts only the job's.
    """
    memory = psutil.virtual_memory()
    return (memory.total - memory.available) // MIB, memory.total // MIB


def children_rss_mib(pid: int | None = None) -> int:
    """Return the resident memory of all descendants of a process (default: this one), in MiB;
    mostly data loader workers.

    The kernel lists the children of each thread in /proc/PID/task/TID/children; without that file
    (CONFIG_PROC_CHILDREN) the result is 0.
    """
    root, total = os.getpid() if pid is None else pid, 0
    waiting = [root]
    while waiting:
        process = waiting.pop()
        with contextlib.suppress(OSError, IndexError):  # it ended between listing and reading
            total += 0 if process == root else _rss_bytes(process)
            for thread in os.listdir(f"/proc/{process}/task"):  # noqa: PTH208 - names, not a hundred Paths
                waiting += map(int, _read(f"/proc/{process}/task/{thread}/children").split())
    return total // MIB


def _rss_bytes(pid: int | str) -> int:
    """Return the second number of /proc/PID/statm, resident pages, in bytes (proc_pid_statm(5))."""
    return int(_read(f"/proc/{pid}/statm").split()[1]) * _PAGE


def _read(path: Path | str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a Path.open costs as much as the read
    try:
        return os.read(descriptor, 1 << 20)
    finally:
        os.close(descriptor)


_PAGE = os.sysconf("SC_PAGE_SIZE")
#: v1 writes "no limit" as the largest multiple of the page size below 2**63; v2 writes `max`.
_V1_UNLIMITED = 1 << 62
#: By version: the files of the limit and of the usage, the prefix of names in memory.stat.
_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", b"total_"),
    2: ("memory.max", "memory.current", b""),
}


@dataclass(frozen=True, slots=True)
class CgroupLevel:
    """A level of a memory cgroup hierarchy; version 1 or 2."""

    directory: Path
    version: int

    def used_mib(self) -> int:
        """Return the memory charged to this level, in MiB, without the file cache.

        The kernel drops file cache before it kills a process, so cached pages of a dataset are
        harmless; files in /dev/shm count, because they cannot be dropped.

        Raises:
            OSError: the files cannot be read.
            ValueError: a file does not contain a number.
        """
        _, usage, prefix = _FILES[self.version]
        lines = _read(self.directory / "memory.stat").splitlines()
        stat = dict(line.split(b" ", 1) for line in lines)
        names = (prefix + b"inactive_file", prefix + b"active_file")
        cache = sum(int(stat.get(name, b"0")) for name in names)
        return max(0, int(_read(self.directory / usage)) - cache) // MIB

    def limit_mib(self) -> int | None:
        """Return this level's limit in MiB, or None if it has none.

        Raises:
            OSError: the file cannot be read.
            ValueError: it does not contain a number.
        """
        try:
            text = _read(self.directory / _FILES[self.version][0]).strip()
        except FileNotFoundError:
            return None
        if text == b"max" or int(text) >= _V1_UNLIMITED:
            return None
        return int(text) // MIB


def find_limit(root: Path = Path("/")) -> CgroupLevel | None:
    """Return the level with the smallest memory limit, from this process's own cgroup upwards; None
    if there is no limit.

    Of two equal limits the upper one counts, because sibling cgroups share it. In a container the
    mount shows only a part of the hierarchy: if the process's path is outside of it (printed with
    `..`, or relative to the host), the mount point is the closest match.

    Args:
        root: where /proc and the mounts are; tests pass a recorded tree.

    Raises:
        OSError: /proc/self/cgroup or /proc/self/mountinfo cannot be read.
    """
    own, mounts = dict[int, str](), dict[int, list[str]]()
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            own[1] = path
        elif not controllers:
            own[2] = path
    for line in (root / "proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.partition(" ")
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options):
            mounts.setdefault(2 if kind == "cgroup2" else 1, left.split(" ")[3:5])
    # On a hybrid system one of the two hierarchies has the memory controller; v1 lists it if it
    # does.
    version = min(own.keys() & mounts.keys(), default=None)
    if version is None:
        return None
    mount_root, mount_point = mounts[version]
    top = directory = root / mount_point.lstrip("/")
    pure = PurePosixPath(own[version])
    if ".." not in pure.parts and pure.is_relative_to(mount_root):
        inside = top / pure.relative_to(mount_root)
        directory = inside if inside.is_dir() else top
    above = directory.relative_to(top).parts
    levels = [CgroupLevel(top.joinpath(*above[:depth]), version) for depth in range(len(above) + 1)]
    limits = [(limit, level) for level in levels if (limit := level.limit_mib()) is not None]
    return min(limits, key=lambda each: each[0], default=(None, None))[1]
