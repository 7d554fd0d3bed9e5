"""Stages: what depends on what, and in which order they are submitted. Pure.

Submitted at once, as Slurm's dependencies have to be: it knows a job for minutes after its end only, and a dependency that has failed
stays failed whatever is done to the job (slurm.conf(5), MinJobAge; sbatch(1), --dependency).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Start = Literal["weights", "state", "none"]
Kind = Literal["afterok", "afterany"]
Problem = tuple[int, str, str]
"""The number of a stage in the file, from 0, the key that is wrong, and a sentence that completes "KEY …"."""

NOTHING = "none"
#: What a tag leaves of the 120 characters of a run id: 64 of the job name, 19 of date, time and chance, and the `_`.
LONGEST_NAME = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A stage as it was written.

    Attributes:
        parent: `from`; None is the stage before, NOTHING is none at all.
        start: None is the default: weights, where there is a parent and the training is hpctrain's own.
        after: whether its parents must have succeeded, or only have ended.
        needs: further stages that come before it.
        overrides: what it changes of the config, nested like config.yaml.
        ours: whether hpctrain's own training runs, which knows where to start from.
        starts_itself: whether the training's arguments say already what to start from.
    """

    name: str
    parent: str | None = None
    start: Start | None = None
    after: Literal["ok", "any"] = "ok"
    needs: tuple[str, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    ours: bool = True
    starts_itself: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage in its place.

    Attributes:
        index: its number in the file, from 0.
        overrides: what it changes of the config.
        parent: the stage that it starts from; None for one that starts from none.
        start: what it takes of that: the weights alone, the whole state of the training, or nothing.
        dependencies: the stages that come before it, and what Slurm waits for; the parent first.
    """

    name: str
    index: int
    overrides: Mapping[str, Any] = field(default_factory=dict)
    parent: str | None = None
    start: Start = "none"
    dependencies: tuple[tuple[str, Kind], ...] = ()


@dataclass(frozen=True, slots=True)
class Remaining:
    """What goes on from stages of which some are done.

    Attributes:
        stages: to be submitted, in order. Of their dependencies, those on completed stages are left out; one on a stage that is not
            among them is on a job that waits or runs.
        cancel: stages of which a job still waits, for a job that will not come to the end that it waits for; cancel it first.
    """

    stages: tuple[Stage, ...] = ()
    cancel: tuple[str, ...] = ()


def variable(name: str) -> str:
    """Return the environment variable that holds the directory of the run of stage `name`: `HPCTRAIN_STAGE_PRETRAIN`."""
    return "HPCTRAIN_STAGE_" + re.sub(r"[^A-Z0-9]", "_", name.upper())


def plan(asked: Sequence[Asked]) -> tuple[list[Stage], list[Problem]]:
    """Return the stages in an order in which each comes after those it depends on, else that of the file; and all that is wrong.

    With problems, the stages are of no use.
    """
    problems = _name_problems(asked)
    stages = [_stage(index, asked, problems) for index in range(len(asked))]
    ordered, left = _ordered(stages)
    if left and not problems:
        cycle = _cycle(left)
        first = next(stage for stage in left if stage.name == cycle[0])
        key = "from" if asked[first.index].parent is not None else "needs" if asked[first.index].needs else "name"
        problems.append((first.index, key, f"makes a circle: {' waits for '.join([*cycle, cycle[0]])}"))
    return ordered, problems


def _name_problems(asked: Sequence[Asked]) -> list[Problem]:
    problems: list[Problem] = []
    known: dict[str, str] = {}
    for index, one in enumerate(asked):
        if one.name == NOTHING:
            problems.append((index, "name", f"must not be {NOTHING!r}, which stands for no stage"))
        elif len(one.name) > LONGEST_NAME:
            problems.append((index, "name", f"must have at most {LONGEST_NAME} characters, not {len(one.name)}"))
        other = known.setdefault(variable(one.name), one.name)
        if other == one.name and any(before.name == one.name for before in asked[:index]):
            problems.append((index, "name", f"must be another one: {one.name!r} is the name of a stage already"))
        elif other != one.name:
            problems.append((index, "name", f"must be another one: {variable(one.name)} would stand for {other!r} too"))
    return problems


def _stage(index: int, asked: Sequence[Asked], problems: list[Problem]) -> Stage:
    one = asked[index]
    before = asked[index - 1].name if index else None
    parent = before if one.parent is None else None if one.parent == NOTHING else one.parent
    names = [other.name for other in asked]
    for key, name in [("from", parent), *(("needs", name) for name in one.needs)]:
        if name is not None and name not in names:
            problems.append((index, key, _unknown(name, [other for other in names if other not in (one.name, NOTHING)])))
        elif name == one.name:
            problems.append((index, key, "must be another stage, not this one itself"))
    start = one.start or ("weights" if parent is not None and one.ours and not one.starts_itself else "none")
    if one.start not in (None, "none"):
        if parent is None:
            problems.append((index, "start", f"must be left out, not {one.start!r}: there is no stage to start from"))
        elif not one.ours:
            meant = f"a script of your own finds that stage's directory in ${variable(parent)}"
            problems.append((index, "start", f"must be left out, not {one.start!r}: {meant}"))
        elif one.starts_itself:
            problems.append((index, "start", f"must be left out, not {one.start!r}: the training's arguments say what to start from"))
    kind: Kind = "afterany" if one.after == "any" else "afterok"
    waits = dict.fromkeys(name for name in (parent, *one.needs) if name is not None)
    return Stage(
        name=one.name, index=index, overrides=one.overrides, parent=parent, start=start,
        dependencies=tuple((name, kind) for name in waits),
    )  # fmt: skip


def _unknown(name: str, names: list[str]) -> str:
    for close in difflib.get_close_matches(name, names, n=1, cutoff=0.6):
        return f"must be the name of a stage, not {name!r}; did you mean {close!r}?"
    if not names:
        return f"must be left out, not {name!r}: there is no other stage"
    return f"must be the name of a stage, not {name!r}; the others are {', '.join(names)}"


def _ordered(stages: Sequence[Stage]) -> tuple[list[Stage], list[Stage]]:
    """Return the stages in order, and those that cannot have a place."""
    ordered: list[Stage] = []
    left = list(stages)
    while True:
        placed = {stage.name for stage in ordered}
        ready = next((stage for stage in left if all(name in placed for name, _ in stage.dependencies)), None)
        if ready is None:
            return ordered, left
        left.remove(ready)
        ordered.append(ready)


def _cycle(left: Sequence[Stage]) -> list[str]:
    """Return the names of a circle among stages each of which waits for another one of them, the first of the file first."""
    waits = {stage.name: [name for name, _ in stage.dependencies] for stage in left}
    path = [left[0].name]
    while True:
        following = next(name for name in waits[path[-1]] if name in waits)
        if following in path:
            circle = path[path.index(following) :]
            first = min(range(len(circle)), key=lambda at: list(waits).index(circle[at]))
            return circle[first:] + circle[:first]
        path.append(following)


def earlier(stages: Iterable[Stage], name: str) -> list[str]:
    """Return all stages that come before `name`, directly or not, in the order of `stages`: whose directories its script is told."""
    known = {stage.name: stage for stage in stages}
    found: set[str] = set()
    open_ = [name]
    while open_:
        new = [parent for parent, _ in known[open_.pop()].dependencies if parent in known and parent not in found]
        found |= set(new)
        open_ += new
    return [stage for stage in known if stage in found]


def remaining(stages: Sequence[Stage], states: Mapping[str, str | None]) -> Remaining:
    """Return what is to be submitted again.

    Completed stages are left out; those that failed, were stopped or never began are in, and so is one that waits for such a stage.
    One that runs, or of which nobody knows, is left alone.

    Args:
        stages: of the launch, as `plan` orders them.
        states: of their runs, by the stage's name: pending, running, completed, failed, stopped, unknown; None where there is no run.
    """
    again: dict[str, Stage] = {}
    cancel: list[str] = []
    for stage in stages:
        state = states.get(stage.name)
        waits_in_vain = state == "pending" and any(name in again for name, _ in stage.dependencies)
        if state in ("failed", "stopped", None) or waits_in_vain:
            cancel += [stage.name] if waits_in_vain else []
            open_ = tuple((name, kind) for name, kind in stage.dependencies if name in again or states.get(name) != "completed")
            again[stage.name] = replace(stage, dependencies=open_)
    return Remaining(tuple(again.values()), tuple(cancel))
