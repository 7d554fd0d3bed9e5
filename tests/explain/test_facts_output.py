"""A training that hangs, told from one that is slow; who cancelled a job; what was killed."""

from typing import Any

from hpctrain.explain.facts import FACTS
from hpctrain.explain.model import AttemptFact, FileFact, JobContext
from hpctrain.memory.sample import Sample
from hpctrain.slurm.notations.records import JobRecord

T0 = 1_795_000_000.0
HOUR = 3600.0
CONFIG: dict[str, Any] = {
    "script": "train.py",
    "resources": {"nodes": 1, "gpus_per_node": 4, "time": 3600},
    "restart": {"mode": "off"},
}


def stopped(**more: Any) -> JobContext:
    """Return a job that the time limit ended; Slurm wrote to both files at the end."""
    until = T0 + HOUR
    files = tuple(FileFact(name=f"{name}.log", size=900, grown=until) for name in ("out", "err"))
    account = JobRecord(
        job_id="7",
        scheduler="slurm",
        state="TIMEOUT",
        started=T0,
        ended=until,
        elapsed_s=int(HOUR),
        time_limit_s=int(HOUR),
    )
    attempt = AttemptFact(name="7.0", job_id="7", started=T0, ended=until)
    said: dict[str, Any] = {
        "files": files,
        "account": account,
        "attempts": (attempt,),
        "config": CONFIG,
        "step": 60,
        "max_steps": 1000,
    }
    return JobContext(**{**said, **more})


def taken(rank: int, step: int) -> Sample:
    return Sample(
        time_ms=int((T0 + 2 * step) * 1000),
        step=step,
        event="step",
        rank=rank,
        host="n0",
        world_size=2,
        local_rank=rank,
    )


def test_a_rank_that_lacks_what_all_others_did_makes_it_certain() -> None:
    samples = tuple(
        taken(rank, step) for step in (10, 20, 30) for rank in (0, 1) if (rank, step) != (1, 30)
    )
    found = FACTS["hang"](stopped(samples=samples, step_s=2.0))
    assert (found.certainty, found.rank, found.node) == ("certain", 1, "n0")
    together = tuple(taken(rank, step) for step in (10, 20, 30) for rank in (0, 1))
    found = FACTS["hang"](stopped(samples=together, step_s=2.0))
    assert found.certainty is None, "a long evaluation looks the same"


# -- cancelled, killed, again and again ------------------------------------------------------------


def cancelled(by: int | None, user: str = "tom", **extra: Any) -> JobContext:
    return JobContext(
        account=JobRecord(
            job_id="7", scheduler="slurm", state="CANCELLED", user=user, cancelled_by=by, ended=T0
        ),
        extra=extra,
    )


def test_who_cancelled_a_job() -> None:
    def who(case: JobContext) -> str | None:
        found = FACTS["cancelled_by"](case)
        return None if found is None else found.groups["who"]

    assert who(cancelled(1007, canceller="anna")) == "user 1007 (anna)"
    assert who(cancelled(1007)) == "user 1007"
    assert who(cancelled(None)) is None
    assert (who(cancelled(0)), FACTS["cancelled_by_root"](cancelled(0)) is not None) == (None, True)
    assert who(cancelled(0, user="root")) == "user 0", "root's own job"


def starts(seconds: float, **more: Any) -> JobContext:
    attempts = tuple(
        AttemptFact(
            name=f"7.{n}",
            restart=n,
            started=T0 + n * 9000,
            ended=T0 + n * 9000 + seconds,
            outcome="requeued",
        )
        for n in range(3)
    )
    return JobContext(attempts=attempts, config={**CONFIG, **more})


def test_a_script_that_resumes_by_itself_is_in_no_loop() -> None:
    """Its steps are not known: three starts of two hours each are how a long training of one's own
    is meant to run.
    """
    assert FACTS["requeue_loop"](starts(7200)) is None
    assert FACTS["requeue_loop"](starts(20)) is not None
    assert FACTS["requeue_loop"](starts(7200, script=None)) is not None
