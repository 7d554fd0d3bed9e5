"""The state of a job or a run as shown to users, from Slurm's state and the files of the attempt.
Pure functions.

Slurm reports FAILED for any nonzero exit code, including 85 and 86 of a training that saved and
stopped (hpctrain.runs.layout), and does not report what became of the training. All commands that
show a state take it from here; --json adds the raw state.

The states of a run, from its directory and the scheduler's answer:

- pending: one of its jobs is pending, or was requeued
- running: one of its jobs is running
- completed: the training has done all of its steps
- failed: it ended with an error, or its job was killed
- stopped: it saved and stopped on request, or its job was cancelled
- unknown: counts as running before anything is removed
"""

from __future__ import annotations

import signal as signals
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from hpctrain.runs import layout
from hpctrain.runs.store import Attempt, Run
from hpctrain.slurm import job_ids
from hpctrain.slurm.notations import states as slurm

#: Job id → Slurm's state; None if the scheduler answered but has no such job. A missing id was not
#: queried, or the scheduler did not answer.
Word = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class State:
    """The state of a run.

    Attributes:
        word: one of layout.STATES.
        reason: the training's or Slurm's reason.
        live: its jobs that are, or may be, pending or running; nothing of such a run is removed.
        forgotten: unknown for good: the scheduler has no more information on its jobs.
    """

    word: str
    reason: str | None = None
    live: tuple[str, ...] = ()
    forgotten: bool = False


_UNANSWERED = State("unknown", "a submission of it was never answered", forgotten=True)


def state_of(run: Run, submitted: Iterable[str | None], word: Word) -> State:
    """Return the state of a run.

    Args:
        run: as read from its directory.
        submitted: ids of the jobs submitted for it; None stands for a submission that was never
            answered.
        word: the scheduler's states of these and of `run.job_ids`.
    """
    waiting = tuple(submitted)
    states = {job: word.get(job) for job in (*run.job_ids, *waiting) if job is not None}
    # A state that only a newer Slurm has counts as live.
    live = tuple(job for job, said in states.items() if said and not slurm.is_final(said))
    last = run.last
    if last is not None and last.outcome == "completed":
        return State("completed", last.reason, live)
    # The job of the last attempt may just be ending; if it is pending, it was requeued.
    again = last is None or any(job != last.job or word[job] in slurm.WAITING for job in live)
    if last is not None and last.outcome in ("failed", "stopped") and not again:
        newer = [job for job in waiting if job is not None and job not in run.job_ids]
        is_open = _unheard(newer, word) or (_UNANSWERED if None in waiting else None)
        return is_open or State(last.outcome, last.reason, live)
    # A running job takes precedence over a pending one.
    for state, words in (("running", slurm.ACTIVE), ("pending", slurm.WAITING)):
        for job in live:
            if word[job] in words:
                return State(state, f"job {job} is {word[job]}", live)
    if live:
        return State("unknown", f"job {live[0]} is {word[live[0]]}", live)
    if None in waiting:
        return _UNANSWERED
    return _of_the_job(last, waiting, word)


def _unheard(jobs: Iterable[str], word: Word) -> State | None:
    """Return the state of a run with jobs whose states are not known; None if all are known."""
    silent = tuple(job for job in jobs if job not in word)
    if not silent:
        return None
    reason = job_ids.elsewhere(silent[0]) or f"nothing is known of job {silent[0]}"
    return State("unknown", reason, silent)


def _of_the_job(last: Attempt | None, submitted: tuple[str | None, ...], word: Word) -> State:
    """Return the state of a run whose script wrote no outcome and that has no live job."""
    if last is not None and last.job is None:
        return State("unknown", f"attempt {last.name} does not say its job", forgotten=True)
    jobs = [job for job in ([last.job] if last is not None else submitted) if job is not None]
    if not jobs:
        return State("unknown", "it has not started, and no job of it is known", forgotten=True)
    if (unheard := _unheard(jobs, word)) is not None:
        return unheard
    final = [said for job in jobs if (said := word[job]) is not None]
    if not final:
        return State("unknown", f"the scheduler does not know job {jobs[-1]}", forgotten=True)
    return _after(last or Attempt(name="", outcome="none"), final[-1])


