"""The state of a run, as a function of its attempts and of the scheduler's word."""

from typing import Any

import pytest

from hpctrain.runs import launch
from hpctrain.runs.job_state import State, Word, state_of
from hpctrain.runs.store import Attempt, Run
from hpctrain.slurm.ledger import Submission

Jobs = tuple[str | None, ...]


def run(*outcomes: str | None, code: int | None = None) -> Run:
    attempts = tuple(
        Attempt(name=f"1.{n}", job_id="1", restart=n, outcome=outcome, exit_code=code)
        for n, outcome in enumerate(outcomes)
    )
    return Run(id="r", tag="r", attempts=attempts)


@pytest.mark.parametrize(
    ("outcomes", "code", "submitted", "word", "state"),
    [
        # The script's last word counts, and of one that completed nothing else does.
        (("completed",), None, (), {}, "completed"),
        (("completed",), None, ("2",), {"2": "PENDING"}, "completed"),
        (("completed",), None, (None, "2"), {}, "completed"),
        (("requeued", "completed"), None, (), {"1": "COMPLETING"}, "completed"),
        (("failed",), None, ("1",), {"1": "FAILED"}, "failed"),
        (("failed",), None, ("1",), {"1": "COMPLETING"}, "failed"),
        (("stopped",), None, (), {}, "stopped"),
        # Submitted again, the run goes on.
        (("failed",), None, ("1", "2"), {"1": "FAILED", "2": "PENDING"}, "pending"),
        (("stopped",), None, ("2",), {"1": "FAILED", "2": "RUNNING"}, "running"),
        (("failed",), None, ("1", "2"), {"1": "FAILED", "2": "CANCELLED"}, "failed"),
        (("failed",), None, ("1", "2"), {"1": "FAILED", "2": None}, "failed"),
        (("failed",), None, ("1", "2"), {"1": "FAILED"}, "unknown"),
        (("failed",), None, ("1", None), {"1": "FAILED"}, "unknown"),
        # Requeued, it waits as long as the scheduler has the job.
        (("requeued",), None, (), {"1": "PENDING"}, "pending"),
        (("requeued",), None, (), {"1": "REQUEUE_HOLD"}, "pending"),
        (("requeued",), None, (), {"1": "RUNNING"}, "running"),
        (("requeued",), None, (), {"1": "CANCELLED"}, "stopped"),
        (("requeued",), None, (), {"1": "COMPLETED"}, "failed"),
        (("requeued",), None, (), {"1": "FAILED"}, "stopped"),  # the chain is used up
        (("requeued",), None, (), {"1": "NODE_FAIL"}, "failed"),
        (("requeued",), None, (), {"1": None}, "unknown"),
        (("requeued",), None, (), {}, "unknown"),
        # Killed before it could say anything.
        ((None,), None, (), {"1": "RUNNING"}, "running"),
        ((None,), None, (), {"1": "COMPLETING"}, "running"),
        ((None,), None, (), {"1": "PENDING"}, "pending"),
        ((None,), None, (), {"1": "A_NEW_WORD"}, "unknown"),
        ((None,), None, (), {"1": "UNKNOWN"}, "unknown"),
        ((None,), None, (), {"1": "NODE_FAIL"}, "failed"),
        ((None,), None, (), {"1": "TIMEOUT"}, "failed"),
        ((None,), None, (), {"1": "OUT_OF_MEMORY"}, "failed"),
        ((None,), None, (), {"1": "CANCELLED"}, "stopped"),
        ((None,), None, (), {"1": "COMPLETED"}, "completed"),
        ((None,), None, (), {"1": None}, "unknown"),
        ((None,), None, (), {}, "unknown"),
        # A submission that was never answered may be a job that runs.
        ((None,), None, ("1", None), {"1": "FAILED"}, "unknown"),
        (("requeued",), None, ("1", None), {"1": "CANCELLED"}, "unknown"),
        # The training itself has said how it ended.
        ((None,), 0, (), {"1": "CANCELLED"}, "completed"),
        ((None,), 86, (), {"1": "TIMEOUT"}, "stopped"),
        ((None,), 1, (), {"1": "CANCELLED"}, "failed"),
        ((None,), 85, (), {"1": "TIMEOUT"}, "failed"),
        ((None,), 0, (), {"1": "RUNNING"}, "running"),
        ((None,), 0, (), {}, "unknown"),
        # Not started yet.
        ((), None, (), {}, "unknown"),
        ((), None, ("2",), {"2": "PENDING"}, "pending"),
        ((), None, ("2",), {"2": "CANCELLED"}, "stopped"),
        ((), None, ("2",), {"2": "COMPLETED"}, "failed"),
        ((), None, ("2",), {}, "unknown"),
        ((), None, ("2",), {"2": None}, "unknown"),
        ((), None, (None,), {}, "unknown"),
    ],
)
def test_state(
    outcomes: tuple[str | None, ...], code: int | None, submitted: Jobs, word: Word, state: str
) -> None:
    found = state_of(run(*outcomes, code=code), submitted, word)
    assert found.word == state
    if state in ("pending", "running"):
        assert found.live
    if found.word == "unknown":
        assert found.reason


