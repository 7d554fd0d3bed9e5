"""How far a study is: its trials, the runs that will still ask for one, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpctrain.cli import remaining, runs_jobs
from hpctrain.errors import SchedulerError
from hpctrain.jobs import tune
from hpctrain.jobs.tune import Definition
from hpctrain.runs import files, launch, store
from hpctrain.runs.launch import Launch
from hpctrain.runs.states import State
from hpctrain.runs.store import Run
from hpctrain.training import study
from hpctrain.training.study import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyState:
    """See the module.

    Attributes:
        rows: all trials.
        missing: how many trials are to be submitted.
        open: how many wait, run, or have stopped and can go on.
        said: lines for the user.
    """

    rows: tuple[Row, ...] = ()
    missing: int = 0
    open: int = 0
    said: tuple[str, ...] = ()
    states: Mapping[str, State] = field(default_factory=dict)


def look(runs: Path, definition: Definition, *, write: bool) -> StudyState:
    """Return how far a study is, and mark trials as failed whose jobs are gone.

    Args:
        runs: the directory `runs`.
        definition: what the config says now.
        write: whether the study may be told anything.

    Raises:
        UsageError: the study searches something else, or optuna is missing.
        SchedulerError: a scheduler does not answer, so that nobody knows what still runs.
    """
    rows = read(runs, definition)
    coming = [run for run in runs_of(runs, definition.study) if run.id not in {row.run for row in rows}]
    running = [run_of(runs, row) for row in rows if row.state == "running" and row.run]
    found = runs_jobs.survey(runs, [*running, *coming], every_job=True)
    if found.silent is not None and any(state.word == "unknown" and not state.forgotten for state in found.states.values()):
        raise SchedulerError(found.silent.what, details=found.silent.details, fix=f"{found.silent.fix}; then: hpctrain tune")
    gone = {run.id: _why(found.states[run.id]) for run in running if is_gone(found.states[run.id])}
    told: list[tuple[int, str, str]] = []
    if write and any(row.state == "running" for row in rows):
        told = study.settle(runs, definition, gone)
        rows = read(runs, definition)
    asked = {row.run for row in rows}  # some may have begun since they were counted
    waiting = [run for run in coming if run.id not in asked and found.states[run.id].word in ("pending", "running")]
    open_ = [row for row in rows if row.state == "running" and row.run not in gone]
    done = sum(row.state in ("completed", "pruned") for row in rows)
    return StudyState(
        rows=tuple(rows), missing=definition.trials - done - len(open_) - len(waiting), open=len(open_) + len(waiting), states=found.states,
        said=tuple(_said(definition, rows, told, waiting=len(waiting), open_={row.run or "": _word(found.states, row) for row in open_})),
    )  # fmt: skip


def read(runs: Path, definition: Definition) -> list[Row]:
    """Return the trials of a study; none of one that has not begun.

    Raises:
        UsageError: it searches something else, or optuna is missing.
    """
    if not (study.folder(runs, definition.study) / tune.JOURNAL).exists():
        return []
    there = study.open_study(runs, definition.study)
    study.refuse_other(there, definition, write=False)
    return study.rows(there)


def runs_of(runs: Path, name: str) -> Iterator[Run]:
    """Yield the runs that were submitted for a study, whether they have begun or not."""
    for tag in launch.tags(runs):
        whole = launch.load(runs, tag)
        if whole is not None and whole.kind == "run" and _study_of(whole) == name:
            yield from remaining.runs_of(runs, whole)[0]


def _study_of(whole: Launch) -> str | None:
    """Return the study that a launch has tasks for, as its newest config says."""
    for part in reversed(whole.parts):
        said = (files.read_json(whole.path / part.config) or {}).get("config") if part.config else None
        section = said.get("tune") if isinstance(said, dict) else None
        if isinstance(said, dict) and isinstance(section, dict):
            return str(section.get("study") or said.get("job_name"))
    return None


def run_of(runs: Path, row: Row) -> Run:
    """Return the run of a trial; of one that has left nothing, what its name says."""
    name = row.run or ""
    return store.read_run(runs, name) or Run(id=name, tag=name.rpartition("_")[0] or name)


def is_gone(state: State) -> bool:
    """Whether nothing of a run will go on by itself, and it has not stopped in good order either."""
    return not state.live and (state.word == "failed" or (state.word == "unknown" and state.forgotten))


def _word(states: Mapping[str, State], row: Row) -> str | None:
    state = states.get(row.run or "")
    return state.word if state is not None else None


def _why(state: State) -> str:
    return "-".join((state.reason or "job-gone").lower().split())[:60]


def _said(
    definition: Definition, rows: Sequence[Row], told: Sequence[tuple[int, str, str]], *, waiting: int, open_: Mapping[str, str | None],
) -> Iterator[str]:  # fmt: skip
    for number, run, state in told:
        yield f"note: trial {number} ({run or 'no run'}) is {state}: its end had not been told"
    counts = {state: sum(row.state == state for row in rows) for state in ("completed", "pruned", "failed")}
    counts["running"], counts["waiting"] = len(open_), waiting
    done = counts["completed"] + counts["pruned"]
    words = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    yield f"study {definition.study}: {done} of {definition.trials} trials are done{f' ({words})' if words else ''}"
    stopped = [run for run, word in open_.items() if word == "stopped"]
    if stopped:
        tags = dict.fromkeys(run.rpartition("_")[0] for run in stopped)
        yield f"note: {len(stopped)} stopped, and go on with: {'; '.join(f'hpctrain resubmit {tag}' for tag in tags)}"
