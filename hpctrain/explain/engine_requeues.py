"""A job of which nothing but its log is known, and whose log says that it was put back into the queue several times. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hpctrain.explain.case import Case, RequeueFact
from hpctrain.explain.engine_order import place
from hpctrain.explain.hit import Hit

_RULE = "job-requeue"


def with_requeues(case: Case, hits: Sequence[Hit]) -> Case:
    """Return the case with what all starts say of requeues; two at least, as one is usual.

    Args:
        case: without starts that are known better, such as those of a run.
        hits: of all starts.
    """
    own = sorted((hit for hit in hits if hit.rule == _RULE), key=place)
    times = sum(hit.count for hit in own)
    if case.attempts or times < 2:
        return case
    first, last = own[0], own[-1]
    seen = RequeueFact(
        times=times, evidence=(first.evidence, last.evidence), at=first.at, steps=first.steps_after, job=first.groups.get("job"),
        span_s=last.at - first.at if last.at is not None and first.at is not None else None,
    )  # fmt: skip
    return replace(case, requeues=seen)


def notes(case: Case) -> tuple[str, ...]:
    """Return what is said of requeues where nothing else is: a job may requeue itself at each time limit, and be well."""
    if case.requeues is None:
        return ()
    last = case.requeues.evidence[-1]
    return (f"the job was put back into the queue {case.requeues.times} times, last in {last.file}:{last.line}",)
