"""Stop requests to a training (signals and the stop file), and the exit reason. No torch, so that
it works before torch is imported.

Slurm announces the end of a job by a signal to the first process of each task, a shell of the job
script, which creates a file for the training. `listen` also handles SIGTERM and SIGUSR1, in this
process only: forked processes (data loader workers, helpers) are not affected.
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

from hpctrain.runs import layout
from hpctrain.util import files

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
STOP_FILE = "stop"
EXIT_FILE = "exit"
#: Seconds between checks of the stop file: all jobs of a cluster share the file system's metadata
#: server.
LOOK_EVERY_S = 2.0

#: Seconds between checks for a signal that the job script received: a site's KillWait may be short.
ANNOUNCED_EVERY_S = 1.0


class StopReason(enum.IntEnum):
    """Why the training should stop; if ranks or reasons differ, the highest value counts."""

    NONE = 0
    SIGNAL = 1
    DEADLINE = 2
    STOP_FILE = 3

    @property
    def reason(self) -> str:
        """Return the reason for attempts/ATTEMPT/exit."""
        return self.name.lower().replace("_", "-")

    @property
    def code(self) -> int:
        """Return the exit code."""
        return layout.STOPPED if self is StopReason.STOP_FILE else layout.REQUEUE


class Stopped(SystemExit):
    """The training has saved and stopped before it was done; if not caught, the script exits with
    `code`.

    Attributes:
        code: layout.REQUEUE or layout.STOPPED.
        reason: `signal`, `deadline` or `stop-file`.
        step: optimizer steps done, all of them saved.
    """

    def __init__(self, wish: StopReason, step: int) -> None:
        super().__init__(wish.code)
        self.reason = wish.reason
        self.step = step


_received: list[int] = []
_looked = float("-inf")
_listening = 0


def listen() -> None:
    """Handle SIGTERM and SIGUSR1 as stop requests, in this process; a second call, or one outside
    the main thread, has no effect.
    """
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
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    _received.clear()


def signalled() -> str | None:
    """Return the name of the first signal received, such as `SIGTERM`, by this process or by the
    job script, which leaves a file.

    Slurm signals only the first process of a task, the script's shell. Rank 0 checks for all ranks.
    """
    global _looked  # noqa: PLW0603 - per process, as signals are
    run_dir, attempt = (
        os.environ.get(layout.RUN_DIR_VARIABLE),
        os.environ.get(layout.ATTEMPT_VARIABLE),
    )
    is_first = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"
    due = time.monotonic() - _looked >= ANNOUNCED_EVERY_S
    if not _received and run_dir and attempt and is_first and due:
        _looked = time.monotonic()
        if os.path.exists(f"{run_dir}/attempts/{attempt}/{STOP_FILE}"):  # noqa: PTH110 - Path.exists raises where this returns False
            _received.append(signal.SIGTERM)
    return signal.Signals(_received[0]).name if _received else None


def start_worker(then: Callable[[int], Any] | None, worker: int) -> None:
    """Start a data loader's worker that survives a signal that Slurm sends to all processes of a
    job step.

    torch restores the default action of SIGTERM in every worker, and a killed worker fails the
    training, which is about to save. A worker whose training has ended exits within seconds.

    Args:
        then: the original worker_init_fn.
        worker: the worker's id.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if then is not None:
        then(worker)


class StopFile:
    """`RUN_DIR/stop`, checked every LOOK_EVERY_S.

    Args:
        run_dir: the run's directory; None for no stop file.
        attempt: the name of this start of the job.
    """

    def __init__(self, run_dir: Path | None, attempt: str | None) -> None:
        self._run_dir, self._attempt = run_dir, attempt
        self._looked = float("-inf")
        self._there = False

    def there(self) -> bool:
        """Return whether the user wants the run to stop; false on file system errors."""
        due = time.monotonic() - self._looked >= LOOK_EVERY_S
        if self._run_dir is not None and not self._there and due:
            self._looked = time.monotonic()
            self._there = os.path.exists(self._run_dir / STOP_FILE)  # noqa: PTH110 - Path.exists raises where this returns False
        return self._there

    def consume(self) -> None:
        """Move the file to this attempt's directory, so that it does not stop the next attempt."""
        if self._run_dir is None:
            return
        kept = self._run_dir / "attempts" / (self._attempt or "-")
        with contextlib.suppress(OSError):
            if kept.is_dir():
                (self._run_dir / STOP_FILE).rename(kept / "stopped-by")
            else:
                (self._run_dir / STOP_FILE).unlink()


def write_exit(
    code: int, reason: str, environ: dict[str, str] | os._Environ[str] = os.environ
) -> bool:
    """Write `CODE REASON` for the job script, because launchers hide exit codes; return whether it
    was written. For rank 0 only.

    Nothing is written without a run directory and an attempt in the environment; a failure is
    reported on standard error.
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
