"""The one way in which hpctrain runs another program: an argv list, a time limit, no shell."""

from __future__ import annotations

import atexit
import os
import re
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpctrain.errors import SchedulerError, UsageError
from hpctrain.jobs import shell

#: Variables of an outer job, or of a user's profile, that sbatch and the launchers read as orders (sbatch(1), INPUT ENVIRONMENT
#: VARIABLES; torch.distributed.run for PET_).
#: The query tools have theirs too: SQUEUE_FORMAT changes what squeue prints, SCANCEL_INTERACTIVE makes scancel ask, and wait.
_LEAKS = re.compile(r"(SLURMD?|SBATCH|SRUN|SALLOC|SQUEUE|SACCT|SCANCEL|SINFO|SCONTROL|SACCTMGR|PMI2?|PMIX|OMPI|PET)_")
#: Of those, the ones that say where the cluster is rather than what the job wants.
_KEPT = {"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT"}


#: Of what a program says on each of stdout and stderr: enough for the queue of a whole site, and no threat to a login node's limit.
KEPT_BYTES = 16_000_000


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that ended: what was run, its exit status, and its own words.

    Attributes:
        cut: it said more than KEPT_BYTES: stdout ends with the last whole line of those, and the last line of stderr says so.
    """

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    cut: bool = False


#: The programs that have not answered yet.
_asked: set[subprocess.Popen[bytes]] = set()


@atexit.register
def _leave_nobody() -> None:
    """End what a thread that nobody waits for any more has asked: it would outlive the command."""
    for program in tuple(_asked):
        program.kill()


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
        program = subprocess.Popen(
            list(argv), stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
            env=clean(os.environ) if environment is None else dict(environment),
        )  # fmt: skip
    except FileNotFoundError as error:
        raise SchedulerError(
            f"{argv[0]} is not on PATH", fix="load your site's Slurm module, or use this machine: hpctrain submit --local"
        ) from error
    _asked.add(program)
    try:
        with program:
            try:
                said = _listen(program, timeout)
            except BaseException:  # Ctrl-C too
                program.kill()
                raise
            finally:
                _asked.discard(program)
    except subprocess.TimeoutExpired as error:
        raise NoAnswerError(
            f"{argv[0]} did not answer within {timeout:g} s",
            details=(f"  ran: {shell.join(tuple(argv))}",),
            fix="run the command again in a minute",
        ) from error
    out, errors = (_whole_lines(each) for each in said)
    cut = any(len(each) > KEPT_BYTES for each in said)
    if cut:
        which = "stdout" if len(said[0]) > KEPT_BYTES else "stderr"
        errors += f"{chr(10) * (not errors.endswith(chr(10)))}{argv[0]}: only the first 16 MB of its {which} were read\n"
    return Finished(tuple(argv), program.returncode, out, errors, cut)


def _listen(program: subprocess.Popen[bytes], timeout: float) -> tuple[bytearray, bytearray]:
    """Return stdout and stderr of a program that has ended; of each, one byte past KEPT_BYTES shows that there was more.

    Raises:
        TimeoutExpired: it still runs, or something that it started holds its streams.
    """
    deadline = time.monotonic() + timeout
    out, errors = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for stream, kept in ((program.stdout, out), (program.stderr, errors)):
            if stream is not None:  # both are pipes
                selector.register(stream, selectors.EVENT_READ, kept)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(program.args, timeout)
            for key, _ in selector.select(left):
                chunk = os.read(key.fd, 65536)
                key.data.extend(chunk[: KEPT_BYTES + 1 - len(key.data)])  # the rest is read too: the program must be able to end
                if not chunk:
                    selector.unregister(key.fileobj)
    program.wait(max(0.0, deadline - time.monotonic()))
    return out, errors


def _whole_lines(said: bytearray) -> str:
    """Return what was said as text; of too much, without the line that was cut."""
    return _text(bytes(said if len(said) <= KEPT_BYTES else said[: said.rfind(b"\n", 0, KEPT_BYTES) + 1]))


def time_limit(text: str, usual: float) -> float:
    """Return the seconds in HPCTRAIN_SLURM_TIMEOUT; `usual` where it is empty.

    Raises:
        UsageError: it is no number of seconds.
    """
    if not text.strip():
        return usual
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 86_400:
        raise UsageError(
            f"HPCTRAIN_SLURM_TIMEOUT must be seconds, more than 0 and less than a day, not {text!r}", fix="export HPCTRAIN_SLURM_TIMEOUT=60"
        )
    return seconds


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` without what an outer job or a profile left in it for sbatch, srun and torchrun."""
    return {name: value for name, value in environment.items() if name in _KEPT or not _LEAKS.match(name)}


def leaks(environment: Mapping[str, str]) -> list[str]:
    """Return the names that `clean` takes out."""
    return sorted(set(environment) - set(clean(environment)))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
