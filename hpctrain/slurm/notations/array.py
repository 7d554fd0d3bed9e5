"""Slurm's job arrays: conversion of `0-9%2`, `0,3,7-9`, `1-10:3` to and from indices.

Source: sbatch(1), --array, and the behavior of Slurm 22.05 (tests/lab/test_same_script.py). Errors
that Slurm ignores (`1,,2`, `1-3%2,5`, an empty list) are rejected here, because the tasks would not
be the intended ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

#: Slurm's largest MaxArraySize is 4,000,001 (slurm.conf(5)): the largest index is one less.
MAX_INDEX = 4_000_000
_ITEM = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?\Z")
_LIMIT = re.compile(r"[1-9][0-9]{0,8}\Z")


@dataclass(frozen=True, slots=True)
class Array:
    """The tasks of an array job.

    Attributes:
        indices: ascending, without duplicates.
        limit: maximum number of running tasks, or None.
        step: the value of SLURM_ARRAY_TASK_STEP: the step of the first range that has one, else 1.
    """

    indices: tuple[int, ...]
    limit: int | None = None
    step: int = 1

    def __len__(self) -> int:
        return len(self.indices)

    def __str__(self) -> str:
        """Return the array in the syntax of `--array`."""
        return compress(self.indices, limit=self.limit)


@lru_cache(maxsize=4)  # arrays of a million tasks are parsed in several places
def parse(text: str, *, max_index: int = MAX_INDEX) -> Array:
    """Return the tasks in `text`, with or without squeue's brackets.

    Args:
        text: as after `--array=`.
        max_index: the site's MaxArraySize less one.

    Raises:
        ValueError: the text is invalid; with Slurm's message and the problem.
    """
    words, percent, limit = text.strip().removeprefix("[").removesuffix("]").partition("%")
    if percent and not _LIMIT.match(limit):
        raise _invalid(text, f"{limit!r} is not a number of tasks that run at the same time")
    indices: set[int] = set()
    step = 0
    for word in words.split(","):
        match = _ITEM.match(word)
        if match is None:
            raise _invalid(text, f"{word!r} is neither an index nor a range")
        first, last, stride = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or stride == 0:
            raise _invalid(text, f"the range {word} goes down, or has a step of 0")
        if last > max_index:
            raise _invalid(text, f"{last} is past the largest index, {max_index}")
        step = step or int(match[3] or 0)
        indices.update(range(first, last + 1, stride))
    return Array(tuple(sorted(indices)), int(limit) if percent else None, step or 1)


def known(text: object) -> tuple[int, ...]:
    """Return the indices in `text`; none if it is not a valid array."""
    try:
        return parse(text).indices if isinstance(text, str) else ()
    except ValueError:
        return ()


def contains(text: str, index: int) -> bool:
    """Whether the array `text` may have the task `index`; True if the text is invalid or truncated
    by squeue.
    """
    indices = known(text)
    return not indices or index in indices


def compress(indices: Iterable[int], *, limit: int | None = None) -> str:
    """Return `indices`, in any order, in the syntax of `--array`: `0,3,7-9`, followed by
    `%limit`.
    """
    ranges = runs(sorted(set(indices)))
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
    return text if limit is None else f"{text}%{limit}"


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and last number of each run of consecutive numbers."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def task_ids(job_id: str) -> list[str]:
    """Return the task ids in `123_[4-9%2]` or `123_4`; none for a job, or for a list that squeue
    truncated.
    """
    number, _, tasks = job_id.partition("_")
    return [f"{number}_{index}" for index in known(tasks)]


def split(job_id: str) -> tuple[str, Array | None]:
    """Split a job id into the job number and the tasks: `123` has None, `123_4` and `123_[4-9%2]`
    have tasks.

    Raises:
        ValueError: not a job id.
    """
    number, underscore, tasks = job_id.partition("_")
    if not re.fullmatch(r"[0-9]{1,18}", number):
        raise ValueError(f"Invalid job id specified: {job_id!r}")
    return number, parse(tasks) if underscore else None


def _invalid(text: str, why: str) -> ValueError:
    return ValueError(f"Invalid job array specification: {text!r}: {why}")
