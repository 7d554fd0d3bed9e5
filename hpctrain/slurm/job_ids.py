"""Job ids: `123`, `123_4`, `15_[1-2%1]`, and `10@lab7`, a job of another cluster.

The clusters of a site share home directories, and each numbers its jobs from 1. A record contains
the cluster of its job. A job of another cluster is written `10@lab7`, which no scheduler accepts as
its own. Records of older versions lack the cluster and count as this cluster's.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from hpctrain.slurm import query_cache
from hpctrain.slurm.notations import array as arrays
from hpctrain.slurm.notations.array import Array

AT = "@"
#: SLURM_CLUSTER_NAME in a job of the local scheduler; no cluster assigns such ids.
LOCAL = "local"
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


@dataclass(frozen=True, slots=True)
class JobId:
    """A job, an array, or tasks of an array.

    Attributes:
        number: of the job or array.
        tasks: None for a job and for a whole array.
        cluster: the job's cluster if it is another one; None for this cluster.
    """

    number: str
    tasks: Array | None = None
    cluster: str | None = None

    @classmethod
    def parse(cls, text: str) -> JobId | None:
        """Return the job id in a text; None for anything else, such as a name."""
        own, at, other = text.partition(AT)
        if at and not _CLUSTER.match(other):
            return None
        try:
            number, tasks = arrays.split(own)
        except ValueError:
            return None
        return cls(number, tasks, None if not at or is_this_cluster(other) else other)

    def covers(self, job: str) -> bool:
        """Whether a job, as named in a record or by a scheduler, is this job or one of these tasks.

        For pending tasks in one record, one common task is enough; a list that squeue truncated may
        contain it.
        """
        own, other = split(job)
        number, underscore, rest = own.partition("_")
        if (number, other) != (self.number, self.cluster) or self.tasks is None:
            return (number, other) == (self.number, self.cluster)
        tasks = arrays.known(rest)  # none if squeue has truncated them
        return bool(underscore) and (not tasks or not set(tasks).isdisjoint(self.tasks.indices))


@cache
def this_cluster() -> str | None:
    """Return the name of the local cluster; None without Slurm, or if the name is unknown."""
    return valid_cluster(query_cache.cluster_name())


def is_this_cluster(of: str | None) -> bool:
    """Whether a record is about jobs of this cluster; a record without a cluster counts as this
    one's.
    """
    here = this_cluster() if of not in (None, LOCAL) else None
    return of is None or here is None or of.lower() == here.lower()


def of_record(number: str, of: str | None) -> str:
    """Return the id of a recorded job, followed by `@CLUSTER` if it belongs to another cluster."""
    return number if is_this_cluster(of) else f"{number}{AT}{of}"


def split(job: str) -> tuple[str, str | None]:
    """Split an id in the notation of `of_record` into the id and the other cluster, or None."""
    number, _, other = job.partition(AT)
    return number, other or None


def elsewhere(job: str) -> str | None:
    """Return a sentence about a job of another cluster; None for a job of this cluster."""
    number, other = split(job)
    return (
        None
        if other is None
        else f"job {number} belongs to the cluster {other}, which cannot be queried from here"
    )


def cancel_command(jobs: Sequence[str]) -> str:
    """Return the command that cancels jobs of one cluster, and where to run it."""
    other = split(jobs[0])[1]
    login = f"after a login to {other}: " if other else ""
    return f"{login}hpctrain cancel {shlex.join(split(job)[0] for job in jobs)}"


def array_of(job: str) -> str:
    """Return the array of a task, or the job itself, in the notation of `of_record`."""
    number, other = split(job)
    return number.partition("_")[0] + (f"{AT}{other}" if other else "")


def job_order(job: str) -> list[int]:
    """Return the numbers in an id, by which jobs and tasks are sorted."""
    return [int(part) for part in re.findall("[0-9]{1,18}", job.partition("?")[0])]


def valid_cluster(value: object) -> str | None:
    """Return a value from a file if it is a valid cluster name, else None."""
    return value if isinstance(value, str) and _CLUSTER.match(value) else None
