"""Facts: each holds where it is true, and says nothing where it is not, or where too little is
known.
"""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.explain.facts import FACTS
from hpctrain.explain.model import AttemptFact, FileFact, JobContext
from hpctrain.memory.sample import Sample
from hpctrain.slurm.notations.records import JobRecord

T0 = 1_795_000_000.0
CONFIG: dict[str, Any] = {"resources": {"nodes": 1, "gpus_per_node": 4}, "training": {}}


def sample(rank: int, step: int, at: float, event: Any = "step", **more: Any) -> Sample:
    said: dict[str, Any] = {
        "host": f"n{rank // 4}",
        "world_size": 4,
        "local_rank": rank % 4,
        "gpu_index": rank % 4,
        "gpu_uuid": f"GPU-{rank}",
        "gpu_used_mib": 40_000,
        "gpu_total_mib": 81_000,
        "gpu_utilisation_percent": 97,
        "torch_allocated_mib": 30_000,
        "torch_peak_mib": 38_000,
        "torch_reserved_mib": 39_000,
        "rss_mib": 4_000,
        "children_rss_mib": 500,
        "node_used_mib": 60_000,
        "node_total_mib": 500_000,
        "cgroup_used_mib": 30_000,
        "cgroup_limit_mib": 64_000,
    }
    return Sample(
        time_ms=int((T0 + at) * 1000), step=step, event=event, rank=rank, **{**said, **more}
    )


def steps(
    until: int, *, ranks: int = 4, every: int = 10, step_s: float = 2.0, **more: Any
) -> tuple[Sample, ...]:
    """Samples of a training that goes well up to a step."""
    found = [sample(rank, 0, 0.0, "train_begin", **more) for rank in range(ranks)]
    found += [sample(rank, 1, step_s, "first_step", **more) for rank in range(ranks)]
    return (
        *found,
        *(
            sample(rank, step, step * step_s, **more)
            for step in range(every, until + 1, every)
            for rank in range(ranks)
        ),
    )


def account(state: str = "TIMEOUT", elapsed: float = 4 * 3600, **more: Any) -> JobRecord:
    said: dict[str, Any] = {
        "started": T0,
        "ended": T0 + elapsed,
        "elapsed_s": int(elapsed),
        "time_limit_s": 4 * 3600,
        "gpus": 4,
    }
    return JobRecord(job_id="7", scheduler="slurm", state=state, **{**said, **more})


def attempt(**more: Any) -> AttemptFact:
    return AttemptFact(**{"name": "7.0", "job_id": "7", "started": T0, **more})


def case(**more: Any) -> JobContext:
    return JobContext(**{"config": CONFIG, **more})


def test_nothing_is_known_of_an_empty_case() -> None:
    assert {name: fact(JobContext()) for name, fact in FACTS.items()} == dict.fromkeys(FACTS)


def test_a_training_that_goes_well_has_no_fact() -> None:
    """Of a job that runs, that has completed, and of one that Slurm cancelled for its user."""
    samples = steps(1000)
    log = FileFact(name="logs/output_sft.log", size=9000, grown=T0 + 2001)
    running = case(
        account=account("RUNNING", ended=None, elapsed_s=2000),
        samples=samples,
        step=1000,
        max_steps=5000,
        step_s=2.0,
        now=T0 + 2010,
        attempts=(attempt(first_step=1, last_step=1000, last_logged_at=T0 + 2000),),
        files=(log,),
    )
    done = replace(running, account=account("COMPLETED", elapsed=2020), step=1000, max_steps=1000)
    cancelled = replace(running, account=account("CANCELLED", elapsed=2020))
    for each in (running, done, cancelled):
        found = {name for name, fact in FACTS.items() if fact(each) is not None}
        assert found == set(), found


# -- GPUs ------------------------------------------------------------------------------------------


