"""The state of a run: a pure function of what its directory says and of what the scheduler says.

- pending: a job of it waits, or was requeued
- running: a job of it runs
- completed: the training has done all of its steps
- failed: it ended in an error, or something ended its job
- stopped: it saved and stopped because somebody wanted that, or its job was cancelled
- unknown: nobody knows; counts as running wherever something would be removed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpctrain.runs import layout
from hpctrain.runs.store import Attempt, Run
from hpctrain.scheduler.parse import states as slurm

STATES = ("pending", "running", "completed", "failed", "stopped", "unknown")

#: Job id → state in Slurm's words; None where the scheduler has answered and does not know the job. An id that is not there was not asked
#: for, or there was no answer.
Word = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class State:
    """The state of a run.

    Attributes:
        word: one of STATES.
        reason: why, in the training's or in Slurm's word.
        live: the jobs of it that wait or run, or may; nothing of such a run is removed.
        forgotten: unknown, and the scheduler will not know more: it has answered, and there is no job that it knows.
    """

    word: str
    reason: str | None = None
    live: tuple[str, ...] = ()
    forgotten: bool = False


_UNANSWERED = State("unknown", "a submission of it was never answered", forgotten=True)


def state_of(run: Run, submitted: Iterable[str | None], word: Word) -> State:
    """Return the state of a run.

    Args:
        run: as its directory says.
        submitted: ids of the jobs that were submitted for it; None among them is a submission that was never answered.
        word: what the scheduler says of these and of `run.job_ids`.
    """
    waiting = tuple(submitted)
    live = tuple(dict.fromkeys(job for job in (*run.job_ids, *waiting) if job is not None and _lives(word.get(job))))
    last = run.last
    ended = _ended(last) if last is not None else None
    if ended is not None and (ended.word == "completed" or not _others(live, last, word)):
        return _open_still(run, waiting, word) or State(ended.word, ended.reason, live)
    if live:
        return _living(live, word)
    if None in waiting:
        return _UNANSWERED
    return _of_the_job(last, waiting, word)


def _living(live: tuple[str, ...], word: Word) -> State:
    """Return the state of a run with jobs that wait or run; one that runs says more than one that waits."""
    for state, words in (("running", slurm.ACTIVE), ("pending", slurm.WAITING)):
        for job in live:
            if word[job] in words:
                return State(state, f"job {job} is {word[job]}", live)
    return State("unknown", f"job {live[0]} is {word[live[0]]}", live)


def _ended(attempt: Attempt) -> State | None:
    """Return the state that an attempt has left, where its script has said so."""
    if attempt.outcome in ("completed", "failed", "stopped"):
        return State(str(attempt.outcome), attempt.reason)
    return None


def _open_still(run: Run, submitted: tuple[str | None, ...], word: Word) -> State | None:
    """Return the state of a run that has ended and may have been submitted again, without anybody's knowing; None where it was not."""
    if run.last is not None and run.last.outcome == "completed":
        return None
    silent = tuple(job for job in submitted if job is not None and job not in word and job not in run.job_ids)
    if silent:
        return State("unknown", f"no word of job {silent[0]}", silent)
    return _UNANSWERED if None in submitted else None


def _others(live: tuple[str, ...], last: Attempt | None, word: Word) -> bool:
    """Whether a job waits or runs that is not the one of the last attempt, just ending; if that one waits, it was requeued after all."""
    return any(last is None or job != last.job or word[job] in slurm.WAITING for job in live)


def _of_the_job(last: Attempt | None, submitted: tuple[str | None, ...], word: Word) -> State:
    """Return the state of a run whose script has said no last word, and none of whose jobs is seen to live."""
    jobs = [last.job] if last is not None and last.job is not None else [job for job in submitted if job is not None]
    if last is not None and last.job is None:
        return State("unknown", f"attempt {last.name} does not say its job", forgotten=True)
    if not jobs:
        return State("unknown", "it has not started, and no job of it is known", forgotten=True)
    silent = [job for job in jobs if job not in word]
    if silent:
        return State("unknown", f"no word of job {silent[0]}", tuple(silent))
    final = [(job, said) for job in jobs if (said := word[job]) is not None]
    if not final:
        return State("unknown", f"the scheduler does not know job {jobs[-1]}", forgotten=True)
    return _after(last, *final[-1])


def _after(last: Attempt | None, job: str, said: str) -> State:
    """Return the state of a run whose job has come to its end without a word of the script."""
    if not slurm.is_final(said):
        return State("unknown", f"job {job} is {said}", (job,))
    if last is not None and last.exit_code == layout.DONE:
        return State("completed", last.reason)
    if last is not None and last.exit_code == layout.STOPPED:
        return State("stopped", last.reason)
    if last is not None and last.exit_code == layout.FAILED:
        return State("failed", last.reason)
    if said == "CANCELLED":
        return State("stopped", said)
    completed = said == "COMPLETED" and last is not None and last.exit_code is None and last.outcome is None
    return State("completed" if completed else "failed", said)


def _lives(state: str | None) -> bool:
    """Whether a job in this state waits or runs, or may; a word that a newer Slurm has counts as that."""
    return state is not None and not slurm.is_final(state)
