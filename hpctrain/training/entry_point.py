"""The entry point of the built-in trainings: signals, options, exit code, and the files for the job
script. Signals are handled before torch is imported.

A task (hpctrain/training/options.py) defines the training; hpctrain/training/loop.py runs it.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from typing import NoReturn

from hpctrain.errors import HpctrainError
from hpctrain.memory.sample import node_name
from hpctrain.runs import layout
from hpctrain.training import trackers
from hpctrain.training.options import Task, read_options
from hpctrain.training.process import OFFLINE, WAIT_S, keep_rank_log, leave, own_rank
from hpctrain.training.survival import stop

#: Variables of `accelerate launch` and torchrun, which both exit with 1 regardless of a process's
#: exit code.
_HIDES_CODES = {"ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID"}


def main(task: Task, argv: list[str] | None = None) -> NoReturn:
    """Train, and end the process; rank 0 writes the code and the reason to attempts/ATTEMPT/exit.

    Exit codes: 0 trained or evaluated, 1 the training failed, 2 it could not start, 85 stopped to
    continue later, 86 stopped by the user.
    """
    stop.listen()
    keep_rank_log()
    for name, value in OFFLINE.items():
        os.environ.setdefault(name, value)
    together = None
    try:
        options = read_options(sys.argv[1:] if argv is None else argv, task)
        from hpctrain.training.loop import train

        reason = train(options)
        code = layout.DONE
    except stop.Stopped as stopped:
        code, reason, together = int(stopped.code or 0), stopped.reason, True
    except HpctrainError as error:
        _fail(error)
    except SystemExit as exit_:  # --help
        code, reason = exit_.code if isinstance(exit_.code, int) else 1, None
    except KeyboardInterrupt:
        code, reason = 130, "error"
    except BaseException:  # printed here, because os._exit prints nothing
        sys.stdout.flush()
        sys.stderr.write(traceback.format_exc())
        code, reason = layout.FAILED, "error"
    _end(code, reason, together=together)


def _end(code: int, reason: str | None, *, together: bool | None = None) -> NoReturn:
    said = bool(os.environ.get(layout.RUN_DIR_VARIABLE) and os.environ.get(layout.ATTEMPT_VARIABLE))
    if own_rank() == 0:
        said = reason is not None and stop.write_exit(code, reason)
        trackers.finish(code)
    # A launcher treats 85 as a crash: it prints a traceback, hides the code, and fails the step.
    # The job script reads the file instead.
    hidden = together and said and _HIDES_CODES & set(os.environ)
    leave(layout.DONE if hidden else code, together=together)


def _fail(error: HpctrainError) -> NoReturn:
    """Print an error once, from rank 0, which also tells the job script not to requeue; from
    another rank only if rank 0 had none.
    """
    message = error.render() + "\n"
    if own_rank() != 0:
        # The launcher sends SIGTERM to all ranks once one has ended; rank 0 has the same error.
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until and not stop.signalled():
            time.sleep(0.1)
        if stop.signalled():
            leave(error.exit_code)
        message = f"rank {own_rank()} on {node_name()}: {message}"
    sys.stdout.flush()
    sys.stderr.write(message)
    sys.stderr.flush()
    _end(error.exit_code, getattr(error, "reason", "error"))
