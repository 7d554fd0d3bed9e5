"""The scheduler protocol, and the errors for refusals and timeouts of Slurm's programs.
Implementations do not depend on each other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hpctrain.errors import HpctrainError, SchedulerError
from hpctrain.slurm.ledger import Submission
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.util import process, shell

#: Seconds for which a user's processes share the answer to a query; callers that act on the answer
#: query again.
ASK_EVERY_S = 15.0
_PREFIX = re.compile(r"^(?:\w+: (?:(?:error|fatal): )?)?(?:slurm_load_\w+ error: )?")
_MAX_WORDS = 300
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_UNREACHABLE = re.compile(
    r"unable to contact slurm controller|could not establish a configuration source|connection"
    r" refused"
    r"|slurmctld is not responding|unable to establish c|socket timed out|zero bytes were"
    r" transmitted|connection (?:timed out|reset)"
    r"|authentication error|munge|connect failure",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class LogFiles:
    """A job's output and error files; they may not exist yet."""

    output: Path
    error: Path


class JobControl(Protocol):
    """Query, cancel and locate the logs of jobs."""

    name: str

    def status(
        self, job_ids: Sequence[str] | None = None, *, max_age_s: float = 0.0
    ) -> list[JobRecord]:
        """Return the records of these jobs, or of all the user's recent ones, with one query.

        Unknown ids are omitted. An answer to the same query that is at most `max_age_s` seconds old
        is reused; monitoring commands pass ASK_EVERY_S.
        """

    def accounts(self, job_ids: Sequence[str], *, max_age_s: float = 0.0) -> list[JobRecord]:
        """Return the allocations and usage of these jobs, with their steps, with one query.

        Unknown ids are omitted.

        Args:
            job_ids: for an array, all its tasks.
            max_age_s: as in `status`.
        """

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Cancel these jobs."""

    def logs(self, job_id: str) -> LogFiles | None:
        """Return the log files of `job_id`, or None if this scheduler does not have the job."""


class Scheduler(JobControl, Protocol):
    """A scheduler that can also submit."""

    def dry_run(
        self,
        script: Path,
        values: Mapping[str, str | None],
        *,
        arguments: Sequence[str] = (),
        dependencies: Sequence[tuple[str, str]] = (),
        links: int = 0,
    ) -> list[str]:
        """Return the commands that would submit `script`, as a user would type them.

        Args:
            script: the batch script, which need not exist yet.
            values: its directives.
            arguments: the script's arguments.
            dependencies: pairs of a parent and the dependency type.
            links: number of jobs that follow the first one in a chain.
        """

    def refuse_unanswered(self, text: str) -> None:
        """Raise if an earlier submission of a script with this text was not answered, and its job
        exists.
        """

    def submit(
        self,
        script: Path,
        *,
        arguments: Sequence[str] = (),
        dependency: str | None = None,
        array: str | None = None,
        shown: Path | None = None,
        draft: Submission | None = None,
        folder: Path | None = None,
    ) -> Submission:
        """Submit `script` from the current directory.

        Args:
            script: the batch script.
            arguments: the script's arguments, from `$1` on; a requeue keeps them.
            dependency: `afterok:123`, as for `--dependency`; overrides the script's directive.
            array: `0,3,7-9%2`, as for `--array`; overrides the script's directive.
            shown: the path to show in messages if `script` is a copy.
            draft: further fields of the record.
            folder: the directory of the record.
        """


class RefusedError(HpctrainError):
    """Slurm, or a site policy, rejected a script.

    Attributes:
        partial: earlier scripts of the same submission, or earlier jobs of its chain, were already
            submitted.
    """

    partial = False


def quoted(done: process.Finished) -> tuple[str, ...]:
    """Return the command and its output, without the prefix (`sbatch: error: `) of each line."""
    lines = [
        _PREFIX.sub("", _CONTROL.sub("?", line))
        for line in (done.stderr + done.stdout).splitlines()
        if line.strip()
    ]
    return (
        f"  ran: {shell.join(done.argv)}",
        *(f"  {done.argv[0]} said: {line}" for line in lines),
    )


def last_words(done: process.Finished) -> str:
    """Return the last line of a program's output, at most 300 characters, without the program's
    name.
    """
    lines = (done.stderr.strip() or done.stdout).strip().splitlines()
    if not lines:
        return f"exit status {done.returncode}"
    words = "".join(sign for sign in _PREFIX.sub("", lines[-1].strip()) if sign.isprintable())
    return words if len(words) <= _MAX_WORDS else f"{words[: _MAX_WORDS - 3]}..."


def is_unreachable(words: str) -> bool:
    """Whether the message means that slurmctld could not be reached or did not answer, so that the
    problem is Slurm's and not the job's.
    """
    return _UNREACHABLE.search(words) is not None and "configuration source" not in words


def refusal(done: process.Finished, script: str) -> HpctrainError:
    """Return the error for a script that sbatch did not accept: Slurm is unreachable, or rejected
    it, with sbatch's own message.
    """
    if _UNREACHABLE.search(done.stderr):
        return SchedulerError(
            "Slurm cannot be reached",
            details=quoted(done),
            fix="sinfo",
            hint="or train locally: hpctrain submit --local",
        )
    again = shell.quote(script)
    return RefusedError(
        "Slurm refused the job",
        details=quoted(done),
        hint=f"edit {again}, then run: hpctrain submit {again}",
    )
