"""Slurm's patterns in log file names (`%j`, `%x`, `%A_%a`, `%%`, …).

Source: sbatch(1), FILENAME PATTERN; backslashes were tested with Slurm 22.05
(tests/lab/test_oracles.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hpctrain.util.text import is_number

_REPLACEMENT = re.compile(r"%([0-9]*)([A-Za-z%])")
_ESCAPED = re.compile(r"\\(.?)", re.DOTALL)


def escape(path: str) -> str:
    """Return `path` escaped for use in a pattern: `%` is doubled.

    A path with a backslash cannot be combined with patterns; `hpctrain.jobs.directives` rejects it.
    """
    return path.replace("%", "%%")


def expand(pattern: str, values: Mapping[str, str]) -> str:
    """Return the file name for `pattern`; the keys of `values` are single letters such as `j`.

    `%5j` pads a number with zeros; unknown letters stay. A backslash anywhere disables all
    replacements and is removed.
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
        return value.zfill(int(width)) if width and is_number(value) else value

    return _REPLACEMENT.sub(replace, pattern)
