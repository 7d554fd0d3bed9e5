"""Sweep → points, in an order that stays.

The axes are multiplied out: each key of `grid` in the order in which they are written, then `zip`, `list` and `random`; the last one
varies fastest. What `exclude` matches is dropped, and what `include` lists comes behind. Points are counted from 0 in that order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from hpctrain.errors import UsageError
from hpctrain.jobs.sweep.draw import draw
from hpctrain.jobs.sweep.model import Point, Sweep, Values, canonical, canonical_point, spoken

#: More points than anybody means; the product of a few lists grows fast.
MAX_POINTS = 100_000


def expand(sweep: Sweep) -> list[Point]:
    """Return the points of `sweep`.

    Raises:
        UsageError: too many points, none, the same one twice, or an `exclude` that drops nothing.
    """
    axes = list(_axes(sweep))
    count = len(sweep.include)
    if axes:
        product = 1
        for axis in axes:
            product *= len(axis)
        count += product
    if count > MAX_POINTS:
        raise UsageError(
            f"the sweep has {count} points, and more than {MAX_POINTS} are hardly meant",
            fix="shorten the lists under grid, or draw from them: random: {count: 1000, values: {KEY: {choice: [...]}}}",
        )
    crossed: Iterable[Values] = (tuple(itertools.chain.from_iterable(parts)) for parts in itertools.product(*axes)) if axes else ()
    kept = _without(list(crossed), sweep.exclude)
    _refuse_twice(kept, sweep.include)
    points = [Point(index, values) for index, values in enumerate([*kept, *sweep.include])]
    if not points:
        raise UsageError("the sweep has no points: exclude drops all of them", fix="take something out of exclude")
    return points


def _axes(sweep: Sweep) -> Iterator[list[Values]]:
    for key, values in sweep.grid:
        yield [((key, value),) for value in values]
    if sweep.zipped:
        names = [key for key, _ in sweep.zipped]
        yield [tuple(zip(names, row, strict=True)) for row in zip(*(values for _, values in sweep.zipped), strict=True)]
    if sweep.listed:
        yield list(sweep.listed)
    if sweep.random is not None:
        yield draw(sweep.random)


def _without(points: list[Values], exclude: tuple[Values, ...]) -> list[Values]:
    if not exclude:
        return points
    rules = [canonical_point(values) for values in exclude]
    keys = {key for values in exclude for key, _ in values}
    dropped = [0] * len(rules)
    texts: dict[str, str | None] = {}
    kept = []
    for point in points:
        relevant = set()
        for key, value in point:
            if key in keys:
                if isinstance(value, str):
                    text = texts[value] if value in texts else texts.setdefault(value, canonical(value))
                else:
                    text = canonical(value)
                relevant.add((key, text))
        matching = [number for number, rule in enumerate(rules) if rule <= relevant]
        for number in matching:
            dropped[number] += 1
        if not matching:
            kept.append(point)
    idle = [f"exclude: item {number + 1}: {spoken(exclude[number])}" for number, count in enumerate(dropped) if not count]
    if idle:
        raise UsageError(
            f"{len(idle)} of {len(rules)} items of exclude drop{'s' if len(idle) == 1 else ''} no point",
            details=tuple(idle), fix="write the values as the points have them (hpctrain sweep plan shows them), or take the item out",
        )  # fmt: skip
    return kept


def _refuse_twice(points: list[Values], include: tuple[Values, ...]) -> None:
    """Refuse what `include` adds a second time; within one axis, whoever read it has looked."""
    if not include:
        return
    known = {canonical_point(values): f"point {index}" for index, values in enumerate(points)}
    twice = []
    for number, values in enumerate(include):
        name = f"include: item {number + 1}"
        first = known.setdefault(canonical_point(values), name)
        if first != name:
            twice.append(f"{name} is the same as {first}: {spoken(values)}")
    if twice:
        raise UsageError(
            f"the sweep has {len(twice)} point{'s' if len(twice) > 1 else ''} twice", details=tuple(twice), fix="take it out of include"
        )
