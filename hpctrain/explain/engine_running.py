"""A job that still runs, of which a rank has ended by an error while the others wait for it: then its lines are believed. PURE.

A healthy job logs errors too, which it gets over. So an error counts where no step came any more for much longer than a step takes:
sooner where a launcher says that a process has exited, later where there is a traceback alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpctrain.explain import facts_time
from hpctrain.explain.case import Case
from hpctrain.explain.facts_found import current, last_attempt
from hpctrain.explain.hit import DEADLY, FirstFailed, Hit, Trouble
from hpctrain.explain.model import ErrorBlock, Fix

#: Rules whose lines a launcher writes when a process has ended.
_EXITED = frozenset({"srun-exited", "exit-killed", "torchelastic-child-failed"})
#: So srun names the signal that ended a task, of which another rule tells.
_SRUN = re.compile(r"srun: error: \S+: tasks? [\d,\[\]-]+: ")
#: Seconds without a step, behind a process that has exited, that are no hang: with steps, before the first, and while the log grows: then
#: the clock that steps are timed by may be slow. `_ALONE_S`: behind a traceback alone, as long as an evaluation may be silent.
_LEAST_S, _START_S, _GROWS_S, _ALONE_S, _TIMES = 60.0, 1200.0, 900.0, 1800.0, 3.0
#: Steps behind an error, and it ended nobody whom the others wait for; lines behind a launcher's word, and somebody goes on.
_GOES_ON, _LINES = 3, 2


def has_lost_a_rank(case: Case, hits: Sequence[Hit], troubles: Sequence[Trouble], first_failed: Sequence[FirstFailed]) -> bool:
    """Whether a process of a job that runs has ended by an error, and no step came since.

    Args:
        case: of a job that runs; `now` is known, or nothing can be said.
        hits: of its newest start.
        troubles: likewise.
        first_failed: likewise.
    """
    if case.account is None or case.account.state != "RUNNING" or case.now is None:
        return False
    exited = [hit for hit in hits if (hit.rule in _EXITED or _SRUN.match(hit.evidence.text)) and hit.steps_after < _GOES_ON]
    died = any((each.traceback or DEADLY.search(each.error)) and each.steps_after < _GOES_ON for each in troubles)
    last = died and (bool(first_failed) or any(hit.lines_after <= _LINES for hit in exited))
    if (exited or first_failed) and _stands_still(case, case.now, sure=last):
        return True
    quiet = facts_time.silence(case) if died else None
    return quiet is not None and quiet.is_long and quiet.seconds > _ALONE_S


def _stands_still(case: Case, now: float, *, sure: bool) -> bool:
    """Whether no step came for longer than one takes; where the training tells of none but in its log, whether that does not grow.

    `sure` where the process that has exited left a traceback too, and nobody wrote anything behind it: a tool that fails at the head of a
    script seldom does, and what loads the data writes.
    """
    last, samples = last_attempt(case), current(case)
    signs = [last.last_logged_at] if last is not None and last.last_logged_at is not None else []
    signs += [samples[-1].time_ms / 1000] if samples else []
    grown = [file.grown for file in case.files if file.grown is not None and file.size]
    signs, usual = signs or grown, facts_time.usual_pause(case)
    least = max(_LEAST_S if sure or usual is not None else _START_S, _TIMES * (usual or 0.0))
    if grown and now - max(grown) <= _LEAST_S:
        least = max(least, _GROWS_S)
    return bool(signs) and now - max(signs) > least


def notes(case: Case, unexplained: ErrorBlock | None) -> tuple[str, ...]:
    """Return what is said of the job besides: that it runs, and, where no fix says it, how to end it."""
    job = case.account.job_id if case.account is not None else ""
    runs = (
        f"job {job} still runs: one of its processes has ended by this error, and the others wait for it, until the time limit if need be"
    )
    what = ("to end it", "once it has ended, to go on")
    return (runs, *(f"{each}: {line}" for each, line in zip(what, _cancel(case), strict=False))) if unexplained is not None else (runs,)


def with_cancel(fix: Fix, case: Case) -> Fix:
    """Return a fix with the end of the job as its last lines: nothing else frees the nodes."""
    *lines, last = (fix.text.rstrip(), *_cancel(case))
    return Fix(text="\n".join((*lines, last + (" --apply-fix" if case.extra.get("run") and fix.changes else ""))), changes=fix.changes)


def _cancel(case: Case) -> tuple[str, ...]:
    """Return what to type, a command a line; `resubmit` says so where the job has not ended yet."""
    job, run = case.account.job_id if case.account is not None else "JOB", case.extra.get("run")
    return (f"hpctrain cancel {job}", *((f"hpctrain resubmit {run}",) if run else ()))
