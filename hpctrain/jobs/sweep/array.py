"""Indices of points, and the arrays of Slurm that hold them.

The highest index that Slurm takes is MaxArraySize - 1 (1000 by default), so a larger sweep is several arrays: the point of a task is
`offset + SLURM_ARRAY_TASK_ID`. What a person types (`--array 0,3,7-9`) counts points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpctrain.errors import UsageError
from hpctrain.scheduler.parse.array import compress, parse

#: What slurm.conf says where the site says nothing (man slurm.conf: MaxArraySize).
DEFAULT_MAX_ARRAY_SIZE = 1001


@dataclass(frozen=True, slots=True)
class ArrayPart:
    """One array job.

    Attributes:
        offset: what is added to SLURM_ARRAY_TASK_ID.
        spec: the value of `--array`, such as `0,3,7-9%4`.
        count: how many tasks it has.
    """

    offset: int
    spec: str
    count: int


def arrays(indices: Sequence[int], max_array_size: int, throttle: int | None = None) -> list[ArrayPart]:
    """Return the arrays that run the points `indices`: as few as may be; the first has offset 0 where it can.

    Args:
        indices: of points, in any order.
        max_array_size: MaxArraySize of the site.
        throttle: tasks that run at a time, in each of the arrays.
    """
    parts: list[ArrayPart] = []
    waiting = sorted(set(indices))
    start = 0
    while start < len(waiting):
        offset = 0 if waiting[start] < max_array_size else waiting[start]
        end = start
        while end < len(waiting) and waiting[end] < offset + max_array_size:
            end += 1
        spec = compress((index - offset for index in waiting[start:end]), limit=throttle)
        parts.append(ArrayPart(offset, spec, end - start))
        start = end
    return parts


def selected(text: str, count: int) -> tuple[list[int], int | None]:
    """Return the points that `--array 0,3,7-9%2` takes out of `count`, sorted, and the throttle, if it has one.

    Raises:
        UsageError: no list of indices, or a point that is not there.
    """
    try:
        found = parse(text)
    except ValueError as error:
        message = str(error)
        raise UsageError(f"--array: {message[:1].lower()}{message[1:]}", fix=f"--array 0-{count - 1}, or --array 0,3,7-9%2") from error
    missing = [index for index in found.indices if index >= count]
    if missing:
        there = f"the points are 0 to {count - 1}" if count > 1 else "there is only point 0"
        raise UsageError(f"--array {text}: there is no point {compress(missing)}; {there}", fix="hpctrain sweep plan")
    return list(found.indices), found.limit
