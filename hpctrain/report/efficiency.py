"""A run's allocated resources, the fraction that was used for training, and recommended requests
for the next job.

Computed from the starts (hpctrain.runs.history), the accounting records, the samples and the
config. Unknown values are None, not estimated. PURE.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpctrain.memory.sample import Sample
from hpctrain.runs import progress
from hpctrain.runs.history import History, Start
from hpctrain.slurm.notations import states, units
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.util import text

MIB, GIB = 2**20, 2**30

# -- allocated nodes -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Interval:
    """One start and its allocation from `first` to `until`, in seconds since the epoch.

    `start` is None if only the scheduler has a record of it.
    """

    start: Start | None
    first: float
    until: float
    gpus: int | None
    limit_s: int | None

    @property
    def seconds(self) -> float:
        """Return how long it had its nodes."""
        return self.until - self.first


#: Maximum difference between the clocks of a node and the scheduler.
_CLOCKS_S = 2.0


def records_of(starts: Sequence[Start], accounts: Sequence[JobRecord]) -> list[JobRecord | None]:
    """Return the accounting record of each start: its job's last record that began before it; None
    if accounting keeps only newer ones.
    """
    found = []
    for start in starts:
        records = [
            each
            for account in accounts
            if start.job and start.job in (account.job_id, account.slurm_job_id)
            for each in (*account.earlier, account)
            if (each.started or 0.0) <= (start.first_at or math.inf) + _CLOCKS_S
        ]
        found.append(records[-1] if records else None)
    return found


def with_ends(starts: Sequence[Start], accounts: Sequence[JobRecord]) -> tuple[Start, ...]:
    """Set the end of starts that were killed before they could record it, from their accounting."""
    found = []
    for at, (start, record) in enumerate(zip(starts, records_of(starts, accounts), strict=True)):
        later = (each.first_at for each in starts[at + 1 :] if each.first_at is not None)
        ended = min(record.ended or math.inf, next(later, math.inf)) if record else math.inf
        is_missing = start.ended is None and start.until is not None
        is_known = is_missing and (start.until or 0.0) < ended < math.inf
        found.append(replace(start, ended=ended) if is_known else start)
    return tuple(found)


def _intervals(
    starts: Sequence[Start],
    accounts: Sequence[JobRecord],
    gpus: int | None,
    limit_s: int | None,
    now: float | None,
) -> list[Interval]:
    """Return when each start had its nodes.

    Args:
        starts: of the run.
        accounts: the records of its jobs.
        gpus: default for starts whose record has none.
        limit_s: default for starts whose record has none.
        now: set if the run is still running.
    """

    def interval(
        start: Start | None, first: float, until: float, record: JobRecord | None
    ) -> Interval:
        given = (None, None) if record is None else (record.gpus or None, record.time_limit_s)
        return Interval(start, first, until, _first(given[0], gpus), _first(given[1], limit_s))

    seen = [each for each in with_ends(starts, accounts) if each.until is not None]
    if not seen:
        every = [each for account in accounts for each in (*account.earlier, account)]
        return [
            interval(None, each.started, each.ended, each)
            for each in every
            if each.started is not None and each.ended is not None
        ]
    records = records_of(seen, accounts)
    found = []
    for start, record in zip(seen, records, strict=True):
        first, until = start.first_at or 0.0, start.until or 0.0
        is_alone = record is not None and sum(each is record for each in records) == 1
        if record is not None and is_alone and first <= (record.ended or first):
            # Billing starts before the first line of the script, and ends after its last.
            first, until = min(first, record.started or first), max(until, record.ended or until)
        if now is not None and start is seen[-1] and start.ended is None:
            until = max(until, now)
        found.append(interval(start, first, until, record))
    return found


# -- usage -----------------------------------------------------------------------------------------

#: The share of a run whose steps are not recorded.
SILENT = "unknown"
_WORDS = {
    "training": "training, evaluating and saving",
    "loading": "before the first step: the environment, imports, model and data",
    "lost": "steps that a later start repeated",
    "after": "after the last logged step",
    "since": "since the last logged step; the run continues",
    SILENT: "the script does not report when it trained",
}


@dataclass(frozen=True, slots=True)
class TimeShare:
    """A share of the time in which the run had its nodes.

    Attributes:
        id: training, loading, lost, after, since or unknown.
        seconds: sum over all starts; gpu_s: multiplied by the GPUs of each.
    """

    id: str
    what: str
    seconds: float
    gpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Resource usage. Unknown values are None.

    Attributes:
        gpus: of the newest job of the run; counts: the distinct GPU counts of its jobs, oldest
            first.
        held_s: seconds of allocated nodes, over all starts.
        asked_s: sum of the time limits; starts within one job count once.
        parts: of `held_s`.
        gpu_hours, asked_gpu_hours: `held_s` and `asked_s` times the GPUs of each start.
        wasted_s, wasted_gpu_hours: time that was not training; None if unknown.
        utilisation: of the GPUs during training, 0 to 1.
        host_peak_bytes: the peak memory of one node's processes; `is_max_rss`: estimated as the
            largest task that Slurm sampled (MaxRSS), times the tasks of a node.
        host_asked_bytes: memory requested on each node.
        next: recommended requests; notes: other recommendations.
    """

    gpus: int | None = None
    counts: tuple[int, ...] = ()
    held_s: float = 0.0
    asked_s: int | None = None
    parts: tuple[TimeShare, ...] = ()
    gpu_hours: float | None = None
    asked_gpu_hours: float | None = None
    wasted_s: float | None = None
    wasted_gpu_hours: float | None = None
    utilisation: float | None = None
    host_peak_bytes: int | None = None
    is_max_rss: bool = False
    host_asked_bytes: int | None = None
    next: tuple[Ask, ...] = ()
    notes: tuple[str, ...] = ()


