"""Facts of host memory: a limit that is reached, and a process that grows with every step. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpctrain.explain.case import Case
from hpctrain.explain.facts_found import MIB, SAMPLES, Found, by_rank, current, evidence, gib, groups, where
from hpctrain.memory.limits import NEAR
from hpctrain.memory.sample import Sample

#: A leak is said from so many samples on, over so many steps, and where so much came on top of the beginning.
_SAMPLES, _STEPS, _GROWTH_MIB, _GROWTH = 3, 20, 512, 1.15
#: How straight the line is: the part of the variance that it explains.
_STRAIGHT = 0.9


def cgroup_full(case: Case) -> Found | None:
    """The memory limit of the job, or of a node without one, was nearly all used, at the worst moment that a sample saw."""
    full = [(part, sample) for sample in current(case) if (part := filled(sample)) is not None]
    if not full:
        return None
    part, sample = max(full, key=lambda each: (each[0], -each[1].time_ms))
    used, total, what = host_use(sample)
    if part <= NEAR or total is None or used is None:
        return None
    first = next(each for share, each in sorted(full, key=lambda each: each[1].time_ms) if share > NEAR)
    return Found(
        groups=groups(used=gib(used * MIB), limit=gib(total * MIB), percent=f"{part:.0%}", node=sample.host, what=what, step=sample.step),
        evidence=(evidence(SAMPLES, f"{where(sample)}: {what} uses {gib(used * MIB)} of {gib(total * MIB)} ({part:.1%})"),),
        node=sample.host, at=first.time_ms / 1000,
    )  # fmt: skip


def host_use(sample: Sample) -> tuple[int | None, int | None, str]:
    """Return MiB used and MiB there are of what ends the job first: the cgroup where it has a limit, else the node."""
    if sample.cgroup_limit_mib:
        return sample.cgroup_used_mib, sample.cgroup_limit_mib, "the job's cgroup"
    return sample.node_used_mib, sample.node_total_mib, "the node"


def filled(sample: Sample) -> float | None:
    """Return which part of that is used."""
    used, total, _ = host_use(sample)
    return None if used is None or not total else used / total


@dataclass(frozen=True, slots=True, kw_only=True)
class Climb:
    """A rank whose host memory rises with its steps.

    Attributes:
        rate: MiB of one step, of this rank with its workers.
        all_ranks: MiB of one step, of all ranks of its node together.
        reached: at which step what ends the job is full.
    """

    rank: int
    first: Sample
    last: Sample
    rate: float
    all_ranks: float
    reached: int | None


def host_memory_climbs(case: Case) -> Found | None:
    """A rank and its workers hold more with each step, in a straight line, and would fill the job's memory before the training ends."""
    found = climb(case)
    if found is None:
        return None
    first, last = _own(found.first) or 0, _own(found.last) or 0
    used, total, what = host_use(found.last)
    said = f"{gib(first * MIB)} at step {found.first.step}, {gib(last * MIB)} at step {found.last.step}"
    lines = [f"rank {found.rank} on {found.last.host} and its workers: {said}, {_rate(found.rate)}"]
    if used is not None and total is not None:
        full = f", full at about step {found.reached}" if found.reached is not None else ""
        lines.append(f"{where(found.last)}: {what} uses {gib(used * MIB)} of {gib(total * MIB)}{full}")
    return Found(
        groups=groups(
            rank=found.rank, node=found.last.host, rate=_rate(found.rate), reached=found.reached, step=found.last.step,
            limit=None if total is None else gib(total * MIB), what=what,
        ),
        evidence=tuple(evidence(SAMPLES, line) for line in lines), rank=found.rank, node=found.last.host, at=found.first.time_ms / 1000,
    )  # fmt: skip


def climb(case: Case) -> Climb | None:
    """Return the rank that climbs fastest, where memory would be full before the training ends, or is full; None where none does."""
    rates: dict[int, tuple[float, Sample, Sample]] = {}
    for rank, samples in by_rank(current(case)).items():
        steady = [sample for sample in samples if sample.step >= 1 and _own(sample) is not None]
        rate = _slope(steady)
        if rate is not None:
            rates[rank] = (rate, steady[0], steady[-1])
    if not rates:
        return None
    rank = max(rates, key=lambda each: rates[each][0])
    rate, first, last = rates[rank]
    together = sum(other for other, _, sample in rates.values() if sample.host == last.host)
    used, total, _ = host_use(last)
    if used is None or not total:
        return None
    reached = last.step + max(0, round((total - used) / together))
    if used < NEAR * total and case.max_steps is not None and reached > case.max_steps:
        return None
    if case.max_steps is None and reached > 100 * max(1, last.step):
        return None  # further away than anybody knows anything of
    return Climb(rank=rank, first=first, last=last, rate=rate, all_ranks=together, reached=reached)


def _own(sample: Sample) -> int | None:
    return None if sample.rss_mib is None else sample.rss_mib + (sample.children_rss_mib or 0)


def _slope(samples: Sequence[Sample]) -> float | None:
    """Return the MiB of a step by which a rank grows; None where it does not, or in no straight line."""
    pairs = [(float(sample.step), float(_own(sample) or 0)) for sample in samples]
    if len(pairs) < _SAMPLES or pairs[-1][0] - pairs[0][0] < _STEPS:
        return None
    if pairs[-1][1] - pairs[0][1] < _GROWTH_MIB or pairs[-1][1] < _GROWTH * pairs[0][1]:
        return None
    mean_x, mean_y = sum(x for x, _ in pairs) / len(pairs), sum(y for _, y in pairs) / len(pairs)
    xx, xy = sum((x - mean_x) ** 2 for x, _ in pairs), sum((x - mean_x) * (y - mean_y) for x, y in pairs)
    yy = sum((y - mean_y) ** 2 for _, y in pairs)
    if not xx or not yy or xy <= 0 or xy * xy / (xx * yy) < _STRAIGHT:
        return None
    return xy / xx


def _rate(mib: float) -> str:
    return f"{gib(mib * MIB)} a step" if mib >= 1 else f"{gib(mib * 1000 * MIB)} in 1000 steps"
