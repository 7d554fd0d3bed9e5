"""What a run did from its first step to its last, over all of its starts: what a report draws. Reads whole files, and thins as it reads.

A start that was killed leaves steps behind that the next one does again: rows behind the step that a later start resumed are lost work.
They are counted (`lost_steps`, `Start.lost_s`), and are no points.

Clocks of nodes differ. The samples of a rank are moved onto the clock of rank 0, by the steps that both were sampled at; and a start that
seems to begin before the one before it had ended is moved behind it (`Start.shift_s`). Times in the result are on that one axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hpctrain.memory.sample import Sample
from hpctrain.runs import history_files, history_memory, metrics, store
from hpctrain.runs.metrics import Row
from hpctrain.runs.store import Attempt
from hpctrain.runs.thin import Thinned


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Values of one moment: what the Trainer logged, or evaluated, or the speed (hpctrain.runs.speed), by their names."""

    at: float
    step: int
    event: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One attempt: from when to when, in seconds since the epoch, at which steps, and how it ended.

    A file may hold several starts, as outside Slurm, where they share a name; each is one of these.

    Attributes:
        started, ended: as the job script wrote them; where it wrote nothing, None.
        began: when the training began, after all had been loaded.
        last_at: of the last row.
        stopped_at: of the row `end`, which a training writes that was not killed.
        first_step: that it resumed, 0 for a training that starts anew; last_step: that it reached.
        lost_steps, lost_s: steps that a later start did again, and how long they had taken.
        shift_s: what was added to all of its times; back_s: how far its clock went back while it ran, which was added behind that.
    """

    name: str
    started: float | None
    ended: float | None
    first_step: int | None
    last_step: int | None
    outcome: str | None
    reason: str | None
    host: str | None = None
    job: str | None = None
    status: int | None = None
    began: float | None = None
    last_at: float | None = None
    stopped_at: float | None = None
    lost_steps: int = 0
    lost_s: float = 0.0
    shift_s: float = 0.0
    back_s: float = 0.0

    @property
    def first_at(self) -> float | None:
        """The first moment that is known of it."""
        return self.started if self.started is not None else self.began

    @property
    def until(self) -> float | None:
        """The last moment that is known of it."""
        return max((at for at in (self.ended, self.last_at) if at is not None), default=self.first_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Samples of one rank, thinned to the most that fits, peaks kept.

    Attributes:
        count: samples that were read.
        mean_utilisation: of the GPU, in percent, over all samples since the first step.
        clock_off_s: by how much the clock of its node was ahead of rank 0's, where that was seen.
        recent: its last samples, not thinned: what can be judged as it comes.
    """

    rank: int
    samples: tuple[Sample, ...]
    count: int = 0
    mean_utilisation: float | None = None
    clock_off_s: float = 0.0
    recent: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """See the module. `max_steps` is of the newest row that says it, `last_step` of the newest row."""

    points: tuple[Point, ...] = ()
    starts: tuple[Start, ...] = ()
    ranks: tuple[RankMemory, ...] = ()
    lost_steps: int = 0
    max_steps: int | None = None
    last_step: int | None = None

    def of(self, *events: str) -> list[Point]:
        """Return the points of these events, in the order of time."""
        return [point for point in self.points if point.event in events]


CLOCK_BACK_S = 1.0
"""What a row may be older than the one before it, and its clock not have been set back."""
PEAKS = {
    "log": (("loss", 1), ("loss", -1), ("grad_norm", 1)),
    "speed": (("useful_tokens_per_s", -1), ("useful_tokens_per_s", 1), ("data_wait", 1)),
    "evaluate": (("eval_loss", -1), ("eval_loss", 1)),
}
"""What thinning keeps of rows: those that hold the highest (1) or the lowest (-1) of these values."""


def read(run_dir: Path, *, most: int = 2000) -> History:
    """Return the run's history, with `most` points of each event and rank at most; of many ranks, fewer of each.

    Files that are missing, half written or of something else say nothing.
    """
    attempts = _attempts(run_dir.absolute())
    files = {each.name: run_dir / metrics.ATTEMPTS / each.name / metrics.FILE for each in attempts}
    later = [step for each in attempts for step in history_files.begins(files[each.name])]
    kept: dict[str, Thinned[Point]] = {}
    reading: list[_Reading] = []
    for attempt in attempts:
        now = _Reading(attempt, limit=min(later, default=None), after=reading[-1].until if reading else None)
        reading.append(now)
        for row in history_files.rows(files[attempt.name]):
            if row["event"] == "begin":
                later = later[1:]
                if now.first_step is not None:  # another start in the same file
                    now = _Reading(attempt, limit=None, after=now.until, again=True)
                    reading.append(now)
                now.limit = min(later, default=None)
            point = now.take(row)
            if point is not None:
                kept.setdefault(point.event, Thinned(most, _weights(point.event))).add(point)
    _only_the_last_ends(reading)
    starts = tuple(each.start() for each in reading)
    points = sorted((point for thinned in kept.values() for point in thinned.items()), key=lambda point: point.at)
    ranks = tuple(
        RankMemory(rank=each.rank, samples=_shifted(each.samples, starts), count=each.count, mean_utilisation=each.mean_utilisation,
                   clock_off_s=each.clock_off_s, recent=each.recent)
        for each in history_memory.read(run_dir / "memory", most=most)
    )  # fmt: skip
    return History(
        points=tuple(points), starts=starts, ranks=ranks, lost_steps=sum(each.lost_steps for each in starts),
        max_steps=next((each.max_steps for each in reversed(reading) if each.max_steps is not None), None),
        last_step=next((each.newest for each in reversed(reading) if each.newest is not None), None),
    )  # fmt: skip