def test_two_ranks_on_one_gpu() -> None:
    shared = [
        replace(each, gpu_uuid="GPU-0", gpu_index=0) if each.rank < 2 else each
        for each in steps(20)
    ]
    found = FACTS["gpu_shared"](case(samples=tuple(shared)))
    assert (found.groups["ranks"], found.groups["gpu"], found.rank, found.node) == (
        "0, 1",
        "0",
        0,
        "n0",
    )
    assert "ranks 0, 1 of n0 are on the same GPU, GPU-0" in found.evidence[0].text
    assert {each.file for each in found.evidence} == {"samples"}


def test_parts_of_one_gpu_and_gpus_of_two_nodes_are_not_shared() -> None:
    """MIG parts have the index of their GPU and UUIDs of their own; the GPU 0 of each node is
    another one.
    """
    parts = [replace(each, gpu_uuid=f"MIG-{each.rank}", gpu_index=0) for each in steps(20)]
    nodes = [replace(each, gpu_uuid=None, gpu_index=0, host=f"n{each.rank}") for each in steps(20)]
    assert FACTS["gpu_shared"](case(samples=tuple(parts))) is None
    assert FACTS["gpu_shared"](case(samples=tuple(nodes))) is None
    amd = [replace(each, gpu_uuid=None, gpu_index=0) for each in steps(20)]
    found = FACTS["gpu_shared"](case(samples=tuple(amd)))
    assert found.groups["count"] == "4"


# -- the host --------------------------------------------------------------------------------------


def test_a_cgroup_that_is_full() -> None:
    samples = (*steps(20), sample(2, 30, 60.0, cgroup_used_mib=63_000))
    found = FACTS["cgroup_full"](case(samples=samples))
    assert (found.groups["limit"], found.node) == ("62.5 GiB", "n0")
    assert found.at == T0 + 60
    node = tuple(
        replace(each, cgroup_limit_mib=None, cgroup_used_mib=None, node_used_mib=490_000)
        for each in samples
    )
    assert FACTS["cgroup_full"](case(samples=node)).groups["what"] == "the node"  # type: ignore[union-attr]


# -- time ------------------------------------------------------------------------------------------


def timed_out(samples: tuple[Sample, ...], logged: float, step: int, **more: Any) -> JobContext:
    log = FileFact(
        name="logs/error_sft.log", size=9000, grown=T0 + 4 * 3600 + 2
    )  # slurmstepd's last words
    said: dict[str, Any] = {
        "samples": samples,
        "account": account(),
        "step": step,
        "max_steps": 10_000,
        "step_s": 2.0,
        "files": (log,),
        "attempts": (
            attempt(first_step=1, last_step=step, last_logged_at=T0 + logged, ended=T0 + 4 * 3600),
        ),
    }
    return case(**{**said, **more})


def test_a_hang_is_told_from_slow() -> None:
    hung, slow = timed_out(steps(1000), 2000.0, 1000), timed_out(steps(7190), 14_390.0, 7190)
    assert (FACTS["hang"](slow), FACTS["slow"](hung)) == (None, None)
    found = FACTS["hang"](hung)
    assert (found.groups["step"], found.groups["quiet"], found.at) == (
        "1000",
        "3.4 h",
        T0 + 2000,
    )
    found = FACTS["slow"](slow)
    assert found.groups == {
        "step": "7190",
        "max_steps": "10000",
        "step_s": "2",
        "left": "94 min",
        "limit": "04:00:00",
    }


def test_the_rank_that_sleeps() -> None:
    """It lacks the sample of the step after which the others wait for it."""
    asleep = tuple(each for each in steps(1000) if not (each.rank == 2 and each.step == 1000))
    found = FACTS["hang"](timed_out(asleep, 2000.0, 1000))
    assert (found.rank, found.node) == (2, "n0")
    assert "its last sample" in found.evidence[2].text
    assert FACTS["hang"](timed_out(steps(1000), 2000.0, 1000)).rank is None  # type: ignore[union-attr]


