"""Which charts a run's history makes. A quantity that nobody measured makes none. PURE."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hpctrain.memory.sample import Sample
from hpctrain.report import scale
from hpctrain.report.drawing import Chart, Drawn, Heat, Rule, Series, binned
from hpctrain.report.efficiency import gpu_peak_mib
from hpctrain.report.page_time import Clock, restarts_by_step, restarts_by_time
from hpctrain.runs.history import History, Point, RankMemory

FEW = 8
"""Ranks that can have a colour of their own."""
BINS = 120


def training(history: History, *, by_epoch: bool = False, x: str | None = None) -> list[Drawn]:
    """Return loss, learning rate and gradient norm over the steps, or over `x`; of a log that says no steps, over epochs."""
    log, evaluated = history.of("log"), history.of("evaluate")
    if by_epoch:
        return _by_epoch(log, evaluated)
    axis = _Axis(history, x or "step")
    found: list[Drawn] = []
    lines = [axis.line("train", log, "loss", 0), axis.line("evaluation", evaluated, "eval_loss", 1, dots=True)]
    if any(lines):
        found.append(axis.chart("loss", "Loss", lines))
    if line := axis.line("learning rate", log, "learning_rate", 0):
        found.append(axis.chart("lr", "Learning rate", [line], zero=True))
    if line := axis.line("gradient norm", log, "grad_norm", 0):
        found.append(axis.chart("grad", "Gradient norm", [line]))
    return found


def _by_epoch(log: Sequence[Point], evaluated: Sequence[Point]) -> list[Drawn]:
    """Return the same over epochs; where a log says none, over its lines."""
    x = "epoch" if all("epoch" in point.values for point in (*log, *evaluated)) else ""
    found: list[Drawn] = []
    for name, title, keys in (
        ("loss", "Loss", ("loss", "eval_loss")), ("lr", "Learning rate", ("learning_rate",)), ("grad", "Gradient norm", ("grad_norm",)),
    ):  # fmt: skip
        lines = []
        for number, key in enumerate(keys):
            points = [point for point in (evaluated if key == "eval_loss" else log) if key in point.values]
            if points:
                xs = tuple(point.values["epoch"] if x else float(point.step) for point in points)
                text = {"loss": "train", "eval_loss": "evaluation"}.get(key, title.lower())
                lines.append(Series(name=text, x=xs, y=tuple(p.values[key] for p in points), colour=number, dots=key == "eval_loss"))
        if lines:
            says = "; ".join(_said(line, "") for line in lines)
            found.append(Chart(id=name, title=title, series=tuple(lines), x_kind="number", x_name=x or "line of the log", says=says))
    return found


def speed(history: History, *, by_step: bool = False, x: str | None = None) -> list[Drawn]:
    """Return tokens per second, model FLOP/s and the wait for data over time, or over `x`; over steps, where times are not known."""
    points = history.of("speed")
    if by_step:
        line = _over_steps("useful", points, "useful_tokens_per_s", 0)
        return [_chart("tokens", "Tokens per second, all processes", [line], [], zero=True)] if line is not None else []
    axis = _Axis(history, x or "time")
    found: list[Drawn] = []
    lines = [axis.line("useful", points, "useful_tokens_per_s", 0), axis.line("with padding", points, "tokens_per_s", 5, dashed=True)]
    if any(lines):
        found.append(axis.chart("tokens", "Tokens per second, all processes", lines, zero=True))
    if line := axis.line("model FLOP/s", points, "mfu", 2, times=100):
        found.append(axis.chart("mfu", "Model FLOP/s utilisation", [line], unit="%", zero=True))
    if line := axis.line("waiting", points, "data_wait", 3, times=100):
        found.append(axis.chart("wait", "Waiting for data, slowest process", [line], unit="%", zero=True, top=5.0))
    if not points and (line := axis.line("seconds", _step_times(history), "step_s", 0)):
        found.append(axis.chart("steps", "Seconds per step", [line], unit="s", zero=True))
    return found


def memory(history: History) -> list[Drawn]:
    """Return memory of every GPU and node against its limit, and the GPUs' utilisation, over time."""
    clock = Clock(history)
    rules = restarts_by_time(history, clock)
    found: list[Drawn] = []
    for name, title, value, limit, limit_text, hosts in _MEMORY:
        ranks = _of_hosts(history.ranks) if hosts else [(f"rank {each.rank}", _begun(each.samples)) for each in history.ranks]
        chart = _memory(name, title, ranks, value=value, limit=limit, limit_text=limit_text, clock=clock, rules=rules)
        found += [chart] if chart is not None else []
    utilisation = _utilisation(history, clock, rules)
    return found + ([utilisation] if utilisation is not None else [])


