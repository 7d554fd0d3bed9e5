"""A study of `hpctrain tune`: requesting trials and reporting their results.

Needs optuna; uses no torch and no scheduler.

    runs/.studies/NAME-DIGEST.json   the definition (hpctrain/config/study.py)
    runs/.studies/NAME/journal.log   optuna's journal
    runs/RUN/trial.json              which trial a run is

A process that requests a trial holds a lock (`ask.lock`), so that no two see the same history. A
trial gets its run last: one without a run was left by a process killed during the request.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpctrain.config import study as tune
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.runs import layout, store
from hpctrain.util import installed

#: Seconds after which an unchanged lock is stale, left by a killed process: writing a line takes
#: milliseconds, choosing values a second.
GRACE_S = 60
#: Bytes at the end of a journal that are searched for an incomplete line.
_TAIL = 1 << 20

Ending = Literal["completed", "pruned", "failed"]
#: Attributes of trials and studies, in optuna's journal.
RUN, FILE, REASON, RETRY, DEFINITION = "run", "definition", "reason", "retry_of", "definition"
PRUNED = "pruned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A trial.

    Attributes:
        state: `running`, `completed`, `pruned` or `failed`.
        reports: step → value.
        file: the definition that it was requested with.
        retry_of: the failed trial whose values it has.
        started, ended: seconds since the epoch.
    """

    number: int
    state: str
    value: float | None
    params: Mapping[str, tune.Scalar]
    reports: Mapping[int, float]
    run: str | None = None
    reason: str | None = None
    file: str | None = None
    retry_of: int | None = None
    started: float | None = None
    ended: float | None = None


# -- the journal -----------------------------------------------------------------------------------


def journal_backend(path: Path) -> Any:
    """Return optuna's backend for a journal. Before a process writes, an incomplete line of a
    killed process is removed: optuna cannot read a journal with a line after it.
    """
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    class Lock(JournalFileOpenLock):  # type: ignore[misc]  # optuna is not there everywhere
        def acquire(self) -> bool:
            taken = bool(super().acquire())
            _remove_incomplete_line(path)
            return taken

    return JournalFileBackend(str(path), Lock(str(path), grace_period=GRACE_S))


def _remove_incomplete_line(path: Path) -> None:
    with path.open("r+b") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - _TAIL))
        tail = stream.read()
        if incomplete := len(tail) - (tail.rfind(b"\n") + 1):
            stream.truncate(size - incomplete)


@contextmanager
def _asking(runs: Path, name: str) -> Iterator[None]:
    require()
    from optuna.storages.journal import JournalFileOpenLock  # works without flock, too

    place = folder(runs, name)
    place.mkdir(parents=True, exist_ok=True)
    lock = JournalFileOpenLock(str(place / "ask"), grace_period=2 * GRACE_S)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


# -- the study -------------------------------------------------------------------------------------


def require() -> None:
    """Refuse to continue without optuna.

    Raises:
        UsageError: it is not installed.
    """
    if importlib.util.find_spec("optuna") is None:
        raise UsageError(
            "a study needs optuna, which is not installed here", fix=installed.command("tune")
        )


def folder(runs: Path, name: str) -> Path:
    """Return the directory of a study in `runs`."""
    return runs / tune.STUDIES / name


def read_definition(file: Path) -> tune.Definition:
    """Return a definition.

    Raises:
        UsageError: it is missing or not a definition.
    """
    try:
        return tune.from_json(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{file}, which says what the study searches, cannot be read",
            details=(str(error),),
            fix="hpctrain tune",
        ) from error


def open_study(runs: Path, name: str, *, create: tune.Definition | None = None) -> Any:
    """Return a study as an optuna object.

    Args:
        runs: the directory `runs`.
        name: of the study.
        create: definition to create a missing study from; only while holding the lock. An existing
            study must match it.

    Raises:
        UsageError: it does not exist, optuna is missing, or its definition differs.
    """
    require()
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = folder(runs, name) / tune.JOURNAL
    if not path.exists() and create is None:
        raise UsageError(f"there is no study {name!r} in {runs}", fix="hpctrain tune status")
    try:
        storage = optuna.storages.JournalStorage(journal_backend(path))
        known = name in optuna.get_all_study_names(storage)
    except (ValueError, KeyError, TypeError, IndexError, AssertionError) as error:
        raise HpctrainError(
            f"the journal of the study {name} is damaged: {type(error).__name__}: {error}",
            details=(str(path),),
            hint=(
                f"start another study: set tune.study: {name}-2 in config.yaml; the journal stays"
                " where it is"
            ),
        ) from error
    if create is None and not known:
        raise UsageError(
            f"the study {name!r} has not started: no trial has been requested", fix="hpctrain ps"
        )
    if create is None:
        return optuna.load_study(study_name=name, storage=storage)
    found = optuna.create_study(
        storage=storage, study_name=name, direction=create.direction, load_if_exists=True
    )
    if DEFINITION not in found.user_attrs:
        found.set_user_attr(DEFINITION, create.text)
    refuse_other(found, create)
    return found


