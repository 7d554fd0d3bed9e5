"""The ends of an array's tasks: which of them is told to whoever waits, so that a hundred points are not a hundred messages.

The first failures are told one by one, then once that more have failed, and the end of all of them once, by the task that ends last. Tasks
end on many nodes in the same instant: each leaves a file in the launch's folder, and what is told once is told by the one that makes a
directory, which on any file system is exactly one. It is made before the message is sent: of two evils, a job that is killed in between is
told less, and never twice.

    runs/.launches/TAG/ends/CALL/INDEX.OUTCOME    how a point has ended; CALL: of `hpctrain submit`, or the array's job number
    runs/.launches/TAG/ends/CALL/told-1, ...      what was told

Sends nothing, and asks no scheduler: a task that is killed, or whose node dies, leaves no file, and then nobody here knows of the end.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpctrain.runs import launch, layout
from hpctrain.scheduler.parse import array as arrays

#: Failures of one array, or of all arrays of a sweep, that are told one by one.
FIRST = 3
INTERRUPTED = "interrupted"
OUTCOMES = ("completed", "failed", "stopped", INTERRUPTED)
_MARK = re.compile(r"(\d+)\.(" + "|".join(OUTCOMES) + r")\Z")
_NAMED = 5
_RECORDED_S = 3
"""Seconds that `hpctrain submit` gets to write down the job number that sbatch has just told it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The tasks that were submitted together.

    Attributes:
        folder: where their ends are left.
        tag: what all of them are called.
        expected: how many there are; None where not all are submitted yet.
        points: how many the sweep has, where it is one; more than `expected` where a part was submitted.
    """

    folder: Path
    tag: str
    expected: int | None
    points: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What is told. `counts` is how many ended how, of a message about all; of one point it is None."""

    outcome: str
    about: str
    text: str
    counts: Mapping[str, int] | None = None


def round_of(runs: Path, tag: str, job: str, count: int | None, *, sleep: Callable[[float], None] = time.sleep) -> Round:
    """Return the tasks that an array was submitted together with: a sweep may be several arrays.

    Args:
        runs: the directory `runs`.
        tag: of the launch.
        job: the number of the array (SLURM_ARRAY_JOB_ID).
        count: how many tasks it has (SLURM_ARRAY_TASK_COUNT); what holds for arrays that `hpctrain submit` did not submit.
        sleep: what waits for the record.
    """
    folder = runs / layout.LAUNCHES / tag / "ends"
    for left in reversed(range(_RECORDED_S + 1)):
        whole = launch.load(runs, tag)
        mine = next((each for each in whole.submissions if each.job_id == job), None) if whole is not None else None
        if whole is None or mine is not None or not left:
            break
        sleep(1.0)
    alone = folder / f"job-{job}"
    if whole is None or mine is None or not layout.NAME.match(mine.call):
        return Round(folder=alone, tag=tag, expected=count)
    _move_marks(alone, folder / mine.call)
    sent = [each for each in whole.submissions if each.call == mine.call]
    known = {each.script for each in whole.submissions}
    try:
        indices = {each.offset + index for each in sent if each.array for index in arrays.parse(each.array).indices}
    except ValueError:
        indices = set()
    all_sent = all(part.script in known for part in whole.parts)  # the next script may be on its way
    expected = len(indices) if all_sent and indices else None
    return Round(folder=folder / mine.call, tag=tag, expected=expected, points=whole.points)


def _move_marks(early: Path, folder: Path) -> None:
    """Take over the points of an array that ended before its job number was recorded.

    Raises:
        OSError: the file system refuses.
    """
    if not early.is_dir():
        return
    folder.mkdir(parents=True, exist_ok=True)
    for mark in early.iterdir():
        try:
            mark.rename(folder / mark.name)
        except FileNotFoundError:
            pass  # another task was faster


def ended(tasks: Round, point: int, outcome: str, said: str, on: Collection[str]) -> list[Message]:
    """Note that a point has ended, and return what its job is to tell: mostly nothing.

    Args:
        tasks: it is one of.
        point: its index.
        outcome: one of OUTCOMES.
        said: the sentence on this point.
        on: the outcomes that are told: completed, failed, stopped.

    Raises:
        OSError: the file system refuses: nothing can be told once.
    """
    tasks.folder.mkdir(parents=True, exist_ok=True)
    (tasks.folder / f"{point}.{outcome}").touch()
    for other in OUTCOMES:
        if other != outcome:
            (tasks.folder / f"{point}.{other}").unlink(missing_ok=True)
    marks = {int(found[1]): found[2] for each in tasks.folder.iterdir() if (found := _MARK.match(each.name))}
    counts = Counter(marks.values())
    tells = outcome == "failed" and "failed" in on
    mine = tells and any(_is_first(tasks.folder / f"told-{number}") for number in range(1, FIRST + 1))
    # Told again where more points belong to it than were known: the next array of a resubmission, an interrupted point that went on.
    end = f"told-end-{len(marks)}{f'-{INTERRUPTED}' if counts[INTERRUPTED] else ''}"
    is_over = tasks.expected is not None and len(marks) >= tasks.expected
    wanted = any(counts[each] for each in on) or ("stopped" in on and counts[INTERRUPTED] > 0)
    if is_over and wanted and _is_first(tasks.folder / end):
        text = f"{said}; {_end(tasks, marks, counts)}" if mine else _end(tasks, marks, counts)
        worst = next(each for each in ("failed", "stopped", INTERRUPTED, "completed") if counts[each])
        return [Message(outcome="stopped" if worst == INTERRUPTED else worst, about=tasks.tag, text=text, counts=dict(counts))]
    about = f"{tasks.tag}_{point}"
    if mine:
        return [Message(outcome=outcome, about=about, text=said)]
    if tells and _is_first(tasks.folder / "told-more"):
        text = f"{tasks.tag}: more points have failed than the first {FIRST}; of the others the end tells: hpctrain report {tasks.tag}"
        return [Message(outcome=outcome, about=tasks.tag, text=text, counts=dict(counts))]
    return []


def _end(tasks: Round, marks: Mapping[int, str], counts: Mapping[str, int]) -> str:
    failed = [f"{tasks.tag}_{point}" for point, outcome in sorted(marks.items()) if outcome == "failed"]
    names = f" ({', '.join(failed[:_NAMED])}{', ...' if len(failed) > _NAMED else ''})" if failed else ""
    of = f"{len(marks)} of {tasks.points}" if tasks.points and tasks.points > len(marks) else str(len(marks))
    said = ", ".join(f"{counts[each]} {each}{names if each == 'failed' else ''}" for each in OUTCOMES if counts.get(each))
    again = "; Slurm may start those again that were interrupted" if counts.get(INTERRUPTED) else ""
    noun = "point" if of == "1" else "points"
    return f"{tasks.tag} has ended, {of} {noun}: {said}{again}; next: hpctrain report {tasks.tag}"


def _is_first(path: Path) -> bool:
    """Whether this process is the one that makes a directory."""
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True
