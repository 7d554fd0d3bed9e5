"""How long it takes, and what becomes of it under the time limit: in words, with restarts counted,
and told when it turns.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain.training.survival import ResilienceContext, time_limit
from hpctrain.training.survival.time_limit import Job

HOUR = 3600.0
DAY = Job(end=24 * HOUR, began=0.0, mode="requeue", most=10)


def outlook(needed: float, job: Job, now: float = 0.0, **more: float) -> str:
    return time_limit.outlook(needed, job, now=now, **more)[1]


@pytest.mark.parametrize(
    ("needed", "job", "now", "expected"),
    [
        (3.2, DAY, 0, "done in about 3.2 h; the time limit leaves 24 h"),
        (3.2, replace(DAY, end=None), 0, "done in about 3.2 h; no time limit is known"),
        (31, DAY, 0, "will not finish in 24:00:00: 31 h at this speed; it will requeue once"),
        # An hour of the job is gone.
        (30, DAY, 1, "will not finish in 24:00:00: 31 h at this speed; it will requeue once"),
        (60, replace(DAY, most=2), 0, "it will requeue 2 times"),
        (
            80,
            replace(DAY, restarts=1, most=2),
            0,
            "it would have to requeue 3 times, and may once; hint: use a longer --time, or"
            " --max-restarts 4",
        ),
        (80, replace(DAY, mode="chain"), 0, "the next job of its chain continues, 3 more in all"),
        (80, replace(DAY, mode="off"), 0, "to continue: hpctrain resubmit RUN"),
        (80, replace(DAY, mode=None), 0, "whether it is requeued is unknown"),
        (
            31,
            replace(DAY, began=None),
            1,
            "finish in 23:00:00: 31 h at this speed; it will requeue",
        ),
    ],
)
def test_what_becomes_of_it_under_the_time_limit(
    needed: float, job: Job, now: float, expected: str
) -> None:
    assert outlook(needed * HOUR, job, now * HOUR).endswith(expected)


def test_startup_and_spare_time_count() -> None:
    # 23 hours and 24 times 23.5 hours, as each start takes half an hour.
    assert outlook(46.6 * HOUR, DAY, HOUR, startup=HOUR / 2).endswith("requeue 2 times")
    assert outlook(46.6 * HOUR, DAY, HOUR).endswith("requeue once")
    fits = [time_limit.outlook(hours * HOUR, DAY, now=0.0, spare=60.0)[0] for hours in (24, 23.9)]
    assert fits == [False, True]


@pytest.mark.parametrize(
    ("strategy", "done", "epoch", "expected"),
    [
        (("no", 10), (0, 100), 10.0, 0),
        (("steps", 10), (0, 100), None, 10),
        (("steps", 10), (10, 100), None, 9),
        (("steps", 30), (31, 100), None, 2),
        (("epoch", 0), (0, 30), 10.0, 3),
        (("epoch", 0), (10, 30), 10.0, 2),
        (("epoch", 0), (11, 25), 10.0, 2),
        (("epoch", 0), (3, 30), None, 0),
        (("best", 10), (0, 100), None, 0),
        (("steps", 0), (0, 100), None, 0),
    ],
)
def test_evaluations_and_saves_that_are_left(
    strategy: tuple[str, int], done: tuple[int, int], epoch: float | None, expected: int
) -> None:
    assert (
        time_limit.times_left(*strategy, step=done[0], last=done[1], epoch_steps=epoch) == expected
    )


# -- where it comes from ---------------------------------------------------------------------------


def submitted(tmp_path: Path, restart: object, *, stage: str | None = None) -> dict[str, str]:
    run, launch = tmp_path / "runs" / "r", tmp_path / "runs" / ".launches" / "r"
    (run / "attempts" / "7.2").mkdir(parents=True)
    launch.mkdir(parents=True)
    (run / "launch").symlink_to(launch)
    (run / "run.json").write_text(json.dumps({"schema": 1, "stage": stage}))
    (run / "attempts" / "7.2" / "start.json").write_text(json.dumps({"schema": 1, "at": 900}))
    name = f"config.{stage}.json" if stage else "config.json"
    (launch / name).write_text(json.dumps({"config": {"restart": restart, "cluster": "leonardo"}}))
    return {
        "HPCTRAIN_RUN_DIR": str(run),
        "HPCTRAIN_ATTEMPT": "7.2",
        "SLURM_RESTART_COUNT": "2",
        "SLURM_JOB_END_TIME": "5000",
    }


@pytest.mark.parametrize("stage", [None, "refine"])
def test_the_job_is_read_from_its_launch(tmp_path: Path, stage: str | None) -> None:
    survival = ResilienceContext.from_environment(
        submitted(tmp_path, {"mode": "auto", "max": 4}, stage=stage)
    )
    assert survival.job == Job(end=5000.0, began=900, mode="requeue", restarts=2, most=4)
    assert survival.cluster == "leonardo"


def test_slurm_s_own_word_on_the_beginning_counts_more(tmp_path: Path) -> None:
    environ = {**submitted(tmp_path, {"mode": "chain", "max": 3}), "SLURM_JOB_START_TIME": "850"}
    job = ResilienceContext.from_environment(environ).job
    assert (job.began, job.mode) == (850, "chain")


def test_without_a_launch_nothing_is_made_up() -> None:
    assert ResilienceContext.from_environment({}).job == Job()
    environ = {"SLURM_CLUSTER_NAME": "vega", "SLURM_JOB_END_TIME": "9"}
    assert ResilienceContext.from_environment(environ).cluster == "vega"
