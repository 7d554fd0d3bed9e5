"""The memory samples of all ranks of a run, `memory/rank-N.jsonl`, thinned as they are read, on one clock."""

from __future__ import annotations

import os
import re
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from hpctrain.memory import sample
from hpctrain.memory.sample import Sample
from hpctrain.runs import history_files
from hpctrain.runs.thin import Thinned

T = TypeVar("T")
Weight = Callable[[T], float | None]

_FILE = re.compile(r"rank-([0-9]{1,6})\.jsonl\Z")
_ALL_RANKS = 16_000
"""Samples of all ranks together: a chart of 64 ranks shows 250 of each as well as 2000."""
_FEWEST = 24
RECENT = 30
_MOST_RANKS = 4096
_ANCHORS = 64
"""Samples behind each beginning by which clocks are compared."""
_SAME_CLOCK_S = 2.0
"""Ranks reach a step together; what differs by less is the step, not the clock."""

#: A line as `hpctrain.memory.sample.to_json` writes it; what is written otherwise is read as JSON.
_LINE = re.compile(
    rb'\{"time_ms": (\d+), "step": (\d+), "event": "([a-z_]+)", "host": "([^"\\]*)", "rank": \d+, "world_size": \d+, "local_rank": \d+,'
    rb' "torch_allocated_mib": (?:null|\d+), "torch_peak_mib": (null|\d+), "torch_reserved_mib": (null|\d+), "gpu_index": (?:null|\d+),'
    rb' "gpu_name": (?:null|"[^"\\]*"), "gpu_uuid": (?:null|"[^"\\]*"), "gpu_used_mib": (null|\d+), "gpu_total_mib": (?:null|\d+),'
    rb' "gpu_utilisation_percent": (null|\d+), "rss_mib": (null|\d+), "children_rss_mib": (?:null|\d+), "node_used_mib": (null|\d+),'
    rb' "node_total_mib": (?:null|\d+), "cgroup_used_mib": (null|\d+),'
)
_NAMES = ("torch_peak_mib", "torch_reserved_mib", "gpu_used_mib", "gpu_utilisation_percent", "rss_mib", "node_used_mib", "cgroup_used_mib")


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One rank, as hpctrain.runs.history.RankMemory has it."""

    rank: int
    samples: tuple[Sample, ...]
    count: int
    mean_utilisation: float | None
    clock_off_s: float
    recent: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class _Seen:
    """What thinning looks at, and the line."""

    line: bytes
    time_ms: int
    gpu: int | None
    utilisation: int | None
    host: int | None
    back_ms: int = 0


_WEIGHTS: tuple[Weight[_Seen], ...] = (
    lambda seen: seen.gpu,
    lambda seen: seen.host,
    lambda seen: None if seen.utilisation is None else -seen.utilisation,
)


def read(folder: Path, *, most: int) -> list[Read]:
    """Return the samples of all ranks, by rank; `most` of each at most."""
    files = _files(folder)
    most = min(most, max(_FEWEST, _ALL_RANKS // max(1, len(files))))
    ranks = [_Rank(rank, path, most) for rank, path in files[:_MOST_RANKS]]
    offsets = _offsets(ranks)
    return [each.result(offsets) for each in ranks if each.kept.count]


def _files(folder: Path) -> list[tuple[int, Path]]:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - as in store
    except OSError:
        return []
    return sorted((int(found[1]), folder / name) for name in names if (found := _FILE.match(name)))


class _Rank:
    """One file, read."""

    def __init__(self, rank: int, path: Path, most: int) -> None:
        self.rank = rank
        self.kept: Thinned[_Seen] = Thinned(most, _WEIGHTS)
        self.anchors: list[tuple[bytes, tuple[int, bytes], int]] = []
        self._recent: deque[_Seen] = deque(maxlen=RECENT)
        self._utilisation, self._counted = 0, 0
        left = _ANCHORS
        last_ms, back_ms = 0, 0
        for line in history_files.lines(path):
            found = _seen(line)
            if found is None:
                continue
            seen, step, event, host = found
            if event == b"train_begin":  # another start may be on a node with another clock
                last_ms, back_ms = 0, 0
            elif seen.time_ms + back_ms < last_ms - 1000:  # somebody has set the clock: samples are in the order of time
                back_ms = last_ms - seen.time_ms
            last_ms = seen.time_ms + back_ms
            seen = replace(seen, time_ms=last_ms, back_ms=back_ms) if back_ms else seen
            self.kept.add(seen)
            self._recent.append(seen)
            if event == b"train_begin":
                left = _ANCHORS
                continue
            if seen.utilisation is not None:
                self._utilisation, self._counted = self._utilisation + seen.utilisation, self._counted + 1
            if left > 0 and len(self.anchors) < 100 * _ANCHORS:
                left -= 1
                self.anchors.append((host, (step, event), seen.time_ms))

    def result(self, offsets: dict[bytes, float]) -> Read:
        samples, recent = (tuple(_samples(seen, offsets)) for seen in (self.kept.items(), self._recent))
        mean = self._utilisation / self._counted if self._counted else None
        off = offsets.get(samples[-1].host.encode(), 0.0) if samples else 0.0
        return Read(rank=self.rank, samples=samples, count=self.kept.count, mean_utilisation=mean, clock_off_s=off, recent=recent)


def _samples(kept: Iterable[_Seen], offsets: dict[bytes, float]) -> Iterator[Sample]:
    """Yield the samples of lines, on the clock of the first rank."""
    for seen in kept:
        try:
            one = sample.from_json(seen.line.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            continue
        off = round(1000 * offsets.get(one.host.encode(), 0.0)) - seen.back_ms
        yield replace(one, time_ms=max(0, one.time_ms - off)) if off else one


def _seen(line: bytes) -> tuple[_Seen, int, bytes, bytes] | None:
    """Return what matters of a line: step, event and host beside; None for a line that is no sample."""
    found = _LINE.match(line)
    if found is not None and line.endswith(b"}"):
        time_ms, step, event, host, *texts = found.groups()
        peak, reserved, used, utilisation, rss, node, cgroup = (None if text == b"null" else int(text) for text in texts)
        return _Seen(line, int(time_ms), _first(used, reserved, peak), utilisation, _first(cgroup, node, rss)), int(step), event, host
    try:
        one = sample.from_json(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    values = [getattr(one, name) for name in _NAMES]
    gpu, host_use = _first(values[2], values[1], values[0]), _first(values[6], values[5], values[4])
    return _Seen(line, one.time_ms, gpu, values[3], host_use), one.step, one.event.encode(), one.host.encode()


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _offsets(ranks: list[_Rank]) -> dict[bytes, float]:
    """Return by how many seconds the clock of each host is ahead of the first rank's; hosts with the same clock are left out."""
    if len(ranks) < 2:
        return {}
    times: dict[tuple[int, bytes], list[int]] = {}
    for _, key, time in ranks[0].anchors:
        times.setdefault(key, []).append(time)
    own = {host for host, _, _ in ranks[0].anchors}
    found: dict[bytes, list[float]] = {}
    for each in ranks[1:]:
        for host, key, time in each.anchors:
            if host not in own and key in times:
                # A step that was done twice has two times; the nearer one is meant.
                found.setdefault(host, []).append(min((time - other for other in times[key]), key=abs) / 1000)
    medians = {host: statistics.median(values) for host, values in found.items()}
    return {host: off for host, off in medians.items() if abs(off) >= _SAME_CLOCK_S}
