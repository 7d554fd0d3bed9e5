"""`random:` of a sweep."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Literal, cast

from hpctrain.fieldtypes import kind, short
from hpctrain.jobs.sweep import Distribution, Random
from hpctrain.jobs.sweep.expand import MAX_POINTS
from hpctrain.jobs.sweep.model import canonical, shown

Path = tuple[str | int, ...]
Wrong = Callable[[Path, str], None]
_KINDS = ("uniform", "log_uniform", "integer", "choice")
_WHOLE = re.compile(r"-?[0-9]{1,18}\Z")
_REAL = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,3})?\Z")
_EXAMPLE = "{log_uniform: [1e-5, 1e-3]}"


def read_random(
    written: Any, *, key: Callable[[str, Path], str | None], value: Callable[[str, Any, Path], None], wrong: Wrong
) -> Random | None:
    """Return what `random:` says; what is wrong goes to `wrong`. `key` and `value` check names and values as the rest of a sweep does."""
    if not isinstance(written, dict):
        wrong(("random",), f"must hold count, seed and values, not {kind(written)}")
        return None
    for name in written:
        if name not in ("count", "seed", "values"):
            wrong(("random", name), f"unknown key {name!r} in random; known are count, seed, values")
    count = _whole(written.get("count"), ("random", "count"), (1, MAX_POINTS), wrong, example="20")
    seed = _whole(written.get("seed", "0"), ("random", "seed"), (0, 10**18 - 1), wrong, example="1")
    values = written.get("values")
    if not isinstance(values, dict) or not values:
        wrong(("random", "values"), f"must hold keys, each with where its values come from, such as learning_rate: {_EXAMPLE}")
        return None
    found: dict[str, Distribution] = {}
    for name, what in values.items():
        path = ("random", "values", name)
        meant, distribution = key(name, path), _distribution(what, path, wrong)
        if distribution is not None and distribution.kind == "choice":
            for number, item in enumerate(distribution.values):
                value(name, item, (*path, "choice", number))
        if meant in found:
            wrong(path, "is there twice, once with training. in front")
        elif meant is not None and distribution is not None:
            found[meant] = distribution
    sizes = [distribution.size for distribution in found.values()]
    different = None if None in sizes else math.prod(size for size in sizes if size is not None)
    if count is not None and different is not None and len(found) == len(values) and count > different:
        wrong(("random", "count"), f"must be at most {different}, because there are no more different points, not {count}")
    return None if count is None or seed is None else Random(count, seed, tuple(found.items()))


def _whole(written: Any, path: Path, bounds: tuple[int, int], wrong: Wrong, *, example: str) -> int | None:
    low, high = bounds
    if not isinstance(written, str) or not _WHOLE.match(written) or not low <= int(written) <= high:
        wrong(path, f"must be a whole number from {low} to {high}, such as {example}, not {short(shown(written))}")
        return None
    return int(written)


def _distribution(written: Any, path: Path, wrong: Wrong) -> Distribution | None:
    if not isinstance(written, dict) or len(written) != 1 or next(iter(written)) not in _KINDS:
        wrong(path, f"must be one of {', '.join(_KINDS[:-1])} and {_KINDS[-1]}, such as {_EXAMPLE}, not {short(shown(written))}")
        return None
    name, values = next(iter(written.items()))
    inner = (*path, name)
    if not isinstance(values, list) or not values:
        wrong(inner, f"must be a list, such as {_EXAMPLE}")
        return None
    if name == "choice":
        if len({canonical(item) for item in values}) < len(values):
            wrong(inner, "has the same value twice")
        return Distribution("choice", tuple(values))
    pattern, what = (_WHOLE, "whole numbers") if name == "integer" else (_REAL, "numbers")
    if len(values) != 2 or not all(isinstance(bound, str) and pattern.match(bound) for bound in values):
        wrong(inner, f"must be two {what}, the lowest and the highest, not {short(shown(values))}")
        return None
    low, high = (Decimal(bound) for bound in values)
    if low >= high:
        wrong(inner, f"must have the lower bound first, not {short(shown(values))}")
    elif name == "log_uniform" and low <= 0:
        wrong(inner, f"must have bounds above 0, because it is their logarithm that is drawn from, not {short(shown(values))}")
    else:
        return Distribution(cast("Literal['uniform', 'log_uniform', 'integer']", name), tuple(values))
    return None
