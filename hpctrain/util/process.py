"""The only way in which hpctrain runs another program: an argv list, a time limit, no shell."""

from __future__ import annotations

import atexit
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpctrain.errors import SchedulerError, UsageError
from hpctrain.util import shell

#: Variables of an outer job, or of a user's profile, that sbatch and the launchers read as options
#: (sbatch(1), INPUT ENVIRONMENT VARIABLES; torch.distributed.run for PET_). The query tools have
#: their own: SQUEUE_FORMAT changes the output of squeue, SCANCEL_INTERACTIVE makes scancel prompt,
#: and block.
_LEAKS = re.compile(
    r"(SLURMD?|SBATCH|SRUN|SALLOC|SQUEUE|SACCT|SCANCEL|SINFO|SCONTROL|SACCTMGR|PMI2?|PMIX|OMPI|PET)_"
)
#: Exceptions: these describe the cluster, not the job.
_KEPT = {"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT"}


#: Programs that have not ended, which threads wait for.
_running: set[subprocess.Popen[bytes]] = set()


@atexit.register
def _kill_running() -> None:
    for program in list(_running):
        program.kill()


@dataclass(frozen=True, slots=True)
class Finished:
    """A completed program: its command line, exit status, and output."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


class NoAnswerError(SchedulerError):
    """The program did not answer in time; its action may still happen."""


def run(
    argv: Sequence[str], *, timeout: float, environment: Mapping[str, str] | None = None
) -> Finished:
    """Run `argv` and return the result, regardless of its exit status.

    Args:
        argv: program and arguments, passed without a shell.
        timeout: seconds, after which the program is killed.
        environment: of the program; None is `clean(os.environ)`.

    Raises:
        SchedulerError: the program is not on PATH.
        NoAnswerError: no answer within `timeout`.
    """
    try:
        program = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env=clean(os.environ) if environment is None else dict(environment),
        )
    except FileNotFoundError as error:
        raise SchedulerError(
            f"{argv[0]} is not on PATH",
            hint="load your site's Slurm module, or use this machine: hpctrain submit --local",
        ) from error
    _running.add(program)
    try:
        with program:
            try:
                output = program.communicate(timeout=timeout)
            except BaseException:  # Ctrl-C too
                program.kill()
                raise
    except subprocess.TimeoutExpired as error:
        raise NoAnswerError(
            f"{argv[0]} did not answer within {timeout:g} s",
            details=(f"  ran: {shell.join(tuple(argv))}",),
            hint="run the command again in a minute",
        ) from error
    finally:
        _running.discard(program)
    out, errors = (stream.decode("utf-8", "replace") for stream in output)
    return Finished(tuple(argv), program.returncode, out, errors)


def time_limit(text: str, usual: float) -> float:
    """Return the seconds in HPCTRAIN_SLURM_TIMEOUT; `usual` if it is empty.

    Raises:
        UsageError: it is not a number of seconds.
    """
    try:
        seconds = float(text.strip() or usual)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 86_400:
        raise UsageError(
            "HPCTRAIN_SLURM_TIMEOUT must be seconds, more than 0 and less than a day, not"
            f" {text!r}",
            fix="export HPCTRAIN_SLURM_TIMEOUT=60",
        )
    return seconds


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """Remove variables that an outer job or a profile set for sbatch, srun and torchrun."""
    return {
        name: value
        for name, value in environment.items()
        if name in _KEPT or not _LEAKS.match(name)
    }
