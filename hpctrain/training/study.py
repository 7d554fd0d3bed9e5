"""A study of `hpctrain tune`: trials are asked for, and told how they went. Needs optuna; no torch, and no scheduler.

    runs/.studies/NAME-DIGEST.json   the definition (hpctrain/jobs/tune.py)
    runs/.studies/NAME/journal.log   optuna's journal (study_journal.py)
    runs/RUN/trial.json              which trial a run is

Whoever asks holds a lock (`ask.lock`), so that asking is one step: a trial belongs to its run before the next one is asked for, and no two
see the same past. A trial that has been created and belongs to nobody was left by a process that was killed while it asked.
"""

from __future__ import annotations

import importlib.util
import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hpctrain import installed
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.jobs import tune
from hpctrain.jobs.tune import Definition, Scalar
from hpctrain.runs import layout, store
from hpctrain.runs.store import Attempt
from hpctrain.training.study_journal import GRACE_S, Lock, backend
from hpctrain.training.study_sampling import fixed, suggest

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

Ending = Literal["completed", "pruned", "failed"]
#: Attributes of trials and studies, in optuna's journal.
RUN, FILE, REASON, RETRY, DEFINITION = "run", "definition", "reason", "retry_of", "definition"
PRUNED = "pruned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A trial that belongs to a run."""

    number: int
    params: Mapping[str, Scalar]
    again: bool = False
    retry_of: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A trial as it is shown.

    Attributes:
        state: `running`, `completed`, `pruned` or `failed`.
        reports: step → value.
        file: the definition that it was asked with.
        started, ended: seconds since the epoch.
    """

    number: int
    state: str
    value: float | None
    params: Mapping[str, Scalar]
    reports: Mapping[int, float]
    run: str | None = None
    reason: str | None = None
    file: str | None = None
    retry_of: int | None = None
    started: float | None = None
    ended: float | None = None


def require() -> None:
    """Refuse to go on without optuna.

    Raises:
        UsageError: it is not installed.
    """
    if importlib.util.find_spec("optuna") is None:
        raise UsageError("a study needs optuna, which is not installed here", fix=installed.command("tune"))


def folder(runs: Path, name: str) -> Path:
    """Return the directory of a study in `runs`."""
    return runs / tune.STUDIES / name


def read_definition(file: Path) -> Definition:
    """Return a definition.

    Raises:
        UsageError: it is not there, or is none.
    """
    try:
        return tune.from_json(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise UsageError(f"there is no {file}, which says what the study searches", fix="hpctrain tune") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read", details=(str(error),), fix="hpctrain tune") from error


def open_study(runs: Path, name: str, *, create: Definition | None = None, grace: float = GRACE_S) -> Study:
    """Return a study as optuna has it.

    Args:
        runs: the directory `runs`.
        name: of the study.
        create: what makes it where it is not there; for who holds the lock alone. A study that is there must fit it.
        grace: of locks (study_journal.py).

    Raises:
        UsageError: there is none, optuna is missing, or it searches something else.
    """
    require()
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = folder(runs, name) / tune.JOURNAL
    if not path.exists() and create is None:
        there = sorted(each.parent.name for each in runs.glob(f"{tune.STUDIES}/*/{tune.JOURNAL}"))
        names = (f"  there are: {', '.join(there[:5])}",) if there else ()
        raise UsageError(
            f"there is no study {name!r} in {runs}", details=names, fix=f"hpctrain tune status {there[0]}" if there else "hpctrain tune"
        )
    try:
        storage = optuna.storages.JournalStorage(backend(path, grace=grace))
        known = name in optuna.get_all_study_names(storage)
    except (ValueError, KeyError, TypeError, IndexError, AssertionError) as error:
        raise HpctrainError(
            f"the journal of the study {name} is damaged: {type(error).__name__}: {error}",
            details=(str(path),),
            fix=f"another study: tune.study: {name}-2 in config.yaml; the journal stays where it is",
        ) from error
    if create is None and not known:
        raise UsageError(f"the study {name!r} has not begun: no trial has been asked for", fix="hpctrain ps")
    if not known and create is not None:
        made = optuna.create_study(storage=storage, study_name=name, direction=create.direction)
        made.set_user_attr(DEFINITION, create.text)
    return optuna.load_study(study_name=name, storage=storage)


def definition_of(study: Study) -> Definition | None:
    """Return what a study was begun with; None where it was killed while it began."""
    said = study.user_attrs.get(DEFINITION)
    return tune.from_json(json.loads(said)) if isinstance(said, str) else None


def refuse_other(study: Study, asked: Definition, *, write: bool = True) -> None:
    """Refuse to go on with a study that searches something else; `write`: whether one that was killed as it began may be begun.

    Raises:
        UsageError: it does.
    """
    begun = definition_of(study)
    if begun is None:
        if write:
            study.set_user_attr(DEFINITION, asked.text)
        return
    if found := tune.differences(begun, asked):
        raise UsageError(
            f"the study {asked.study} searches something else",
            details=tuple(f"  {each}" for each in found),
            fix=f"another name in config.yaml, such as tune.study: {asked.study}-2",
        )


@contextmanager
def _asking(runs: Path, name: str, grace: float) -> Iterator[None]:
    """Be the only one that asks."""
    place = folder(runs, name)
    place.mkdir(parents=True, exist_ok=True)
    with Lock(place / "ask.lock", grace=2 * grace):  # a sampler takes longer than a line of a journal
        yield


def ask(runs: Path, definition: Definition, run: str, *, attempt: str | None = None, grace: float = GRACE_S) -> Asked | None:
    """Return the trial of a run: its own, where it has one that is not over, else the next one; None where the study has all of them.

    A run whose trial has failed, and that was submitted again, goes on with the same values as another trial.

    Args:
        runs: the directory `runs`.
        definition: what is searched.
        run: its id.
        attempt: the start of its job that asks: what it has not said yet counts for nothing.
        grace: of locks (study_journal.py).

    Raises:
        UsageError: the study searches something else, or optuna is missing.
    """
    with _asking(runs, definition.study, grace):
        study = open_study(runs, definition.study, create=definition, grace=grace)
        refuse_other(study, definition)
        _settle(study, runs, definition, attempt=(run, attempt))
        trials = study.get_trials(deepcopy=False)
        mine = next((trial for trial in reversed(trials) if trial.user_attrs.get(RUN) == run), None)
        state = None if mine is None else _state(mine)
        if mine is not None and state == "running":
            return Asked(number=mine.number, params=suggest(study, mine._trial_id, definition), again=True)
        taken = sum(_state(trial) != "failed" for trial in trials)
        if state in ("completed", "pruned") or taken >= definition.trials:
            return None
        return _create(study, definition, run, retry=mine)


def _create(study: Study, definition: Definition, run: str, *, retry: FrozenTrial | None) -> Asked:
    import optuna
    from optuna.trial import TrialState

    trials = [(_state(trial) == "failed", trial.params) for trial in study.get_trials(deepcopy=False)]
    before = ([params for failed, params in trials if not failed], [params for failed, params in trials if failed])
    said = fixed(definition, *before) if retry is None else retry.params
    template = optuna.trial.create_trial(
        state=TrialState.RUNNING,
        user_attrs={RUN: run, FILE: definition.file, **({RETRY: retry.number} if retry is not None else {})},
        system_attrs={"fixed_params": dict(said)} if said else {},
        # Without what was no number: the step that failed comes again.
        intermediate_values={step: value for step, value in retry.intermediate_values.items() if math.isfinite(value)} if retry else {},
    )
    trial_id = study._storage.create_new_trial(study._study_id, template_trial=template)
    params = suggest(study, trial_id, definition)
    return Asked(number=study._storage.get_trial(trial_id).number, params=params, retry_of=None if retry is None else retry.number)


# -- how trials end ----------------------------------------------------------------------------------------------------


def tell(study: Study, definition: Definition, number: int, ending: Ending, reason: str | None = None) -> str:
    """Tell how a trial ended, and return its state; one that is over stays as it is.

    A trial's value is that of its last evaluation, as optuna's own examples return it; where the definition says `best`, because
    the weights of the best one are kept, that one's.
    """
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState

    trial = study.trials[number]
    if _state(trial) != "running":
        return _state(trial)
    values = {step: value for step, value in trial.intermediate_values.items() if math.isfinite(value)}
    last = max(trial.intermediate_values, default=None)
    if ending == "completed" and (last is None or last not in values):
        ending, reason = "failed", "no-evaluation" if last is None else "nan"
    value = None
    if ending == "completed" and last is not None:
        better = min if definition.direction == "minimize" else max
        value = better(values.values()) if definition.value == "best" else values[last]
    try:
        if reason:
            study._storage.set_trial_user_attr(trial._trial_id, REASON, reason)
        state = {"completed": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}[ending]
        study.tell(number, value, state=state, skip_if_finished=True)
    except (UpdateFinishedTrialError, ValueError):  # another process was faster
        return _state(study.trials[number])
    return ending


def report(study: Study, number: int, step: int, value: float) -> bool | None:
    """Tell the value of an evaluation, and return whether the study's pruner says to stop; None where the trial is over already."""
    storage = study._storage
    trial_id = storage.get_trial_id_from_study_id_trial_number(study._study_id, number)
    trial = storage.get_trial(trial_id)
    if trial.state.is_finished():
        return None
    known = trial.intermediate_values.get(step)
    if known is None or not math.isfinite(known):  # after a resume, an evaluation may come again
        storage.set_trial_intermediate_value(trial_id, step, value)
    return bool(study.pruner.prune(study, storage.get_trial(trial_id)))


