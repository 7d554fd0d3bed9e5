"""The remaining time of a training, and whether it fits into the job's time limit.

Pure: no clock, no environment, no files. Times are seconds since the epoch, durations seconds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from hpctrain.util.text import clock, duration, is_number

MARGIN_S = 10.0
MARGIN_PART = 0.25
RULE = (
    f"stops while one more step and a save still fit, with {MARGIN_PART:.0%} of their time and"
    f" {MARGIN_S:.0f} s to spare"
)
END_VARIABLE = "SLURM_JOB_END_TIME"
_STEPS, _SAVES = 20, 3


def end_time(environ: Mapping[str, str]) -> float | None:
    """Return the job's end time, in seconds since the epoch; None if unknown."""
    text = environ.get(END_VARIABLE, "")
    return float(text) if is_number(text) and int(text) > 0 else None


def reserve(*seconds: float | None) -> float:
    """Return how many seconds before the time limit a training must stop, given the durations of
    what remains to do: a step, a save, and the end of the job.
    """
    return MARGIN_S + (1 + MARGIN_PART) * sum(each or 0.0 for each in seconds)


def _short(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"


class Deadline:
    """The job's time limit and measured durations; callers pass the current time.

    Args:
        end: when the job's time ends, in seconds since the epoch; None for no limit.
        now: the start time.
        save: seconds of the last save of an earlier attempt, including its manifest; None if
            unknown; `evaluation`, `step` (including the wait for data) and `leaving` likewise.

    Attributes:
        saves, steps: the last measured durations; batches: those of an evaluation.
    """

    def __init__(
        self,
        end: float | None,
        *,
        now: float,
        save: float | None = None,
        evaluation: float | None = None,
        step: float | None = None,
        leaving: float | None = None,
    ) -> None:
        self.end = end
        self._middle = None if end is None else now + (end - now) / 2
        self.saves: deque[float] = deque([] if save is None else [save], maxlen=_SAVES)
        self.steps: deque[float] = deque([] if step is None else [step], maxlen=_STEPS)
        self.batches: deque[float] = deque(maxlen=_STEPS)
        self.evaluation = evaluation
        self.leaving = leaving

    @property
    def save(self) -> float | None:
        """Return the expected duration of a save, in seconds."""
        return max(self.saves, default=None)

    @property
    def step(self) -> float | None:
        """Return the expected duration of a step, in seconds, including the wait for data."""
        return max(self.steps, default=None)

    def wants_a_save(self, now: float) -> bool:
        """Return whether half of the time has passed without a save: its duration is only known
        after one.
        """
        return self._middle is not None and not self.saves and now >= self._middle

    def too_late(self, now: float) -> str | None:
        """Return why not even one step can be done and saved before the end; None if it can, or if
        nothing is known yet.
        """
        if self.end is None or self.save is None or self.step is None:
            return None
        if self.end - now >= self.step + self.save:
            return None
        return self._words(now, f"a step takes {_short(self.step)} and ")

    def must_stop(self, now: float, *, evaluate: bool, save: bool) -> str | None:
        """Return why the training must stop at the end of this step; None if it may continue.

        Args:
            now: the time.
            evaluate: an evaluation is due now; one that does not fit is left to the next attempt.
            save: a save is due now, before the next step.
        """
        evaluation = self.evaluation if evaluate else None
        words = self._late(now, self.step, evaluation, self.save if save else None)
        if words is not None and evaluation is not None:
            words += f", the evaluation due now {_short(evaluation)}"
        return words

    def must_stop_evaluating(self, now: float) -> str | None:
        """Return why an evaluation must be interrupted; None if it may continue."""
        return self._late(now, max(self.batches, default=None))

    def _late(self, now: float, *seconds: float | None) -> str | None:
        if self.end is None or self.end - now > reserve(self.save, self.leaving, *seconds):
            return None
        return self._words(now)

    def _words(self, now: float, step: str = "") -> str:
        save = "no save was measured"
        if self.save is not None:
            save = f"a save takes {_short(self.save)}"
        return f"the time limit ends in {_short(max(0.0, (self.end or 0.0) - now))}, {step}{save}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The time limit of a job, and what follows it.

    Attributes:
        end: when the time limit ends it; None if there is none or it is unknown.
        began: when it started; None if unknown.
        mode: `requeue`, `chain` or `off`, as in the job config; None if unknown.
        restarts: number of requeues so far.
        most: maximum number of requeues.
    """

    end: float | None = None
    began: float | None = None
    mode: str | None = None
    restarts: int = 0
    most: int | None = None


def times_left(
    strategy: str, every: float, *, step: int, last: int, epoch_steps: float | None
) -> int:
    """Return how many evaluations, or saves, come after `step` until the step `last`.

    Args:
        strategy: transformers' `no`, `steps` or `epoch`; `best` counts as none.
        every: steps between two of them.
        step: steps done.
        last: the last step of the training.
        epoch_steps: steps per epoch; None if unknown.
    """
    if strategy == "steps" and every >= 1:
        return last // int(every) - step // int(every)
    if strategy == "epoch" and epoch_steps:
        # The last epoch counts even if the training ends within it.
        return math.ceil(last / epoch_steps - 1e-9) - math.floor(step / epoch_steps + 1e-9)
    return 0


def outlook(
    needed: float, job: Job, *, now: float, spare: float = 0.0, startup: float = 0.0
) -> tuple[bool | None, str]:
    """Return whether `needed` seconds of work fit into the job (None: no time limit is known), and
    a sentence: `will not finish in 24:00:00: 31 h at this speed; it will requeue once`.

    Args:
        needed: seconds of remaining work.
        job: the job's time limit.
        now: the time.
        spare: seconds at the end of each start in which no new step begins.
        startup: seconds from the start of a job to its first new step.
    """
    if job.end is None:
        return None, f"done in about {duration(needed)}; no time limit is known"
    left = job.end - now - spare
    if needed <= left:
        words = f"done in about {duration(needed)}; the time limit leaves {duration(job.end - now)}"
        return True, words
    began = now if job.began is None else job.began
    each = job.end - began - spare - startup
    restarts = None
    if job.began is not None and each > 0:
        restarts = math.ceil((needed - max(0.0, left)) / each)
    words = f"will not finish in {clock(job.end - began)}: {duration(now - began + needed)}"
    return False, f"{words} at this speed; {_then(restarts, job)}"


def _then(restarts: int | None, job: Job) -> str:
    times = "" if restarts is None else f" {_times(restarts)}"
    if job.mode == "requeue":
        if job.most is not None and job.restarts + (restarts or 0) > job.most:
            return (
                f"it would have to requeue{times}, and may {_times(max(0, job.most - job.restarts))};"
                f" hint: use a longer --time, or --max-restarts {job.restarts + (restarts or 0)}"
            )
        return f"it will requeue{times}"
    if job.mode == "chain":
        return "the next job of its chain continues" + (
            f", {restarts} more in all" if times else ""
        )
    if job.mode == "off":
        return "it saves and stops there; to continue: hpctrain resubmit RUN"
    return "it saves and stops there; whether it is requeued is unknown"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
