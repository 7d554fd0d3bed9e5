"""Slurm's memory sizes: `64G`, `1536M`, `4000` (MiB), `0` (all of the node). Units are powers of 1024.

Source: sbatch(1), --mem.
"""

from __future__ import annotations

import re

_GRAMMAR = re.compile(r"(\d+)\s*([KMGT]?)(?:i?B)?\Z", re.IGNORECASE | re.ASCII)
_FACTOR = {"K": 1024, "M": 1024**2, "": 1024**2, "G": 1024**3, "T": 1024**4}
#: 1 PiB: beyond any node, so it is a slip.
MAX_BYTES = 1024**5


def parse(text: str) -> int:
    """Return the bytes in `text`.

    Raises:
        ValueError: no whole number, or a unit other than K, M, G or T.
    """
    match = _GRAMMAR.match(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a memory size; write a whole number with K, M, G or T, such as 64G")
    return int(match[1]) * _FACTOR[match[2].upper()]


def format(size: int) -> str:  # noqa: A001 - read as memory_size.format
    """Return `size` bytes in the largest unit that keeps it whole; sizes below 1 KiB round up to 1K, as sbatch has no smaller unit."""
    if size == 0:
        return "0"
    for unit in "TGM":
        if size % _FACTOR[unit] == 0:
            return f"{size // _FACTOR[unit]}{unit}"
    return f"{-(-size // 1024)}K"
