"""What a run had, used and wasted, and what to ask for next time."""

from dataclasses import replace

import pytest

from hpctrain.memory.sample import Sample
from hpctrain.report import document, efficiency
from hpctrain.runs.history import History, Point, RankMemory, Start
from hpctrain.slurm.notations.records import JobRecord, StepUsage

AT = 1_794_600_000.0
GIB = 2**30


def start(
    number: int,
    at: float,
    *,
    held: float = 3600.0,
    lost: float = 0.0,
    first: int = 0,
    last: int = 100,
    lost_steps: int = 0,
) -> Start:
    """Return a start of an hour: 5 minutes of loading, and 1 after the last row."""
    return Start(
        name=f"7.{number}",
        started=at,
        ended=at + held,
        first_step=first,
        last_step=last,
        outcome="requeued",
        reason="deadline",
        job="7",
        began=at + 300,
        last_at=at + held - 60,
        lost_steps=lost_steps,
        lost_s=lost,
    )


def account(**values: object) -> JobRecord:
    known = {
        "job_id": "7",
        "scheduler": "slurm",
        "state": "COMPLETED",
        "gpus": 8,
        "n_nodes": 2,
        "cpus": 64,
        "time_limit_s": 7200,
        "memory_bytes": 256 * GIB,
        "submitted": AT - 1800,
        "started": AT,
        "ended": AT + 3600,
        "elapsed_s": 3600,
    }
    return JobRecord(**{**known, **values})  # type: ignore[arg-type]


def rank(number: int, host: str = "n1", **values: int) -> RankMemory:
    one = Sample(
        time_ms=int(AT * 1000),
        step=5,
        event="step",
        host=host,
        rank=number,
        world_size=8,
        local_rank=0,
        **values,
    )
    return RankMemory(rank=number, samples=(one,), count=1, mean_utilisation=80.0)


def killed(number: int, at: float, *, job: str = "7", last: int = 50) -> Start:
    """Return a start that said nothing of its end: its last row is 10 minutes after it began."""
    return Start(
        name=f"{job}.{number}",
        started=at,
        ended=None,
        first_step=0,
        last_step=last,
        outcome=None,
        reason=None,
        job=job,
        began=at + 60,
        last_at=at + 600,
    )


TWO_STARTS = History(
    starts=(
        start(0, AT, lost=600, last=100, lost_steps=20),
        start(1, AT + 5400, first=80, last=200),
    ),
    last_step=200,
    max_steps=200,
)


def ask(found: efficiency.Efficiency, option: str) -> str | None:
    return next((each.directive for each in found.next if each.option == option), None)


def test_hours_and_where_they_went() -> None:
    found = efficiency.of([account()], TWO_STARTS, completed=True)
    assert found.gpu_hours == 16.0
    assert found.asked_gpu_hours == 32.0
    parts = {part.id: part.seconds for part in found.parts}
    assert parts == {"training": 2 * 3240 - 600, "loading": 600, "lost": 600, "after": 120}
    assert sum(parts.values()) == found.held_s
    assert found.wasted_s == 1320


def test_the_time_to_ask_for_is_that_of_one_job_without_lost_work() -> None:
    found = efficiency.of([account(time_limit_s=14_400)], TWO_STARTS, completed=True)
    # 5880 s of training and 360 s of loading and ending once, and 15 %: 7176 s, in steps of 5
    # minutes.
    assert ask(found, "time") == "#SBATCH --time=02:00:00"
    short = efficiency.of([account(time_limit_s=3600)], TWO_STARTS, completed=True)
    assert ask(short, "time") is None
    assert "2 jobs, or --time=02:00:00" in short.notes[0]


def test_a_run_that_is_not_done_is_told_what_all_of_it_takes() -> None:
    past = History(starts=(start(0, AT, last=100),), last_step=100, max_steps=300)
    found = efficiency.of([account(time_limit_s=36_000)], past)
    # 3 x 3240 s and 360 s, and 15 %: 11,592 s.
    assert ask(found, "time") == "#SBATCH --time=03:15:00"
    assert "all 300 steps" in found.next[0].why


