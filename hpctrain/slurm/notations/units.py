"""Slurm's units: time limits (`90` minutes, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`,
`UNLIMITED`), and memory (`64G`, `1536M`, `4000` MiB, `0` for all of the node's) in powers of 1024.

Source: sbatch(1), --time and --mem.
"""

from __future__ import annotations

import re

_TIME = re.compile(r"(?:(\d+)-)?(\d+(?::\d+){0,2})\Z", re.ASCII)
_UNLIMITED = {"unlimited", "infinite"}

DAY = 86_400
#: A year: Slurm accepts more, but no site does.
MAX_SECONDS = 366 * DAY
_MEMORY = re.compile(r"(\d+)\s*([KMGT]?)(?:i?B)?\Z", re.IGNORECASE | re.ASCII)
_FACTOR = {"K": 1024, "M": 1024**2, "": 1024**2, "G": 1024**3, "T": 1024**4}
#: 1 PiB: more than any node has, so it is a mistake.
MAX_MEMORY = 1024**5


def parse_time(text: str) -> int | None:
    """Return the seconds in `text`, or None for no limit (`UNLIMITED`).

    Raises:
        ValueError: `text` is not a valid Slurm time.
    """
    stripped = text.strip()
    if stripped.lower() in _UNLIMITED:
        return None
    match = _TIME.match(stripped)
    if match is None:
        raise ValueError(
            f"{text!r} is not a time limit; Slurm's forms are MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM"
            " and D-HH:MM:SS"
        )
    numbers = [int(number) for number in match[2].split(":")]
    # Without days, one number is minutes, and two are MM:SS.
    factors = (60, 1) if match[1] is None and len(numbers) < 3 else (3600, 60, 1)
    seconds = sum(number * factor for number, factor in zip(numbers, factors, strict=False))
    return int(match[1] or 0) * DAY + seconds


def parse_reported_time(text: str) -> int | None:
    """Return the seconds in a time printed by squeue or sacct; None if it is unknown or
    unlimited.
    """
    # sacct prints fractions of seconds in CPU times: 00:01.234
    try:
        return parse_time(text.strip().partition(".")[0])
    except ValueError:
        # N/A, Partition_Limit, INVALID, and the words of future versions: one odd row must not hide
        # the others.
        return None


def format_time(seconds: int) -> str:
    """Return `seconds` as Slurm prints it: `HH:MM:SS`, or `D-HH:MM:SS` from one day on."""
    days, rest = divmod(seconds, DAY)
    hours, rest = divmod(rest, 3600)
    clock = f"{hours:02d}:{rest // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def parse_memory(text: str) -> int:
    """Return the bytes in `text`.

    Raises:
        ValueError: not a whole number, or a unit other than K, M, G or T.
    """
    match = _MEMORY.match(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not a memory size; write a whole number with K, M, G or T, such as 64G"
        )
    return int(match[1]) * _FACTOR[match[2].upper()]


def round_memory_down(size: int) -> str:
    """Return at most `size` bytes in whole GiB, or in whole MiB if rounding to GiB would lose
    much.
    """
    unit = _FACTOR["G"] if size >= 16 * _FACTOR["G"] else _FACTOR["M"]
    return format_memory(max(1, size // unit) * unit)


def format_memory(size: int) -> str:
    """Return `size` bytes in the largest unit that divides it; sizes below 1 KiB round up to 1K,
    sbatch's smallest unit.
    """
    if size == 0:
        return "0"
    for unit in "TGM":
        if size % _FACTOR[unit] == 0:
            return f"{size // _FACTOR[unit]}{unit}"
    return f"{-(-size // 1024)}K"
