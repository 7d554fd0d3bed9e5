"""The one way in which hpctrain runs another program: an argv list, a time limit, no shell."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpctrain.errors import SchedulerError
from hpctrain.jobs import shell

#: Variables of an outer job, or of a user's profile, that sbatch and the launchers read as orders (sbatch(1), INPUT ENVIRONMENT
#: VARIABLES; torch.distributed.run for PET_).
#: The query tools have theirs too: SQUEUE_FORMAT changes what squeue prints, SCANCEL_INTERACTIVE makes scancel ask, and wait.
_LEAKS = re.compile(r"(SLURMD?|SBATCH|SRUN|SALLOC|SQUEUE|SACCT|SCANCEL|SINFO|SCONTROL|SACCTMGR|PMI2?|PMIX|OMPI|PET)_")
#: Of those, the ones that say where the cluster is rather than what the job wants.
_KEPT = {"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT"}


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that ended: what was run, its exit status, and its own words."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


class NoAnswerError(SchedulerError):
    """The program did not answer in time; what it was asked to do may still happen."""


def run(argv: Sequence[str], *, timeout: float, environment: Mapping[str, str] | None = None) -> Finished:
    """Run `argv` and return how it ended, whatever its exit status.

    Args:
        argv: program and arguments; no shell sees them.
        timeout: seconds, after which the program is killed.
        environment: of the program; None is `clean(os.environ)`.

    Raises:
        SchedulerError: the program is not on PATH.
        NoAnswerError: no answer within `timeout`.
    """
    try:
        done = subprocess.run(
            list(argv), capture_output=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL,
            env=clean(os.environ) if environment is None else dict(environment),
        )  # fmt: skip
    except FileNotFoundError as error:
        raise SchedulerError(
            f"{argv[0]} is not on PATH", fix="load your site's Slurm module, or use this machine: hpctrain submit --local"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise NoAnswerError(
            f"{argv[0]} did not answer within {timeout:g} s",
            details=(f"  ran: {shell.join(tuple(argv))}",),
            fix="run the command again in a minute",
        ) from error
    return Finished(tuple(argv), done.returncode, _text(done.stdout), _text(done.stderr))


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` without what an outer job or a profile left in it for sbatch, srun and torchrun."""
    return {name: value for name, value in environment.items() if name in _KEPT or not _LEAKS.match(name)}


def leaks(environment: Mapping[str, str]) -> list[str]:
    """Return the names that `clean` takes out."""
    return sorted(set(environment) - set(clean(environment)))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
