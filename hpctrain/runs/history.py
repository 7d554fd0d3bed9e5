"""What a run did from its first step to its last, over all of its starts: what a report draws. Reads whole files, and thins as it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpctrain.memory.sample import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Values of one moment: what the Trainer logged, or evaluated, or the speed (hpctrain.runs.speed), by their names."""

    at: float
    step: int
    event: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One attempt: from when to when, in seconds since the epoch, at which steps, and how it ended."""

    name: str
    started: float | None
    ended: float | None
    first_step: int | None
    last_step: int | None
    outcome: str | None
    reason: str | None
    host: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Samples of one rank, thinned to the most that fits, peaks kept."""

    rank: int
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """See the module."""

    points: tuple[Point, ...] = ()
    starts: tuple[Start, ...] = ()
    ranks: tuple[RankMemory, ...] = ()
    lost_steps: int = 0


def read(run_dir: Path, *, most: int = 2000) -> History:
    """Return the run's history, with `most` points of each event and rank at most."""
    raise NotImplementedError
