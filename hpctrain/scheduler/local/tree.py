"""Holding on to every process that a job starts, so that none outlives it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable

import psutil

_PR_SET_CHILD_SUBREAPER = 36
#: What the stand-in for srun runs as.
STEP_MODULE = "hpctrain.scheduler.local.srun"


def adopt_orphans() -> None:
    """Make this process the parent of every orphan among its descendants (prctl(2), PR_SET_CHILD_SUBREAPER).

    Elsewhere than on Linux, processes that detach themselves are out of reach once their parent has gone.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(of: psutil.Process | None = None, *, recursive: bool = True) -> list[psutil.Process]:
    """Return the living descendants of a process, this one by default, or its children alone; zombies are not alive."""
    try:
        found = (of or psutil.Process()).children(recursive=recursive)
    except psutil.Error:
        return []
    return [process for process in found if _is_alive(process)]


def steps(of: psutil.Process | None = None) -> list[psutil.Process]:
    """Return the job steps of a job, which its supervisor, this process by default, holds: the stand-ins for srun."""
    return [process for process in descendants(of) if _is_step(process)]


def step_tasks(of: psutil.Process | None = None) -> list[psutil.Process]:
    """Return the tasks of all steps: those that Slurm sends a job's signals to, and nothing that they have started."""
    return [task for step in steps(of) for task in descendants(step, recursive=False)]


def kill_outside_steps() -> None:
    """End what the batch script has started beside its steps, as slurmstepd does once the script has ended."""
    kept = {process.pid for step in steps() for process in [step, *descendants(step)]}
    send([process for process in descendants() if process.pid not in kept], signal.SIGKILL)


def reap() -> None:
    """Collect the adopted children that have ended; a Popen object whose child goes this way reports 0."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def reap_but(kept: set[int]) -> None:
    """Collect the adopted children that have ended, but not those that somebody else waits for."""
    for child in psutil.Process().children():
        if child.pid not in kept and not _is_alive(child):
            try:
                os.waitpid(child.pid, os.WNOHANG)
            except ChildProcessError:
                continue


def kill_descendants() -> None:
    """End every descendant: SIGKILL until none is left."""
    deadline = time.monotonic() + 10
    while (left := descendants()) and time.monotonic() < deadline:
        send(left, signal.SIGKILL)
        time.sleep(0.02)
        reap()


def send(processes: Iterable[psutil.Process], number: int) -> None:
    """Send a signal to these processes, if they still exist."""
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.Error:
            continue


def _is_step(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[1:4] == ["-P", "-m", STEP_MODULE]
    except psutil.Error:
        return False


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
