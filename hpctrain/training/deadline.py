"""When to stop before the job's time limit: from what a save, a step and leaving took, never from a guess. No torch.

What must still fit, when a step has ended: the evaluation and the save that are due now, one more step, a save, and leaving (from the end
of the save to the end of the job, where an earlier attempt shows it). On top comes a margin of MARGIN_S seconds and MARGIN_PART of all
that: file systems are slower at times, and the clocks of nodes differ. Each time is the longest of the last ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

MARGIN_S = 10.0
MARGIN_PART = 0.25
RULE = f"stops while one more step and a save still fit, with {MARGIN_PART:.0%} of their time and {MARGIN_S:.0f} s to spare"
END_VARIABLE = "SLURM_JOB_END_TIME"
_STEPS, _SAVES = 20, 3


def end_time(environ: Mapping[str, str]) -> float | None:
    """Return when the job's time ends, in seconds since the epoch; None where nobody says."""
    text = environ.get(END_VARIABLE, "")
    return float(text) if text.isascii() and text.isdigit() and int(text) > 0 else None


def in_words(seconds: float) -> str:
    """Return a duration as people read it: `0.4 s`, `41 s`."""
    return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"


class Deadline:
    """The time limit of this job and what was measured; the clock is the caller's.

    Args:
        end: when the time ends, in seconds since the epoch; None for never.
        now: the time of the start.
        save: seconds that the last save of an earlier attempt took, None where unknown; `evaluation`, `step` and `leaving` likewise.
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
        self._saves: deque[float] = deque([] if save is None else [save], maxlen=_SAVES)
        self._steps: deque[float] = deque([] if step is None else [step], maxlen=_STEPS)
        self._parts: deque[float] = deque(maxlen=_STEPS)
        self.evaluation = evaluation
        self.leaving = leaving
        self._measured = save is not None

    @property
    def save(self) -> float | None:
        """Return what a save takes, in seconds."""
        return max(self._saves, default=None)

    @property
    def step(self) -> float | None:
        """Return what a step takes, in seconds, the wait for its data included."""
        return max(self._steps, default=None)

    def note_step(self, seconds: float) -> None:
        """A step took so long."""
        self._steps.append(seconds)

    def note_save(self, seconds: float) -> None:
        """A save took so long, its manifest included."""
        self._saves.append(seconds)
        self._measured = True

    def note_part(self, seconds: float) -> None:
        """One batch of an evaluation took so long."""
        self._parts.append(seconds)

    def wants_a_save(self, now: float) -> bool:
        """Say whether half of the time is gone and nothing was ever saved: then only a save tells how long one takes."""
        return self._middle is not None and not self._measured and now >= self._middle

    def too_late(self, now: float) -> str | None:
        """Say why not a single step can be done and saved before the end; None where it can, or where nothing is known yet."""
        if self.end is None or self.save is None or self.step is None or self._left(now) >= self.step + self.save:
            return None
        return f"the time limit ends in {in_words(max(0.0, self._left(now)))}, a step takes {in_words(self.step)} and {self._takes()}"

    def must_stop(self, now: float, *, evaluate: bool, save: bool) -> str | None:
        """Say why the training must stop at the end of this step; None where it may go on.

        Args:
            now: the time.
            evaluate: an evaluation is due now. One that does not fit is left to the next attempt.
            save: a save is due now, before the next step.
        """
        due = (self.evaluation or 0.0) * evaluate + (self.save or 0.0) * save
        if self.end is None or self._left(now) > self._needed((self.step or 0.0) + due):
            return None
        evaluation = f", the evaluation due now {in_words(self.evaluation)}" if evaluate and self.evaluation is not None else ""
        return f"the time limit ends in {in_words(max(0.0, self._left(now)))}, {self._takes()}{evaluation}"

    def must_stop_evaluating(self, now: float) -> str | None:
        """Say why an evaluation must be broken off; None where its next batch may be looked at."""
        if self.end is None or self._left(now) > self._needed(max(self._parts, default=0.0)):
            return None
        return f"the time limit ends in {in_words(max(0.0, self._left(now)))}, {self._takes()}"

    def _left(self, now: float) -> float:
        return (self.end or 0.0) - now

    def _needed(self, more: float) -> float:
        return MARGIN_S + (1 + MARGIN_PART) * ((self.save or 0.0) + (self.leaving or 0.0) + more)

    def _takes(self) -> str:
        return "no save was measured" if self.save is None else f"a save takes {in_words(self.save)}"
