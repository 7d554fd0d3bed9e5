"""What to ask for next time: directives to copy, each with what was asked and what was needed. PURE.

Only what was measured makes a directive. A number is the need and a margin, rounded up to what people write.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpctrain.jobs.spec import DEFAULT_CPUS_PER_GPU
from hpctrain.runs.history import History
from hpctrain.scheduler.parse import duration, memory_size
from hpctrain.scheduler.parse.accounting import Account

if TYPE_CHECKING:
    from hpctrain.report.efficiency import Efficiency

GIB = 2**30
TIME_MARGIN, MEMORY_MARGIN, CORES_MARGIN = 1.15, 1.2, 1.3
_LEAST_MEMORY = 2 * GIB
STARVED = 0.2
"""The part of the time that a training may wait for its data without more cores (hpctrain.training.speed_callback)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One directive.

    Attributes:
        option: `time`, `mem`, `mem-per-cpu`, `cpus-per-task`.
        value: as Slurm reads it; asked: what the job had, or None where it asked for nothing.
        why: what was needed.
    """

    option: str
    value: str
    asked: str | None
    why: str

    @property
    def line(self) -> str:
        """The directive."""
        return f"#SBATCH --{self.option}={self.value}"

    @property
    def is_as_it_was(self) -> bool:
        """Whether the job had asked for that already."""
        return self.value == self.asked


def of(
    found: Efficiency, history: History, *, resources: Mapping[str, Any], limit_s: int | None, last: Account | None, completed: bool,
    running: bool, tasks: int = 1,
) -> tuple[tuple[Ask, ...], tuple[str, ...]]:  # fmt: skip
    """Return the directives, and what else follows.

    Args:
        found: what the run had and used.
        history: of the run.
        resources: of the config.
        limit_s: the time limit of a job.
        last: the newest record.
        completed: whether all steps are done.
        running: whether it still goes on: then only the time is told.
        tasks: of each node, which share what a node has.
    """
    time_ask, notes = _time(found, history, limit_s, completed=completed, running=running)
    asks = [time_ask]
    if not running and found.whole_nodes:
        notes.append("whole nodes are billed here: asking for less memory or fewer cores of a node saves nothing")
    elif not running:
        asks += [_memory(found, resources, last), _cores(found, history, resources, tasks)]
    notes += _gpu_notes(found)
    return tuple(ask for ask in asks if ask is not None), tuple(notes)


# -- time ---------------------------------------------------------------------------------------------------------------


def _time(found: Efficiency, history: History, limit_s: int | None, *, completed: bool, running: bool) -> tuple[Ask | None, list[str]]:
    """Return what time one job needs for the whole training: what it took, or would have taken, without lost work."""
    seconds = {part.id: part.seconds for part in found.parts}
    training, steps = seconds.get("training", 0.0), _kept_steps(history)
    if len(found.counts) > 1:
        return None, [f"its jobs had {' and '.join(map(str, found.counts))} GPUs: what all of it takes on one of these is not known"]
    if not training or not steps:
        return None, []
    starts = max(1, sum(each.began is not None for each in history.starts))
    once = (seconds.get("loading", 0.0) + seconds.get("after", 0.0)) / starts
    left = max(0, (history.max_steps or 0) - (history.last_step or 0))
    if not completed and (not history.max_steps or running):
        return None, []
    need = once + training * (1 if completed else (steps + left) / steps)
    asked = None if limit_s is None else duration.format(limit_s)
    value = duration.format(_rounded_time(need * TIME_MARGIN))
    told = f"the whole training takes {spoken(need)}" if completed else f"all {history.max_steps} steps would take {spoken(need)}"
    if limit_s is not None and need > limit_s:
        fits = max(1.0, limit_s - once)
        jobs = math.ceil((need - once) / fits)
        return None, [f"{told}, and the limit is {asked}: {jobs} jobs, or --time={value} where the partition allows it"]
    return Ask(option="time", value=value, asked=asked, why=f"{told} in one job, with 15 % to spare"), []


def _kept_steps(history: History) -> int:
    """Return how many steps were done and kept."""
    return sum(
        max(0, each.last_step - each.first_step - each.lost_steps)
        for each in history.starts
        if each.first_step is not None and each.last_step is not None
    )


def _rounded_time(seconds: float) -> int:
    """Round up to what people write: minutes below half an hour, 5 up to 4 hours, 15 up to a day, else hours."""
    unit = 60 if seconds <= 1800 else 300 if seconds <= 14_400 else 900 if seconds <= 86_400 else 3600
    return max(60, math.ceil(seconds / unit) * unit)


# -- memory and cores ---------------------------------------------------------------------------------------------------


def _memory(found: Efficiency, resources: Mapping[str, Any], last: Account | None) -> Ask | None:
    peak, asked = found.host_peak_bytes, found.host_asked_bytes
    if peak is None:
        return None
    need = math.ceil(max(peak * MEMORY_MARGIN, peak + _LEAST_MEMORY / 4) / GIB) * GIB
    why = f"the fullest node took {size(peak)}" + (f" of {size(asked)}" if asked else "") + "; with 20 % to spare"
    per_cpu = resources.get("mem_per_cpu")
    cores = last.cpus // last.n_nodes if last is not None and last.cpus and last.n_nodes else None
    if per_cpu and cores:
        each = math.ceil(need / cores / (256 * 2**20)) * 256 * 2**20
        was = memory_size.format(per_cpu) if isinstance(per_cpu, int) else str(per_cpu)
        return Ask(option="mem-per-cpu", value=memory_size.format(each), asked=was, why=f"{why}; {cores} cores on each node")
    return Ask(option="mem", value=memory_size.format(need), asked=None if asked is None else memory_size.format(asked), why=why)


def _cores(found: Efficiency, history: History, resources: Mapping[str, Any], tasks: int) -> Ask | None:
    """Return the cores of a task: as many as were busy, and a margin; not fewer where the training waits for its data."""
    asked = resources.get("cpus_per_task")
    gpus = resources.get("gpus_per_node")
    processes = gpus // tasks if isinstance(gpus, int) else 1
    if not isinstance(asked, int) and isinstance(gpus, int):
        each = resources.get("cpus_per_gpu")
        asked = (each if isinstance(each, int) else DEFAULT_CPUS_PER_GPU) * processes
    if found.cores_busy is None or not found.nodes or not isinstance(asked, int):
        return None
    busy = found.cores_busy / found.nodes
    waits = mean_of(history, "data_wait")
    if waits is not None and waits > STARVED:
        return Ask(
            option="cpus-per-task", value=str(2 * asked), asked=str(asked),
            why=f"the training waited for its data {100 * waits:.0f} % of the time; more workers (--dataloader_num_workers) need the cores",
        )  # fmt: skip
    need = max(math.ceil(busy * CORES_MARGIN / tasks), processes, 1)
    shared = f", which {tasks} tasks share" if tasks > 1 else ""
    return Ask(
        option="cpus-per-task", value=str(min(need, max(asked, math.ceil(busy / tasks)))), asked=str(asked),
        why=f"{busy:.1f} cores of a node were busy on average{shared}",
    )  # fmt: skip


def mean_of(history: History, name: str) -> float | None:
    """Return the mean of a value of the speed over the second half of what was logged, when all is warm.

    Each row counts as long as its steps took: the mean of rates over equal steps would be higher than what the time has brought.
    """
    points = [point.values for point in history.of("speed") if math.isfinite(point.values.get(name, math.nan))]
    points = points[len(points) // 2 :]
    took = [values.get("step_s", 0.0) for values in points]
    weights = took if all(math.isfinite(each) and each > 0 for each in took) else [1.0] * len(points)
    return sum(weight * values[name] for weight, values in zip(weights, points, strict=True)) / sum(weights) if points else None


def _gpu_notes(found: Efficiency) -> list[str]:
    notes = []
    if found.gpu_peak_bytes and found.gpu_total_bytes and found.gpu_peak_bytes < 0.45 * found.gpu_total_bytes:
        notes.append(
            f"the fullest GPU held {size(found.gpu_peak_bytes)} of {size(found.gpu_total_bytes)}: there is room for a larger"
            " per_device_train_batch_size, or for fewer GPUs; hpctrain fit says which layouts fit"
        )
    if found.utilisation is not None and found.utilisation < 0.5:
        notes.append(f"the GPUs worked {100 * found.utilisation:.0f} % of the time while it trained")
    return notes


def size(count: float) -> str:
    """Return bytes as memory is spoken of, in powers of 1024: `38.2 GiB`."""
    value, units = float(count), ("B", "KiB", "MiB", "GiB", "TiB")
    for unit in units:
        if value < 1024 or unit == units[-1]:
            return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.3g} {unit}"
        value /= 1024
    raise AssertionError


def spoken(seconds: float) -> str:
    """Return a duration as people say it: `45 s`, `12 min`, `3.2 h`, `2.1 d`."""
    for unit, length, limit in (("s", 1, 100), ("min", 60, 100), ("h", 3600, 48)):
        if seconds < limit * length:
            value = seconds / length
            return f"{value:.0f} {unit}" if value >= 10 or value == int(value) else f"{value:.1f} {unit}"
    return f"{seconds / 86_400:.1f} d"