def of(
    accounts: Sequence[JobRecord],
    history: History,
    *,
    config: Mapping[str, Any] | None = None,
    completed: bool = False,
    now: float | None = None,
) -> Efficiency:
    """Compute what a run was allocated, used and wasted.

    Args:
        accounts: the records of its jobs.
        history: of the run.
        config: the resolved job config, with its `resources`.
        completed: whether the training has done all of its steps.
        now: seconds since the epoch, for a run that is still running; None if it has ended.
    """
    config = config or {}
    resources = config.get("resources") or {}
    last = accounts[-1] if accounts else None
    granted = resources if last is None or last.scheduler == "slurm" else {}
    limit = _first(last.time_limit_s if last else None, granted.get("time"))
    nodes = _first(last.n_nodes if last else None, resources.get("nodes"))
    gpus = _gpus(last, history, granted)
    held = _intervals(history.starts, accounts, gpus, limit, now)
    # Restarts within a job share its time limit.
    jobs = {each.start.name if each.start else at: each for at, each in enumerate(held)}.values()
    limits = [(each.limit_s, each.gpus or 0) for each in jobs if each.limit_s is not None]
    is_limited = bool(limits) and len(limits) == len(jobs)
    parts = _parts(
        held, silent=completed or config.get("script") is not None, running=now is not None
    )
    wasted = [part for part in parts if part.id not in ("training", "since")]
    is_known = not any(part.id == SILENT for part in parts)
    has_gpus = bool(gpus) and all(each.gpus is not None for each in held)
    peak, is_max_rss = _host_peak(history, accounts, nodes)
    means = [each.mean_utilisation for each in history.ranks if each.mean_utilisation is not None]
    found = Efficiency(
        gpus=gpus,
        counts=tuple(dict.fromkeys(each.gpus for each in held if each.gpus)),
        held_s=sum(each.seconds for each in held),
        asked_s=sum(limit for limit, _ in limits) if is_limited else None,
        parts=parts,
        gpu_hours=sum(part.gpu_s for part in parts) / 3600 if has_gpus else None,
        asked_gpu_hours=(
            sum(limit * gpus for limit, gpus in limits) / 3600 if is_limited and gpus else None
        ),
        wasted_s=sum(part.seconds for part in wasted) if is_known else None,
        wasted_gpu_hours=(
            sum(part.gpu_s for part in wasted) / 3600 if is_known and has_gpus else None
        ),
        utilisation=sum(means) / len(means) / 100 if means else None,
        host_peak_bytes=peak,
        is_max_rss=is_max_rss,
        host_asked_bytes=last.memory_bytes if last else None,
    )
    if last is not None and last.state in states.FAILED and not history.last_step:
        return found  # it ended before its first step: its usage is not that of a training
    cores = (last.cpus or 0) // (nodes or 1) if last else 0
    time, notes = _time_ask(found, history, limit, completed=completed, running=now is not None)
    asks = [time, _memory_ask(found, resources, cores) if now is None else None]
    made = [ask for ask in asks if ask is not None]
    if resources:
        made = [replace(ask, key=f"resources.{ask.option.replace('-', '_')}") for ask in made]
    return replace(found, next=tuple(made), notes=tuple(notes))


