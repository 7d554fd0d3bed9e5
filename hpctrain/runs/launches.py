"""Which jobs were submitted for a run, besides those that have started: from `runs/.launches/TAG/submissions/` (hpctrain.runs.launch).

More careful than `launch.load`, because what is missed here may be removed: a submission that cannot be read counts as one that was never
answered, and a job that does not say which runs it is for is one of every run of its launch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.runs import layout, store
from hpctrain.runs.store import Run

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """One sbatch.

    Attributes:
        token: the word that tells submissions apart, or "".
        job_id: None where the scheduler never answered: there may be a job.
        stage: that the job runs; None: it does not say.
        array: of an array, its indices in Slurm's form.
        offset: what is added to an index to get the number of a sweep's point; None: it does not say.
    """

    job_id: str | None
    token: str = ""
    stage: str | None = None
    array: str | None = None
    offset: int | None = None


def read(runs: Path, tag: str) -> tuple[Submitted, ...]:
    """Return what was submitted under a tag; a file that cannot be read is a submission of which nothing is known."""
    folder = f"{runs}/{layout.LAUNCHES}/{tag}/submissions"
    try:
        found = sorted(os.listdir(folder))  # noqa: PTH208 - as in store
    except OSError:
        return ()
    names = [name for name in found if name.endswith(".json") and name[0] != "."]
    return tuple(_submission(name.removesuffix(".json"), store.read_object(f"{folder}/{name}") or {}) for name in names)


def _submission(token: str, value: dict[str, Any]) -> Submitted:
    stage, array, offset = (value.get(key) for key in ("stage", "array", "offset"))
    return Submitted(
        job_id=store.job_id(value.get("job_id")),
        token=token,
        stage=stage if isinstance(stage, str) else None,
        array=array if isinstance(array, str) else None,
        offset=offset if isinstance(offset, int) else None,
    )


def jobs_of(run: Run, submissions: tuple[Submitted, ...]) -> Iterator[str | None]:
    """Yield the ids of the jobs that were submitted for this run, `123_4` for a task of an array; None for one that has no id yet."""
    for each in submissions:
        if each.stage is not None and run.stage is not None and each.stage != run.stage:
            continue
        if each.array is None or run.index is None:
            yield each.job_id
        elif holds(each.array, task := run.index - (each.offset or 0)):
            yield None if each.job_id is None else f"{each.job_id}_{task}"
        elif each.offset is None and task > _highest(each.array):
            yield each.job_id  # a part of a sweep that is larger than an array may be: it counts from an offset


def holds(array: str, index: int) -> bool:
    """Whether an array of Slurm's form, such as `0,3,7-9:2%4`, has this index; one that cannot be read, or was cut short, may."""
    for part in array.partition("%")[0].split(","):
        found = _RANGE.match(part.strip())
        if found is None:
            return True
        first, last, step = int(found[1]), int(found[2] or found[1]), max(1, int(found[3] or 1))
        if first <= index <= last and (index - first) % step == 0:
            return True
    return False


def _highest(array: str) -> int:
    return max(int(number) for number in re.findall(r"[0-9]+", array.partition("%")[0].partition(":")[0]) or ["0"])
