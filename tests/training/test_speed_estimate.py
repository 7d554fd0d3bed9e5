"""How long it takes, and what becomes of it under the time limit: in words, with restarts counted, and told when it turns."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain.training import estimate
from hpctrain.training.estimate import Job, Verdict, Work
from hpctrain.training.settings import Survival

HOUR = 3600.0
DAY = Job(end=24 * HOUR, began=0.0, mode="requeue", most=10)


def words(needed: float, job: Job, now: float = 0.0, **more: float) -> str:
    return estimate.sentence(estimate.judge(needed, job, now=now, **more), needed, job, now=now)


def test_the_issue_s_own_words() -> None:
    assert words(31 * HOUR, DAY) == "will not finish in 24:00:00: 31 h at this speed; it will requeue once"


def test_the_time_before_the_first_step_counts() -> None:
    """An hour of the job is gone; 30 hours of work are left: 31 hours of jobs."""
    assert words(30 * HOUR, DAY, now=HOUR) == "will not finish in 24:00:00: 31 h at this speed; it will requeue once"
    # 23 hours and 24 times 23.5 hours, as each start takes half an hour.
    assert estimate.judge(46.6 * HOUR, DAY, now=HOUR, startup=HOUR / 2).restarts == 2
    assert estimate.judge(46.6 * HOUR, DAY, now=HOUR).restarts == 1


def test_it_fits() -> None:
    assert words(3.2 * HOUR, DAY) == "done in about 3.2 h; the time limit leaves 24 h"
    assert words(3.2 * HOUR, replace(DAY, end=None)) == "done in about 3.2 h; no time limit is known"
    assert estimate.judge(24 * HOUR, DAY, now=0.0, spare=60.0).fits is False
    assert estimate.judge(23.9 * HOUR, DAY, now=0.0, spare=60.0).fits is True


def test_more_restarts_than_are_allowed() -> None:
    job = replace(DAY, restarts=1, most=2)
    said = words(80 * HOUR, job)
    assert "it would have to requeue 3 times, and may once" in said
    assert said.endswith("fix: hpctrain submit --time LONGER, or --max-restarts 4")
    assert words(60 * HOUR, replace(DAY, most=2)).endswith("it will requeue twice")


@pytest.mark.parametrize(
    ("mode", "end"),
    [
        ("chain", "the next job of its chain goes on, 3 more of them in all"),
        ("off", "it saves and stops there; to go on: hpctrain resubmit RUN"),
        (None, "it saves and stops there; whether it is requeued is not known here"),
    ],
)
def test_what_follows(mode: str | None, end: str) -> None:
    assert words(80 * HOUR, replace(DAY, mode=mode)).endswith(end)


def test_a_job_whose_beginning_nobody_knows() -> None:
    said = words(31 * HOUR, replace(DAY, began=None), now=HOUR)
    assert said == "will not finish in the 23:00:00 that is left: 31 h at this speed; it will requeue"


def test_it_is_told_when_it_turns_and_not_before() -> None:
    first = estimate.turned(None, 20 * HOUR, DAY, now=0.0)
    assert first == Verdict(fits=True)
    assert estimate.turned(first, 24.5 * HOUR, DAY, now=0.0) is None, "within what the measurement is unsure of"
    second = estimate.turned(first, 25 * HOUR, DAY, now=0.0)
    assert second is not None
    assert (second.fits, second.restarts) == (False, 1)
    assert estimate.turned(second, 23.5 * HOUR, DAY, now=0.0) is None
    assert estimate.turned(second, 30 * HOUR, DAY, now=0.0) is None
    assert estimate.turned(second, 50 * HOUR, DAY, now=0.0) is None, "49 would be the same number"
    third = estimate.turned(second, 60 * HOUR, DAY, now=0.0)
    assert third is not None
    assert third.restarts == 2
    assert estimate.turned(third, 20 * HOUR, DAY, now=0.0) == Verdict(fits=True)


@pytest.mark.parametrize(
    ("strategy", "done", "epoch", "expected"),
    [
        (("no", 10), (0, 100), 10.0, 0), (("steps", 10), (0, 100), None, 10), (("steps", 10), (10, 100), None, 9),
        (("steps", 30), (31, 100), None, 2), (("epoch", 0), (0, 30), 10.0, 3), (("epoch", 0), (10, 30), 10.0, 2),
        (("epoch", 0), (11, 25), 10.0, 2), (("epoch", 0), (3, 30), None, 0), (("best", 10), (0, 100), None, 0),
        (("steps", 0), (0, 100), None, 0),
    ],
)  # fmt: skip
def test_evaluations_and_saves_that_are_left(strategy: tuple[str, int], done: tuple[int, int], epoch: float | None, expected: int) -> None:
    assert estimate.times_left(*strategy, step=done[0], last=done[1], epoch_steps=epoch) == expected


def test_work_counts_evaluations_and_saves() -> None:
    assert Work(steps=100, step_s=2.0, evaluations=3, evaluation_s=10.0, saves=2, save_s=5.0).seconds == 240
    assert Work(steps=100, step_s=2.0, evaluations=3, saves=2).seconds == 200


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (41.4, "41 s"), (99.6, "2 min"), (720, "12 min"), (11520, "3.2 h"), (111600, "31 h"), (734400, "8.5 days")],
)
def test_durations(seconds: float, said: str) -> None:
    assert estimate.duration(seconds) == said


# -- where it comes from -----------------------------------------------------------------------------------------------


def submitted(tmp_path: Path, restart: object, *, stage: str | None = None) -> dict[str, str]:
    run, launch = tmp_path / "runs" / "r", tmp_path / "runs" / ".launches" / "r"
    (run / "attempts" / "7.2").mkdir(parents=True)
    launch.mkdir(parents=True)
    (run / "launch").symlink_to(launch)
    (run / "run.json").write_text(json.dumps({"schema": 1, "stage": stage}))
    (run / "attempts" / "7.2" / "start.json").write_text(json.dumps({"schema": 1, "at": 900}))
    name = f"config.{stage}.json" if stage else "config.json"
    (launch / name).write_text(json.dumps({"config": {"restart": restart, "cluster": "leonardo"}}))
    return {"HPCTRAIN_RUN_DIR": str(run), "HPCTRAIN_ATTEMPT": "7.2", "SLURM_RESTART_COUNT": "2", "SLURM_JOB_END_TIME": "5000"}


@pytest.mark.parametrize("stage", [None, "refine"])
def test_the_job_is_read_from_its_launch(tmp_path: Path, stage: str | None) -> None:
    survival = Survival.from_environment(submitted(tmp_path, {"mode": "auto", "max": 4}, stage=stage))
    assert survival.job == Job(end=5000.0, began=900, mode="requeue", restarts=2, most=4)
    assert survival.cluster == "leonardo"


def test_slurm_s_own_word_on_the_beginning_counts_more(tmp_path: Path) -> None:
    environ = {**submitted(tmp_path, {"mode": "chain", "max": 3}), "SLURM_JOB_START_TIME": "850"}
    job = Survival.from_environment(environ).job
    assert (job.began, job.mode) == (850, "chain")


def test_without_a_launch_nothing_is_made_up() -> None:
    assert Survival.from_environment({}).job == Job()
    assert Survival.from_environment({"SLURM_CLUSTER_NAME": "vega", "SLURM_JOB_END_TIME": "9"}).cluster == "vega"


def test_a_launch_that_says_nonsense(tmp_path: Path) -> None:
    job = Survival.from_environment(submitted(tmp_path, ["requeue"])).job
    assert (job.mode, job.most) == (None, None)