def settle(runs: Path, definition: Definition, gone: Mapping[str, str], *, grace: float = GRACE_S) -> list[tuple[int, str, str]]:
    """Tell the ends of trials that nobody has told, and return number, run and state of each.

    Args:
        runs: the directory `runs`.
        definition: of the study.
        gone: runs of which a scheduler says that nothing of them waits or runs, and that nothing goes on with; with the reason.
        grace: of locks (study_journal.py).
    """
    with _asking(runs, definition.study, grace):
        study = open_study(runs, definition.study, grace=grace)
        return _settle(study, runs, definition, gone=gone)


def _settle(
    study: Study,
    runs: Path,
    definition: Definition,
    *,
    attempt: tuple[str, str | None] | None = None,
    gone: Mapping[str, str] | None = None,
) -> list[tuple[int, str, str]]:
    told = []
    for trial in study.get_trials(deepcopy=False):
        run = trial.user_attrs.get(RUN)
        if _state(trial) != "running":
            continue
        if not isinstance(run, str):
            told.append((trial.number, "", tell(study, definition, trial.number, "failed", "never-taken")))
            continue
        known = store.read_run(runs, run)
        attempts = [each for each in known.attempts if (run, each.name) != attempt] if known is not None else []
        ending, reason = ending_of(attempts[-1]) if attempts else (None, None)
        if ending is None and run in (gone or {}):
            ending, reason = "failed", (gone or {})[run]
        if ending is not None:
            told.append((trial.number, run, tell(study, definition, trial.number, ending, reason)))
    return told


