"""`--dependency` of local jobs: `afterany`, `afterok` and `afternotok`, all of which must be met.

As in Slurm 22.05, a dependency that is met is removed from the list. A job whose dependency can
never be met waits as DependencyNeverSatisfied until it is cancelled.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Literal

from hpctrain.local import jobs
from hpctrain.local.plan import Plan
from hpctrain.slurm.notations import states

Fulfilment = Literal["met", "unfulfilled", "failed"]
#: Slurm's message for a dependency on an unknown job, or of an unknown type.
PROBLEM = "Job dependency problem"
_KINDS = ("afterany", "afterok", "afternotok")
#: Seconds between checks of the jobs depended on.
_CHECK_S = 0.5
_JOB = re.compile(r"[0-9]{1,18}(?:_[0-9]{1,9})?\Z")


def parse(text: str) -> list[tuple[str, str]]:
    """Return the dependencies in `text` as (type, job id).

    Raises:
        ValueError: Slurm's message, with the part that is wrong.
    """
    found: list[tuple[str, str]] = []
    for word in text.split(","):
        kind, *job_ids = word.split(":")
        if kind not in _KINDS or not job_ids:
            raise ValueError(
                f"{PROBLEM}: the local scheduler knows {', '.join(_KINDS)} with job ids, separated"
                f" by commas, not {word!r}"
            )
        wrong = next((job_id for job_id in job_ids if not _JOB.match(job_id)), None)
        if wrong is not None:
            raise ValueError(f"{PROBLEM}: {wrong!r} is not a job id")
        found += [(kind, job_id) for job_id in job_ids]
    return found


def wait(plan: Plan, say: Callable[..., None], stopped: Callable[[], bool]) -> None:
    """Wait until the plan's dependency is met, or `stopped`; call `say(reason=…, dependency=…)` on
    each change.

    A dependency that was met stays met, even if that job is requeued later.
    """
    left = parse(plan.dependency) if plan.dependency is not None else []
    said = ""
    while left and not stopped():
        now = {condition: _fulfilment(*condition) for condition in left}
        left = [condition for condition in left if now[condition] != "met"]
        shown = ",".join(f"{kind}:{job_id}({now[kind, job_id]})" for kind, job_id in left)
        if shown and shown != said:
            never = "failed" in now.values()
            say(reason="DependencyNeverSatisfied" if never else "Dependency", dependency=shown)
            said = shown
        if left:
            time.sleep(_CHECK_S)


def _fulfilment(kind: str, job_id: str) -> Fulfilment:
    selection = jobs.find(job_id)
    if selection is None:  # existed at submission and was deleted since: its end is unknown
        return "met" if kind == "afterany" else "failed"
    record = selection.records()[0]
    if not record.is_final:
        return "unfulfilled"
    good = record.state in states.COMPLETED
    wanted = kind == "afterany" or good == (kind == "afterok")
    return "met" if wanted else "failed"
