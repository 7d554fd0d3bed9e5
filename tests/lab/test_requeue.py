"""A run that needs more time than its limit is requeued until it is done, and ends with the weights
of an uninterrupted one.

`make chaos` has the long form: four minutes of work and a limit of one.
"""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.torch, pytest.mark.slow]

CHAOS = Path(__file__).parents[1] / "chaos"
#: 48 steps of 4 s: a job of three minutes cannot do it. In a shorter limit, a busy machine may not
#: get from the start, which imports torch, to a save.
STEPS, PACE_S = 48, 4.0


@pytest.fixture
def campaign(
    tmp_path: Path, lab_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """Return the campaign's project: a small training, in everybody's lab: nothing is broken here."""
    monkeypatch.syspath_prepend(str(CHAOS))
    monkeypatch.setenv("HPCTRAIN_LAB_DIR", str(Path(lab_env["SLURM_CONF"]).parent.parent))
    made = importlib.import_module("campaign").Campaign(tmp_path, 1e9, lab=1)
    made.prepare()
    config = made.project / "config.yaml"
    config.write_text(re.sub(r"max_steps: \d+", f"max_steps: {STEPS}", config.read_text()))
    yield made
    for module in ("campaign", "survival"):
        sys.modules.pop(module, None)


@pytest.mark.extended
def test_a_run_is_requeued_until_it_is_done(campaign: Any) -> None:
    calm = campaign.uninterrupted(2)
    run = campaign.run(
        "limit", 2, 1500.0, options=("--time", "3", "--max-restarts", "40"), pace_s=PACE_S
    )
    run.submit()
    run.carry(most=0)
    attempts = run.attempts()
    assert len(attempts) >= 2
    assert [attempt.exit for attempt in attempts] == ["85 deadline"] * (len(attempts) - 1) + [
        "0 completed"
    ]
    assert [attempt.outcome for attempt in attempts] == ["requeued"] * (len(attempts) - 1) + [
        "completed"
    ]
    assert [attempt.name for attempt in attempts] == [
        f"{run.job}.{count}" for count in range(len(attempts))
    ], "one job throughout"
    assert run.steps_lost() == 0
    assert run.weights() == calm
    assert run.leftovers() == []
    rows = run.lab.run("sacct", "-D", "-X", "-n", "-P", "-j", run.job, "-o", "State").splitlines()
    assert rows == ["REQUEUED"] * (len(attempts) - 1) + ["COMPLETED"]
    # One log for all starts, each of which says where it goes on.
    log = (run.project / "logs" / f"output_limit_{run.job}.log").read_text()
    assert (
        len(re.findall(r"^\[train\] starts from scratch with the weights of ", log, re.MULTILINE))
        == 1
    )
    assert len(re.findall(r"^\[train\] resumes ", log, re.MULTILINE)) == len(attempts) - 1


@pytest.mark.extended
def test_an_array_task_is_requeued_alone_and_again(campaign: Any) -> None:
    (campaign.project / "config.yaml").open("a").write(
        "sweep:\n  grid: {learning_rate: [0.01, 0.02, 0.03]}\n"
    )
    run = campaign.run("sweep", 1, 1500.0, pace_s=0.5)
    run.submit()
    (array,) = run.links
    points = [campaign.run("sweep", 1, 1500.0) for _ in range(3)]
    for index, point in enumerate(points):
        point.tag, point.links = f"{run.tag}_{index}", [f"{array}_{index}"]
    # The last one: its job id is the array's.
    for step in (8, 18):
        points[2].reach(step)
        run.lab.run("scancel", "--signal=TERM", f"{array}_2")
    run.wait(lambda: not run.state(), "the array is over", 0.5)
    assert [[attempt.exit for attempt in point.attempts()] for point in points] == [
        ["0 completed"],
        ["0 completed"],
        ["85 signal", "85 signal", "0 completed"],
    ]
    assert points[2].steps_lost() == 0
    assert len({point.weights() for point in points}) == 3