def test_a_long_evaluation_is_no_hang() -> None:
    evaluated = (*steps(500), *(sample(rank, 500, 2200.0, "evaluate") for rank in range(4)))
    ended = account("CANCELLED", elapsed=2200 + 5400)
    last = (attempt(first_step=1, last_step=500, last_logged_at=T0 + 2200, ended=T0 + 2200 + 5400),)
    assert FACTS["hang"](timed_out(evaluated, 2200.0, 500, account=ended, attempts=last)) is None, (
        "evaluations take 20 minutes"
    )
    assert (
        FACTS["hang"](timed_out(steps(500), 2200.0, 500, account=ended, attempts=last)) is not None
    )


def test_the_log_of_a_job_that_runs_shows_that_it_lives() -> None:
    now = T0 + 8000
    log = FileFact(name="logs/output_sft.log", size=9000, grown=now - 5)
    running = timed_out(
        steps(1000), 2000.0, 1000, account=account("RUNNING", ended=None), now=now, files=(log,)
    )
    running = replace(running, attempts=(replace(running.attempts[0], ended=None),))
    assert FACTS["hang"](running) is None
    assert FACTS["hang"](replace(running, files=(replace(log, grown=T0 + 2001),))) is not None


def test_what_stopped_at_its_deadline_was_slow() -> None:
    """The training saved and stopped in time: not Slurm, but its own word says so."""
    last = attempt(
        first_step=1,
        last_step=7190,
        last_logged_at=T0 + 14_390,
        ended=T0 + 14_400,
        reason="deadline",
        outcome="stopped",
    )
    ended = account("FAILED", exit_code=85)
    assert (
        FACTS["slow"](timed_out(steps(7190), 14_390.0, 7190, account=ended, attempts=(last,)))
        is not None
    )
    gone_on = replace(last, outcome="requeued")
    assert (
        FACTS["slow"](timed_out(steps(7190), 14_390.0, 7190, account=ended, attempts=(gone_on,)))
        is None
    )


# -- starts ----------------------------------------------------------------------------------------


def starts(*first: int | None, outcome: str = "requeued", **more: Any) -> tuple[AttemptFact, ...]:
    return tuple(
        attempt(
            name=f"7.{number}",
            restart=number,
            first_step=step,
            last_step=None if step is None else step + 40,
            started=T0 + number * 600,
            outcome=outcome,
            **more,
        )
        for number, step in enumerate(first)
    )


@pytest.mark.parametrize(
    "first", [(None, None, None), (0, 0, 0), (0, 100, 100, 100), (0, None, None)]
)
def test_starts_that_get_no_further(first: tuple[int | None, ...]) -> None:
    found = FACTS["requeue_loop"](case(attempts=starts(*first, reason="signal")))
    assert found.groups["count"] == "3"
    assert "attempt 7." in found.evidence[0].text


@pytest.mark.parametrize("first", [(0, 100, 200), (None, None), (0, 100, 100), ()])
def test_starts_that_get_further(first: tuple[int | None, ...]) -> None:
    assert FACTS["requeue_loop"](case(attempts=starts(*first))) is None


def test_what_a_person_submits_again_is_no_loop() -> None:
    by_hand = tuple(
        replace(each, restart=0, job_id=each.name)
        for each in starts(None, None, None, outcome="failed")
    )
    assert FACTS["requeue_loop"](case(attempts=by_hand)) is None
    assert (
        FACTS["requeue_loop"](case(attempts=by_hand, config={"restart": {"mode": "chain"}}))
        is not None
    )


# -- the job ---------------------------------------------------------------------------------------


def test_another_number_of_processes_than_the_job_asks_for() -> None:
    found = FACTS["world_size_wrong"](case(samples=steps(20, ranks=1, world_size=1)))
    assert found.groups == {
        "world_size": "1",
        "expected": "4",
        "product": "1 node x 4 GPUs = 4 processes",
    }
    assert FACTS["world_size_wrong"](case(samples=steps(20))) is None
    assert FACTS["world_size_wrong"](JobContext(samples=steps(20))) is None


