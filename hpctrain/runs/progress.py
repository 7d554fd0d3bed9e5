"""Where a run stands now: read from the ends of its files, so that looking costs the same however long it has been running."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpctrain.memory.sample import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is not known is None.

    Attributes:
        step, max_steps: optimizer steps done, of all starts together.
        at: seconds since the epoch of the newest row, in the clock of the node.
        loss: the newest that was logged; losses: (step, loss), the newest last, 400 at most, thinned evenly.
        tokens_per_s: useful ones; mfu, data_wait: parts of 1; step_s: seconds of a step.
        eta_s: seconds to the end of the training, counted from `at`.
        samples: the newest of each rank, by rank.
        attempt: that wrote the newest row.
    """

    step: int | None = None
    max_steps: int | None = None
    at: float | None = None
    epoch: float | None = None
    loss: float | None = None
    losses: tuple[tuple[int, float], ...] = ()
    eval_loss: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    data_wait: float | None = None
    step_s: float | None = None
    eta_s: float | None = None
    samples: tuple[Sample, ...] = ()
    attempt: str | None = None

    @property
    def worst(self) -> Sample | None:
        """The sample of the rank whose GPU is the fullest; where no GPU is known, of the one whose cgroup, or node, is."""
        raise NotImplementedError


def read(run_dir: Path) -> Progress:
    """Return where the run stands. Files that are missing, half written or of something else say nothing."""
    raise NotImplementedError