@pytest.mark.parametrize("state", ["FAILED", "TIMEOUT", "CANCELLED"])
def test_a_job_that_ended_before_its_first_step_says_nothing_of_the_next_one(state: str) -> None:
    past = History(starts=(start(0, AT),))
    steps = (StepUsage(name="0", n_tasks=8, max_rss_bytes=10 * GIB),)
    assert efficiency.of([account(steps=steps)], past).next
    assert efficiency.of([account(state=state, steps=steps)], past).next == ()


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        # 60,000 MiB and 20 %, in whole GiB.
        ({"cpus_per_task": 32, "gpus_per_node": 4, "nodes": 2}, {"resources.mem": "71G"}),
        ({"mem_per_gpu": 60 * GIB, "gpus_per_node": 4}, {"resources.mem_per_gpu": "18G"}),
        # Over 32 cores of a node, in steps of 256 MiB.
        ({"mem_per_cpu": 8 * GIB}, {"resources.mem_per_cpu": "2304M"}),
        ({}, {"mem": "71G"}),
    ],
)
def test_memory_is_answered_as_it_was_requested(
    resources: dict[str, int], expected: dict[str, str]
) -> None:
    past = History(
        starts=(start(0, AT),),
        ranks=(rank(0, cgroup_used_mib=60_000),),
        last_step=100,
        max_steps=100,
    )
    found = efficiency.of([account()], past, config={"resources": resources}, completed=True)
    asks = {each.key or each.option: each for each in found.next if each.option != "time"}
    assert {name: each.value for name, each in asks.items()} == expected
    assert found.host_peak_bytes == 60_000 * 2**20


def test_the_memory_of_a_script_of_ones_own_is_what_slurm_sampled() -> None:
    """Of several tasks on a node, none is taken for the node, and the batch shell for none of them."""
    past = History(starts=(start(0, AT),))
    steps = (
        StepUsage(name="batch", n_tasks=1, max_rss_bytes=12 << 20),
        StepUsage(name="0", n_tasks=8, max_rss_bytes=10 * GIB),
    )
    config = {
        "script": "train.py",
        "launcher": "srun",
        "resources": {"nodes": 2, "gpus_per_node": 4, "mem": 100 * GIB},
    }
    found = efficiency.of([account(steps=steps)], past, config=config, completed=True)
    assert (found.host_peak_bytes, found.is_max_rss) == (40 * GIB, True)
    assert next(each.value for each in found.next if each.option == "mem") == "48G"
    assert any(
        "40 GiB" in value and "MaxRSS" in value for _, value in document.efficiency_rows(found)
    )


def test_of_a_script_that_says_no_steps_it_is_not_known_what_was_no_training() -> None:
    script = Start(
        name="7.0",
        started=AT,
        ended=AT + 90,
        first_step=None,
        last_step=None,
        outcome="failed",
        reason=None,
    )
    for found in (
        efficiency.of([account()], History(starts=(script,)), config={"script": "train.py"}),
        efficiency.of([account()], History(starts=(script,)), completed=True),
    ):
        assert [(part.id, part.seconds) for part in found.parts] == [("unknown", 90)]
        assert found.wasted_s is None
        assert found.gpu_hours == 0.2


def test_of_a_run_that_goes_on_the_time_since_its_last_row_is_no_loss() -> None:
    found = efficiency.of(
        [account(state="RUNNING", ended=None)], History(starts=(killed(0, AT),)), now=AT + 900
    )
    assert {part.id: part.seconds for part in found.parts} == {
        "training": 540,
        "loading": 60,
        "since": 300,
    }
    assert found.wasted_s == 60


