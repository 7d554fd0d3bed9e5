"""The protocol of a scheduler. Its two implementations know nothing of each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hpctrain.scheduler.parse.accounting import Account
from hpctrain.scheduler.parse.records import JobRecord

#: Seconds within which a scheduler is not asked the same twice, by any process of a user; who acts on the answer asks anew.
ASK_EVERY_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job that a scheduler has taken.

    Attributes:
        cluster: on a multi-cluster site, else None.
        notes: sentences for the user: what was left out, what the scheduler warned of.
    """

    job_id: str
    cluster: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LogFiles:
    """Where a job writes; a file may not exist yet."""

    output: Path
    error: Path


class Scheduler(Protocol):
    """Submit, ask, stop, read."""

    name: str

    def submit(
        self,
        script: Path,
        *,
        resend: bool = False,
        arguments: Sequence[str] = (),
        dependency: str | None = None,
        array: str | None = None,
        shown: Path | None = None,
    ) -> Submission:
        """Submit `script` from the current directory.

        Args:
            script: the batch script.
            resend: even where an earlier submission of the same script in the same words was never answered.
            arguments: the script's own, `$1` and on; a requeue keeps them.
            dependency: `afterok:123`, as in `--dependency`, in place of the script's directive.
            array: `0,3,7-9%2`, as in `--array`, in place of the script's directive.
            shown: what messages call the script, where `script` is a copy.
        """

    def status(self, job_ids: Sequence[str] | None = None, *, max_age_s: float = 0.0) -> list[JobRecord]:
        """Return the records of these jobs, or of all my recent ones; one query for all. Unknown ids are left out.

        An answer to the same question that is not older than `max_age_s` seconds will do: ASK_EVERY_S for whoever only looks.
        """

    def accounts(self, job_ids: Sequence[str], *, near: Mapping[str, float] | None = None, max_age_s: float = 0.0) -> list[Account]:
        """Return what these jobs were given and used, with their steps; one query for all. Unknown ids are left out.

        Args:
            job_ids: of an array, all its tasks.
            near: job id to seconds since the epoch at which the job meant was running, where its id may have been used again since.
            max_age_s: as of `status`.
        """

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Stop these jobs."""

    def logs(self, job_id: str) -> LogFiles | None:
        """Return where `job_id` writes, or None for a job that this scheduler does not know."""