def _after(last: Attempt, said: str) -> State:
    """Return the state of a run whose job ended before the script wrote an outcome."""
    if last.exit_code == layout.DONE:
        return State("completed", last.reason)
    # It saved for a next job, but there is none: the chain is exhausted.
    saved = last.outcome == "requeued" or last.exit_code == layout.REQUEUE
    if last.exit_code == layout.STOPPED or (saved and said == "FAILED"):
        return State("stopped", last.reason)
    if last.exit_code == layout.FAILED:
        return State("failed", last.reason)
    if said == "CANCELLED":
        return State("stopped", said)
    completed = said == "COMPLETED" and last.exit_code is None and last.outcome is None
    return State("completed" if completed else "failed", said)


#: wait, run: not ended; good, bad: succeeded or failed; empty: stopped on purpose, or to continue.
Level = Literal["wait", "run", "good", "bad", ""]

#: Shown instead of Slurm's FAILED for a job that saved and stopped; also a state of its run
#: (`State`).
STOPPED = "stopped"

_ACTIVE = {
    "RUNNING": "running",
    "COMPLETING": "ending",
    "CONFIGURING": "its nodes are being prepared",
}
_ENDED = {
    "COMPLETED": "completed",
    "TIMEOUT": "stopped at the time limit",
    "OUT_OF_MEMORY": "out of memory: the kernel killed a process",
    "NODE_FAIL": "stopped: a node failed",
    "CANCELLED": "cancelled",
    "PREEMPTED": "preempted by another job",
    "DEADLINE": "stopped at its --deadline",
    "BOOT_FAIL": "failed: its node did not start",
    "LAUNCH_FAILED": "failed: its nodes could not start it",
}
_BY_OUTCOME = {"completed": "COMPLETED", "failed": "FAILED", "stopped": "CANCELLED"}
_SIGNALS = {each.value: each.name for each in signals.Signals}
#: The training's exit reasons (hpctrain.training.survival.stop, NotFiniteError, a trial); others
#: are shown verbatim.
_STOPPED = {"deadline": " at the time limit", "stop-file": " on request", "signal": " by a signal"}
_REASONS = {
    "nan": ": loss or gradient not finite",
    "early-stopping": ": early stopping",
    "pruned": ": pruned by its study",
    "evaluated": ": evaluation only",
    "no-trial-left": ": its study has all its trials",
    "completed": "",
    "error": "",
    "deadline": "",
    "signal": "",
    "stop-file": "",
}


@dataclass(frozen=True, slots=True)
class JobState:
    """A job's state as text.

    Attributes:
        state: for a narrow column: Slurm's state, or STOPPED.
        head: what happened, such as `stopped at the time limit`.
        tail: details, such as `, checkpoint saved; continued in job 25`.
        level: how it is highlighted.
        saved: whether the training saved, and stopped before it was done.
    """

    state: str
    head: str
    tail: str
    level: Level
    saved: bool = False

    @property
    def words(self) -> str:
        """The complete sentence."""
        return self.head + self.tail

    @property
    def why(self) -> str:
        """The sentence, if it says more than the state column; else empty."""
        return "" if self.words.upper() == self.state.upper() else self.words


