"""The charts of a run's history, or of a comparison, all over steps. A quantity that was not
measured has no chart. PURE.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeGuard

from hpctrain.memory.sample import Sample
from hpctrain.report.charts import Chart, Marker, Series
from hpctrain.report.compare import CURVES, Comparison, Scalar
from hpctrain.report.efficiency import gpu_peak_mib
from hpctrain.runs.history import History, Point
from hpctrain.util import text

FEW = 8
"""Maximum number of lines with their own color."""


# -- curves ----------------------------------------------------------------------------------------


def _line(
    name: str, points: Iterable[Point], key: str, colour: int, factor: float = 1
) -> Series | None:
    """Return values over steps; None if nothing has them."""
    pairs: list[tuple[float, float]] = []
    for point in points:
        if key in point.values:
            while pairs and pairs[-1][0] >= point.step:
                pairs.pop()  # after a start from scratch, a repeated step counts
            pairs.append((float(point.step), factor * point.values[key]))
    if not pairs:
        return None
    xs, ys = zip(*pairs, strict=True)
    return Series(name=name, x=xs, y=ys, colour=colour)


def of_rows(history: History) -> tuple[list[Chart], list[Chart]]:
    """Return the training charts (loss, learning rate, gradient norm), and the speed charts (tokens
    per second, model FLOP/s, wait for data).
    """
    log, evaluated = history.of("log"), history.of("evaluate")
    speed = history.of("speed")

    def charts(
        name: str, title: str, *lines: Series | None, unit: str = "", top: float | None = None
    ) -> list[Chart]:
        kept = tuple(line for line in lines if line is not None)
        chart = Chart(
            id=name,
            title=title,
            series=kept,
            unit=unit,
            rules=_restarts(history),
            zero=name not in ("loss", "grad"),
            top=top,
            says="; ".join(_says(line, unit) for line in kept),
        )
        return [chart] if kept else []

    losses = _line("train", log, "loss", 0), _line("evaluation", evaluated, "eval_loss", 1)
    useful = _line("useful", speed, "useful_tokens_per_s", 0)
    padded = _line("with padding", speed, "tokens_per_s", 5)
    flops = _line("model FLOP/s", speed, "mfu", 2, factor=100)
    waits = _line("waiting", speed, "data_wait", 3, factor=100)
    return [
        *charts("loss", "Loss", *losses),
        *charts("lr", "Learning rate", _line("learning rate", log, "learning_rate", 0)),
        *charts("grad", "Gradient norm", _line("gradient norm", log, "grad_norm", 0)),
    ], [
        *charts("tokens", "Tokens per second, all processes", useful, padded),
        *charts("mfu", "Model FLOP/s utilization", flops, unit="%"),
        *charts("wait", "Waiting for data, slowest process", waits, unit="%", top=5.0),
    ]


def _restarts(history: History) -> tuple[Marker, ...]:
    return tuple(
        Marker(
            x=float(each.first_step), text=f"start {each.name} resumed at step {each.first_step}"
        )
        for each in history.starts[1:]
        if each.first_step is not None
    )


def _says(line: Series, unit: str) -> str:
    given = [y for y in line.y if y is not None]
    values = [y for y in given if math.isfinite(y)]
    if not values:
        return f"{line.name}: no value is a finite number"
    ends = (values[0], values[-1], min(values), max(values))
    first, last, low, high = map(text.number, ends)
    lost = len(given) - len(values)
    bad = f"; {lost} of {len(given)} are NaN or infinite" if lost else ""
    bad += ", the last too" if not math.isfinite(given[-1]) else ""
    unit = f" {unit}" if unit else ""
    return f"{line.name}: from {first} to {last}{unit}, lowest {low}, highest {high}{bad}"


# -- memory ----------------------------------------------------------------------------------------

#: Values by rank, or node, and step.
_Lines = dict[str, dict[int, float]]


def memory(history: History) -> list[Chart]:
    """Return memory of every GPU and node against its limit, and the GPUs' utilization."""
    # Samples from before the model was loaded are omitted.
    samples = [
        sample for each in history.ranks for sample in each.samples if sample.event != "train_begin"
    ]

    def lines(value: Callable[[Sample], int | None], *, by_node: bool, per: float) -> _Lines:
        """Return the highest value of each step, over all ranks of a node and repeated steps."""
        found: _Lines = {}
        for sample in samples:
            if (y := value(sample)) is not None:
                steps = found.setdefault(sample.host if by_node else f"rank {sample.rank}", {})
                steps[sample.step] = max(steps.get(sample.step, 0.0), round(y / per, 3))
        return found

    found = []
    for name, title, by_node, value, limit, what in (
        ("gpu-memory", "GPU memory of each rank", False, gpu_peak_mib, "gpu_total_mib", "GPU"),
        (
            "cgroup",
            "Host memory of the job, each node",
            True,
            lambda sample: sample.cgroup_used_mib,
            "cgroup_limit_mib",
            "the job's limit",
        ),
        (
            "node-memory",
            "Memory of each node, all of its processes",
            True,
            lambda sample: sample.node_used_mib,
            "node_total_mib",
            "node",
        ),
    ):
        known = lines(value, by_node=by_node, per=1024)
        if not known:
            continue
        peaks = {label: max(values.values()) for label, values in known.items()}
        worst = max(peaks, key=lambda label: peaks[label])
        full, rules = "", _restarts(history)
        if limits := [mib for sample in samples if (mib := getattr(sample, limit))]:
            top = min(limits) / 1024
            full = f" of {text.number(top)} GiB ({100 * peaks[worst] / top:.0f} %)"
            rules += (Marker(y=top, text=f"{what}: {text.number(top)} GiB"),)
        found.append(
            Chart(
                id=name,
                title=title,
                series=_coloured(known, worst, f"{worst} (the fullest)"),
                unit="GiB",
                rules=rules,
                zero=True,
                says=f"the fullest is {worst} with {text.number(peaks[worst])} GiB{full}",
            )
        )
    if known := lines(lambda sample: sample.gpu_utilisation_percent, by_node=False, per=1):
        means = {f"rank {each.rank}": each.mean_utilisation or 0.0 for each in history.ranks}
        least = min(known, key=lambda label: means[label])
        found.append(
            Chart(
                id="utilisation",
                title="GPU utilization of each rank",
                series=_coloured(known, least, f"{least} (mean {means[least]:.0f} %)"),
                unit="%",
                zero=True,
                top=100.0,
                rules=_restarts(history),
                says=f"the least used is {least} with {means[least]:.0f} % on average",
            )
        )
    return found


