"""The history of a run from its first step to its last, over all starts; the data of a report.

Entire files are read in bounded memory: rows and samples are thinned as they are read.

The start after a killed one repeats some steps: rows after the step that a later start resumed from
are lost work. They are counted (`lost_steps`, `Start.lost_s`) and are not points.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpctrain.memory import sample
from hpctrain.memory.sample import Sample
from hpctrain.runs import metrics, progress, store
from hpctrain.runs.metrics import Row, Thinned, Weight
from hpctrain.runs.store import Attempt
from hpctrain.util import stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Values of one log entry, evaluation or speed measurement (hpctrain.runs.progress), by name."""

    at: float
    step: int
    event: str
    values: Mapping[str, float]


@dataclass(slots=True, kw_only=True)
class Start:
    """One attempt: its times in seconds since the epoch, its steps, and how it ended.

    A file may contain several starts if they share a name, as outside Slurm; each is one `Start`.

    Attributes:
        started, ended: as the job script wrote them; None if it wrote nothing.
        began: when the training loop began, after loading.
        last_at: time of the last row.
        first_step: the step it resumed from, 0 from scratch; last_step: the last step it reached.
        lost_steps, lost_s: steps that a later start repeated, and the time they had taken.
    """

    name: str
    started: float | None = None
    ended: float | None = None
    first_step: int | None = None
    last_step: int | None = None
    outcome: str | None = None
    reason: str | None = None
    host: str | None = None
    job: str | None = None
    status: int | None = None
    began: float | None = None
    last_at: float | None = None
    lost_steps: int = 0
    lost_s: float = 0.0

    @property
    def first_at(self) -> float | None:
        """The earliest known time of this start."""
        return self.started if self.started is not None else self.began

    @property
    def until(self) -> float | None:
        """The latest known time of this start."""
        known = [at for at in (self.ended, self.last_at) if at is not None]
        return max(known, default=self.first_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Samples of one rank, thinned to a limit; peaks are kept.

    Attributes:
        count: samples read.
        mean_utilisation: of the GPU, in percent, over all samples since the first step.
        recent: its last samples, not thinned.
    """

    rank: int
    samples: tuple[Sample, ...]
    count: int = 0
    mean_utilisation: float | None = None
    recent: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """See the module.

    `max_steps` is from the newest row that has it, `last_step` from the newest row.
    """

    points: tuple[Point, ...] = ()
    starts: tuple[Start, ...] = ()
    ranks: tuple[RankMemory, ...] = ()
    lost_steps: int = 0
    max_steps: int | None = None
    last_step: int | None = None

    def of(self, *events: str) -> list[Point]:
        """Return the points of these events, in order of time."""
        return [point for point in self.points if point.event in events]


#: Rows that thinning keeps: those with the highest (1) or lowest (-1) of these values.
PEAKS = {
    "log": (("loss", 1), ("loss", -1), ("grad_norm", 1)),
    "speed": (("useful_tokens_per_s", -1), ("useful_tokens_per_s", 1), ("data_wait", 1)),
    "evaluate": (("eval_loss", -1), ("eval_loss", 1)),
}
_MOST_RANKS = 4096
#: Limit of samples of all ranks together: in a chart of 64 ranks, 125 of each are enough.
_ALL_RANKS = 8000
_FEWEST = 24
_RECENT = 30


def read(run_dir: Path, *, most: int = 700) -> History:
    """Return the run's history, with at most `most` points per event and rank; fewer per rank if
    there are many.

    Missing, incomplete or unrelated files are ignored.
    """
    kept: dict[str, Thinned[Point]] = {}
    starts: list[Start] = []
    max_steps = last_step = None
    for attempt, rows in _rows_of_attempts(run_dir):
        start, kept_at = Start(name=attempt.name, host=attempt.host, job=attempt.job), None
        start.started = attempt.started
        for row, limit in rows:
            at, step, event = row["at"], row["step"], row["event"]
            if event == "begin":
                if start.first_step is not None:  # another start in the same file
                    starts.append(start)
                    start = Start(name=attempt.name, host=attempt.host, job=attempt.job)
                start.first_step, start.began = step, at
            start.last_at = at
            start.last_step = max(step, start.last_step or 0)
            last_step = step
            if isinstance(row.get("max_steps"), int) and row["max_steps"] > 0:
                max_steps = row["max_steps"]
            if limit is not None and step > limit:
                # Steps before the one it resumed from belong to an earlier start, which counts
                # them.
                start.lost_steps = max(0, start.last_step - max(limit, start.first_step or 0))
                start.lost_s = max(0.0, at - (kept_at or start.began or at))
                continue
            kept_at = at
            point = Point(
                at=at,
                step=step,
                event=event,
                values={name: float(value) for name, value in metrics.values(row).items()},
            )
            kept.setdefault(event, Thinned(most, _weights(event))).add(point)
        starts.append(
            replace(
                start,
                ended=attempt.ended,
                outcome=attempt.outcome or ("interrupted" if attempt.was_interrupted else None),
                reason=attempt.reason,
                status=attempt.status,
            )
        )
    points = [point for thinned in kept.values() for point in thinned.items()]
    return History(
        points=tuple(sorted(points, key=lambda point: point.at)),
        starts=tuple(starts),
        ranks=tuple(_read_memory(run_dir / "memory", most)),
        lost_steps=sum(each.lost_steps for each in starts),
        max_steps=max_steps,
        last_step=last_step,
    )


def read_rows(run_dir: Path) -> Iterator[Row]:
    """Yield the rows of all attempts, oldest first, without lost work.

    Only the steps at which attempts began are kept in memory. Missing and unreadable files have no
    rows.
    """
    for _, rows in _rows_of_attempts(run_dir):
        yield from (row for row, limit in rows if limit is None or row["step"] <= limit)


def _rows_of_attempts(run_dir: Path) -> Iterator[tuple[Attempt, Iterator[tuple[Row, int | None]]]]:
    """Yield each attempt, oldest first, with its rows, and for each row the step after which it is
    lost work: the lowest one that a later start resumed from.
    """
    run = store.read_run(run_dir.absolute().parent, run_dir.name)
    attempts = run.attempts if run is not None else ()
    paths = [run_dir / metrics.ATTEMPTS / each.name / metrics.FILE for each in attempts]
    # A file has several parts if starts have no id of their own, as outside Slurm.
    later = [step for path in paths for step in metrics.begins(path)]

    def rows_of(path: Path) -> Iterator[tuple[Row, int | None]]:
        limit = min(later, default=None)
        for row in metrics.rows(path):
            if row["event"] == "begin":
                del later[:1]
                limit = min(later, default=None)
            yield row, limit

    for attempt, path in zip(attempts, paths, strict=True):
        yield attempt, rows_of(path)


def _weights(event: str) -> list[Weight[Point]]:
    def weight(name: str, sign: int) -> Weight[Point]:
        return lambda point: None if (value := point.values.get(name)) is None else sign * value

    return [weight(name, sign) for name, sign in PEAKS.get(event, ())]


def _read_memory(folder: Path, most: int) -> Iterable[RankMemory]:
    files = progress.rank_files(folder)[:_MOST_RANKS]
    most = min(most, max(_FEWEST, _ALL_RANKS // max(1, len(files))))
    for rank, path in files:
        kept: Thinned[dict[str, Any]] = Thinned(most, _SAMPLE_WEIGHTS)
        recent: deque[dict[str, Any]] = deque(maxlen=_RECENT)
        total = count = 0
        for value in filter(None, map(_sample_value, metrics.lines(path))):
            kept.add(value)
            recent.append(value)
            percent = value.get("gpu_utilisation_percent")
            if value["event"] != "train_begin" and percent is not None:
                total, count = total + percent, count + 1
        if kept.count:
            yield RankMemory(
                rank=rank,
                samples=_samples(kept.items()),
                count=kept.count,
                mean_utilisation=total / count if count else None,
                recent=_samples(recent),
            )


def _sample_value(line: bytes) -> dict[str, Any] | None:
    """Return a sample's decoded JSON, or None; only samples that are kept are validated as Sample."""
    try:
        value = stored.value_of(line)
        found = [type(value[name]) for name in ("time_ms", "step", "event", "host")]
    except (ValueError, TypeError, KeyError):
        return None
    return value if line.endswith(b"\n") and found == [int, int, str, str] else None


def _highest(sign: int, *names: str) -> Weight[dict[str, Any]]:
    """Return a weight: the first of these values that a sample has."""
    return lambda value: next(
        (sign * known for name in names if (known := value.get(name)) is not None), None
    )


_SAMPLE_WEIGHTS: tuple[Weight[dict[str, Any]], ...] = (
    _highest(1, "gpu_used_mib", "torch_reserved_mib", "torch_peak_mib"),
    _highest(1, "cgroup_used_mib", "node_used_mib", "rss_mib"),
    _highest(-1, "gpu_utilisation_percent"),
)


def _samples(values: Iterable[dict[str, Any]]) -> tuple[Sample, ...]:
    found = []
    for value in values:
        with suppress(ValueError):
            found.append(sample.from_value(value))
    return tuple(found)
