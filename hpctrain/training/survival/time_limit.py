"""The remaining time of a training, and whether it fits into the job's time limit.

Pure: no clock, no environment, no files. Times are seconds since the epoch, durations seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from hpctrain.util.text import duration, is_number

MARGIN_S = 15.0
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
    what remains to do: a step and a save.
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
            unknown; `step` (including the wait for data) likewise.

    Attributes:
        saves, steps: the last measured durations; batches: those of an evaluation.
    """

    def __init__(
        self,
        end: float | None,
        *,
        now: float,
        save: float | None = None,
        step: float | None = None,
    ) -> None:
        self.end = end
        self._middle = None if end is None else now + (end - now) / 2
        self.saves: deque[float] = deque([] if save is None else [save], maxlen=_SAVES)
        self.steps: deque[float] = deque([] if step is None else [step], maxlen=_STEPS)
        self.batches: deque[float] = deque(maxlen=_STEPS)

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

    def must_stop(self, now: float, *, save: bool) -> str | None:
        """Return why the training must stop at the end of this step; None if it may continue.

        Args:
            now: the time.
            save: a save is due now, before the next step.
        """
        return self._late(now, self.step, self.save if save else None)

    def must_stop_evaluating(self, now: float) -> str | None:
        """Return why an evaluation must be interrupted; None if it may continue."""
        return self._late(now, max(self.batches, default=None))

    def _late(self, now: float, *seconds: float | None) -> str | None:
        if self.end is None or self.end - now > reserve(self.save, *seconds):
            return None
        return self._words(now)

    def _words(self, now: float, step: str = "") -> str:
        save = "no save was measured" if self.save is None else f"a save takes {_short(self.save)}"
        return f"the time limit ends in {_short(max(0.0, (self.end or 0.0) - now))}, {step}{save}"


def outlook(needed: float, end: float | None, *, now: float) -> tuple[bool | None, str]:
    """Return whether `needed` seconds of work end before `end` (None: no time limit is known), and
    a sentence: `done in about 31 h, after the time limit, which leaves 24 h`.
    """
    done = f"done in about {duration(needed)}"
    if end is None:
        return None, f"{done}; no time limit is known"
    left = duration(max(0.0, end - now))
    if needed <= end - now:
        return True, f"{done}; the time limit leaves {left}"
    return False, f"{done}, after the time limit, which leaves {left}"
