"""Slurm's hostlist notation: conversion of `node[01-03,7],login1` to and from host names.

The reference is `scontrol show hostnames`; the tests compare the two.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable

from hpctrain.slurm.notations.array import runs

#: More hosts than any cluster has; Slurm's own limit is 64 k (MAX_RANGE in src/common/hostlist.c).
MAX_HOSTS = 65536

_BRACKETS = re.compile(r"\[[^\[\]]*\]")
_WORD = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_PART = re.compile(r"([^\[\],]*)\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?\Z")
_NUMBERED = re.compile(r"(.*?)([0-9]+)\Z", re.DOTALL)


def expand(hostlist: str) -> list[str]:
    """Return the host names in `hostlist` in order, with duplicates.

    Zero padding is preserved (`n[08-10]` is n08, n09, n10), and several brackets multiply
    (`r[1-2]n[1-2]`).

    Raises:
        ValueError: unbalanced brackets, an empty or descending range, or more than `MAX_HOSTS`
            hosts.
    """
    hosts: list[str] = []
    for word in _split_words(hostlist):
        pieces = _pieces(word, hostlist)
        count = math.prod(map(len, pieces))
        if len(hosts) + count > MAX_HOSTS:
            raise ValueError(f"hostlist {hostlist!r} names more than {MAX_HOSTS} hosts")
        hosts.extend("".join(combination) for combination in itertools.product(*pieces))
    return hosts


def compress(hosts: Iterable[str]) -> str:
    """Return one hostlist for `hosts`, merging neighbors with consecutive trailing numbers."""
    parts: list[str] = []
    for (prefix, width), group in itertools.groupby(hosts, key=_prefix_and_width):
        names = list(group)
        if width == 0:
            parts.extend(names)
            continue
        numbers = [int(name[len(prefix) :]) for name in names]
        ranges = [_format_range(first, last, width) for first, last in runs(numbers)]
        single = len(names) == 1
        parts.append(names[0] if single else f"{prefix}[{','.join(ranges)}]")
    return ",".join(parts)


def _split_words(hostlist: str) -> list[str]:
    if {"[", "]"} & set(_BRACKETS.sub("", hostlist)):
        raise ValueError(f"unbalanced brackets in hostlist {hostlist!r}")
    return [word.strip() for word in _WORD.findall(hostlist) if word.strip()]


def _pieces(word: str, hostlist: str) -> list[list[str]]:
    pieces: list[list[str]] = []
    for prefix, ranges, plain in _PART.findall(word):
        if plain:
            pieces.append([plain])
        else:
            pieces.append([prefix])
            pieces.append(
                [number for item in ranges.split(",") for number in _expand_range(item, hostlist)]
            )
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
    """Return the key that hosts in one range share; width 0: the name does not end in a number.

    Numbers of different lengths without leading zeros can be merged (9, 10), so their width is 1.
    """
    match = _NUMBERED.match(host)
    if match is None:
        return host, 0
    digits = match[2]
    return match[1], len(digits) if digits.startswith("0") and len(digits) > 1 else 1


def _format_range(first: int, last: int, width: int) -> str:
    start, end = str(first).zfill(width), str(last).zfill(width)
    return start if first == last else f"{start}-{end}"
