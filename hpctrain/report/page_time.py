"""The time of a run on a chart: its starts, what lies between them, restarts and lost work. PURE."""

from __future__ import annotations

from collections.abc import Sequence

from hpctrain.report.drawing import Rule, Span, Timeline
from hpctrain.report.next_time import spoken
from hpctrain.runs.history import History, Start

_FEW = 4
"""Starts that are told one by one; the table has them all."""


def zero_of(history: History) -> float:
    """Return the first moment of the run, from which times are counted; 0 where nothing has one."""
    times = [start.first_at for start in history.starts if start.first_at is not None]
    times += [point.at for point in history.points[:1] if point.at]  # those of a log have none
    times += [each.samples[0].time_ms / 1000 for each in history.ranks if each.samples]
    return min(times, default=0.0)


class Clock:
    """The time in which the run had its nodes: what lies between two starts is left out, as a queue may be longer than all of them."""

    def __init__(self, history: History) -> None:
        self._zero = zero_of(history)
        self._spans: list[tuple[float, float, float]] = []
        passed = 0.0
        for start in history.starts:
            first, until = start.first_at, start.until
            if first is not None and until is not None:
                self._spans.append((first, until, passed))
                passed += until - first
        self.name = "with nodes, without the waits" if len(self._spans) > 1 else ""

    def is_other(self, earlier: float, later: float) -> bool:
        """Whether another start began between two moments."""
        return any(earlier < first <= later for first, _, _ in self._spans)

    def broken(self, xs: Sequence[float], ys: Sequence[float | None]) -> tuple[tuple[float, ...], tuple[float | None, ...]]:
        """Put a gap where another start begins into a line over these seconds."""
        begins = [passed for _, _, passed in self._spans[1:]]
        out_x, out_y, before = list(xs[:1]), list(ys[:1]), xs[0] if xs else 0.0
        for x, y in zip(xs[1:], ys[1:], strict=True):
            between = [begin for begin in begins if before < begin <= x]
            out_x += [*between[:1], x]
            out_y += [*([None] if between else []), y]
            before = x
        return tuple(out_x), tuple(out_y)

    def at(self, time: float) -> float:
        """Return the seconds that the run had had its nodes."""
        if not self._spans:
            return time - self._zero
        first, until, passed = next((span for span in reversed(self._spans) if span[0] <= time), self._spans[0])
        last = self._spans[-1]
        return passed + max(0.0, (time if (first, until, passed) == last else min(time, until)) - first)


# -- restarts -----------------------------------------------------------------------------------------------------------


def restarts_by_step(history: History) -> list[Rule]:
    """Return a rule for each step that was resumed."""
    resumed = [start for start in history.starts[1:] if start.first_step is not None]
    return [Rule(x=float(start.first_step or 0), text=f"start {start.name} resumed at step {start.first_step}") for start in resumed]


def restarts_by_time(history: History, clock: Clock) -> list[Rule]:
    """Return a rule where each further start begins, and the stretches whose work was lost."""
    found = [
        Rule(x=clock.at(start.first_at), text=f"start {start.name}: step {start.first_step}")
        for start in history.starts[1:]
        if start.first_at is not None
    ]
    for start in history.starts:
        if start.lost_s and start.last_at is not None:
            text = f"{start.lost_steps} steps lost"
            found.append(Rule(x=clock.at(start.last_at - start.lost_s), until=clock.at(start.last_at), text=text, kind="lost"))
    return found


def timeline(history: History, *, now: float | None = None, submitted: float | None = None) -> Timeline | None:
    """Return the starts over time; None where nothing has a time."""
    timed = [
        (start, first, until) for start in history.starts if (first := start.first_at) is not None and (until := start.until) is not None
    ]
    if not timed:
        return None
    zero = zero_of(history)
    if submitted is not None and 0 <= zero - submitted < 90 * 86_400:
        zero = submitted  # the queue is a part of it
    rows, names, before = [], [], zero
    for number, (start, first, until) in enumerate(timed):
        until_ = max(until, now) if now is not None and number == len(timed) - 1 and start.ended is None else until
        rows.append(tuple(_spans(start, first, until_, before, zero)))
        names.append(f"start {number + 1}" if len(timed) < 10 else f"{number + 1}")
        before = until_
    saves, evaluations = ([point.at - zero for point in history.of(event)] for event in ("save", "evaluate"))
    says = "; ".join(f"start {number + 1}: {_how(start, first, until)}" for number, (start, first, until) in enumerate(timed))
    if len(timed) > _FEW:
        last = f"the last: {_how(*timed[-1])}"
        says = (
            f"{len(timed)} starts; {history.lost_steps} steps were done again; {last}"
            if history.lost_steps
            else f"{len(timed)} starts; {last}"
        )
    return Timeline(
        id="timeline", title="Starts over time", names=tuple(names), rows=tuple(rows), saves=tuple(saves), evaluations=tuple(evaluations),
        low=0.0, high=max(1.0, before - zero), says=says,
    )  # fmt: skip


def _how(start: Start, first: float, until: float) -> str:
    steps = "no step" if start.last_step is None else f"steps {start.first_step or 0} to {start.last_step}"
    return f"{steps} in {spoken(max(0.0, until - first))}" + (f", {start.outcome}" if start.outcome else "")


def _spans(start: Start, first: float, until: float, before: float, zero: float) -> list[Span]:
    found = []

    def add(low: float, high: float, kind: str, text: str) -> None:
        if high - low > 0:
            found.append(Span(first=low - zero, until=high - zero, kind=kind, text=f"{text}: {spoken(high - low)}"))

    add(before, first, "waiting", "waiting, without nodes")
    if start.began is None and start.outcome == "completed":
        add(first, until, "training", "the job ran; its script says no steps")
        return found
    began = start.began if start.began is not None and start.last_at is not None else until
    add(first, began, "loading", "before the first step")
    if start.last_at is not None and start.began is not None:
        lost = start.last_at - min(start.lost_s, max(0.0, start.last_at - start.began))
        add(began, lost, "training", f"training, steps {start.first_step} to {(start.last_step or 0) - start.lost_steps}")
        add(lost, start.last_at, "lost", f"{start.lost_steps} steps that a later start did again")
        add(start.last_at, until, "after", "after the last step that was logged")
    return found
