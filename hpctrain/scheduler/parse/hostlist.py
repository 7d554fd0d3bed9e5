"""Slurm's hostlist notation, `node[01-03,7],login1`, to and from the host names.

The oracle is `scontrol show hostnames`, against which the tests run it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

#: More hosts than any cluster has; Slurm itself stops at 64 k (MAX_RANGE in src/common/hostlist.c).
MAX_HOSTS = 65536

_PART = re.compile(r"([^\[\],]*)\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?\Z")
_NUMBERED = re.compile(r"(.*?)([0-9]+)\Z", re.DOTALL)


def expand(hostlist: str) -> list[str]:
    """Return the host names of `hostlist` in order, duplicates kept.

    Zero padding is kept (`n[08-10]` is n08, n09, n10) and several brackets multiply (`r[1-2]n[1-2]`).

    Raises:
        ValueError: unbalanced brackets, an empty or descending range, or more than `MAX_HOSTS` hosts.
    """
    hosts: list[str] = []
    for word in _split_words(hostlist):
        pieces = _pieces(word, hostlist)
        count = 1
        for piece in pieces:
            count *= len(piece)
        if len(hosts) + count > MAX_HOSTS:
            raise ValueError(f"hostlist {hostlist!r} names more than {MAX_HOSTS} hosts")
        hosts.extend("".join(combination) for combination in itertools.product(*pieces))
    return hosts


def compress(hosts: Iterable[str]) -> str:
    """Return one hostlist for `hosts`, folding neighbours that differ by one in their last number."""
    parts: list[str] = []
    for (prefix, width), group in itertools.groupby(hosts, key=_prefix_and_width):
        names = list(group)
        if width == 0:
            parts.extend(names)
            continue
        numbers = [int(name[len(prefix) :]) for name in names]
        ranges = [_format_range(first, last, width) for first, last in _runs(numbers)]
        single = len(names) == 1
        parts.append(names[0] if single else f"{prefix}[{','.join(ranges)}]")
    return ",".join(parts)


def _split_words(hostlist: str) -> list[str]:
    """Split at the commas outside brackets."""
    words, depth, word = [], 0, ""
    for character in hostlist:
        if character == "," and depth == 0:
            words.append(word)
            word = ""
            continue
        depth += {"[": 1, "]": -1}.get(character, 0)
        if depth not in (0, 1):
            raise ValueError(f"unbalanced brackets in hostlist {hostlist!r}")
        word += character
    if depth:
        raise ValueError(f"unbalanced brackets in hostlist {hostlist!r}")
    words.append(word)
    return [word.strip() for word in words if word.strip()]


def _pieces(word: str, hostlist: str) -> list[list[str]]:
    pieces: list[list[str]] = []
    for prefix, ranges, plain in _PART.findall(word):
        if plain:
            pieces.append([plain])
        else:
            pieces.append([prefix])
            pieces.append([number for item in ranges.split(",") for number in _expand_range(item, hostlist)])
    return pieces


def _expand_range(item: str, hostlist: str) -> list[str]:
    match = _RANGE.match(item.strip())
    if match is None:
        raise ValueError(f"{item!r} is not a number or a range in hostlist {hostlist!r}")
    first, last = match[1], match[2] or match[1]
    if int(last) < int(first):
        raise ValueError(f"descending range {item!r} in hostlist {hostlist!r}")
    if int(last) - int(first) >= MAX_HOSTS:
        raise ValueError(f"hostlist {hostlist!r} names more than {MAX_HOSTS} hosts")
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def _prefix_and_width(host: str) -> tuple[str, int]:
    """Return what two hosts must share to be folded; width 0 means that the host has no number at its end.

    Numbers of different lengths without leading zeros fold (9, 10), so their width is 1.
    """
    match = _NUMBERED.match(host)
    if match is None:
        return host, 0
    digits = match[2]
    return match[1], len(digits) if digits.startswith("0") and len(digits) > 1 else 1


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _format_range(first: int, last: int, width: int) -> str:
    start, end = str(first).zfill(width), str(last).zfill(width)
    return start if first == last else f"{start}-{end}"
