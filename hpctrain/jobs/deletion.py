"""Select checkpoints, decide which runs and checkpoints may be deleted, and delete them; never
those of a run with an active job.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeVar

from hpctrain.errors import SchedulerError, UsageError
from hpctrain.jobs import schedulers
from hpctrain.jobs.targets import RunFilter, existing_runs, launched_runs, runs_of
from hpctrain.runs import checkpoints, code, drop, launch, layout, manifest
from hpctrain.runs.checkpoints import Saved, saved_in
from hpctrain.runs.job_state import State
from hpctrain.runs.store import Run, read_run

_WEIGHTS = "final weights; to remove them, name them"

T = TypeVar("T")


@dataclass(slots=True)
class Chosen:
    """Selected checkpoints.

    Attributes:
        runs: in the order of their ids.
        saved: the selected checkpoints, by run id.
        named: checkpoints named individually, such as `RUN/checkpoint-40`.
    """

    runs: list[Run]
    saved: dict[str, list[Saved]] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)

    @property
    def all(self) -> list[Saved]:
        """Return all selected checkpoints."""
        return [one for run in self.runs for one in self.saved.get(run.id, [])]


def choose(chosen: RunFilter, runs_dir: Path, *, whole: bool = False) -> Chosen:
    """Return the selected checkpoints. A word names a run, `RUN/checkpoint-40` or `RUN/model`;
    `whole` as in `resolve`.

    Raises:
        UsageError: a word matches nothing.
        HpctrainError: a directory cannot be read.
    """
    words = []
    for word in chosen.words:  # shell completion produces `runs/RUN`
        run_id, _, name = word.rstrip("/").removeprefix(f"{layout.RUNS}/").partition("/")
        words.append((run_id, name.removeprefix("checkpoints/")))
    listed, now = existing_runs(runs_dir), time.time()
    criteria = replace(chosen, words=tuple(run_id for run_id, _ in words))
    runs = criteria.choose(listed, now, whole=whole)
    if chosen.states:
        survey = schedulers.survey(runs_dir, runs)
        runs = [run for run in runs if chosen.has(survey.states[run.id].word)]
    saved = {run.id: saved_in(runs_dir / run.id) for run in runs}
    every = {one.name for all_ in saved.values() for one in all_}
    complete = set() if words else set(saved)  # runs whose checkpoints are all selected
    named: set[str] = set()
    for word, name in words:
        ids = {run.id for run in runs_of(word, listed, whole=whole)} & saved.keys()
        complete |= set() if name else ids
        mine = {f"{run_id}/{name}" for run_id in ids} & every
        named |= mine
        if name and ids and not mine:
            command = f"hpctrain checkpoints list {shlex.quote(word)}"
            raise UsageError(
                f"there is no {word}/{name}", fix=layout.in_runs_dir(command, runs_dir)
            )
    chosen_of = {
        run_id: [one for one in all_ if run_id in complete or one.name in named]
        for run_id, all_ in saved.items()
    }
    return Chosen(runs, chosen_of, named)


def choose_again(before: Chosen, runs_dir: Path, *, read: bool = False) -> Chosen:
    """Return the selection again: without runs that no longer exist, and with the files reread; with
    `read`, their contents too, which records damaged ones for later readers.
    """
    for each in before.all if read else ():
        if not each.unfinished:
            manifest.problems(each.path, digests=True)
    now = [run for each in before.runs if (run := read_run(runs_dir, each.id)) is not None]
    names = {one.name for one in before.all}
    saved = {
        run.id: [one for one in saved_in(runs_dir / run.id) if one.name in names] for run in now
    }
    return Chosen(now, saved, before.named)


@dataclass(slots=True)
class DeletionPlan(Generic[T]):
    """What to delete, and what to keep and why, by names of runs or checkpoints.

    Attributes:
        go: what may be deleted, as it was read; `sizes` are in bytes.
        keep: the reason why each is kept.
        failed: the reason why each cannot be deleted.
        held: kept because a job may be using it.
        states: states of the runs, by run id.
        silent: the error of a scheduler that did not answer.
    """

    states: dict[str, State]
    silent: SchedulerError | None
    go: dict[str, T] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    keep: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)


def plan_runs(meant: Sequence[Run], chosen: RunFilter, runs_dir: Path) -> DeletionPlan[Run]:
    """Decide which runs may be deleted; all their jobs are queried at once.

    Args:
        meant: the runs.
        chosen: the states that they must have.
        runs_dir: the directory of all runs.
    """
    survey = schedulers.survey(runs_dir, meant, every_job=True)
    plan: DeletionPlan[Run] = DeletionPlan(survey.states, survey.silent)
    for run in meant:
        state = survey.states[run.id]
        if not chosen.has(state.word):
            continue
        why = _why_not(state)
        size, obstacle = drop.weigh(runs_dir, run.id) if why is None else (0, None)
        if why is not None:
            plan.keep[run.id] = why
            plan.held.add(run.id)
        elif obstacle is not None:
            plan.failed[run.id] = obstacle
        else:
            plan.go[run.id] = run
            plan.sizes[run.id] = size
    return plan


def plan_checkpoints(
    meant: Chosen, runs_dir: Path, *, keep_last: int, damaged: bool
) -> DeletionPlan[Saved]:
    """Decide which checkpoints may be deleted, from the states of their runs and the options."""
    survey = schedulers.survey(runs_dir, meant.runs, every_job=True)
    plan: DeletionPlan[Saved] = DeletionPlan(survey.states, survey.silent)
    for run in meant.runs:
        why = _why_not(survey.states[run.id])
        complete = [
            one for one in saved_in(runs_dir / run.id) if one.is_checkpoint and not one.wrong
        ]
        newest = [one.path.name for one in complete[-keep_last:]]
        for one in meant.saved.get(run.id, []):
            stays = why or _why_kept(one, newest, damaged=damaged, named=one.name in meant.named)
            if stays is None:
                plan.go[one.name] = one
                plan.sizes[one.name] = one.size()
            elif stays:
                plan.keep[one.name] = stays
            if why:
                plan.held.add(one.name)
    return plan


def _why_kept(one: Saved, newest: list[str], *, damaged: bool, named: bool) -> str | None:
    """Return why a checkpoint is kept: None if it may be deleted, an empty string if keeping it
    needs no explanation.
    """
    if damaged and not one.wrong:
        return ""
    if not one.is_checkpoint and not one.unfinished:
        return None if named else _WEIGHTS
    if damaged:
        return None
    if one.path.name in newest[-1:]:
        return "the newest complete one, from which the run would resume"
    if named:
        return None
    if one.best:
        return "the best one; to remove it, name it"
    return f"among the {len(newest)} newest" if one.path.name in newest else None


def _why_not(state: State) -> str | None:
    if state.word in ("running", "pending", "unknown"):
        return f"{state.word}: {state.reason}"
    return f"job {state.live[0]} has not ended" if state.live else None


def remove_checkpoint(one: Saved) -> str | None:
    """Delete a checkpoint; return the error message, or None."""
    try:
        left = checkpoints.remove(one.path)
        checkpoints.sweep(one.path.parent)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return (
        None
        if left is None
        else f"it is no longer a checkpoint, and some of its files are left in {left}"
    )


def forget_launches(runs_dir: Path, removed: Iterable[Run]) -> None:
    """Delete launch records without any remaining run, and code snapshots that no job uses."""
    for tag in {run.tag for run in removed}:
        whole = launch.load(runs_dir, tag)
        # Points and tasks that have not started may still start.
        if whole is not None and not any(launched_runs(runs_dir, whole)):
            shutil.rmtree(whole.path, ignore_errors=True)
    code.remove_unused(runs_dir, now=time.time())
