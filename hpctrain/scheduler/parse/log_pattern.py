"""Slurm's patterns in log file names (`%j`, `%x`, `%A_%a`, `%%`, …). Source: sbatch(1), FILENAME PATTERN."""

from __future__ import annotations

import re
from collections.abc import Mapping

_REPLACEMENT = re.compile(r"%(\d*)([A-Za-z%])")


def escape(path: str) -> str:
    """Return `path` as a pattern that means itself: `%` starts a replacement, so it is doubled."""
    return path.replace("%", "%%")


def expand(pattern: str, values: Mapping[str, str]) -> str:
    """Return the file name of `pattern`, with one letter such as `j` for each key of `values`.

    `%5j` pads a number with zeros; a backslash in front of the pattern switches replacements off; unknown letters stay.
    """
    if pattern.startswith("\\"):
        return pattern[1:]

    def replace(match: re.Match[str]) -> str:
        width, letter = match[1], match[2]
        if letter == "%":
            return "%"
        if letter not in values:
            return match[0]
        value = values[letter]
        return value.zfill(int(width)) if width and value.isdigit() else value

    return _REPLACEMENT.sub(replace, pattern)