def definition_of(study: Any) -> tune.Definition | None:
    """Return the definition that a study was created with; None if its creation was interrupted."""
    text = study.user_attrs.get(DEFINITION)
    return tune.from_json(json.loads(text)) if isinstance(text, str) else None


def refuse_other(study: Any, asked: tune.Definition) -> None:
    """Refuse to continue a study with another definition.

    Raises:
        UsageError: the definitions differ.
    """
    begun = definition_of(study)
    if begun is not None and (found := tune.differences(begun, asked)):
        raise UsageError(
            f"the study {asked.study} searches something else",
            details=tuple(f"  {each}" for each in found),
            hint=f"use another name in config.yaml, such as tune.study: {asked.study}-2",
        )


# -- values ----------------------------------------------------------------------------------------


def _value(trial: Any, key: str, where: tune.Space) -> None:
    low, high = where.low or 0, where.high or 0
    if where.kind == "choice":
        trial.suggest_categorical(key, where.choices)
    elif where.kind == "int":
        trial.suggest_int(key, int(low), int(high), step=int(where.step or 1), log=where.log)
    else:
        trial.suggest_float(key, low, high, step=where.step, log=where.log)


def _sampler(definition: tune.Definition, number: int) -> Any:
    """Return a sampler with a seed for this trial: with one seed, all processes would draw the same
    values.
    """
    import warnings

    import optuna

    seed = int.from_bytes(
        hashlib.sha256(f"{definition.seed} {number}".encode()).digest()[:4], "big"
    )
    if definition.sampler != "tpe":
        return optuna.samplers.RandomSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant_liar is experimental, and has been since 2.8
        # Running trials count as bad, so that simultaneous trials do not all try the same values.
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


def pruner(definition: tune.Definition) -> Any:
    """Return optuna's pruner."""
    import optuna

    asked = definition.pruner
    if asked.kind == "none":
        return optuna.pruners.NopPruner()
    return optuna.pruners.MedianPruner(
        n_startup_trials=asked.startup_trials, n_warmup_steps=asked.startup_steps
    )


# -- requesting trials -----------------------------------------------------------------------------


def ask(
    runs: Path,
    definition: tune.Definition,
    run: str,
    *,
    attempt: str | None = None,
) -> Row | None:
    """Return the trial of a run: its own if that has not ended, else the next one; None if the
    study has all of its trials.

    A resubmitted run whose trial has failed continues as a new trial with the same values.

    Args:
        runs: the directory `runs`.
        definition: the study's definition.
        run: the run's id.
        attempt: the start of its job that requests the trial.

    Raises:
        UsageError: the study's definition differs, or optuna is missing.
    """
    with _asking(runs, definition.study):
        study = open_study(runs, definition.study, create=definition)
        _settle(study, runs, definition, attempt=(run, attempt))
        trials = study.get_trials(deepcopy=False)
        mine = next((trial for trial in reversed(trials) if trial.user_attrs.get(RUN) == run), None)
        state = None if mine is None else _state(mine)
        if mine is not None and state == "running":
            return rows(study)[int(mine.number)]
        taken = sum(_state(trial) != "failed" for trial in trials)
        if state in ("completed", "pruned") or taken >= definition.trials:
            return None
        return _create(study, definition, run, retry=mine)


def _create(study: Any, definition: tune.Definition, run: str, *, retry: Any) -> Row:
    trials = study.get_trials(deepcopy=False)
    is_first = all(_state(trial) == "failed" for trial in trials)
    if given := (definition.first if is_first else {}) if retry is None else retry.params:
        study.enqueue_trial(dict(given))
    study.sampler = _sampler(definition, len(trials))
    trial = study.ask()
    for key, each in definition.space.items():
        _value(trial, key, each)
    trial.set_user_attr(FILE, definition.file)
    if retry is not None:
        trial.set_user_attr(RETRY, retry.number)
        for step, value in retry.intermediate_values.items():
            if math.isfinite(value):  # the step that failed is repeated
                trial.report(value, step)
    trial.set_user_attr(RUN, run)
    return rows(study)[int(trial.number)]


# -- how trials end --------------------------------------------------------------------------------