def ending_of(attempt: Attempt) -> tuple[Ending | None, str | None]:
    """Return how a start of a job has ended for its trial, and why; None where the trial goes on, or nothing is known."""
    if attempt.outcome == "completed" or (attempt.outcome is None and attempt.status is None and attempt.exit_code == layout.DONE):
        return ("pruned" if attempt.reason == PRUNED else "completed"), None
    broken = (
        attempt.outcome is None and attempt.status is None and attempt.exit_code not in (None, layout.DONE, layout.REQUEUE, layout.STOPPED)
    )
    return ("failed", attempt.reason or "error") if attempt.outcome == "failed" or broken else (None, None)


def _state(trial: FrozenTrial) -> str:
    from optuna.trial import TrialState

    words = {TrialState.COMPLETE: "completed", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}
    return words.get(trial.state, "running")


# -- reading -----------------------------------------------------------------------------------------------------------


def rows(study: Study) -> list[Row]:
    """Return all trials, by number."""
    found = []
    for trial in study.get_trials(deepcopy=False):
        said = trial.user_attrs
        found.append(Row(
            number=trial.number, state=_state(trial), value=trial.value if trial.state.is_finished() else None,
            params=dict(trial.params), reports=dict(sorted(trial.intermediate_values.items())), run=said.get(RUN),
            reason=said.get(REASON), file=said.get(FILE), retry_of=said.get(RETRY), started=_stamp(trial.datetime_start),
            ended=_stamp(trial.datetime_complete),
        ))  # fmt: skip
    return found


def best(found: list[Row], direction: str) -> Row | None:
    """Return the completed trial with the best value."""
    done = [row for row in found if row.state == "completed" and row.value is not None and math.isfinite(row.value)]
    sign = 1 if direction == "minimize" else -1
    return min(done, key=lambda row: (sign * (row.value or 0.0), row.number), default=None)


def _stamp(at: Any) -> float | None:
    return None if at is None else time.mktime(at.timetuple()) + at.microsecond / 1e6