_Reads = Callable[[Sample], int | None]
_MEMORY: tuple[tuple[str, str, _Reads, _Reads, str, bool], ...] = (
    ("gpu-memory", "GPU memory of each rank", gpu_peak_mib, lambda sample: sample.gpu_total_mib, "what a GPU has", False),
    ("cgroup", "Host memory of the job, each node", lambda sample: sample.cgroup_used_mib, lambda sample: sample.cgroup_limit_mib,
     "the job's limit", True),
    ("node-memory", "Memory of each node, all of its processes", lambda sample: sample.node_used_mib, lambda sample: sample.node_total_mib,
     "what a node has", True),
)  # fmt: skip


# -- lines over steps and time ------------------------------------------------------------------------------------------


class _Axis:
    """What lies below the charts of a section: steps, or the time with nodes; restarts are marked on either."""

    def __init__(self, history: History, kind: str) -> None:
        self.kind, self._clock = kind, Clock(history)
        self._rules = restarts_by_time(history, self._clock) if kind == "time" else restarts_by_step(history)

    def line(
        self, name: str, points: Sequence[Point], key: str, colour: int, *, times: float = 1, dashed: bool = False, dots: bool = False
    ) -> Series | None:
        """Return values over this axis; None where nothing has them."""
        if self.kind == "time":
            return _over_time(name, points, key, self._clock, colour, times=times, dashed=dashed, dots=dots)
        return _over_steps(name, points, key, colour, times=times, dashed=dashed, dots=dots)

    def chart(
        self, name: str, title: str, lines: Sequence[Series | None], *, unit: str = "", zero: bool = False, top: float | None = None
    ) -> Chart:
        """Return a chart over this axis."""
        x_name = self._clock.name if self.kind == "time" else ""
        return _chart(name, title, lines, self._rules, x=self.kind, x_name=x_name, unit=unit, zero=zero, top=top)


def _chart(
    name: str, title: str, lines: Sequence[Series | None], rules: Sequence[Rule], *, x: str = "step", x_name: str = "",
    unit: str = "", zero: bool = False,
    top: float | None = None,
) -> Chart:  # fmt: skip
    kept = tuple(line for line in lines if line is not None)
    says = "; ".join(_said(line, unit) for line in kept)
    return Chart(
        id=name, title=title, series=kept, unit=unit, x_kind="time" if x == "time" else "step", x_name=x_name, rules=tuple(rules),
        zero=zero,
        top=top, says=says,
    )  # fmt: skip


def _said(line: Series, unit: str) -> str:
    values = [y for y in line.y if y is not None and math.isfinite(y)]
    if not values:
        return f"{line.name}: no number"
    unit = f" {unit}" if unit else ""
    return (
        f"{line.name}: from {scale.number(values[0])} to {scale.number(values[-1])}{unit},"
        f" lowest {scale.number(min(values))}, highest {scale.number(max(values))}{_no_numbers(line)}"
    )


def _no_numbers(line: Series) -> str:
    bad = [not math.isfinite(y) for y in line.y if y is not None]
    return f"; {sum(bad)} of {len(bad)} are NaN or infinite{', the last too' if bad[-1] else ''}" if any(bad) else ""


