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

_WORD = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
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
    if re.search(r"[\[\]]", re.sub(r"\[[^\[\]]*\]", "", hostlist)):
        raise ValueError(f"unbalanced brackets in hostlist {hostlist!r}")
    for word in filter(None, map(str.strip, _WORD.findall(hostlist))):
        parts = re.split(r"[\[\]]", word)  # every second part is the content of brackets
        pieces = [
            [number for item in part.split(",") for number in _numbers(item, hostlist)]
            if index % 2
            else [part]
            for index, part in enumerate(parts)
        ]
        if len(hosts) + math.prod(map(len, pieces)) > MAX_HOSTS:
            raise ValueError(f"hostlist {hostlist!r} names more than {MAX_HOSTS} hosts")
        hosts.extend("".join(combination) for combination in itertools.product(*pieces))
    return hosts


def _numbers(item: str, hostlist: str) -> list[str]:
    match = _RANGE.match(item.strip())
    first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
    if int(last) < int(first):
        raise ValueError(f"{item!r} is not a number or a rising range in hostlist {hostlist!r}")
    if int(last) - int(first) >= MAX_HOSTS:
        raise ValueError(f"hostlist {hostlist!r} names more than {MAX_HOSTS} hosts")
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def compress(hosts: Iterable[str]) -> str:
    """Return one hostlist for `hosts`, merging neighbors with consecutive trailing numbers."""
    parts: list[str] = []
    for (prefix, width), group in itertools.groupby(hosts, key=_prefix_and_width):
        names = list(group)
        if width == 0 or len(names) == 1:
            parts.extend(names)
            continue
        spans = runs(int(name[len(prefix) :]) for name in names)
        texts = [[str(number).zfill(width) for number in dict.fromkeys(span)] for span in spans]
        parts.append(f"{prefix}[{','.join(map('-'.join, texts))}]")
    return ",".join(parts)


def _prefix_and_width(host: str) -> tuple[str, int]:
    """Return the key that hosts in one range share; width 0: the name does not end in a number.

    Numbers of different lengths without leading zeros can be merged (9, 10), so their width is 1.
    """
    match = _NUMBERED.match(host)
    if match is None:
        return host, 0
    return match[1], len(match[2]) if match[2].startswith("0") else 1
