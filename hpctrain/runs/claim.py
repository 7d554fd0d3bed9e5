"""One at a time without a lock: a directory is made by exactly one of those who try, on any file system.

Decides nothing about what is true, only who may change a launch now. Whoever is killed leaves the directory, which says who it was.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpctrain.errors import HpctrainError
from hpctrain.runs import files, layout

#: Seconds after which a claim of another machine counts as left behind: sbatch itself is given up long before.
STALE_S = 900


@contextmanager
def claim(runs: Path, tag: str) -> Iterator[None]:
    """Hold the launch `tag` in the directory `runs`; its parents are made, and taken away again where nothing was put there.

    Raises:
        HpctrainError: somebody else holds it.
        OSError: the file system refuses.
    """
    path = runs / layout.LAUNCHES / f".claim-{tag}"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not _made(path):
        who = files.read_json(path / "who.json") or {}
        if not _is_stale(path, who):
            raise HpctrainError(
                f"another command is submitting {tag} just now",
                details=(f"  on {who.get('host', 'some machine')}, process {who.get('pid', 'unknown')}",),
                fix="wait for it, then: hpctrain runs list",
            )
        away = path.with_name(f".stale-{uuid.uuid4().hex}")
        try:
            path.rename(away)
        except FileNotFoundError:
            pass  # somebody else was faster
        shutil.rmtree(away, ignore_errors=True)
        if not _made(path):
            raise HpctrainError(f"another command is submitting {tag} just now", fix="wait for it, then: hpctrain runs list")
    try:
        files.write_json(path / "who.json", {"host": socket.gethostname(), "pid": os.getpid(), "at": time.time()})
        yield
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _made(path: Path) -> bool:
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True


def _is_stale(path: Path, who: dict[str, object]) -> bool:
    pid, host = who.get("pid"), who.get("host")
    if host == socket.gethostname() and isinstance(pid, int):
        return not Path(f"/proc/{pid}").exists() if Path("/proc/self").exists() else False
    try:
        return time.time() - path.stat().st_mtime > STALE_S
    except OSError:
        return True