def test_samples_of_an_earlier_start_say_nothing_of_this_one() -> None:
    """It had 8 ranks, all on one GPU; this one has 4 on 4."""
    of_old = steps(900, ranks=8, world_size=8, host="n0", gpu_uuid="GPU-0")
    before = tuple(replace(each, time_ms=each.time_ms - 86_400_000) for each in of_old)
    attempts = (attempt(name="6.0", started=T0 - 86_400), attempt())
    now = case(samples=(*before, *steps(20)), attempts=attempts)
    assert FACTS["world_size_wrong"](now) is None
    assert FACTS["gpu_shared"](now) is None
    assert FACTS["gpu_shared"](replace(now, attempts=attempts[:1], samples=before)) is not None


def test_a_node_that_failed() -> None:
    found = FACTS["failed_node"](
        case(account=account("NODE_FAIL", failed_node="n3", nodes="n[1-4]"))
    )
    assert (found.node, found.evidence[0].file) == ("n3", "sacct")
    assert FACTS["failed_node"](case(account=account("FAILED"))) is None


# -- words -----------------------------------------------------------------------------------------


_MIB = st.none() | st.integers(0, 10**6)
_TIMES = st.none() | st.floats(0, 1e10)
_SAMPLES = st.builds(
    Sample,
    time_ms=st.integers(0, 10**13),
    step=st.integers(0, 10**6),
    world_size=st.integers(1, 8),
    local_rank=st.integers(0, 3),
    event=st.sampled_from(["train_begin", "first_step", "step", "save"]),
    host=st.sampled_from(["a", "b"]),
    rank=st.integers(0, 5),
    gpu_uuid=st.none() | st.sampled_from(["x", "y"]),
    gpu_index=st.none() | st.integers(0, 3),
    gpu_used_mib=_MIB,
    rss_mib=_MIB,
    cgroup_used_mib=_MIB,
    cgroup_limit_mib=_MIB,
    node_used_mib=_MIB,
    node_total_mib=_MIB,
)
_ACCOUNTS = st.builds(
    JobRecord,
    job_id=st.just("1"),
    scheduler=st.just("slurm"),
    state=st.sampled_from(["TIMEOUT", "RUNNING", "FAILED", "NODE_FAIL"]),
    started=_TIMES,
    ended=_TIMES,
    elapsed_s=_MIB,
    gpus=st.none() | st.integers(0, 8),
    time_limit_s=_MIB,
)
_ATTEMPTS = st.builds(
    AttemptFact,
    name=st.just("1.0"),
    started=_TIMES,
    ended=_TIMES,
    restart=st.integers(0, 3),
    first_step=st.none() | st.integers(0, 99),
    last_step=st.none() | st.integers(0, 99),
    last_logged_at=_TIMES,
)


@pytest.mark.slow
@given(
    st.builds(
        JobContext,
        samples=st.lists(_SAMPLES, max_size=12).map(tuple),
        step=_MIB,
        step_s=st.none() | st.floats(0, 1e4),
        max_steps=_MIB,
        now=_TIMES,
        world_size=st.none() | st.integers(0, 9),
        account=st.none() | _ACCOUNTS,
        attempts=st.lists(_ATTEMPTS, max_size=4).map(tuple),
    )
)
def test_no_case_is_too_odd(odd: JobContext) -> None:
    """Whatever is known, a fact has evidence, short enough to print, and groups that are text."""
    for name, fact in FACTS.items():
        found = fact(odd)
        if found is not None:
            assert found.evidence, name
            assert all(len(each.text) <= 300 and each.line is None for each in found.evidence)
            assert all(isinstance(value, str) for value in found.groups.values())