def _coloured(
    known: Mapping[str, Mapping[int, float | None]], first: str | None, words: str
) -> tuple[Series, ...]:
    """Return one line each, sorted by step; `first` is highlighted and labeled `words`; if there
    are many, the others are gray.
    """
    found = []
    for number, (label, values) in enumerate(known.items()):
        stands_out = label == first and len(known) > 1
        colour = 1 if label == first else (0, 2, 3, 4, 5, 6, 7)[number % 7]
        found.append(
            Series(
                name=words if stands_out else label,
                x=tuple(map(float, sorted(values))),
                y=tuple(values[step] for step in sorted(values)),
                colour=colour if label == first or len(known) <= FEW else None,
                emphasis=stands_out,
            )
        )
    return tuple(found)


# -- several runs ----------------------------------------------------------------------------------


def is_number(value: Scalar) -> TypeGuard[int | float]:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def comparison(found: Comparison) -> Iterable[Chart]:
    """Return the loss curves in one chart, the best one marked."""
    having = [row for row in found.rows if row.curve]
    if not having:
        return
    rows = having[:CURVES]
    best = found.best.id if found.best is not None else None
    left = len(having) - len(rows)
    more = f"; the best {CURVES}, {left} more are left out" if left else ""
    yield Chart(
        id="curves",
        title="Loss curves",
        series=_coloured({row.id: dict(row.curve) for row in rows}, best, f"{best} (best)"),
        says=f"training loss of each run{more}",
    )
