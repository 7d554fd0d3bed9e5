"""Asks Slurm what would let one waiting job start sooner: a bounded number of `sbatch --test-only`, not the same again within seconds."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpctrain.errors import SchedulerError
from hpctrain.scheduler import discover, process, slurm_asked, start_sooner
from hpctrain.scheduler.base import ASK_EVERY_S
from hpctrain.scheduler.parse import records
from hpctrain.scheduler.parse.records import JobRecord
from hpctrain.scheduler.start_sooner import Change

#: Seconds for each answer.
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What Slurm answered.

    Attributes:
        changes: each with its answer.
        asked: questions with --test-only.
        as_it_is: seconds since the epoch at which the job would start if it were submitted now; asked only where Slurm has no plan.
        problem: why nothing was asked.
    """

    changes: tuple[Change, ...] = ()
    asked: int = 0
    as_it_is: float | None = None
    problem: str | None = None


def look(job: JobRecord, *, expected: float | None, needs_s: int | None, ours: bool) -> Said:
    """Return what would let a job start sooner.

    Args:
        job: that waits.
        expected: seconds since the epoch when Slurm expects it; None where it has no plan: then it is asked for the job as it is, too.
        needs_s: seconds that its run still needs.
        ours: whether hpctrain submitted it, so that `hpctrain submit` makes it anew.

    Raises:
        SchedulerError: Slurm does not answer.
    """

    def ask(_: list[str]) -> dict[str, tuple[list[dict[str, Any]], bool]]:
        return {job.job_id: ([asdict(_ask(job, expected=expected, needs_s=needs_s, ours=ours))], False)}

    value = slurm_asked.of_jobs("sooner", [job.job_id], ask, max_age_s=ASK_EVERY_S)[job.job_id][0]
    changes = tuple(Change(**{**each, "options": tuple(each["options"])}) for each in value["changes"])
    return Said(**{**value, "changes": changes})


def _ask(job: JobRecord, *, expected: float | None, needs_s: int | None, ours: bool) -> Said:
    fields = _fields(job)
    if fields is None:
        return Said(problem="Slurm does not show the job any more")
    number = fields["JobId"].split()[0]
    script = process.run(["scontrol", "write", "batch_script", number, "-"], timeout=_TIMEOUT_S)
    if script.returncode != 0 or not script.stdout.startswith("#!"):
        return Said(problem="Slurm does not give the job's script")
    wish = start_sooner.wish_of(fields)
    wanted = start_sooner.changes(wish, discover.discover(), needs_s=needs_s, ours=ours)
    as_it_is = [] if expected is not None else [Change(words="as it is", options=())]
    descriptor, name = tempfile.mkstemp(prefix="hpctrain-ps-", suffix=".sbatch")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(script.stdout)
        answers = start_sooner.ask(Path(name), wish, [*as_it_is, *wanted], timeout=_TIMEOUT_S)
    finally:
        Path(name).unlink(missing_ok=True)
    own = answers[0].start if as_it_is else None
    return Said(changes=tuple(answers[len(as_it_is) :]), asked=len(answers), as_it_is=own)


def _fields(job: JobRecord) -> Mapping[str, str] | None:
    """Return the fields of the job; of an array, of the tasks that wait.

    Raises:
        SchedulerError: Slurm does not answer.
    """
    number = job.job_id.partition("_[")[0]
    done = process.run(["scontrol", "show", "job", "-o", number], timeout=_TIMEOUT_S)
    if done.returncode != 0 and "Invalid job id" not in done.stderr:
        raise SchedulerError("Slurm did not answer", details=(f"  scontrol said: {done.stderr.strip()[:200]}",), fix="sinfo")
    found = records.parse_scontrol_jobs(done.stdout)
    return next((fields for fields in found if fields.get("JobState") == "PENDING"), None)