def _over_steps(
    name: str, points: Sequence[Point], key: str, colour: int, *, times: float = 1, dashed: bool = False, dots: bool = False
) -> Series | None:
    """Return values by step; a step that comes again, after a start from nothing, begins the line anew."""
    xs: list[float] = []
    ys: list[float | None] = []
    for point in points:
        if key not in point.values:
            continue
        if xs and point.step < xs[-1]:
            kept = [each for each in points if each.at >= point.at or each.step < point.step]
            return _over_steps(name, kept, key, colour, times=times, dashed=dashed, dots=dots)
        xs.append(point.step)
        ys.append(times * point.values[key])
    return Series(name=name, x=tuple(xs), y=tuple(ys), colour=colour, dashed=dashed, dots=dots) if xs else None


def _over_time(
    name: str, points: Sequence[Point], key: str, clock: Clock, colour: int, *, times: float = 1, dashed: bool = False, dots: bool = False
) -> Series | None:
    """Return values by seconds since the beginning, with a gap where another start begins."""
    xs: list[float] = []
    ys: list[float | None] = []
    before = 0.0
    for point in points:
        if key not in point.values:
            continue
        if xs and clock.is_other(before, point.at):
            xs.append(clock.at(point.at))
            ys.append(None)
        before = point.at
        xs.append(clock.at(point.at))
        ys.append(times * point.values[key])
    return Series(name=name, x=tuple(xs), y=tuple(ys), colour=colour, dashed=dashed, dots=dots) if xs else None


def _step_times(history: History) -> list[Point]:
    """Return seconds per step from the rows' times, where nobody has measured the speed."""
    found = []
    for earlier, later in zip(log := history.of("log"), log[1:], strict=False):
        if later.step > earlier.step and later.at > earlier.at:
            values = {"step_s": (later.at - earlier.at) / (later.step - earlier.step)}
            found.append(Point(at=later.at, step=later.step, event="speed", values=values))
    return found


# -- memory -------------------------------------------------------------------------------------------------------------


