"""What a run had of its cluster, what of that became training, and what to ask for next time. PURE.

All of it is counted from what is known: the starts (hpctrain.runs.history), the accounting records, the samples and the config. What
is not known is None, and is not guessed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hpctrain.report import next_time
from hpctrain.report.next_time import Ask
from hpctrain.runs.history import History, Start
from hpctrain.scheduler.parse.accounting import Account

MIB = 2**20
SILENT = "unknown"
"""The part of a run whose steps nobody has written down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the time in which the run had its nodes.

    Attributes:
        id: training, loading, lost or after.
        seconds: of all starts together.
    """

    id: str
    what: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """What is not known is None.

    Attributes:
        gpus, nodes, cpus: of a job of the run.
        held_s: seconds in which it had its nodes, all starts together.
        asked_s: the time limits of these starts, added up.
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
    held_s: float = 0.0
    asked_s: float | None = None
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
        return None if not self.gpus else self.gpus * self.held_s / 3600

    @property
    def node_hours(self) -> float | None:
        """Node hours that the run had."""
        return None if not self.nodes else self.nodes * self.held_s / 3600

    @property
    def asked_gpu_hours(self) -> float | None:
        """GPU hours that its jobs could have had."""
        return None if not self.gpus or self.asked_s is None else self.gpus * self.asked_s / 3600

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
    spans = _spans(history.starts, accounts, now)
    held = sum(until - first for _, first, until in spans)
    limit = _limit(last, resources)
    nodes = _first(last.n_nodes if last else None, _whole(resources.get("nodes")))
    gpu_peak, gpu_total = gpu_memory(history)
    found = Efficiency(
        gpus=_gpus(last, history, resources), nodes=nodes, cpus=last.cpus if last else None, held_s=held,
        asked_s=limit * len(spans) if limit is not None and spans else None, waited_s=_waited(spans, accounts),
        parts=_parts(spans, silent=completed or (config or {}).get("script") is not None, going=now is not None),
        utilisation=_utilisation(history), cores_busy=_cores_busy(accounts),
        host_peak_bytes=_host_peak(history, accounts, nodes, fit),
        host_asked_bytes=_host_asked(last, history), gpu_peak_bytes=gpu_peak, gpu_total_bytes=gpu_total, whole_nodes=whole_nodes,
    )  # fmt: skip
    asks, notes = next_time.of(found, history, resources=resources, limit_s=limit, last=last, completed=completed, running=now is not None)
    return _with(found, asks, notes)


def _with(found: Efficiency, asks: tuple[Ask, ...], notes: tuple[str, ...]) -> Efficiency:
    from dataclasses import replace

    return replace(found, next=asks, notes=notes)


# -- time ---------------------------------------------------------------------------------------------------------------


def _spans(starts: Sequence[Start], accounts: Sequence[Account], now: float | None) -> list[tuple[Start, float, float]]:
    """Return each start with when it had its nodes first and last; of one that was killed, its record says when it ended."""
    records = {each.job_id: each for account in accounts for each in (account, *account.earlier)}
    found = []
    for number, start in enumerate(starts):
        first, until = start.first_at, start.until
        if first is None or until is None:
            continue
        newest = number == len(starts) - 1
        if newest and now is not None and start.ended is None:
            until = max(until, now)
        elif newest and start.ended is None and start.job in records:
            ended = records[start.job].ended
            # The scheduler's clock is another one than the node's: what is far off is not believed.
            until = ended if ended is not None and until <= ended <= until + 86_400 else until
        found.append((start, first, until))
    if not found and accounts:
        found = [(_unseen(each), each.started, each.ended) for each in accounts if each.started is not None and each.ended is not None]
    return found


def _unseen(account: Account) -> Start:
    """Return a start of which only the scheduler knows."""
    return Start(
        name=account.job_id, started=account.started, ended=account.ended, first_step=None, last_step=None, outcome=None,
        reason=account.reason, job=account.job_id,
    )  # fmt: skip


def _parts(spans: Sequence[tuple[Start, float, float]], *, silent: bool, going: bool) -> tuple[Part, ...]:
    """Return what the time went into.

    Args:
        spans: each start with when it had its nodes first and last.
        silent: a run without a step is a script's that says none, and not one that only loaded.
        going: it still runs: what came after the last row of its log is no loss yet.
    """
    if silent and spans and all(start.began is None for start, _, _ in spans):
        seconds = sum(until - first for _, first, until in spans)
        return (Part(id=SILENT, what="the script does not say when it trained", seconds=seconds),) if seconds > 0 else ()
    loading = training = lost = after = since = 0.0
    for start, first, until in spans:
        began = start.began
        if began is None or start.last_at is None:
            loading += until - first
            continue
        began = min(max(began, first), until)
        last = min(max(start.last_at, began), until)
        gone = min(start.lost_s, last - began)
        loading, lost = loading + began - first, lost + gone
        if going and start is spans[-1][0] and start.ended is None:
            since += until - last
        else:
            after += until - last
        training += last - began - gone
    return tuple(
        Part(id=name, what=what, seconds=seconds)
        for name, what, seconds in (
            ("training", "training, evaluating and saving", training),
            ("loading", "before the first step: the environment, imports, model and data", loading),
            ("lost", "steps that a later start did again", lost),
            ("after", "after the last step that was logged", after),
            ("since", "since the last step that was logged: it goes on", since),
        )
        if seconds > 0
    )


def _waited(spans: Sequence[tuple[Start, float, float]], accounts: Sequence[Account]) -> float | None:
    """Return the seconds in the queue of the first job, and between starts."""
    submitted = min(
        (each.submitted for account in accounts for each in (account, *account.earlier) if each.submitted is not None), default=None
    )
    if not spans:
        return None
    between = sum(max(0.0, later[1] - earlier[2]) for earlier, later in pairwise(spans))
    if submitted is None and len(spans) == 1:
        return None
    return between + (max(0.0, spans[0][1] - submitted) if submitted is not None else 0.0)


def _limit(last: Account | None, resources: Mapping[str, Any]) -> int | None:
    return _first(last.time_limit_s if last else None, _whole(resources.get("time")) if last is None or last.scheduler == "slurm" else None)


# -- what it had, and used ----------------------------------------------------------------------------------------------


def _gpus(last: Account | None, history: History, resources: Mapping[str, Any]) -> int | None:
    """Return the GPUs of the job: as accounted; else as the ranks saw them; a training that sampled and saw none had none."""
    if last is not None and last.gpus:
        return last.gpus
    with_gpu = {each.rank for each in history.ranks if any(sample.gpu_uuid or sample.gpu_total_mib for sample in each.samples[-3:])}
    if history.ranks:
        return len(with_gpu)
    nodes, each = _whole(resources.get("nodes")), _whole(resources.get("gpus_per_node"))
    return nodes * each if nodes and each and (last is None or last.scheduler == "slurm") else None


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