def test_what_every_killed_start_held_is_counted_and_not_the_last_ones_alone() -> None:
    # The first hung for two hours until its time limit; so did the next job.
    accounts = [
        account(job_id="7", ended=AT + 7200),
        account(job_id="8", started=AT + 9000, ended=AT + 16_200),
    ]
    found = efficiency.of(accounts, History(starts=(killed(0, AT), killed(0, AT + 9000, job="8"))))
    assert found.held_s == 2 * 7200
    assert {part.id: part.seconds for part in found.parts}["after"] == 2 * 6600
    # Requeued: one job has a record for each of its starts.
    first = account(state="PREEMPTED", ended=AT + 900)
    again = account(started=AT + 2000, ended=AT + 5600, state="TIMEOUT", earlier=(first,))
    found = efficiency.of([again], History(starts=(killed(0, AT), killed(1, AT + 2000))))
    assert found.held_s == 900 + 3600
    # One job that had its nodes through two starts: the first ends where the second began, and
    # nothing is counted twice.
    both = efficiency.of(
        [account(ended=AT + 5600)], History(starts=(killed(0, AT), killed(0, AT + 2000)))
    )
    assert both.held_s == 5600


def test_gpu_hours_are_those_that_are_billed() -> None:
    # Slurm gave the nodes 40 s before the script's first line, and took them back 20 s behind its
    # last one.
    past = History(starts=(start(0, AT),), last_step=100, max_steps=100)
    found = efficiency.of(
        [account(started=AT - 40, ended=AT + 3620, submitted=AT - 100)], past, completed=True
    )
    assert found.held_s == 3660
    assert {part.id: part.seconds for part in found.parts} == {
        "training": 3240,
        "loading": 340,
        "after": 80,
    }
    # It runs: its first line came late, too.
    going = efficiency.of(
        [account(started=AT - 40, ended=None)],
        History(starts=(replace(start(0, AT), ended=None),)),
        now=AT + 3700,
    )
    assert going.held_s == 3740


def test_jobs_of_one_run_that_differ_are_each_counted_as_they_were() -> None:
    accounts = [
        account(job_id="7", gpus=16, n_nodes=4, time_limit_s=7200),
        account(job_id="8", gpus=4, n_nodes=1, time_limit_s=14_400),
    ]
    first, then = start(0, AT), start(1, AT + 7200)
    found = efficiency.of(
        accounts,
        History(starts=(first, replace(then, job="8")), last_step=200, max_steps=200),
        completed=True,
    )
    assert found.gpu_hours == 20.0
    assert found.asked_gpu_hours == 16 * 2 + 4 * 4
    assert found.asked_s == 21_600
    assert found.wasted_gpu_hours == pytest.approx(20 * 360 / 3600)
    assert ask(found, "time") is None, "steps on 16 GPUs say nothing of steps on 4"
    assert (
        dict(document.efficiency_rows(found))["GPU hours"]
        == "20 used: 16 and 4 GPUs for 2.0 h; 2 of them were not training"
    )


def test_the_mean_of_a_rate_is_what_the_time_has_brought() -> None:
    # 100 tokens in 1 s, then 100 in 9 s: 20 a second, and not 55.6.
    rows = [
        Point(at=AT, step=n, event="speed", values={"tokens_per_s": rate, "step_s": 100 / rate})
        for n, rate in ((1, 7), (2, 7), (3, 100), (4, 100 / 9))
    ]
    assert efficiency.mean_of(History(points=tuple(rows)), "tokens_per_s") == pytest.approx(20)
    bare = [
        Point(at=AT, step=n, event="speed", values={"data_wait": value})
        for n, value in ((1, 9.0), (2, 0.2), (3, 0.4))
    ]
    assert efficiency.mean_of(History(points=tuple(bare)), "data_wait") == pytest.approx(0.3)


def test_what_the_scheduler_says_of_an_end_stands_beside_what_the_script_believes() -> None:
    lost = account(state="NODE_FAIL", ended=AT + 3600)
    believed = replace(start(0, AT), outcome="completed", reason=None)
    second = replace(
        believed, name=f"{believed.name}.1790000000"
    )  # a job id that Slurm gave out before
    for each in (believed, second):
        (row,) = document.start_rows(History(starts=(each,)), [lost])
        assert "node" in row[-1]
        assert "completed" in row[-1]
    assert [row[-1] for row in document.start_rows(History(starts=(believed,)), [account()])] == [
        "completed"
    ]