def _begun(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """Leave out what was seen before the model was there."""
    return tuple(sample for sample in samples if sample.event != "train_begin")


def _of_hosts(ranks: Sequence[RankMemory]) -> list[tuple[str, tuple[Sample, ...]]]:
    """Return the samples of each node: its ranks all see the same, and any of them may be the first to see a peak."""
    found: dict[str, list[Sample]] = {}
    for each in ranks:
        for sample in _begun(each.samples):
            found.setdefault(sample.host, []).append(sample)
    return [(host, tuple(sorted(samples, key=lambda sample: sample.time_ms))) for host, samples in found.items()]


def _memory(
    name: str, title: str, groups: Sequence[tuple[str, Sequence[Sample]]], *, value: _Reads, limit: _Reads, limit_text: str, clock: Clock,
    rules: Sequence[Rule],
) -> Chart | None:  # fmt: skip
    known = [(label, [(sample, got) for sample in samples if (got := value(sample)) is not None]) for label, samples in groups]
    known = [(label, pairs) for label, pairs in known if pairs]
    limits = [got for _, samples in groups for sample in samples[-1:] if (got := limit(sample)) is not None]
    if not known or (name == "node-memory" and limits == []):
        return None
    worst = max(known, key=lambda each: max(got for _, got in each[1]))[0]
    edges = _edges([clock.at(sample.time_ms / 1000) for _, pairs in known for sample, _ in pairs])
    lines = []
    for number, (label, pairs) in enumerate(known):
        times = [sample.time_ms / 1000 for sample, _ in pairs]
        xs = [clock.at(time) for time in times]
        ys = [round(got / 1024, 3) for _, got in pairs]
        if len(known) > FEW:
            centres, binned_ys = edges[:-1], binned(xs, ys, edges)
            at = [place for place, y in enumerate(binned_ys) if y is not None]
            gone, gaps = clock.broken(tuple(centres[place] for place in at), tuple(binned_ys[place] for place in at))
        else:
            gone, gaps = _with_gaps(times, xs, ys, clock)
        many = len(known) > FEW and label != worst
        text = f"{label} (the fullest)" if label == worst and len(known) > 1 else label
        lines.append(Series(
            name=text, x=gone, y=gaps, colour=None if many else 1 if label == worst else _not_the_worst(number),
            emphasis=label == worst and len(known) > 1,
        ))  # fmt: skip
    drawn = tuple(rules)
    top = None
    if limits:
        top = min(limits) / 1024
        drawn += (Rule(y=top, text=f"{limit_text}: {scale.number(top)} GiB", kind="limit"),)
    peak = max(got for label, pairs in known if label == worst for _, got in pairs) / 1024
    of = f" of {scale.number(top)} GiB ({100 * peak / top:.0f} %)" if top else " GiB"
    says = f"the fullest is {worst} with {scale.number(peak)}{of}; {len(known)} line{'s' if len(known) > 1 else ''}"
    return Chart(id=name, title=title, series=tuple(lines), unit="GiB", x_kind="time", x_name=clock.name, rules=drawn, zero=True, says=says)


def _not_the_worst(number: int) -> int:
    return (0, 2, 3, 4, 5, 6, 7)[number % 7]


def _edges(places: Sequence[float]) -> list[float]:
    low, high = min(places), max(places)
    width = ((high - low) or 1.0) / BINS
    return [low + width * number for number in range(BINS + 1)]


def _with_gaps(
    times: Sequence[float], xs: Sequence[float], ys: Sequence[float], clock: Clock
) -> tuple[tuple[float, ...], tuple[float | None, ...]]:
    """Break a line where another start begins."""
    out_x: list[float] = []
    out_y: list[float | None] = []
    for at, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if at and clock.is_other(times[at - 1], times[at]):
            out_x.append(x)
            out_y.append(None)
        out_x.append(x)
        out_y.append(y)
    return tuple(out_x), tuple(out_y)


def _utilisation(history: History, clock: Clock, rules: Sequence[Rule]) -> Drawn | None:
    ranks = [
        (
            each,
            [(s.time_ms / 1000, float(s.gpu_utilisation_percent)) for s in _begun(each.samples) if s.gpu_utilisation_percent is not None],
        )
        for each in history.ranks
    ]
    ranks = [(each, pairs) for each, pairs in ranks if pairs]
    if not ranks:
        return None
    means = {each.rank: each.mean_utilisation or 0.0 for each, _ in ranks}
    least = min(means, key=lambda rank: means[rank])
    says = f"mean {sum(means.values()) / len(means):.0f} %; the least used is rank {least} with {means[least]:.0f} %"
    title = "GPU utilisation of each rank"
    lowest = "; each cell is the lowest of its stretch"
    if len(ranks) <= FEW:
        lines = []
        for number, (each, pairs) in enumerate(ranks):
            xs, ys = _with_gaps([at for at, _ in pairs], [clock.at(at) for at, _ in pairs], [y for _, y in pairs], clock)
            name = f"rank {each.rank} (mean {means[each.rank]:.0f} %)"
            stands_out = each.rank == least and len(ranks) > 1
            lines.append(Series(name=name, x=xs, y=ys, colour=1 if stands_out else _not_the_worst(number), emphasis=stands_out))
        return Chart(
            id="utilisation", title=title, series=tuple(lines), unit="%", x_kind="time", x_name=clock.name, zero=True, top=100.0,
            rules=tuple(rules), says=says,
        )  # fmt: skip
    edges = _edges([clock.at(at) for _, pairs in ranks for at, _ in (pairs[0], pairs[-1])])
    rows = tuple(_filled(binned([clock.at(at) for at, _ in pairs], [y for _, y in pairs], edges, lowest=True)) for _, pairs in ranks)
    names = tuple(f"rank {each.rank}" for each, _ in ranks)
    return Heat(id="utilisation", title=title, x=tuple(edges[:-1]), names=names, rows=rows, says=says + lowest, x_name=clock.name)


def _filled(row: Sequence[float | None]) -> tuple[float | None, ...]:
    """Fill a hole of one or two columns with what was before it: thinning has left it, and not a silence."""
    found = list(row)
    for at in range(1, len(found)):
        if found[at] is None and any(value is not None for value in found[at + 1 : at + 3]):
            found[at] = found[at - 1]
    return tuple(found)
