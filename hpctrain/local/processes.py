"""Tracking of every process that a job starts, so that none outlives the job."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection, Iterable

import psutil

_PR_SET_CHILD_SUBREAPER = 36
#: The module that the srun shim runs.
STEP_MODULE = "hpctrain.local.srun"


def adopt_orphans() -> None:
    """Make this process the parent of every orphan among its descendants (prctl(2),
    PR_SET_CHILD_SUBREAPER).

    On other systems than Linux, a detached process is lost once its parent has ended.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(
    of: psutil.Process | None = None, *, recursive: bool = True
) -> list[psutil.Process]:
    """Return the live descendants, or only the children, of a process (default: this one), without
    zombies.
    """
    try:
        found = (of or psutil.Process()).children(recursive=recursive)
    except psutil.Error:
        return []
    return [process for process in found if _is_alive(process)]


def steps(of: psutil.Process | None = None) -> list[psutil.Process]:
    """Return a job's steps, the srun shims below its supervisor (default: this process)."""
    found = []
    for process in descendants(of):
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[1:4] == ["-P", "-m", STEP_MODULE]:
                found.append(process)
    return found


def step_tasks(of: Iterable[psutil.Process | None] = (None,)) -> list[psutil.Process]:
    """Return the tasks of all steps, without their children: Slurm signals only these."""
    found = [step for holder in of for step in steps(holder)]
    return [task for step in found for task in descendants(step, recursive=False)]


def reap(kept: Collection[int] = ()) -> None:
    """Reap the adopted children that have ended, except those in `kept`, which are waited for
    elsewhere; a Popen object whose child is reaped here reports 0.
    """
    for child in psutil.Process().children():
        if child.pid not in kept and not _is_alive(child):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)


def kill_descendants() -> None:
    """Send SIGKILL to every descendant until none is left."""
    deadline = time.monotonic() + 10
    while (left := descendants()) and time.monotonic() < deadline:
        send(left, signal.SIGKILL)
        time.sleep(0.02)
        reap()


def send(processes: Iterable[psutil.Process], number: int) -> None:
    """Send a signal to those of these processes that still exist."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
