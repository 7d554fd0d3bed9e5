"""Slurm's job arrays: `0-9%2`, `0,3,7-9`, `1-10:3`, to and from the indices.

Source: sbatch(1), --array, and what Slurm 22.05 takes and refuses (tests/lab/test_same_script.py). Where Slurm reads over a slip (`1,,2`,
`1-3%2,5`, an empty list), this is stricter: the tasks would be others than those that somebody meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

#: Slurm's largest MaxArraySize is 4,000,001 (slurm.conf(5)): the indices end one below.
MAX_INDEX = 4_000_000
_ITEM = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?\Z")
_LIMIT = re.compile(r"[1-9][0-9]{0,8}\Z")


@dataclass(frozen=True, slots=True)
class Array:
    """The tasks of an array job.

    Attributes:
        indices: ascending, each once.
        limit: how many run at the same time, or None.
        step: what Slurm puts into SLURM_ARRAY_TASK_STEP: of the first range that has one, else 1.
    """

    indices: tuple[int, ...]
    limit: int | None = None
    step: int = 1

    def __str__(self) -> str:
        """Return the array as `--array` takes it."""
        return compress(self.indices, limit=self.limit)


def parse(text: str, *, max_index: int = MAX_INDEX) -> Array:
    """Return the tasks of `text`; the brackets that squeue puts around it may stay.

    Args:
        text: as behind `--array=`.
        max_index: of the site: MaxArraySize less one.

    Raises:
        ValueError: in Slurm's words, with what is wrong.
    """
    words, percent, limit = text.strip().removeprefix("[").removesuffix("]").partition("%")
    if percent and not _LIMIT.match(limit):
        raise _invalid(text, f"{limit!r} is no number of tasks that run at the same time")
    indices: set[int] = set()
    step = 0
    for word in words.split(","):
        match = _ITEM.match(word)
        if match is None:
            raise _invalid(text, f"{word!r} is no index and no range")
        first, last, stride = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first:
            raise _invalid(text, f"the range {word} goes down")
        if stride == 0:
            raise _invalid(text, f"the range {word} has a step of 0")
        if last > max_index:
            raise _invalid(text, f"{last} is past the largest index, {max_index}")
        step = step or int(match[3] or 0)
        indices.update(range(first, last + 1, stride))
    return Array(tuple(sorted(indices)), int(limit) if percent else None, step or 1)


def compress(indices: Iterable[int], *, limit: int | None = None) -> str:
    """Return `indices`, in any order, as `--array` takes them: `0,3,7-9`, with `%limit` behind them."""
    runs: list[list[int]] = []
    for index in sorted(set(indices)):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return text if limit is None else f"{text}%{limit}"


def split(job_id: str) -> tuple[str, Array | None]:
    """Return the job in a job id, and its tasks: `123` is (123, None), `123_4` and `123_[4-9%2]` name tasks.

    Raises:
        ValueError: no job id.
    """
    number, underscore, tasks = job_id.partition("_")
    if not re.fullmatch(r"[0-9]{1,18}", number):
        raise ValueError(f"Invalid job id specified: {job_id!r}")
    return number, parse(tasks) if underscore else None


def _invalid(text: str, why: str) -> ValueError:
    return ValueError(f"Invalid job array specification: {text!r}: {why}")
