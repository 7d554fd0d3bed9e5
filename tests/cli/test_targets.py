"""A run's name, a launch's tag, a job id, points of an array and nothing mean the same to every
command.
"""

import json
from pathlib import Path

import pytest

from hpctrain.errors import UsageError
from hpctrain.jobs import targets
from hpctrain.runs import launch
from hpctrain.slurm.job_ids import JobId
from tests.cli.conftest import Desk
from tests.runs import make
from tests.scheduler.sacct_rows import row
from tests.waiting import wait_until


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Make a run of job 22, a sweep of job 30 whose last point has not started, and a run of
    another cluster's job 22.
    """
    runs = tmp_path / "runs"
    make.attempt(make.run(runs, "sft-a"), "22", outcome="completed")
    for index in (0, 1):
        make.attempt(
            make.run(runs, f"grid_{index}", tag="grid", index=index),
            f"30_{index}",
            slurm_job_id=str(30 + index),
            outcome="failed",
            status=1,
        )
    launch.create(
        runs,
        "grid",
        kind="sweep",
        name="grid",
        now=make.AT,
        cwd=str(tmp_path),
        version="",
        argv=(),
        points=3,
        table="t",
    )
    make.submission(runs, "grid", "30", array="0-2", offset=0)
    far = make.attempt(make.run(runs, "far"), "22", outcome="completed")
    start = json.loads((far / "start.json").read_text())
    make.write(far / "start.json", start | {"cluster": "lab7"})
    return runs


def meant(word: str, runs: Path) -> list[str | None]:
    return [target.run and target.run.id for target in targets.resolve([word], runs)]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("sft-a", ["sft-a"]),
        ("sft", ["sft-a"]),
        ("22", ["sft-a"]),
        ("30", ["grid_0", "grid_1", "grid_2"]),
        ("30_1", ["grid_1"]),
        ("30_[1-2%1]", ["grid_1", "grid_2"]),
        ("grid", ["grid_0", "grid_1", "grid_2"]),
        ("grid_[1-2]", ["grid_1", "grid_2"]),
        ("grid_2", ["grid_2"]),
        ("grid_*", ["grid_0", "grid_1"]),
        ("22@lab7", ["far"]),
    ],
)
@pytest.mark.usefixtures("no_slurm")
def test_words(runs: Path, word: str, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpctrain.slurm.query_cache.cluster_name", lambda: "lab1")
    assert meant(word, runs) == expected


@pytest.mark.usefixtures("no_slurm")
def test_what_is_unknown_is_named_all_at_once(runs: Path) -> None:
    with pytest.raises(UsageError, match="'99', 'nothing'"):
        targets.resolve(["22", "99", "nothing"], runs)
    with pytest.raises(UsageError, match="prefix of grid_0, grid_1"):
        targets.resolve(["grid_"], runs)


def test_a_point_that_failed_before_it_had_a_directory_is_listed(runs: Path, desk: Desk) -> None:
    desk.program("sacct", f"echo '{row('30_2', 'NODE_FAIL', Partition='gpu')}'")
    desk.program("scontrol", "exit 1")
    desk.program("sbatch squeue", "true")
    said = desk.run("runs", "list", "grid", "--json", "--runs-dir", str(runs))
    assert [(each["id"], each["state"]) for each in json.loads(said.out)["runs"]] == [
        ("grid_2", "failed"),
        ("grid_0", "failed"),
        ("grid_1", "failed"),
    ]


@pytest.mark.parametrize("text", ["", "sft", "12x", "²", "1_", "1_[", "1@", "1@a/b", "12+1"])
def test_what_is_no_job_id(text: str) -> None:
    assert JobId.parse(text) is None


@pytest.mark.slow
@pytest.mark.usefixtures("no_slurm")
def test_every_command_takes_the_job_of_a_run(desk: Desk) -> None:
    desk.write("train.py", "print('it trains')\nraise SystemExit(3)\n")
    desk.write("config.yaml", "script: train.py\nlauncher: srun\n")
    job = desk.run("submit", "--local", "--wait", "--parsable").out.split()[0]
    [tag] = launch.tags(desk.directory / "runs")
    for word in (job, tag):
        assert json.loads(desk.run("runs", "show", word, "--json").out)["id"] == tag
        assert [
            row["id"] for row in json.loads(desk.run("runs", "list", word, "--json").out)["runs"]
        ] == [tag]
        assert json.loads(desk.run("report", word, "--json").out)["run"]["id"] == tag
        assert [
            row["job_id"] for row in json.loads(desk.run("ps", word, "--json").out)["jobs"]
        ] == [job]
        assert "it trains" in desk.run("logs", word).out
        assert tag in desk.run("watch", "--once", word).out
        assert tag in desk.run("resubmit", word, "--dry-run").out
        assert f"run {tag}" in desk.run("explain", word).err
        assert "has ended already" in desk.run("cancel", job).err
        assert desk.run("runs", "delete", word, "--dry-run").out.split("\n")[1].startswith(tag)


@pytest.mark.usefixtures("no_slurm")
def test_without_a_word_the_newest_run_of_this_project_is_watched(runs: Path) -> None:
    make.run(runs, "zz", created=9e9)
    target = targets.newest_target(runs)
    assert target.run is not None
    assert target.run.id == "zz"


# -- `hpctrain cancel` of tasks of an array: by job id and by the name of a run, those that w


SWEEP = (
    "script: train.py\nlauncher: srun\nsweep: [{a: 0}, {a: 1}, {a: 2}, {a: 3}, {a: 4}, {a: 5}]\n"
)


def tasks(desk: Desk) -> dict[str, str]:
    """Return index → state, of tasks that wait together for each."""
    found = {}
    for job in json.loads(desk.run("ps", "--json").out)["jobs"]:
        name = job["job_id"].partition("_")[2].strip("[]").partition("%")[0]
        for part in name.split(","):
            first, _, last = part.partition("-")
            found |= {
                str(index): job["state"] for index in range(int(first), int(last or first) + 1)
            }
    return found


@pytest.fixture
def sweep(desk: Desk) -> tuple[str, str]:
    """Start a sweep of six points, one at a time, and return its job id and its tag."""
    desk.write("train.py", "import time\ntime.sleep(300)\n")
    desk.write("config.yaml", SWEEP)
    job = desk.run("submit", "--local", "--parallel", "1", "--parsable").out.strip()
    wait_until(lambda: tasks(desk).get("0") == "RUNNING")
    return job, launch.tags(desk.directory / "runs")[0]


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
@pytest.mark.parametrize("form", ["{job}_[0-1,3]", "{tag}_0-1,3"])
def test_a_range_over_tasks_that_run_and_that_wait(
    desk: Desk, sweep: tuple[str, str], form: str
) -> None:
    job, tag = sweep
    try:
        said = desk.run("cancel", form.format(job=job, tag=tag))
        assert said.code == 0, said.err
        now = tasks(desk)
        assert {index for index, state in now.items() if state == "CANCELLED"} == {"0", "1", "3"}
        assert [desk.run("cancel", f"{name}_9").code for name in (job, tag)] == [
            2,
            2,
        ]  # not `refused`: task 2 may be writing
        assert tasks(desk)["5"] == "PENDING"
    finally:
        desk.run("cancel", job)


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.slow
def test_several_jobs_need_yes_unless_they_are_named_by_their_ids(desk: Desk) -> None:
    desk.write("train.py", "import time\ntime.sleep(300)\n")
    desk.write("config.yaml", "script: train.py\nlauncher: srun\n")
    ids = [desk.run("submit", "--local", "--no-check", "--parsable").out.strip() for _ in range(2)]
    refused = desk.run("cancel", "sft")
    assert (refused.code, "this would cancel 2 jobs" in refused.err) == (2, True)
    assert desk.run("cancel", *ids).code == 0
    assert {job["state"] for job in json.loads(desk.run("ps", "--json").out)["jobs"]} == {
        "CANCELLED"
    }
