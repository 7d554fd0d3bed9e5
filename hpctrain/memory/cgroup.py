"""The memory limit of the control group that this process lives in, and how much of it is used.

Slurm puts each job, step and task into a cgroup; the limit is usually that of the job or the step. The path is never
built from the job id, because the layout changed between v1 and v2 and with the version: the kernel says which cgroup
this process is in (/proc/self/cgroup) and where the hierarchy is mounted (/proc/self/mountinfo), and from there the way
is up.
See cgroups(7), proc_pid_mountinfo(5), and the kernel's cgroup-v1/memory.rst and cgroup-v2.rst.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

MIB = 1 << 20

_V1_UNLIMITED = 1 << 62
"""v1 writes "no limit" as the largest multiple of the page size below 2**63; v2 writes `max`."""


@dataclass(frozen=True, slots=True)
class CgroupLevel:
    """The level of a memory cgroup hierarchy that limits this process most."""

    directory: Path
    version: int
    """1 or 2."""

    def used_mib(self) -> int:
        """Return what is charged to this level, in MiB, without the file cache.

        The kernel drops file cache before it kills a process, so a limit filled with the pages of a data set is no
        danger; files in /dev/shm do count, because they cannot be dropped.

        Raises:
            OSError: the files cannot be read.
            ValueError: they do not hold a number.
        """
        usage, prefix = ("memory.usage_in_bytes", b"total_") if self.version == 1 else ("memory.current", b"")
        charged = int(_read(self.directory / usage))
        wanted = (prefix + b"inactive_file", prefix + b"active_file")
        cache = sum(
            int(value)
            for key, _, value in (line.partition(b" ") for line in _read(self.directory / "memory.stat").splitlines())
            if key in wanted
        )
        return max(0, charged - cache) // MIB

    def limit_mib(self) -> int | None:
        """Return this level's limit in MiB, or None when it has none (any more).

        Raises:
            OSError: the file cannot be read.
            ValueError: it does not hold a number.
        """
        limit = _limit_bytes(self.directory, self.version)
        return None if limit is None else limit // MIB


def find_limit(root: Path = Path("/")) -> CgroupLevel | None:
    """Return the level with the smallest memory limit, from this process's own cgroup upwards; None when none has one.

    Of two equal limits the upper one counts: it is the one that siblings fill together.

    Args:
        root: where /proc and the mounts are found; for tests, which give a recorded tree.

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
    """Return the directory of this process's memory cgroup, the mount point above it, and the version."""
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
    # On a hybrid system the memory controller is bound to one of the two hierarchies; v1 lists it when it has it.
    for own, version in ((v1_path, 1), (v2_path, 2)):
        if own is None or version not in mounts:
            continue
        mount_root, mount_point = mounts[version]
        top = root / mount_point.lstrip("/")
        return _below(top, mount_root, own), top, version
    return None


def _below(top: Path, mount_root: str, path: str) -> Path:
    """Return the directory of cgroup `path` under a mount whose root is cgroup `mount_root`.

    In a container the mount shows only a part of the hierarchy. When the process's path is not in that part (it is
    printed with `..` then, or belongs to the host), the mount point itself is the closest thing there is.
    """
    pure = PurePosixPath(path)
    if ".." in pure.parts or not pure.is_relative_to(mount_root):
        return top
    directory = top / pure.relative_to(mount_root)
    return directory if directory.is_dir() else top


def _mounts(root: Path) -> dict[int, tuple[str, str]]:
    """Return the root and mount point of the v1 memory hierarchy (1) and of the unified one (2), where mounted."""
    found: dict[int, tuple[str, str]] = {}
    for line in (root / "proc/self/mountinfo").read_text().splitlines():
        left, separator, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if not separator or len(fields) < 5 or len(kind) < 3:
            continue
        place = (_unescape(fields[3]), _unescape(fields[4]))
        if kind[0] == "cgroup" and "memory" in kind[2].split(","):
            found.setdefault(1, place)
        elif kind[0] == "cgroup2":
            found.setdefault(2, place)
    return found


def _unescape(text: str) -> str:
    r"""Undo the octal escapes of mountinfo (`\040` is a space)."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def _limit_bytes(directory: Path, version: int) -> int | None:
    """Return one level's limit in bytes; None when it has none, as the root of a hierarchy never has."""
    try:
        text = _read(directory / ("memory.limit_in_bytes" if version == 1 else "memory.max")).strip()
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
