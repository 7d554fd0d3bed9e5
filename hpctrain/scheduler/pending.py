"""How many jobs are ahead of one that waits: one squeue of everybody's waiting jobs in its partitions.

Where a site shows nobody else's jobs (PrivateData=jobs), how many there are is unknown, and that is what is said.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hpctrain.errors import SchedulerError
from hpctrain.scheduler import process, slurm_asked
from hpctrain.scheduler.parse.records import SEPARATOR, JobRecord, known, rows
from hpctrain.scheduler.pending_reasons import explain
from hpctrain.scheduler.slurm_accounts import epoch

#: squeue -o: id, user, priority, partition, reason, expected start.
FORMAT = SEPARATOR.join(("%i", "%u", "%Q", "%P", "%r", "%S"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a job stands among those that wait.

    Attributes:
        ahead: waiting jobs of its partition that the scheduler will try before it, an array that waits being one; None: unknown, as only
            the user's own are shown.
        mine: how many of them are the user's own.
        expected: seconds since the epoch when Slurm expects it to start; None as long as Slurm has not planned it.
    """

    ahead: int | None = None
    mine: int = 0
    expected: float | None = None


def places(jobs: Sequence[JobRecord], *, timeout: float, max_age_s: float) -> dict[str, Place]:
    """Return the places of those of `jobs` that wait on Slurm, by job id; all of it in one question. Raises nothing.

    Args:
        jobs: records of Slurm's.
        timeout: seconds.
        max_age_s: how old an answer may be.
    """
    waiting = [job for job in jobs if job.scheduler == "slurm" and job.state == "PENDING" and job.partition]
    partitions = sorted({name for job in waiting for name in (job.partition or "").split(",")})
    if not waiting:
        return {}

    def ask() -> list[dict[str, Any]]:
        # -P: a job that may run in several partitions has a line, and a priority, for each.
        argv = ["squeue", "-h", "-P", "-t", "PENDING", "-p", ",".join(partitions), "-o", FORMAT]
        environment = {**process.clean(os.environ), "SLURM_TIME_FORMAT": "%s"}
        done = process.run(argv, timeout=timeout, environment=environment)
        if done.returncode != 0:
            raise SchedulerError("squeue did not answer")
        return [{"text": done.stdout}]

    try:
        said = slurm_asked.answer("places-" + "-".join(partitions)[:100].replace("/", "_"), ask, max_age_s=max_age_s)
    except SchedulerError:
        return {}
    return place_each(str(said[0].get("text", "")) if said else "", waiting, user=getpass.getuser())


def place_each(text: str, waiting: Iterable[JobRecord], *, user: str) -> dict[str, Place]:
    """Return the places of jobs in what `squeue -h -P -t PENDING -o FORMAT` printed."""
    lines = [fields for fields in rows(text, len(FORMAT.split(SEPARATOR))) if fields[2].isdigit()]
    found = {}
    for job in waiting:
        own = [fields for fields in lines if fields[0] == job.job_id]
        if not own:
            continue
        best = max(own, key=lambda fields: int(fields[2]))
        expected = min((at for fields in own if (at := epoch(fields[5])) is not None), default=None)
        before = [fields for fields in lines if fields[0] != job.job_id and _is_before(fields, best)]
        others = {fields[0] for fields in before}
        mine = {fields[0] for fields in before if fields[1] == user}
        # A queue that nobody else is in may be one of which no more is shown.
        hidden = known(best[4]) == "Priority" and all(fields[1] == user for fields in lines)
        found[job.job_id] = Place(ahead=None if hidden else len(others), mine=len(mine), expected=expected)
    return found


def _is_before(other: Sequence[str], own: Sequence[str]) -> bool:
    """Whether the scheduler tries the job of one line before that of another: higher priority, in the same partition, and not held."""
    if other[3] != own[3] or explain(other[4]).kind in ("person", "never") or other[4] in ("Dependency", "BeginTime"):
        return False
    # Of equal priority the lower id comes first: it was submitted first.
    return int(other[2]) > int(own[2]) or (other[2] == own[2] and _number(other[0]) < _number(own[0]))


def _number(job_id: str) -> int:
    digits = job_id.partition("_")[0].partition("+")[0]
    return int(digits) if digits.isdigit() else 0