def _parts(held: Sequence[Interval], *, silent: bool, running: bool) -> tuple[TimeShare, ...]:
    """Split the time by use.

    Args:
        held: each start with its allocation.
        silent: without steps, the run counts as a script that reports none, not as one that only
            loaded.
        running: time after the last row of its log is not lost yet.
    """
    is_silent = silent and all(each.start is None or each.start.began is None for each in held)
    counted = {name: [0.0, 0.0] for name in _WORDS}
    for each in held:
        start, first, until = each.start, each.first, each.until
        stretches = {SILENT if is_silent else "loading": each.seconds}
        if start is not None and start.began is not None and start.last_at is not None:
            is_last = running and each is held[-1] and start.ended is None
            began = min(max(start.began, first), until)
            last = min(max(start.last_at, began), until)
            lost = min(start.lost_s, last - began)
            stretches = {"loading": began - first, "lost": lost, "training": last - began - lost}
            stretches["since" if is_last else "after"] = until - last
        for name, seconds in stretches.items():
            counted[name][0] += seconds
            counted[name][1] += seconds * (each.gpus or 0)
    return tuple(
        TimeShare(name, _WORDS[name], seconds, gpu_s)
        for name, (seconds, gpu_s) in counted.items()
        if seconds > 0
    )


# -- allocation and peak usage ---------------------------------------------------------------------


def _gpus(last: JobRecord | None, history: History, resources: Mapping[str, Any]) -> int | None:
    """Return the GPUs of the job: as accounted, else as the ranks reported; a training with samples
    but no GPU had none.
    """
    if last is not None and last.gpus:
        return last.gpus
    newest, _ = progress.of_ranks([list(each.recent or each.samples) for each in history.ranks])
    if newest:
        return sum(bool(sample.gpu_uuid or sample.gpu_total_mib) for sample in newest)
    each = resources.get("gpus_per_node")
    return resources["nodes"] * each if resources.get("nodes") and each is not None else None


def _host_peak(
    history: History, accounts: Sequence[JobRecord], nodes: int | None
) -> tuple[int | None, bool]:
    """Return the peak memory of one node's processes, from their cgroup, else from the largest task
    that Slurm sampled (True).
    """
    samples = [sample for each in history.ranks for sample in each.samples]
    if (peak := most(sample.cgroup_used_mib for sample in samples)) is not None:
        return peak * MIB, False
    steps = (step for account in accounts for step in account.steps if step.max_rss_bytes)
    tasks = (
        (step.max_rss_bytes or 0) * math.ceil((step.n_tasks or 1) / (nodes or 1)) for step in steps
    )
    return max(tasks, default=None), True


def gpu_peak_mib(sample: Sample) -> int | None:
    """Return the GPU's peak memory: the current usage, or the peak of the tensors."""
    return most((sample.gpu_used_mib, sample.torch_reserved_mib, sample.torch_peak_mib))


def most(values: Iterable[int | None]) -> int | None:
    """Return the largest known value."""
    return max((value for value in values if value is not None), default=None)


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


# -- recommended requests --------------------------------------------------------------------------
# Only measured values become directives: the need plus a margin, rounded to a usual value.

_TIME_MARGIN, _MEMORY_MARGIN = 1.15, 1.2
_LEAST_MEMORY = GIB // 2