def tell(
    study: Any, definition: tune.Definition, number: int, ending: Ending, reason: str | None = None
) -> str:
    """Report how a trial ended, and return its state; one that has ended does not change.

    A trial's value is that of its last evaluation, as in optuna's examples; or that of the best one
    if the definition has `best`, because the best weights are kept.
    """
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import Trial, TrialState

    trial = study.trials[number]
    if _state(trial) != "running":
        return _state(trial)
    reports = trial.intermediate_values
    last = max(reports, default=None)
    if ending == "completed" and (last is None or not math.isfinite(reports[last])):
        ending, reason = "failed", "no-evaluation" if last is None else "nan"
    value = None
    if ending == "completed" and last is not None:
        better = min if definition.direction == "minimize" else max
        finite = [each for each in reports.values() if math.isfinite(each)]
        value = better(finite) if definition.value == "best" else reports[last]
    try:
        if reason:
            Trial(study, trial._trial_id).set_user_attr(REASON, reason)
        state = {word: name for name, word in _STATES.items()}[ending]
        study.tell(number, value, state=TrialState[state])
    except (UpdateFinishedTrialError, ValueError):  # another process was faster
        return _state(study.trials[number])
    return ending


def report(study: Any, number: int, step: int, value: float) -> bool | None:
    """Report the value of an evaluation, and return whether the study's pruner stops the trial;
    None if the trial has already ended. For a repeated step, the first value counts.
    """
    from optuna.trial import Trial

    frozen = study.trials[number]
    if frozen.state.is_finished():
        return None
    trial = Trial(study, frozen._trial_id)
    if step not in frozen.intermediate_values:
        trial.report(value, step)
    return bool(trial.should_prune())


def settle(
    runs: Path, definition: tune.Definition, gone: Mapping[str, str]
) -> list[tuple[int, str, str]]:
    """Report the ends of trials that are not reported yet; return number, run and state of each.

    Args:
        runs: the directory `runs`.
        definition: the study's definition.
        gone: runs without pending or running jobs, and that nothing continues, with the reason.
    """
    with _asking(runs, definition.study):
        return _settle(open_study(runs, definition.study), runs, definition, gone=gone)


def _settle(
    study: Any,
    runs: Path,
    definition: tune.Definition,
    *,
    attempt: tuple[str, str | None] | None = None,
    gone: Mapping[str, str] | None = None,
) -> list[tuple[int, str, str]]:
    told = []
    for trial in study.get_trials(deepcopy=False):
        if _state(trial) != "running":
            continue
        run = str(trial.user_attrs.get(RUN) or "")
        ending: Ending | None = None
        reason: str | None = None
        if not run:
            ending, reason = "failed", "never-taken"
        elif (known := store.read_run(runs, run)) is not None:
            attempts = [each for each in known.attempts if (run, each.name) != attempt]
            ending, reason = ending_of(attempts[-1]) if attempts else (None, None)
        if ending is None and run in (gone or {}):
            ending, reason = "failed", (gone or {})[run]
        if ending is not None:
            told.append((trial.number, run, tell(study, definition, trial.number, ending, reason)))
    return told


def ending_of(attempt: store.Attempt) -> tuple[Ending | None, str | None]:
    """Return how an attempt ended for its trial, and why; None if the trial may continue."""
    unknown = attempt.outcome is None and attempt.status is None
    if attempt.outcome == "completed" or (unknown and attempt.exit_code == layout.DONE):
        return ("pruned" if attempt.reason == PRUNED else "completed"), None
    continues = (None, layout.REQUEUE, layout.STOPPED)
    if attempt.outcome == "failed" or (unknown and attempt.exit_code not in continues):
        return "failed", attempt.reason or "error"
    return None, None


#: optuna's names of the final states → ours.
_STATES = {"COMPLETE": "completed", "PRUNED": "pruned", "FAIL": "failed"}


def _state(trial: Any) -> str:
    return _STATES.get(trial.state.name, "running")


# -- reading ---------------------------------------------------------------------------------------


def rows(study: Any) -> list[Row]:
    """Return all trials, by number."""
    found = list[Row]()
    for trial in study.get_trials(deepcopy=False):
        said = trial.user_attrs
        found.append(
            Row(
                number=trial.number,
                state=_state(trial),
                value=trial.value if trial.state.is_finished() else None,
                params=dict(trial.params),
                reports=dict(sorted(trial.intermediate_values.items())),
                run=said.get(RUN),
                reason=said.get(REASON),
                file=said.get(FILE),
                retry_of=said.get(RETRY),
                started=trial.datetime_start and trial.datetime_start.timestamp(),
                ended=trial.datetime_complete and trial.datetime_complete.timestamp(),
            )
        )
    return found


def best(found: list[Row], direction: str) -> Row | None:
    """Return the completed trial with the best value."""
    done = [
        row
        for row in found
        if row.state == "completed" and row.value is not None and math.isfinite(row.value)
    ]
    sign = 1 if direction == "minimize" else -1
    return min(done, key=lambda row: (sign * (row.value or 0.0), row.number), default=None)
