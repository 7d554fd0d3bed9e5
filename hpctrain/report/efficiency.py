"""What a run had of its cluster, what of that became training, and what to ask for next time. PURE.

All of it is counted from what is known: the starts (hpctrain.runs.history), the accounting records, the samples and the config. What
is not known is None, and is not guessed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpctrain.report import held, next_time
from hpctrain.report.held import Had, Span
from hpctrain.report.next_time import Ask
from hpctrain.runs.history import History, RankMemory
from hpctrain.scheduler.parse.accounting import Account

MIB = 2**20
SILENT = "unknown"
"""The part of a run whose steps nobody has written down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the time in which the run had its nodes.

    Attributes:
        id: training, loading, lost or after.
        seconds: of all starts together; gpu_s: times the GPUs that each had.
    """

    id: str
    what: str
    seconds: float
    gpu_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """What is not known is None.

    Attributes:
        gpus, nodes, cpus: of the newest job of the run; counts: the different numbers of GPUs that its jobs had, the oldest first.
        held_s: seconds in which it had its nodes, all starts together; gpu_s, node_s: times the GPUs, or nodes, that each start had.
        asked_s: the time limits of these starts, of those within one job once, added up; asked_gpu_s: times the GPUs of each.
        waited_s: seconds in which it had none: in the queue, and between two starts.
        parts: of `held_s`.
        utilisation: of the GPUs while it trained, 0 to 1.
        cores_busy: how many cores of the job were in use, on average.
        host_peak_bytes: the most that one node's processes took; host_asked_bytes: of what was asked for on each.
        gpu_peak_bytes, gpu_total_bytes: of the fullest GPU.
        whole_nodes: whether the site hands out, and bills, whole nodes.
        next: what to ask for next time; notes: what else follows.
    """

    gpus: int | None = None
    nodes: int | None = None
    cpus: int | None = None
    counts: tuple[int, ...] = ()
    held_s: float = 0.0
    gpu_s: float | None = None
    node_s: float | None = None
    asked_s: float | None = None
    asked_gpu_s: float | None = None
    waited_s: float | None = None
    parts: tuple[Part, ...] = ()
    utilisation: float | None = None
    cores_busy: float | None = None
    host_peak_bytes: int | None = None
    host_asked_bytes: int | None = None
    gpu_peak_bytes: int | None = None
    gpu_total_bytes: int | None = None
    whole_nodes: bool | None = None
    next: tuple[Ask, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def gpu_hours(self) -> float | None:
        """GPU hours that the run had."""
        return self.gpu_s / 3600 if self.gpu_s else None if not self.gpus else 0.0

    @property
    def node_hours(self) -> float | None:
        """Node hours that the run had."""
        return self.node_s / 3600 if self.node_s else None if not self.nodes else 0.0

    @property
    def asked_gpu_hours(self) -> float | None:
        """GPU hours that its jobs could have had."""
        return None if not self.asked_gpu_s else self.asked_gpu_s / 3600

    @property
    def wasted_gpu_hours(self) -> float | None:
        """GPU hours that were no training; None where that is not known."""
        if self.wasted_s is None or self.gpu_s is None:
            return None
        return sum(part.gpu_s or 0.0 for part in self.parts if part.id not in ("training", "since")) / 3600

    @property
    def wasted_s(self) -> float | None:
        """Seconds with nodes that were no training; None of a script that does not say when it trained."""
        known = not any(part.id == SILENT for part in self.parts)
        return sum(part.seconds for part in self.parts if part.id not in ("training", "since")) if known else None


def of(
    accounts: Sequence[Account], history: History, *, config: Mapping[str, Any] | None = None, fit: Mapping[str, Any] | None = None,
    whole_nodes: bool | None = None, completed: bool = False, now: float | None = None,
) -> Efficiency:  # fmt: skip
    """Return what a run had, used and wasted.

    Args:
        accounts: the records of its jobs.
        history: of the run.
        config: the job config as resolved, with its `resources`.
        fit: runs/ID/fit.json.
        whole_nodes: whether the site bills whole nodes; None where that is not known.
        completed: whether the training has done all of its steps.
        now: seconds since the epoch, for a run that is still going on; None for one that is over.
    """
    resources = (config or {}).get("resources")
    resources = resources if isinstance(resources, Mapping) else {}
    last = accounts[-1] if accounts else None
    limit = _limit(last, resources)
    nodes = _first(last.n_nodes if last else None, _whole(resources.get("nodes")))
    gpus = _gpus(last, history, resources)

    def otherwise(first: float, until: float) -> Had:
        return Had(gpus=_gpus_between(history, first, until, gpus), nodes=nodes, limit_s=limit)

    spans = held.spans(history.starts, accounts, now, otherwise=otherwise)
    jobs = {span.start.name: span.had for span in spans}.values()  # what a launcher starts again within a job has its limit, too
    limits = [had.limit_s for had in jobs if had.limit_s is not None]
    asked = sum(limits) if limits and len(limits) == len(jobs) else None
    gpu_peak, gpu_total = gpu_memory(history)
    found = Efficiency(
        gpus=gpus, nodes=nodes, cpus=last.cpus if last else None, held_s=sum(span.seconds for span in spans),
        counts=tuple(dict.fromkeys(span.had.gpus for span in spans if span.had.gpus)), gpu_s=_weighted(spans, "gpus"),
        node_s=_weighted(spans, "nodes"), asked_s=asked,
        asked_gpu_s=None if asked is None else sum((had.gpus or 0) * (had.limit_s or 0) for had in jobs),
        waited_s=held.waited_s(spans, accounts),
        parts=_parts(spans, silent=completed or (config or {}).get("script") is not None, going=now is not None),
        utilisation=_utilisation(history), cores_busy=_cores_busy(accounts),
        host_peak_bytes=_host_peak(history, accounts, nodes, fit),
        host_asked_bytes=_host_asked(last, history), gpu_peak_bytes=gpu_peak, gpu_total_bytes=gpu_total, whole_nodes=whole_nodes,
    )  # fmt: skip
    asks, notes = next_time.of(
        found,
        history,
        resources=resources,
        limit_s=limit,
        last=last,
        completed=completed,
        running=now is not None,
        tasks=_tasks(config or {}, resources),
    )
    return _with(found, asks, notes)


def _with(found: Efficiency, asks: tuple[Ask, ...], notes: tuple[str, ...]) -> Efficiency:
    from dataclasses import replace

    return replace(found, next=asks, notes=notes)


# -- time ---------------------------------------------------------------------------------------------------------------


def _parts(spans: Sequence[Span], *, silent: bool, going: bool) -> tuple[Part, ...]:
    """Return what the time went into.

    Args:
        spans: each start with when it had its nodes first and last.
        silent: a run without a step is a script's that says none, and not one that only loaded.
        going: it still runs: what came after the last row of its log is no loss yet.
    """
    if silent and spans and all(span.start.began is None for span in spans):
        seconds = sum(span.seconds for span in spans)
        what = "the script does not say when it trained"
        return (Part(id=SILENT, what=what, seconds=seconds, gpu_s=_weighted(spans, "gpus")),) if seconds > 0 else ()
    counted = {name: [0.0, 0.0] for name in _WORDS}
    for span in spans:
        for name, seconds in _of_span(span, going=going and span is spans[-1] and span.start.ended is None):
            counted[name][0] += seconds
            counted[name][1] += seconds * (span.had.gpus or 0)
    return tuple(
        Part(id=name, what=_WORDS[name], seconds=seconds, gpu_s=gpu_s) for name, (seconds, gpu_s) in counted.items() if seconds > 0
    )


_WORDS = {
    "training": "training, evaluating and saving",
    "loading": "before the first step: the environment, imports, model and data",
    "lost": "steps that a later start did again",
    "after": "after the last step that was logged",
    "since": "since the last step that was logged: it goes on",
}


def _of_span(span: Span, *, going: bool) -> list[tuple[str, float]]:
    start, first, until = span.start, span.first, span.until
    if start.began is None or start.last_at is None:
        return [("loading", until - first)]
    began = min(max(start.began, first), until)
    last = min(max(start.last_at, began), until)
    gone = min(start.lost_s, last - began)
    return [("loading", began - first), ("lost", gone), ("training", last - began - gone), ("since" if going else "after", until - last)]


def _weighted(spans: Sequence[Span], name: str) -> float | None:
    """Return seconds times GPUs, or nodes; None where they are not known of one."""
    counts = [getattr(span.had, name) for span in spans]
    return None if None in counts else sum(count * span.seconds for count, span in zip(counts, spans, strict=True))


def _tasks(config: Mapping[str, Any], resources: Mapping[str, Any]) -> int:
    """Return the tasks of each node: the launcher alone, or every process where srun starts them."""
    return max(1, _whole(resources.get("gpus_per_node")) or 1) if config.get("launcher") == "srun" else 1


def _limit(last: Account | None, resources: Mapping[str, Any]) -> int | None:
    return _first(last.time_limit_s if last else None, _whole(resources.get("time")) if last is None or last.scheduler == "slurm" else None)


# -- what it had, and used ----------------------------------------------------------------------------------------------


def _gpus(last: Account | None, history: History, resources: Mapping[str, Any]) -> int | None:
    """Return the GPUs of the job: as accounted; else as the ranks saw them; a training that sampled and saw none had none."""
    if last is not None and last.gpus:
        return last.gpus
    ranks = newest_ranks(history)
    if ranks:
        return sum(any(sample.gpu_uuid or sample.gpu_total_mib for sample in each.samples[-3:]) for each in ranks)
    nodes, each = _whole(resources.get("nodes")), _whole(resources.get("gpus_per_node"))
    return nodes * each if nodes and each and (last is None or last.scheduler == "slurm") else None


def _gpus_between(history: History, first: float, until: float, newest: int | None) -> int | None:
    """Return the GPUs of a start without a record, whose ranks are not those of the newest: a process uses one GPU."""
    worlds = {sample.world_size for each in history.ranks for sample in each.samples if first <= sample.time_ms / 1000 <= until}
    return worlds.pop() if newest and len(worlds) == 1 and newest == _world(history) else newest


def _world(history: History) -> int | None:
    ranks = newest_ranks(history)
    return len(ranks) or None


def newest_ranks(history: History) -> list[RankMemory]:
    """Return the ranks of the newest start: one with fewer of them leaves the files of the others as they were."""
    lasts = [(each, (each.recent or each.samples)[-1]) for each in history.ranks if each.recent or each.samples]
    if not lasts:
        return []
    world = max((last for _, last in lasts), key=lambda last: last.time_ms).world_size
    return [each for each, last in lasts if last.world_size == world and each.rank < world]


def _utilisation(history: History) -> float | None:
    means = [each.mean_utilisation for each in history.ranks if each.mean_utilisation is not None]
    return sum(means) / len(means) / 100 if means else None


def _cores_busy(accounts: Sequence[Account]) -> float | None:
    """Return the cores that were in use on average, over the jobs that say both."""
    cpu, wall = 0.0, 0
    for account in accounts:
        known = [step.cpu_s for step in account.steps if step.cpu_s is not None]
        if known and account.elapsed_s:
            cpu, wall = cpu + sum(known), wall + account.elapsed_s
    return cpu / wall if wall else None


def _host_peak(history: History, accounts: Sequence[Account], nodes: int | None, fit: Mapping[str, Any] | None) -> int | None:
    """Return the most that the processes of one node took.

    The cgroup says it exactly. The accounting knows the largest task; with one task on each node, that is the node's.
    """
    charged = [sample.cgroup_used_mib for each in history.ranks for sample in each.samples if sample.cgroup_used_mib is not None]
    if charged:
        return max(charged) * MIB
    measured = (fit or {}).get("measured")
    host = measured.get("host") if isinstance(measured, Mapping) else None
    steps = [step for account in accounts for step in account.steps if step.max_rss_bytes is not None]
    alone = [step.max_rss_bytes for step in steps if step.n_tasks is not None and nodes and step.n_tasks <= nodes]
    known = [int(each) for each in (host, *alone) if isinstance(each, int | float) and not isinstance(each, bool) and each > 0]
    return max(known, default=None)


def _host_asked(last: Account | None, history: History) -> int | None:
    if last is not None and last.memory_bytes:
        return last.memory_bytes
    limits = [sample.cgroup_limit_mib for each in history.ranks for sample in each.samples[-1:] if sample.cgroup_limit_mib is not None]
    return min(limits) * MIB if limits else None


def gpu_memory(history: History) -> tuple[int | None, int | None]:
    """Return peak and total bytes of the GPU that was fullest, by all that it held; by torch's peak where nothing else is known."""
    best: tuple[float, int, int] | None = None
    for each in history.ranks:
        total = max((sample.gpu_total_mib for sample in each.samples if sample.gpu_total_mib is not None), default=None)
        used = max((peak for sample in each.samples if (peak := gpu_peak_mib(sample)) is not None), default=None)
        if total and used is not None and (best is None or used / total > best[0]):
            best = (used / total, used * MIB, total * MIB)
    return (best[1], best[2]) if best else (None, None)


def gpu_peak_mib(sample: Any) -> int | None:
    """Return what a sample says of how full the GPU was at most: what is in use now, or what tensors took at their peak."""
    return max(
        (value for value in (sample.gpu_used_mib, sample.torch_reserved_mib, sample.torch_peak_mib) if value is not None), default=None
    )


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _whole(value: Any) -> int | None:
    if isinstance(value, float) and math.isfinite(value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
