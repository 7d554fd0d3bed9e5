"""Random points that are the same on every machine, in every version of Python, and whatever the order of the keys.

A draw is a SHA-256 of seed, key and number of the draw. Real numbers are computed in decimal arithmetic, which is specified to the last
digit; the exp and log of C libraries are not.
"""

from __future__ import annotations

import hashlib
from decimal import Context, Decimal
from typing import Any

from hpctrain.errors import UsageError
from hpctrain.jobs.sweep.model import Distribution, Random, Values, canonical_point
from hpctrain.yaml12 import Plain

_EXACT = Context(prec=30)
#: Significant digits of a drawn real number, where the bounds are not closer together than that.
_DIGITS = 6


def draw(random: Random) -> list[Values]:
    """Return `random.count` different points. A draw that repeats an earlier one is drawn again.

    Raises:
        UsageError: there are hardly that many different ones.
    """
    found: list[Values] = []
    seen: set[frozenset[tuple[str, str | None]]] = set()
    most = 100 * random.count + 10_000  # choosing all of n values takes about n ln n draws
    for number in range(most):
        if len(found) == random.count:
            break
        values = tuple((key, _value(distribution, _number(random.seed, key, number))) for key, distribution in random.values)
        same = canonical_point(values)
        if same not in seen:
            seen.add(same)
            found.append(values)
    if len(found) < random.count:
        raise UsageError(
            f"random: {most} draws gave only {len(found)} different points, and {random.count} are asked for",
            fix=f"set count to {len(found)} or less, or widen the bounds",
        )
    return found


def _number(seed: int, key: str, number: int) -> int:
    """Return 256 bits."""
    return int.from_bytes(hashlib.sha256(f"{seed}\0{key}\0{number}".encode()).digest(), "big")


def _value(distribution: Distribution, bits: int) -> Any:
    values = distribution.values
    if distribution.kind == "choice":
        return values[bits % len(values)]
    if distribution.kind == "integer":
        low, high = (int(bound) for bound in values)
        return Plain(low + bits % (high - low + 1))
    low_, high_ = (Decimal(bound) for bound in values)
    share = _EXACT.divide(Decimal(bits >> 192), Decimal(2**64))
    if distribution.kind == "log_uniform":
        start, end = _EXACT.ln(low_), _EXACT.ln(high_)
        exact = _EXACT.exp(_EXACT.add(start, _EXACT.multiply(_EXACT.subtract(end, start), share)))
    else:
        exact = _EXACT.add(low_, _EXACT.multiply(_EXACT.subtract(high_, low_), share))
    narrow = max(abs(low_), abs(high_)).adjusted() - _EXACT.subtract(high_, low_).adjusted()
    rounded = Context(prec=_DIGITS + max(0, narrow - 1)).plus(exact)
    return Plain(repr(float(min(max(rounded, low_), high_))))
