"""Axes: which stretch of numbers a chart shows, where its ticks stand, and how numbers and times are written beside them. PURE."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_LOG_SPAN = 30.0
"""From this ratio of the highest to the lowest on, equal steps hide what is low."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What an axis shows, from `low` to `high`; `log` counts in powers of ten."""

    low: float
    high: float
    log: bool = False

    def part(self, value: float) -> float:
        """Return where a value stands: 0 at the lower end, 1 at the upper; what lies beyond stands at the end."""
        if self.log:
            if value <= 0:
                return 0.0
            low, high, value = math.log10(self.low), math.log10(self.high), math.log10(value)
        else:
            low, high = self.low, self.high
        return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.5  # a room that a float of 1e23 cannot hold


def scale(values: Iterable[float | None], *, zero: bool = False, log: bool | None = None, top: float | None = None) -> Scale:
    """Return the scale that holds the values.

    Args:
        values: NaN, infinities and None are passed over.
        zero: whether it begins at 0, as for sizes and parts.
        log: None: where all are positive, and the highest is 30 times the lowest.
        top: that it reaches at least.
    """
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return Scale(0.0, top if top and top > 0 else 1.0)
    low, high = min(finite), max(finite)
    high = max(high, top) if top is not None else high
    if log is None:
        log = not zero and low > 0 and high / low >= _LOG_SPAN
    if log and low > 0:
        low, high = low * 0.95, high * 1.05
        return Scale(low, high, log=True) if high > low else Scale(low / 2, low * 2, log=True)
    if zero:
        low = min(0.0, low)
    room = 0.04 * (high - low)
    if room == 0 or not math.isfinite(room):
        room = abs(high) * 0.1 or 1.0
    return Scale(low if zero and low >= 0 else low - room, high + room)


def ticks(axis: Scale, most: int = 6) -> list[float]:
    """Return the values at which ticks stand: 1, 2 or 5 times a power of ten, `most` of them at most."""
    if axis.log:
        return _log_ticks(axis, most)
    step = _nice((axis.high - axis.low) / max(1, most - 1))
    first = math.ceil(axis.low / step - 1e-9)
    found: list[float] = []
    while len(found) < most and (value := first * step) <= axis.high + step * 1e-9:
        found.append(0.0 if abs(value) < step * 1e-9 else value)
        first += 1
    return found


def time_ticks(low: float, high: float, most: int = 6) -> tuple[list[float], float]:
    """Return ticks on an axis of seconds, and the seconds of the unit that they are written in: 1, 60, 3600 or 86400."""
    span = high - low
    unit = 1.0 if span <= 180 else 60.0 if span <= 3 * 3600 else 3600.0 if span <= 4 * 86_400 else 86_400.0
    return [value * unit for value in ticks(Scale(low / unit, high / unit), most)], unit


UNITS = {1.0: "s", 60.0: "min", 3600.0: "h", 86_400.0: "d"}


def _nice(step: float) -> float:
    if step <= 0 or not math.isfinite(step):
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    return next((factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9)), 10 * power)


def _log_ticks(axis: Scale, most: int) -> list[float]:
    low, high = math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high))
    found: list[float] = []
    for factors in ((1, 2, 5), (1, 3), (1,)):
        each = [factor * 10.0**power for power in range(low, high + 1) for factor in factors]
        found = [value for value in each if axis.low <= value <= axis.high]
        if len(found) <= most:
            # Less than a power of ten has few such numbers in it; then equal steps say more.
            return found if len(found) > 1 else ticks(Scale(axis.low, axis.high), most)
    every = math.ceil(len(found) / most)
    return found[::every]


def labels(values: Sequence[float], *, log: bool = False) -> list[str]:
    """Return how ticks are written: all with the digits that tell them apart; of a log scale each with its own."""
    if not values:
        return []
    if log:
        return [number(value) for value in values]
    highest = max(abs(value) for value in values)
    if highest == 0:
        return ["0"] * len(values)
    if highest >= 1e6 or highest < 1e-3:
        return [_power(value) for value in values]
    factor, suffix = (1e3, "k") if highest >= 1e4 and all(abs(value) >= 100 or value == 0 for value in values) else (1.0, "")
    for digits in range(7):
        found = [f"{value / factor:.{digits}f}" for value in values]
        if all(abs(float(text) * factor - value) <= 1e-3 * max(abs(value), 1e-12) for text, value in zip(found, values, strict=True)):
            return [f"{text}{suffix}" if float(text) else "0" for text in found]
    return [number(value) for value in values]


def _power(value: float) -> str:
    if value == 0:
        return "0"
    for factor, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{suffix}"
    if abs(value) >= 1e-3:
        return number(value)
    text = f"{value:.2e}"
    mantissa, _, power = text.partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"


def number(value: float | None, digits: int = 4) -> str:
    """Return a number as people read it: `8.161`, `14,210`, `2e-5`, `NaN`; a dash for None."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 10_000 or (size >= 1000 and value == int(value)):
        return f"{value:,.0f}" if size < 1e15 else f"{value:.3g}"
    if size < 1e-3:
        return _power(value)
    return f"{value:.{digits}g}"