def test_the_reason_is_slurms_word_and_what_lives_is_named() -> None:
    assert state_of(run(None), (), {"1": "OUT_OF_MEMORY"}).reason == "OUT_OF_MEMORY"
    assert state_of(run(None), (), {"1": "RUNNING"}) == State("running", "job 1 is RUNNING", ("1",))
    # A completed run with a job that still waits: nothing of it may be removed.
    assert state_of(run("completed"), ("2",), {"1": "COMPLETED", "2": "PENDING"}).live == ("2",)
    assert state_of(run("completed"), (), {"1": "COMPLETING"}).live == ("1",)


def test_forgotten_is_known_from_silent() -> None:
    assert state_of(run(None), (), {"1": None}).forgotten
    assert not state_of(run(None), (), {}).forgotten
    assert state_of(run(None), (), {}).live == ("1",)
    assert not state_of(run(None), (), {"1": "A_NEW_WORD"}).forgotten


def test_an_attempt_that_says_no_job_is_asked_for_by_its_name_and_else_unknown() -> None:
    assert (
        state_of(
            Run(id="r", tag="r", attempts=(Attempt(name="7.0", slurm_job_id="7"),)),
            (),
            {"7": "NODE_FAIL"},
        ).word
        == "failed"
    )
    assert (
        state_of(
            Run(id="r", tag="r", attempts=(Attempt(name="7.0", slurm_job_id="7"),)), (), {"7": None}
        ).word
        == "unknown"
    )
    assert (
        state_of(Run(id="r", tag="r", attempts=(Attempt(name="x"),)), (), {"7": "COMPLETED"}).word
        == "unknown"
    )


@pytest.mark.parametrize(
    ("run", "submitted", "expected"),
    [
        ({"index": 5}, {"array": "0-9%2"}, ["9_5"]),
        ({"index": 5}, {"array": "0-3", "offset": 0}, []),
        ({"index": 1005}, {"array": "0-9", "offset": 1000}, ["9_5"]),
        # What does not say where it counts from may be of any run behind it.
        ({"index": 1005}, {"array": "0-9"}, ["9"]),
        ({"index": 2}, {"array": "3-9"}, []),
        ({"index": 5}, {}, ["9"]),
        ({}, {}, ["9"]),
        ({"stage": "dpo"}, {"stage": "sft"}, []),
        ({"stage": "dpo"}, {"stage": "dpo"}, ["9"]),
    ],
)
def test_the_jobs_that_were_submitted_for_a_run(
    run: dict[str, Any], submitted: dict[str, Any], expected: list[str]
) -> None:
    asked = launch.jobs_of(Run(id="t_5", tag="t", **run), (Submission(job_id="9", **submitted),))
    assert list(asked) == expected
