"""A run's curves from its log, where the training wrote no metrics: a script of the user's own.

What is understood: the lines that transformers prints (`{'loss': '2.31', 'grad_norm': …, 'epoch': '0.03'}`, in any version's quoting), the
lines of hpctrain's own trainings, and those of the MemoryCallback. The Trainer's lines say no step: what is drawn is over epochs, and
where there is none over the lines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hpctrain.logs import read as logs
from hpctrain.logs.model import LogFile
from hpctrain.memory import sample
from hpctrain.memory.sample import Sample
from hpctrain.runs import speed
from hpctrain.runs.history import History, Point, RankMemory
from hpctrain.runs.thin import Thinned

_DICT = re.compile(r"\{'[A-Za-z_][\w./ -]{0,60}': .{1,4000}?\}")
_ITEM = re.compile(r"'([A-Za-z_][\w./ -]{0,60})': '?(-?(?:\d[\d.]*(?:[eE][+-]?\d+)?|nan|inf))'?(?=[,}])")
_OURS = re.compile(r"\[train\] step=(\d{1,12})/(\d{1,12}) (.{1,2000})")
_PAIR = re.compile(r"([A-Za-z_]\w{0,60})=(-?(?:\d[\d.]*(?:[eE][+-]?\d+)?|nan|inf))(?= |$)")
_MARKS = (b"'loss'", b"'eval_loss'", b"[train] step=", b"[speed]", b"[memory]")
_MOST_LINE = 1 << 16


def read(files: Sequence[LogFile], known: History, *, most: int = 2000) -> History:
    """Return the history with the points of these logs; times are those of nothing, because lines have none."""
    kept: dict[str, Thinned[Point]] = {}
    ranks: dict[int, Thinned[Sample]] = {}
    last = steps = None
    for point in _points(files, ranks, most):
        kept.setdefault(point.event, Thinned(most, [lambda each: each.values.get("loss")])).add(point)
        last, steps = point.step, point.values.get("max_steps", steps)
    if not kept and not ranks:
        return known
    points = [point for thinned in kept.values() for point in thinned.items()]
    return replace(
        known, points=(*known.points, *points),
        ranks=known.ranks or tuple(_rank(rank, thinned) for rank, thinned in sorted(ranks.items())),
        last_step=known.last_step if known.last_step is not None else last,
        max_steps=known.max_steps if known.max_steps is not None else None if steps is None else int(steps),
    )  # fmt: skip


def _rank(rank: int, thinned: Thinned[Sample]) -> RankMemory:
    samples = tuple(sorted(thinned.items(), key=lambda each: each.time_ms))
    used = [each.gpu_utilisation_percent for each in samples if each.gpu_utilisation_percent is not None and each.event != "train_begin"]
    mean = sum(used) / len(used) if used else None
    return RankMemory(rank=rank, samples=samples, count=thinned.count, mean_utilisation=mean, recent=samples[-30:])


def _points(files: Sequence[LogFile], ranks: dict[int, Thinned[Sample]], most: int) -> Iterator[Point]:
    number = 0
    for file in files:
        if file.copy:
            continue
        for _, raw in logs.lines(file):
            if len(raw) > _MOST_LINE or not any(mark in raw for mark in _MARKS):
                continue
            line = raw.decode("utf-8", "replace")
            if (seen := sample.parse_line(line)) is not None:
                if len(ranks) < 4096 or seen.rank in ranks:
                    ranks.setdefault(seen.rank, Thinned(min(most, 250), _WEIGHTS)).add(seen)
            elif (point := _point(line, number)) is not None:
                number += 1
                yield point


_WEIGHTS = (lambda each: each.gpu_used_mib, lambda each: each.cgroup_used_mib)


def _point(line: str, number: int) -> Point | None:
    """Return what a line says; its step is that of hpctrain's own lines, else how many lines there were before it."""
    measured = speed.parse_line(line)
    if measured is not None:
        return Point(at=0.0, step=measured.step, event=speed.EVENT, values=dict(speed.to_values(measured)))
    if (ours := _OURS.search(line)) is not None:
        values = {name: float(text) for name, text in _PAIR.findall(ours[3])} | {"max_steps": float(ours[2])}
        step, kind = int(ours[1]), values
    elif (found := _DICT.search(line)) is not None:
        values = {name: _float(text) for name, text in _ITEM.findall(found[0])}
        step, kind = number, values
    else:
        return None
    if not any(name in kind for name in ("loss", "eval_loss")):
        return None
    return Point(at=0.0, step=step, event="evaluate" if "eval_loss" in kind else "log", values=values)


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # 1.2.3 is no number
        return math.nan