def _attempts(run_dir: Path) -> list[Attempt]:
    """Return the attempts, oldest first; of one that does not say when it started, its first row does."""
    run = store.read_run(run_dir.parent, run_dir.name)
    attempts = list(run.attempts) if run is not None else []
    if all(each.started is not None for each in attempts):
        return attempts  # by the store, which knows that restarts of one job are counted, and that clocks differ
    first: dict[str, float] = {}
    for each in attempts:
        row = next(history_files.rows(run_dir / metrics.ATTEMPTS / each.name / metrics.FILE), None)
        first[each.name] = each.started if each.started is not None else row["at"] if row else float("inf")
    return sorted(attempts, key=lambda each: first[each.name])


def _weights(event: str) -> list[history_memory.Weight[Point]]:
    def weight(name: str, sign: int) -> history_memory.Weight[Point]:
        return lambda point: None if (value := point.values.get(name)) is None else sign * value

    return [weight(name, sign) for name, sign in PEAKS.get(event, ())]


class _Reading:
    """One start, while its rows are read."""

    def __init__(self, attempt: Attempt, *, limit: int | None, after: float | None, again: bool = False) -> None:
        self.attempt, self.limit, self.after = attempt, limit, after
        self.started = None if again else attempt.started
        self.is_last_of_its_file = True
        self.shift: float | None = None
        self.back = 0.0
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.newest: int | None = None
        self.max_steps: int | None = None
        self.began: float | None = None
        self.last_at: float | None = None
        self.stopped_at: float | None = None
        self._kept_at: float | None = None
        if self.started is not None:
            self._place(self.started)

    def _place(self, first: float) -> None:
        self.shift = 0.0 if self.after is None else max(0.0, self.after - first)

    def take(self, row: Row) -> Point | None:
        """Take the next row, and return its point; None for lost work."""
        if self.shift is None:
            self._place(row["at"])
        at = row["at"] + (self.shift or 0.0) + self.back
        if self.last_at is not None and at < self.last_at - CLOCK_BACK_S:  # somebody has set the clock: rows are in the order of time
            self.back += self.last_at - at
            at = self.last_at
        event, step = row["event"], row["step"]
        if event == "begin":
            self.first_step, self.began = step, at
        elif event == "end":
            self.stopped_at = at
        self.newest, self.last_at = step, at if self.last_at is None else max(self.last_at, at)
        self.last_step = step if self.last_step is None else max(self.last_step, step)
        if isinstance(row.get("max_steps"), int) and row["max_steps"] > 0:
            self.max_steps = row["max_steps"]
        if self.limit is not None and step > self.limit:
            return None
        self._kept_at = at
        return Point(at=at, step=step, event=event, values=_floats(metrics.values(row)))

    @property
    def until(self) -> float | None:
        """The last moment that is known so far, or that of the start before."""
        shift = self.shift or 0.0
        ended = self._ended(shift) if self.is_last_of_its_file else None
        known = [at for at in (self.after, self.last_at, ended, self.started) if at is not None]
        return max(known, default=None)

    def start(self) -> Start:
        """Return what was read."""
        each, shift = self.attempt, self.shift or 0.0
        last = self.is_last_of_its_file
        # What it resumed had been done by an earlier start, which counts it.
        lost = (
            max(0, self.last_step - max(self.limit, self.first_step or 0)) if self.limit is not None and self.last_step is not None else 0
        )
        return Start(
            name=each.name, started=None if self.started is None else self.started + shift,
            ended=self._ended(shift) if last else None,
            first_step=self.first_step, last_step=self.last_step, outcome=_outcome(each) if last else None,
            reason=each.reason if last else None, host=each.host, job=each.job, status=each.status if last else None,
            began=self.began, last_at=self.last_at, stopped_at=self.stopped_at, lost_steps=lost,
            lost_s=self._lost_s(lost), shift_s=shift, back_s=self.back,
        )  # fmt: skip

    def _ended(self, shift: float) -> float | None:
        """Return when the job script says that it ended; a clock that went back may have been set right before."""
        if self.attempt.ended is None:
            return None
        ended = self.attempt.ended + shift
        return ended + self.back if self.last_at is not None and ended < self.last_at - CLOCK_BACK_S else ended

    def _lost_s(self, lost: int) -> float:
        if not lost or self.last_at is None:
            return 0.0
        return max(0.0, self.last_at - (self._kept_at or self.began or self.last_at))


def _outcome(attempt: Attempt) -> str | None:
    return attempt.outcome or ("interrupted" if attempt.was_interrupted else None)


def _floats(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values as what can be drawn: a whole number may be larger than any float."""
    return {name: float(value) for name, value in values.items() if not isinstance(value, int) or abs(value) < 2**63}


def _only_the_last_ends(reading: list[_Reading]) -> None:
    """Of several starts in one file, what the job script says of the end is the last one's."""
    for number, each in enumerate(reading[:-1]):
        each.is_last_of_its_file = reading[number + 1].attempt is not each.attempt


def _shifted(samples: tuple[Sample, ...], starts: tuple[Start, ...]) -> tuple[Sample, ...]:
    """Move samples with the starts that they belong to."""
    if not any(each.shift_s for each in starts):
        return samples
    return tuple(_moved(sample, starts) for sample in samples)


def _moved(sample: Sample, starts: tuple[Start, ...]) -> Sample:
    at = sample.time_ms / 1000
    for each in starts:
        first, until = each.first_at, each.until
        if first is None or until is None or each.first_step is None or each.last_step is None:
            continue
        if first - each.shift_s - 5 <= at <= until - each.shift_s + 5 and each.first_step <= sample.step <= each.last_step:
            return replace(sample, time_ms=sample.time_ms + round(1000 * each.shift_s))
    return sample
