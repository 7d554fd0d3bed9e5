"""Starting a program of which nobody knows whether it ever ends.

`scheduler.process.run` ends the program at its time limit; `timeout` (coreutils) in front of it ends what that program has started
too: a `module load` that waits for a dead license server is a shell, and the shell's child is what hangs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence

from hpctrain.errors import HpctrainError, SchedulerError
from hpctrain.scheduler import process

#: timeout's own exit status for "it ran out of time" (124), and for having had to kill (137).
_LATE = (124, 137)


class TooLateError(HpctrainError):
    """The program had not ended at its time limit."""


def run(argv: Sequence[str], *, timeout: float, environment: Mapping[str, str] | None = None) -> process.Finished:
    """Run `argv` and return how it ended.

    Args:
        argv: program and arguments; no shell sees them.
        timeout: seconds, after which the program and all that it started are killed.
        environment: of the program; None is the caller's, without what an outer job left in it.

    Raises:
        SchedulerError: the program is not on PATH.
        TooLateError: it had not ended in time.
    """
    path = (environment if environment is not None else os.environ).get("PATH")
    if shutil.which(argv[0], path=path) is None:
        raise SchedulerError(f"{argv[0]} is not on PATH")
    has_timeout = shutil.which("timeout", path=path) is not None
    guard = ["timeout", "--kill-after=2", f"{timeout:g}"] if has_timeout else []
    try:
        done = process.run([*guard, *argv], timeout=timeout + 5, environment=environment)
    except process.NoAnswerError as error:
        raise TooLateError(f"{argv[0]} had not ended after {timeout:g} s") from error
    if has_timeout and done.returncode in _LATE:
        raise TooLateError(f"{argv[0]} had not ended after {timeout:g} s")
    return done


def last_words(text: str, lines: int = 1) -> tuple[str, ...]:
    """Return the last lines of a program's output that hold anything."""
    return tuple(line.strip() for line in text.splitlines() if line.strip())[-lines:]
