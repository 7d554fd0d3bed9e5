"""How long a training still takes, and what becomes of that under the job's time limit.

Pure: no clock, no environment, no files. Times are seconds since the epoch, durations seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpctrain.runs.speed import clock
from hpctrain.training.deadline import MARGIN_PART, MARGIN_S

UNSURE, UNSURE_OF_RESTARTS = 0.03, 0.1
"""A measured speed is not known better than this: a verdict that turns within it, or a number of restarts, is not told again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The time of the job, and what follows when it is over.

    Attributes:
        end: when the time limit ends it; None where there is none, or nobody says.
        began: when it began; None where nobody says.
        mode: `requeue`, `chain` or `off`, as the job config says it; None where nobody does.
        restarts: how often it was requeued already.
        most: how often it is requeued at most.
    """

    end: float | None = None
    began: float | None = None
    mode: str | None = None
    restarts: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is left to do.

    Attributes:
        steps: optimizer steps, `step_s` seconds each.
        evaluations: of the evaluation split, `evaluation_s` seconds each; None where none was measured: they count nothing then.
        saves: checkpoints, likewise.
    """

    steps: int
    step_s: float
    evaluations: int = 0
    evaluation_s: float | None = None
    saves: int = 0
    save_s: float | None = None

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.steps * self.step_s + self.evaluations * (self.evaluation_s or 0.0) + self.saves * (self.save_s or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether the work fits.

    Attributes:
        fits: before the time limit; None where no limit is known.
        restarts: how many further starts of the job it takes; None where that is not known, none follows, or no number is enough.
        allowed: whether so many restarts are allowed; None where nobody says.
    """

    fits: bool | None
    restarts: int | None = 0
    allowed: bool | None = True


def times_left(strategy: str, every: float, *, step: int, last: int, epoch_steps: float | None) -> int:
    """Return how many evaluations, or saves, come after `step` until the step `last`.

    Args:
        strategy: transformers' `no`, `steps` or `epoch`; `best` is counted as none.
        every: steps between two of them.
        step: steps done.
        last: where the training ends.
        epoch_steps: steps of an epoch; None where that is not known.
    """
    if strategy == "steps" and every >= 1:
        return last // int(every) - step // int(every)
    if strategy == "epoch" and epoch_steps:
        # An epoch that is cut short by the end ends all the same.
        return math.ceil(last / epoch_steps - 1e-9) - math.floor(step / epoch_steps + 1e-9)
    return 0


def reserve(step_s: float, save_s: float | None, leaving_s: float | None) -> float:
    """Return the seconds before the end of its time limit that a training stops (hpctrain.training.deadline)."""
    return MARGIN_S + (1 + MARGIN_PART) * (step_s + (save_s or 0.0) + (leaving_s or 0.0))


def judge(needed: float, job: Job, *, now: float, spare: float = 0.0, startup: float = 0.0) -> Verdict:
    """Say whether `needed` seconds of work fit into the job, and how often it has to be started again.

    Args:
        needed: what is left to do.
        job: its time.
        now: the time.
        spare: seconds at the end of each start that no step is begun in.
        startup: seconds from the beginning of a job to the first step that is new.
    """
    if job.end is None:
        return Verdict(fits=None)
    left = job.end - now - spare
    if needed <= left:
        return Verdict(fits=True)
    each = None if job.began is None or job.mode not in ("requeue", "chain") else job.end - job.began - spare - startup
    restarts = None if each is None or each <= 0 else math.ceil((needed - max(0.0, left)) / each)
    if job.mode != "requeue" or job.most is None:
        return Verdict(fits=False, restarts=restarts, allowed=None)
    return Verdict(fits=False, restarts=restarts, allowed=None if restarts is None else job.restarts + restarts <= job.most)


def turned(before: Verdict | None, needed: float, job: Job, *, now: float, spare: float = 0.0, startup: float = 0.0) -> Verdict | None:
    """Return the verdict when it has changed by more than the measurement is unsure of; None when `before` still holds."""
    found = judge(needed, job, now=now, spare=spare, startup=startup)
    by = UNSURE if before is None or before.fits != found.fits else UNSURE_OF_RESTARTS
    least, most = (judge(needed * part, job, now=now, spare=spare, startup=startup) for part in (1 - by, 1 + by))
    if before is None or least.fits == found.fits == most.fits != before.fits:
        return found
    if before.fits != found.fits or before == found:
        return None
    # Both take several starts; a number that a little more or less time would give is the same one.
    was, first, last = before.restarts, least.restarts, most.restarts
    near = was is not None and first is not None and last is not None and first <= was <= last
    return None if near and before.allowed == found.allowed else found


def sentence(verdict: Verdict, needed: float, job: Job, *, now: float) -> str:
    """Return a verdict in words: `will not finish in 24:00:00: 31 h at this speed; it will requeue once`."""
    if verdict.fits is None or job.end is None:
        return f"done in about {duration(needed)}; no time limit is known"
    if verdict.fits:
        return f"done in about {duration(needed)}; the time limit leaves {duration(job.end - now)}"
    if job.began is None:
        what = f"will not finish in the {clock(job.end - now)} that is left: {duration(needed)} at this speed"
    else:
        what = f"will not finish in {clock(job.end - job.began)}: {duration(now - job.began + needed)} at this speed"
    return f"{what}; {_then(verdict, job)}"


def _then(verdict: Verdict, job: Job) -> str:
    if job.mode == "requeue":
        if verdict.allowed is False and verdict.restarts is not None and job.most is not None:
            return (
                f"it would have to requeue {_times(verdict.restarts)}, and may {_times(max(0, job.most - job.restarts))};"
                f" fix: hpctrain submit --time LONGER, or --max-restarts {job.restarts + verdict.restarts}"
            )
        return "it will requeue" + (f" {_times(verdict.restarts)}" if verdict.restarts else "")
    if job.mode == "chain":
        more = "" if verdict.restarts is None else f", {verdict.restarts} more of them in all"
        return f"the next job of its chain goes on{more}"
    if job.mode == "off":
        return "it saves and stops there; to go on: hpctrain resubmit RUN"
    return "it saves and stops there; whether it is requeued is not known here"


def _times(number: int) -> str:
    return {0: "not at all", 1: "once", 2: "twice"}.get(number, f"{number} times")


def duration(seconds: float) -> str:
    """Return a duration as people say it: `41 s`, `12 min`, `3.2 h`, `31 h`, `8.5 days`."""
    seconds = max(0.0, seconds)
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    if hours < 99.5:
        return f"{hours:.1f} h" if hours < 9.95 else f"{hours:.0f} h"
    return f"{hours / 24:.1f} days"
