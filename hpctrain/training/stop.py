"""How a training learns that it must stop, and how it says why it did; no torch, so that it is there before torch is imported.

Slurm announces the end of a job by a signal to the first process of each task, a shell of the job script, which leaves a file for the
training. `listen` gives SIGTERM and SIGUSR1 themselves that meaning too, whoever sends them, in this process only: what it forks (workers
of the data loader, helpers) goes on as before.
"""

from __future__ import annotations

import contextlib
import enum
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpctrain.runs import files, layout

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
STOP_FILE = "stop"
EXIT_FILE = "exit"
LOOK_EVERY_S = 2.0
"""Seconds between two looks at the stop file: a metadata server of a parallel file system answers for all jobs of a cluster."""

ANNOUNCED_EVERY_S = 1.0
"""Seconds between two looks for a signal that the job script got: KillWait can be as short as the site likes."""


class Wish(enum.IntEnum):
    """Why the training should stop; where two ranks or reasons differ, the greater one counts."""

    NONE = 0
    SIGNAL = 1
    DEADLINE = 2
    STOP_FILE = 3

    @property
    def reason(self) -> str:
        """Return the word for attempts/A/exit."""
        return self.name.lower().replace("_", "-")

    @property
    def code(self) -> int:
        """Return the exit code."""
        return layout.STOPPED if self is Wish.STOP_FILE else layout.REQUEUE


class Stopped(SystemExit):
    """The training has saved and stopped before it was done; left alone, it ends the script with the code that means so.

    Attributes:
        code: layout.REQUEUE or layout.STOPPED.
        reason: `signal`, `deadline` or `stop-file`.
        step: optimizer steps done, all of them saved.
    """

    def __init__(self, wish: Wish, step: int) -> None:
        super().__init__(wish.code)
        self.reason = wish.reason
        self.step = step


_received: list[int] = []
_looked = float("-inf")
_listening = 0


def listen() -> None:
    """Take SIGTERM and SIGUSR1 as the wish to stop, in this process; a second call, or one outside the main thread, does nothing."""
    global _listening  # noqa: PLW0603 - signal handlers belong to the process, so does this
    if _listening == os.getpid() or threading.current_thread() is not threading.main_thread():
        return
    if not _listening:
        os.register_at_fork(after_in_child=_forget)
    _listening = os.getpid()
    for number in SIGNALS:
        signal.signal(number, _note)


def _note(number: int, _frame: object) -> None:
    if os.getpid() == _listening:
        _received.append(number)


def _forget() -> None:
    """Be an ordinary process again, after a fork: SIGTERM ends it; a SIGUSR1 for the whole job step is none of its business."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    _received.clear()


def signalled() -> str | None:
    """Return the name of the first signal that came, such as `SIGTERM`; one that the job script got, and left a file for, counts too.

    Slurm signals the first process of a task alone, which is the script's shell. Rank 0 looks for all: every rank would be a crowd.
    """
    if not _received and _rank_zero() and _announced():
        _received.append(signal.SIGTERM)
    return signal.Signals(_received[0]).name if _received else None


def _rank_zero() -> bool:
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"


def _announced() -> bool:
    global _looked  # noqa: PLW0603 - of the process, as the signals are
    run_dir, attempt = os.environ.get(layout.RUN_DIR_VARIABLE), os.environ.get(layout.ATTEMPT_VARIABLE)
    if not run_dir or not attempt or time.monotonic() - _looked < ANNOUNCED_EVERY_S:
        return False
    _looked = time.monotonic()
    return os.path.exists(f"{run_dir}/attempts/{attempt}/{STOP_FILE}")  # noqa: PTH110 - Path.exists raises where this says no


class UndisturbedWorker:
    """What a data loader's worker runs first: then it lives through a signal that Slurm sends to all processes of a job step.

    torch gives SIGTERM back its deadly meaning in every worker, and a worker that dies fails the training, which wants to save now.
    A worker whose training is gone notices that by itself within seconds.

    Args:
        then: the worker's own start, called with its number.
    """

    def __init__(self, then: Callable[[int], Any] | None) -> None:
        self.then = then

    def __call__(self, worker: int) -> None:
        """Ignore the signals, then start."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        if self.then is not None:
            self.then(worker)


class StopFile:
    """`RUN_DIR/stop`, looked at now and then.

    Args:
        run_dir: the run's directory; None where there is none, and no stop file then.
        attempt: the name of this start of the job.
    """

    def __init__(self, run_dir: Path | None, attempt: str | None) -> None:
        self._path = None if run_dir is None else run_dir / STOP_FILE
        self._kept = None if run_dir is None or attempt is None else run_dir / "attempts" / attempt / "stopped-by"
        self._looked = float("-inf")
        self._there = False

    def there(self) -> bool:
        """Say whether somebody wants the run to stop; what a failing file system says counts as no."""
        if self._path is not None and not self._there and time.monotonic() - self._looked >= LOOK_EVERY_S:
            self._looked = time.monotonic()
            self._there = os.path.exists(self._path)  # noqa: PTH110 - Path.exists raises where this says no
        return self._there

    def consume(self) -> None:
        """Put the file among what this attempt leaves, so that it does not stop the next one."""
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            if self._kept is not None and self._kept.parent.is_dir():
                self._path.rename(self._kept)
            else:
                self._path.unlink()


def write_exit(code: int, reason: str, environ: dict[str, str] | os._Environ[str] = os.environ) -> bool:
    """Write `CODE REASON` where the job script looks, and return whether it is there: launchers hide exit codes. For rank 0 only.

    Without a run directory and an attempt in the environment nothing is written; what cannot be written is said on standard error.
    """
    run_dir, attempt = environ.get(layout.RUN_DIR_VARIABLE), environ.get(layout.ATTEMPT_VARIABLE)
    if not run_dir or not attempt:
        return False
    path = Path(run_dir) / "attempts" / attempt / EXIT_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(path, f"{code} {reason}\n")
    except OSError as error:
        sys.stderr.write(f"[train] notice: cannot write {path}: {error.strerror}\n")
        sys.stderr.flush()
        return False
    return True
