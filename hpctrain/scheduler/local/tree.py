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


def adopt_orphans() -> None:
    """Make this process the parent of every orphan among its descendants (prctl(2), PR_SET_CHILD_SUBREAPER).

    Elsewhere than on Linux, processes that detach themselves are out of reach once their parent has gone.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[psutil.Process]:
    """Return the living descendants of this process; zombies are not alive."""
    try:
        found = psutil.Process().children(recursive=True)
    except psutil.Error:
        return []
    return [process for process in found if _is_alive(process)]


def reap() -> None:
    """Collect the adopted children that have ended; a Popen object whose child goes this way reports 0."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def kill_descendants() -> None:
    """End every descendant: SIGKILL until none is left."""
    deadline = time.monotonic() + 10
    while (left := descendants()) and time.monotonic() < deadline:
        _signal(left, signal.SIGKILL)
        time.sleep(0.02)
        reap()


def signal_group(pid: int, number: int) -> None:
    """Send a signal to the process group of `pid`, if it still exists."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _signal(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.Error:
            continue


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
