"""What keeps a local job from starting: the jobs that it depends on, and GPUs that others hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hpctrain.scheduler.local import book, claims, dependency
from hpctrain.scheduler.local.job_directory import JobDirectory
from hpctrain.scheduler.local.plan import Plan
from hpctrain.scheduler.parse.records import JobRecord

#: Seconds between looks at the jobs that are waited for.
_LOOK_S = 0.5

Say = Callable[..., None]


def for_jobs(plan: Plan, say: Say, stopped: Callable[[], bool]) -> None:
    """Wait until the dependency is met, or `stopped`; `say(reason=…, dependency=…)` is called for each change.

    What is met stays met, whatever a requeue makes of that job later.
    """
    if plan.dependency is None:
        return
    rest = dependency.parse(plan.dependency)
    last: dict[str, Any] = {}
    while not stopped():
        verdict, shown, rest = dependency.judge(
            rest,
            look,
            lambda: book.named(plan.name, before=int(plan.job_id)),
            has_started=has_started,
            now=time.time(),
        )
        if verdict == "met":
            return
        now = {"reason": "Dependency" if verdict == "unmet" else "DependencyNeverSatisfied", "dependency": shown}
        if now != last:
            say(**now)
            last = now
        time.sleep(_LOOK_S)


def for_gpus(job: JobDirectory, plan: Plan, say: Say, stopped: Callable[[], bool]) -> Plan | None:
    """Wait until the job has its GPUs, and return the plan with them; None where it was `stopped` first."""
    if not plan.total_gpus:
        return plan
    said = False
    while not stopped():
        taken = claims.take(job, plan.total_gpus, plan.gpus)
        if taken is not None:
            having = replace(plan, gpus=taken)
            if having != plan:
                job.change_plan(having)
            return having
        if not said:
            say(reason="Resources")
            said = True
        time.sleep(_LOOK_S)
    return None


def look(job_id: str) -> JobRecord | None:
    """Return the record of a job, of an array as a whole, or of a task."""
    meant = book.find(job_id)
    return book.records(meant)[0] if meant is not None else None


def has_started(job_id: str) -> bool:
    """Whether a job has started; of an array, all tasks."""
    meant = book.find(job_id)
    if meant is None:
        return True
    if not meant.is_array:
        return meant.job.record().state != "PENDING" or bool(meant.job.state().get("restarts"))
    started = set(meant.job.started())
    return all(index in started for index in meant.tasks)
