"""Small pure helpers of probes and judges: sizes and lists as people read them."""

from __future__ import annotations

from collections.abc import Iterable


def size(count: float) -> str:
    """Return bytes with a binary unit: `512 MiB`, `1.5 TiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.0f} TiB" if value >= 10 else f"{value:.1f} TiB"


def rate(bytes_per_second: float) -> str:
    """Return a speed in the decimal units of networks and disks: `0.31 GB/s`, `85 MB/s`."""
    giga = bytes_per_second / 1e9
    return f"{giga:.3g} GB/s" if giga >= 0.1 else f"{bytes_per_second / 1e6:.2g} MB/s"


def many(count: int, noun: str, plural: str = "s") -> str:
    """Return `1 node`, `2 nodes`."""
    return f"{count:,} {noun}{'' if count == 1 else plural}"


def ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers as ranges: `0-3,7`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
