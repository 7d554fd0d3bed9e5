"""Host memory used by this process, its descendants, the cgroup and the node.

Reads /proc directly because psutil would scan every process of the node, and a sample must cost
well under a millisecond. On systems other than Linux it uses psutil. This module must not import
torch.
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
                waiting += _children_of(process, thread)
    return total // MIB


def _rss_bytes(pid: int | str) -> int:
    """Return the second number of /proc/PID/statm, resident pages, in bytes (proc_pid_statm(5))."""
    with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:  # noqa: PTH123 - Path.open costs as much as the read
        return int(file.read(128).split()[1]) * _PAGE


def _children_of(pid: int, thread: str) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:  # noqa: PTH123 - see _rss_bytes
            return [int(child) for child in file.read(1 << 20).split()]
    except OSError:
        return []


_PAGE = os.sysconf("SC_PAGE_SIZE")


#: v1 writes "no limit" as the largest multiple of the page size below 2**63; v2 writes `max`.
_V1_UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class CgroupLevel:
    """The level of a memory cgroup hierarchy that limits this process most; version 1 or 2."""

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
        usage, prefix = "memory.current", b""
        if self.version == 1:
            usage, prefix = "memory.usage_in_bytes", b"total_"
        charged = int(_read(self.directory / usage))
        lines = _read(self.directory / "memory.stat").splitlines()
        stat = dict(line.split(b" ", 1) for line in lines)
        names = (prefix + b"inactive_file", prefix + b"active_file")
        cache = sum(int(stat.get(name, b"0")) for name in names)
        return max(0, charged - cache) // MIB

    def limit_mib(self) -> int | None:
        """Return this level's limit in MiB, or None if it has none (any more).

        Raises:
            OSError: the file cannot be read.
            ValueError: it does not contain a number.
        """
        limit = _limit_bytes(self.directory, self.version)
        return None if limit is None else limit // MIB


def find_limit(root: Path = Path("/")) -> CgroupLevel | None:
    """Return the level with the smallest memory limit, from this process's own cgroup upwards; None
    if there is no limit.

    Of two equal limits the upper one counts, because sibling cgroups share it.

    Args:
        root: where /proc and the mounts are; tests pass a recorded tree.

    Raises:
        OSError: /proc/self/cgroup or /proc/self/mountinfo cannot be read.
    """
    found = _own_directory(root)
    if found is None:
        return None
    directory, top, version = found
    best: tuple[int, Path] | None = None
    while True:
        limit = _limit_bytes(directory, version)
        if limit is not None and (best is None or limit <= best[0]):
            best = (limit, directory)
        if directory == top or top not in directory.parents:
            break
        directory = directory.parent
    return None if best is None else CgroupLevel(directory=best[1], version=version)


def _own_directory(root: Path) -> tuple[Path, Path, int] | None:
    v1_path: str | None = None
    v2_path: str | None = None
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            v1_path = path
        elif hierarchy == "0" and not controllers:
            v2_path = path
    mounts = _mounts(root)
    # On a hybrid system one of the two hierarchies has the memory controller; v1 lists it if it
    # does.
    for own, version in ((v1_path, 1), (v2_path, 2)):
        if own is None or version not in mounts:
            continue
        mount_root, mount_point = mounts[version]
        top = root / mount_point.lstrip("/")
        return _below(top, mount_root, own), top, version
    return None


def _below(top: Path, mount_root: str, path: str) -> Path:
    """Return the directory of cgroup `path` under a mount whose root is cgroup `mount_root`.

    In a container the mount shows only a part of the hierarchy. If the process's path is outside of
    it (printed with `..`, or relative to the host), the mount point is the closest match.
    """
    pure = PurePosixPath(path)
    if ".." in pure.parts or not pure.is_relative_to(mount_root):
        return top
    directory = top / pure.relative_to(mount_root)
    return directory if directory.is_dir() else top


def _mounts(root: Path) -> dict[int, tuple[str, str]]:
    found: dict[int, tuple[str, str]] = {}
    for line in (root / "proc/self/mountinfo").read_text().splitlines():
        left, separator, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if not separator or len(fields) < 5 or len(kind) < 3:
            continue
        place = (fields[3], fields[4])
        if kind[0] == "cgroup" and "memory" in kind[2].split(","):
            found.setdefault(1, place)
        elif kind[0] == "cgroup2":
            found.setdefault(2, place)
    return found


def _limit_bytes(directory: Path, version: int) -> int | None:
    try:
        text = _read(
            directory / ("memory.limit_in_bytes" if version == 1 else "memory.max")
        ).strip()
    except FileNotFoundError:
        return None
    if text == b"max":
        return None
    limit = int(text)
    return None if version == 1 and limit >= _V1_UNLIMITED else limit


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)
