"""Where a job of Slurm writes: from the record of what was submitted, else from Slurm while it remembers the job.

Job ids are given out again: by a controller that has lost its state, when they have reached MaxJobId, and by another cluster of the same
home directory. The record of a submission holds for the job that carries its token in the comment.
"""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable
from pathlib import Path

from hpctrain.errors import SchedulerError
from hpctrain.scheduler import ledger, process, slurm_asked
from hpctrain.scheduler.base import LogFiles
from hpctrain.scheduler.parse import log_pattern, records
from hpctrain.scheduler.parse.records import JobRecord

#: Seconds for which an id that sbatch has named is that job's without a look.
_NEW_S = 60.0


def of(job_id: str, look: Callable[[], JobRecord | None], *, timeout: float) -> LogFiles | None:
    """Return where a job writes; None where nobody knows.

    Args:
        job_id: of it.
        look: returns what Slurm shows of the job that has this id now; may raise SchedulerError.
        timeout: seconds for an answer of scontrol.

    Raises:
        SchedulerError: nothing is recorded, and slurmctld does not answer.
    """
    array, _, task = job_id.partition("_")
    entry = ledger.by_job_id(array)
    recorded = None if entry is None else _recorded(entry, job_id, array, task)
    if entry is not None and recorded is not None:
        shown = None if abs(time.time() - entry.at) < _NEW_S else _look(look)
        if shown is None or entry.is_of(shown.comment):
            return recorded
        # A job without the token is another one, or one whose comment somebody has changed: Slurm's word is right for both.
        said = _from_slurm(job_id, timeout)
        return said if said is not None or ledger.has_token(shown.comment) else recorded
    silent = slurm_asked.controller_trouble()
    if silent is not None:
        raise silent
    return _from_slurm(job_id, timeout)


def _look(look: Callable[[], JobRecord | None]) -> JobRecord | None:
    try:
        return look()
    except SchedulerError:
        return None  # as far as is known, it is the one that was submitted


def _recorded(entry: ledger.Entry, job_id: str, array: str, task: str) -> LogFiles | None:
    if entry.output is None or (task and "%j" in entry.output):  # a task has a number of its own
        return None
    values = {"j": job_id, "A": array, "a": task, "x": entry.name or "", "u": getpass.getuser()}
    output = Path(log_pattern.expand(entry.output, values))
    return LogFiles(output, Path(log_pattern.expand(entry.error, values)) if entry.error else output)


def _from_slurm(job_id: str, timeout: float) -> LogFiles | None:
    done = process.run(["scontrol", "show", "job", "-o", job_id], timeout=timeout)
    for fields in records.parse_scontrol_jobs(done.stdout) if done.returncode == 0 else []:
        if fields.get("StdOut"):
            return LogFiles(Path(fields["StdOut"]), Path(fields.get("StdErr") or fields["StdOut"]))
    return None
