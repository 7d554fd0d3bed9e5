"""File systems: their type, free space, and the user's quota. Sizes are in bytes."""

from __future__ import annotations

import getpass
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from hpctrain.errors import SchedulerError
from hpctrain.util import process
from hpctrain.util.text import integer

#: Timeout for `quota` and `lfs quota`.
QUOTA_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class FileSystem:
    """The file system of a path.

    Attributes:
        mount: the mount point; `kind`: its type, such as lustre, nfs4, tmpfs; `device`: such as
            /dev/sda1, server:/export.
        free: bytes that this user can still write, according to `limit`: `statvfs` or a quota
            command.
    """

    mount: str
    kind: str
    device: str = ""
    free: int
    limit: str = "statvfs"


@dataclass(frozen=True, kw_only=True)
class Quota:
    """A user's quota, as reported by `command`; a limit of 0 means no limit."""

    used: int
    limit: int
    files: int
    files_limit: int
    command: str


def file_system(path: str | Path) -> FileSystem | None:
    """Return the file system of a path, or of its nearest existing parent; None if it does not
    respond.
    """
    real = Path(os.path.realpath(path))
    try:
        while not os.path.lexists(real):
            real = real.parent
        counted = os.statvfs(real)
    except (OSError, ValueError):
        return None
    # Reversed: a later mount hides an earlier one at the same place.
    parents = [str(each) for each in (real, *real.parents)]
    mounts = reversed(psutil.disk_partitions(all=True))
    above = [each for each in mounts if each.mountpoint in parents]
    mount = max(above, key=lambda each: len(each.mountpoint), default=None)
    return FileSystem(
        mount=mount.mountpoint if mount else "/",
        kind=mount.fstype if mount else "unknown",
        device=mount.device if mount else "",
        free=counted.f_bavail * counted.f_frsize,
    )


def quota_of(system: FileSystem) -> Quota | None:
    """Return the user's quota on a file system; None if there is none, or no command to query
    it.
    """
    try:
        argv = ["quota", "-wp"]
        if system.kind == "lustre":
            argv = ["lfs", "quota", "-q", "-u", getpass.getuser(), system.mount]
        if shutil.which(argv[0]) is None:
            return None
        # The exit status may be 1 if a limit is exceeded: only the output counts.
        words = process.run(argv, timeout=QUOTA_TIMEOUT_S).stdout.split()
    except (SchedulerError, OSError, KeyError):
        return None
    # Both print nine columns: file system, KiB used, quota, limit, grace, files, quota, limit,
    # grace (quota(1), lfs-quota(1)); a star marks an exceeded limit. The hard limit is used, or
    # else the soft one.
    name = next((name for name in (system.mount, system.device) if name in words), None)
    if name is None:
        return None
    row = words[words.index(name) + 1 :][:8]
    numbers = [integer(word.rstrip("*").strip("[]")) or 0 for word in row]
    if len(numbers) < 8:
        return None
    used, soft, hard, _, files, files_soft, files_hard, _ = numbers
    return Quota(
        used=used * 1024,
        limit=(hard or soft) * 1024,
        files=files,
        files_limit=files_hard or files_soft,
        command=" ".join(argv[: argv.index("quota") + 1]),
    )