def of_job(
    state: str | None,
    attempt: Attempt | None = None,
    *,
    exit_code: int | None = None,
    signal: int | None = None,
    reason: str | None = None,
    waits: str | None = None,
    next_job: str = "",
) -> JobState:
    """Return the state of a job, or of one attempt.

    Args:
        state: Slurm's state; None if unknown, to use only the attempt.
        attempt: the job's last attempt; None if there is none.
        exit_code: the batch script's.
        signal: the signal that ended it.
        reason: the scheduler's, if the job is not pending.
        waits: why it is pending, as text (hpctrain.slurm.pending).
        next_job: see `continuation`.
    """
    attempt = attempt or Attempt(name="")
    # Slurm's own reasons are one word, and are expanded here.
    told = f" ({reason})" if reason and " " in reason else ""
    if state in slurm.WAITING:
        # An attempt that has not ended is newer than the scheduler's answer.
        again = " to start again" * (attempt.ended is not None or attempt.was_interrupted)
        return JobState(state, f"waiting{again}", f": {waits}" if waits else "", "wait")
    if state in slurm.ACTIVE:
        return JobState(state, _ACTIVE.get(state, state.lower()), told, "run")
    if state is not None and not slurm.is_final(state):
        return JobState(state, reason or state, "", "")
    code = attempt.status if attempt.status is not None else attempt.exit_code
    saved = code in (layout.REQUEUE, layout.STOPPED)
    said = attempt.reason or ""
    tail = ", checkpoint saved" * saved + next_job
    if saved and state in (None, "FAILED", "COMPLETED"):
        return JobState(STOPPED, STOPPED + _STOPPED.get(said, ""), tail, "", saved)
    if state is None:
        state = _BY_OUTCOME.get(attempt.outcome or "", slurm.UNKNOWN)
    why = _REASONS.get(said, f": {said}" if said else "")
    if state == "FAILED":
        # The script's own exit code comes first: Slurm 22.05 records 143 as 15:0.
        code, how = code or exit_code, ""
        if code or (signal and signal < 65):
            how = f" with exit code {code}" if code else f" by signal {signal}"
            number = code - 128 if code else signal
            how += f" ({_SIGNALS[number]})" if number in _SIGNALS else ""
        return JobState(state, f"failed{how}", why + next_job, "bad")
    if state == slurm.UNKNOWN:
        return JobState(state, "interrupted" * attempt.was_interrupted, tail, "")
    head = _ENDED.get(state, state.lower())
    if state == "COMPLETED":
        return JobState(state, head, why, "good")
    if attempt.outcome == "completed":
        tail = ", the training had completed"
    level: Level = "" if state == "CANCELLED" or next_job else "bad"
    return JobState(state, head, told + tail, level, saved)


def attempt_of(run: Run | None, job: str) -> Attempt | None:
    """Return the last attempt of a job, or None."""
    attempts = run.attempts if run is not None else ()
    return next((each for each in reversed(attempts) if each.job == job), None)


def continuation(run: Run | None, attempt: Attempt | None, live: Iterable[str] = ()) -> str:
    """Return a suffix for an attempt's state that names the job that continued it; empty if none
    did.

    Args:
        run: the run of the attempt.
        attempt: one of its attempts.
        live: the run's pending or running jobs.
    """
    if run is None or attempt is None or attempt.outcome in ("completed", "failed"):
        return ""
    later = run.attempts[run.attempts.index(attempt) + 1 :]
    if later:
        return (
            f"; continued in job {later[0].job}"
            if later[0].job != attempt.job
            else f"; started again as {later[0].name}"
        )
    following = next((job for job in live if job != attempt.job), None)
    return f"; continues in job {following}" if following is not None else ""


def of_run(run: Run, state: State) -> JobState:
    """Return the state of a run's last attempt, or of its pending job, worded as for the job."""
    if state.word in ("pending", "running", "unknown"):
        return JobState(state.word, state.reason or "", "", "")
    of_slurm = state.reason if state.reason is not None and slurm.is_final(state.reason) else None
    ended = of_job(of_slurm, run.last, next_job=continuation(run, run.last, state.live))
    if run.attempts:
        return ended
    if of_slurm == "CANCELLED":
        return replace(ended, head="cancelled before it started")
    return replace(ended, tail=f"{ended.tail}, before the run started") if ended.head else ended
