"""What came first: of hits of many files, written by nodes whose clocks differ, in several starts of one job. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TypeVar

from hpctrain.explain.case import Case
from hpctrain.explain.hit import FirstFailed, Hit, Trouble
from hpctrain.memory.sample import Sample

#: A clock that differs by less is as good as right, and lines of different files that are nearer than that were written at once.
TOLERANCE_S = 2.0
#: A start of a job comes at least so long after the end of the one before.
_SLACK_S = 30.0

Seen = TypeVar("Seen", Hit, Trouble, FirstFailed)


def skews(samples: Sequence[Sample]) -> dict[str, float]:
    """Return node → seconds that its clock is ahead of the first node's, where it is more than TOLERANCE_S.

    All ranks finish a step at the same moment, because they wait for each other: what their samples of one step say differs by the clocks.
    """
    steps: dict[tuple[int, str], dict[str, float]] = {}
    for sample in samples:
        if sample.event in ("step", "first_step"):
            steps.setdefault((sample.step, sample.event), {}).setdefault(sample.host, sample.time_ms / 1000)
    hosts = sorted({host for seen in steps.values() for host in seen})
    if len(hosts) < 2:
        return {}
    reference = hosts[0]
    found = {}
    for host in hosts[1:]:
        apart = [seen[host] - seen[reference] for seen in steps.values() if host in seen and reference in seen]
        if apart and abs(ahead := median(apart)) > TOLERANCE_S:
            found[host] = ahead
    return found


def straight(seen: Iterable[Seen], clocks: Mapping[str, float]) -> list[Seen]:
    """Return what was seen with all times in one clock."""
    return [
        replace(each, at=each.at - clocks[each.node]) if each.at is not None and each.node is not None and each.node in clocks else each
        for each in seen
    ]


def split(seen: Iterable[Seen], case: Case) -> tuple[list[Seen], list[Seen]]:
    """Return what belongs to the last start of the job, and what belongs to earlier ones."""
    now: list[Seen] = []
    before: list[Seen] = []
    for each in seen:
        (before if _is_earlier(each, case) else now).append(each)
    return now, before


def _is_earlier(each: Hit | Trouble | FirstFailed, case: Case) -> bool:
    last = case.attempts[-1] if case.attempts else None
    if last is not None and each.attempt is not None and any(each.attempt == known.name for known in case.attempts):
        return each.attempt != last.name
    if last is not None and len(case.attempts) > 1 and last.started is not None and each.at is not None:
        return each.at < last.started - _SLACK_S
    return each.part < each.parts


def filled(hits: Sequence[Hit]) -> list[Hit]:
    """Return the hits in the order in which they were written; one without a time gets that of the next one in its file."""
    by_file: dict[tuple[str, int], list[Hit]] = {}
    for hit in hits:
        by_file.setdefault((hit.evidence.file, hit.order[0]), []).append(hit)
    found: list[Hit] = []
    for own in by_file.values():
        later: float | None = None
        for hit in sorted(own, key=lambda each: each.order, reverse=True):
            later = hit.at if hit.at is not None else later
            found.append(hit if hit.at is not None else replace(hit, at=later))
    return sorted(found, key=place)


def is_behind(hit: Hit, trouble: Trouble) -> bool:
    """Whether a line was written after an error: by their times, or, where one has none, by the lines of their file."""
    if hit.at is None or trouble.at is None:
        return hit.order[0] == trouble.order[0] and hit.order[1] > trouble.order[1]
    return hit.at - trouble.at > TOLERANCE_S


def place(hit: Hit | Trouble) -> tuple[float, int, int]:
    """Return what hits are sorted by; one whose time nobody knows may be the first."""
    return (hit.at if hit.at is not None else float("-inf"), *hit.order)
