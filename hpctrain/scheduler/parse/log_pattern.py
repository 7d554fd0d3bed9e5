"""Slurm's patterns in log file names (`%j`, `%x`, `%A_%a`, `%%`, …).

Source: sbatch(1), FILENAME PATTERN; what a backslash does was tried on Slurm 22.05 (tests/lab/test_oracles.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_REPLACEMENT = re.compile(r"%([0-9]*)([A-Za-z%])")
_ESCAPED = re.compile(r"\\(.?)", re.DOTALL)


def escape(path: str) -> str:
    """Return `path` as a part of a pattern that means itself: `%` starts a replacement, so it is doubled.

    A path with a backslash cannot stand beside a replacement at all; `hpctrain.jobs.directives` refuses it.
    """
    return path.replace("%", "%%")


def expand(pattern: str, values: Mapping[str, str]) -> str:
    """Return the file name of `pattern`, with one letter such as `j` for each key of `values`.

    `%5j` pads a number with zeros; unknown letters stay. A backslash anywhere switches all replacements off, and is taken away.
    """
    if "\\" in pattern:
        return _ESCAPED.sub(r"\1", pattern)

    def replace(match: re.Match[str]) -> str:
        width, letter = match[1], match[2]
        if letter == "%":
            return "%"
        if letter not in values:
            return match[0]
        value = values[letter]
        return value.zfill(int(width)) if width and value.isdigit() else value

    return _REPLACEMENT.sub(replace, pattern)