@dataclass(frozen=True, slots=True)
class Ask:
    """One recommended value.

    Attributes:
        option: of sbatch: `time`, `mem`, `mem-per-cpu`, `mem-per-gpu`.
        value: in Slurm's notation; asked: the job's value, or None if it requested nothing.
        why: the measured need.
        key: of the config, as `resources.mem_per_cpu`, if the script is rendered from one:
            a directive written into the script would be lost.
    """

    option: str
    value: str
    asked: str | None
    why: str
    key: str | None = None

    @property
    def line(self) -> str:
        """The line to copy: into the config, else into a batch script."""
        return f"{self.key}: {self.value}" if self.key else self.directive

    @property
    def directive(self) -> str:
        """The line of a batch script."""
        return f"#SBATCH --{self.option}={self.value}"


def _time_ask(
    found: Efficiency, history: History, limit_s: int | None, *, completed: bool, running: bool
) -> tuple[Ask | None, list[str]]:
    """Return the time that one job needs for the complete training, without lost work."""
    seconds = {part.id: part.seconds for part in found.parts}
    training = seconds.get("training", 0.0)
    steps = sum(
        max(0, each.last_step - each.first_step - each.lost_steps)
        for each in history.starts
        if each.first_step is not None and each.last_step is not None
    )
    is_open = not completed and (not history.max_steps or running)
    if not training or not steps or is_open or len(found.counts) > 1:
        return None, []
    starts = max(1, sum(each.began is not None for each in history.starts))
    once = (seconds.get("loading", 0.0) + seconds.get("after", 0.0)) / starts
    left = 0 if completed else max(0, (history.max_steps or 0) - (history.last_step or 0))
    need = once + training * (steps + left) / steps
    total = "the complete training takes" if completed else f"all {history.max_steps} steps take"
    told = f"{total} {text.duration(need)}"
    asked = None if limit_s is None else units.format_time(limit_s)
    value = units.format_time(math.ceil(need * _TIME_MARGIN / 300) * 300)
    if limit_s is not None and need > limit_s:
        jobs = math.ceil((need - once) / max(1.0, limit_s - once))
        return None, [
            f"{told}, and the limit is {asked}: {jobs} jobs, or --time={value} if the partition"
            " allows it"
        ]
    return Ask("time", value, asked, f"{told} in one job, with 15 % to spare"), []


def _memory_ask(found: Efficiency, resources: Mapping[str, Any], cores: int) -> Ask | None:
    peak, asked = found.host_peak_bytes, found.host_asked_bytes
    if peak is None:
        return None
    need = math.ceil(max(peak * _MEMORY_MARGIN, peak + _LEAST_MEMORY) / GIB) * GIB
    took = text.size(peak) + (f" of {text.size(asked)}" if asked else "")
    who = "the tasks of a node (MaxRSS)" if found.is_max_rss else "the fullest node"
    why = f"{who} took {took}; with 20 % to spare"
    gpus, option, unit, share = resources.get("gpus_per_node"), "mem", GIB, 1
    if resources.get("mem_per_gpu") and gpus:
        option, share, why = "mem-per-gpu", gpus, f"{why}; {gpus} GPUs"
    elif resources.get("mem_per_cpu") and cores:
        option, share, unit = "mem-per-cpu", cores, 256 * MIB
        why = f"{why}; {cores} cores on each node"
    asked = resources.get(option.replace("-", "_"), asked)
    value = units.format_memory(math.ceil(need / share / unit) * unit)
    return Ask(option, value, None if asked is None else units.format_memory(asked), why)


def mean_of(history: History, name: str) -> float | None:
    """Return the mean of a speed value over the second half of the rows, after warm-up.

    Each row is weighted by the duration of its steps: the mean of rates over equal steps would be
    too high.
    """
    rows = [point.values for point in history.of("speed")]
    rows = [row for row in rows if math.isfinite(row.get(name, math.nan))]
    rows = rows[len(rows) // 2 :]
    weights = [row.get("step_s", 0.0) for row in rows]
    if not all(math.isfinite(weight) and weight > 0 for weight in weights):
        weights = [1.0] * len(rows)
    total = sum(weight * row[name] for weight, row in zip(weights, rows, strict=True))
    return total / sum(weights) if rows else None
