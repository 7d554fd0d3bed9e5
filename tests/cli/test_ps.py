"""`hpctrain ps`: one table of all jobs, with the progress of their runs, and why those that wait
do.
"""

import json
import re
import time

import pytest

from hpctrain.cli.actions import ps
from hpctrain.report import queue
from hpctrain.slurm.notations import states
from hpctrain.slurm.notations.records import JobRecord
from tests.cli.conftest import Desk
from tests.cli.fake_slurm import put, queued, show
from tests.cli.terminal import on_a_terminal
from tests.runs import make

SOON = time.mktime(time.strptime("2026-11-22T14:20:00", "%Y-%m-%dT%H:%M:%S"))


@pytest.fixture
def cluster(desk: Desk) -> Desk:
    return put(desk)


def calls(desk: Desk, program: str) -> list[str]:
    path = desk.directory.parent / "calls"
    return (
        [line for line in path.read_text().splitlines() if line.startswith(f"{program} ")]
        if path.exists()
        else []
    )


# the table


@pytest.mark.slow
def test_jobs_of_both_schedulers_with_the_words_of_their_reasons(cluster: Desk) -> None:
    show(
        cluster,
        queued("41", "RUNNING", elapsed="1:02:03"),
        queued("42", start="2026-11-22T14:20:00"),
        queued("43", reason="JobHeldUser"),
        queued("44", reason="NewReason"),
    )
    cluster.write(
        "local.sbatch", "#!/bin/bash\n#SBATCH --job-name=here\n#SBATCH --output=out.log\nexit 3\n"
    )
    assert cluster.run("submit", "--local", "--no-check", "--wait", "local.sbatch").code == 3
    said = cluster.run("ps")
    assert said.code == 0, said.err
    lines = {line.split()[0]: line for line in said.out.splitlines()}
    assert lines["JOB"].split() == [*ps._COLUMNS]
    assert lines["41"].split() == [
        "41",
        "sft",
        "RUNNING",
        "1:02:03/4:00:00",
        *["-"] * 5,
        "2",
        "slurm",
    ]
    assert lines["42"].endswith(
        "waiting: jobs with a higher priority are ahead; Slurm expects "
        + queue.when(SOON, time.time())
    )
    assert lines["43"].endswith("waiting: held by you")
    assert lines["44"].endswith("waiting: NewReason"), (
        "a reason that nobody has seen is shown as it is"
    )
    [local] = [line for line in lines.values() if " local " in line]
    assert local.endswith("exit code 3")
    assert (len(calls(cluster, "squeue")), len(calls(cluster, "sacct"))) == (
        1,
        2,
    ), "sacct's fields"


def test_the_progress_of_the_run_of_a_job(cluster: Desk) -> None:
    where = make.run(cluster.directory / "runs", "sft-7f3a")
    make.metrics(
        make.attempt(where, "41"), {"event": "begin", "step": 0}, {"step": 120, "loss": 1.234}
    )
    show(cluster, queued("41", "RUNNING", "None"))
    [job] = json.loads(cluster.run("ps", "--json").out)["jobs"]
    assert (job["job_id"], job["run"], job["run_dir"], job["step"], job["loss"]) == (
        "41",
        "sft-7f3a",
        str(where),
        120,
        1.234,
    )
    assert re.search(r" sft-7f3a .* 120 ", cluster.run("ps").out)


def test_a_number_of_two_clusters_that_share_a_home_is_the_job_of_this_one(cluster: Desk) -> None:
    cluster.program("sbatch", "echo 41")
    cluster.write("train.py", "")
    cluster.write("config.yaml", "script: train.py\nlauncher: srun\n")
    for name in ("one", "two"):
        cluster.write("slurm.conf", f"ClusterName={name}\n")
        cluster.set(SLURM_CONF=str(cluster.directory / "slurm.conf"))
        assert cluster.run("submit", "--no-check", "--no-snapshot", "--run-id", name).code == 0
    show(cluster, queued("41", "RUNNING", "None"))
    for here, there in (("two", "one"), ("one", "two")):
        cluster.write("slurm.conf", f"ClusterName={here.upper()}\n")  # the case does not matter
        [job] = json.loads(cluster.run("ps", "41", "--json").out)["jobs"]
        assert job["run"] == here
        runs = {
            run["id"]: run for run in json.loads(cluster.run("runs", "list", "--json").out)["runs"]
        }
        assert (runs[here]["state"], runs[there]["state"]) == ("running", "unknown")
        cluster.refused("cancel", there)
        cluster.refused("cancel", f"41@{there}")
        cluster.refused("ps", there)
    assert calls(cluster, "scancel") == []
    # Where slurm.conf is not here to be read, scontrol is asked.
    cluster.patch.delenv("SLURM_CONF")
    cluster.program(
        "scontrol",
        f'echo scontrol $* >> {cluster.directory}/../calls\necho "ClusterName             = two"',
    )
    for _ in range(2):
        [job] = json.loads(cluster.run("ps", "41", "--json").out)["jobs"]
        assert job["run"] == "two"
    assert set(calls(cluster, "scontrol")) == {"scontrol show config"}


def test_old_keys_of_json_stay(cluster: Desk) -> None:
    show(cluster, queued("42"))
    [job] = json.loads(cluster.run("ps", "--json").out)["jobs"]
    of_record = "job_id scheduler state name reason elapsed_s time_limit_s nodes partition start"
    assert {*of_record.split(), "comment", "exit_code", "signal"} <= set(job)
    assert (job["reason"], job["expected"], job["memory"], job["why"]) == (
        "Priority",
        None,
        None,
        "waiting: jobs with a higher priority are ahead",
    )


def test_slurm_is_silent_and_local_jobs_are_shown(cluster: Desk) -> None:
    cluster.write(
        "local.sbatch", "#!/bin/bash\n#SBATCH --job-name=here\n#SBATCH --output=out.log\ntrue\n"
    )
    assert cluster.run("submit", "--local", "--no-check", "--wait", "local.sbatch").code == 0
    cluster.program(
        "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1"
    )
    for words in ((), ("--json",)):
        said = cluster.run("ps", *words)
        assert said.code == 3
        assert "here" in said.out
        assert said.lines[0].startswith("error: Slurm does not answer: squeue said: ")
        assert said.lines[-1].startswith(("fix: ", "hint: "))


@pytest.mark.slow
def test_an_accounting_that_hangs_is_said_and_hides_nothing(cluster: Desk) -> None:
    cluster.set(HPCTRAIN_SLURM_TIMEOUT="3")
    cluster.program("sacct", "sleep 20")
    show(cluster, queued("42"))
    said = cluster.run("ps")
    assert said.code == 0
    assert "42 " in said.out
    assert "note: sacct does not answer; only jobs" in said.err


def test_a_job_that_there_is_not(cluster: Desk) -> None:
    assert cluster.refused("ps", "nope").lines[0] == "error: there is no job 'nope'"


def test_no_jobs(cluster: Desk) -> None:
    said = cluster.run("ps")
    assert (said.code, said.out, said.err) == (0, "", "no jobs; next: hpctrain submit\n")


def test_tasks_that_came_to_the_same_end_share_a_line(cluster: Desk) -> None:
    rows = [queued(f"50_{task}", "COMPLETED", "None") for task in range(30)] + [
        queued("50_[30-99%4]", reason="JobArrayTaskLimit")
    ]
    show(cluster, *rows, *(queued(f"{number}", "COMPLETED", "None") for number in range(60, 72)))
    cluster.program(
        "scontrol",
        'echo "JobId=${@: -1} JobName=sft UserId=a(1) GroupId=a(1) JobState=COMPLETED'
        ' ExitCode=0:0"',
    )
    said = cluster.run("ps")
    assert "50_[30-99%4]" in said.out
    assert len(said.out.splitlines()) == 1 + 10 + 1
    assert said.lines == ["and 32 more that ended: hpctrain ps --all"]
    assert (
        len(
            [line for line in cluster.run("ps", "--all").out.splitlines() if line.startswith("50_")]
        )
        == 31
    )
    assert "50_[0-29]" in cluster.run("ps", "50").out


# one job that waits


@pytest.fixture
def waits(cluster: Desk) -> Desk:
    show(
        cluster,
        queued("42", start=time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 7200))),
    )
    return cluster


def test_why_a_job_waits_and_when_it_is_expected_to_start(waits: Desk) -> None:
    assert (
        "waiting: jobs with a higher priority are ahead; Slurm expects "
        in waits.run("ps", "42").out
    )
    [job] = json.loads(waits.run("ps", "42", "--json").out)["jobs"]
    told = job["pending"]
    assert (told["kind"], told["fix"]) == ("queue", None)
    assert told["expected"] == job["expected"]


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("JobHeldUser", "scontrol release 42"),
        ("DependencyNeverSatisfied", "hpctrain cancel 42"),
        ("BeginTime", None),
        ("Dependency", None),
    ],
)
def test_what_changes_that_a_job_waits(waits: Desk, reason: str, fix: str | None) -> None:
    show(waits, queued("42", reason=reason))
    said = waits.run("ps", "42")
    assert (f"to change that: {fix}" in said.out.splitlines()) == (fix is not None)


# the terminal


def test_on_a_terminal_why_is_below_a_row_that_is_too_long(cluster: Desk, hpctrain: str) -> None:
    show(cluster, queued("41", "RUNNING"), queued("42", name="a" * 30))
    cluster.patch.delenv("NO_COLOR", raising=False)
    plain, coloured = on_a_terminal(hpctrain, "ps", NO_COLOR="1"), on_a_terminal(hpctrain, "ps")
    assert "\x1b" not in plain
    assert "\x1b[36m41 " in coloured
    assert max(len(line) for line in plain.splitlines()) <= 80
    assert plain.splitlines()[-1] == "  waiting: jobs with a higher priority are ahead"
    assert "STEP" not in plain, "a column that nobody fills is none"


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"reason": "Priority"}, "waiting: jobs with a higher priority are ahead"),
        ({"reason": "Dependency"}, "waiting: a job it depends on has not ended yet"),
        ({"state": "COMPLETED"}, ""),
        ({"state": "FAILED", "exit_code": 9}, "failed with exit code 9"),
        ({"state": "FAILED", "exit_code": 0, "signal": 15}, "failed by signal 15 (SIGTERM)"),
        ({"state": "CANCELLED", "exit_code": 0, "signal": 15}, ""),
        ({"state": "RUNNING"}, ""),
        ({"state": states.UNKNOWN, "reason": "sbatch did not answer"}, "sbatch did not answer"),
        ({"scheduler": "local", "reason": "waits for GPUs"}, "waiting: waits for GPUs"),
    ],
)
def test_why_in_words(job: dict[str, object], words: str) -> None:
    record = JobRecord(**({"job_id": "1", "scheduler": "slurm", "state": "PENDING"} | job))  # type: ignore[arg-type]
    assert queue.state_of(record, None, now=time.time()).why == words


def test_on_a_terminal_columns_that_do_not_fit_are_left_out(cluster: Desk, hpctrain: str) -> None:
    show(cluster, queued("41", "RUNNING", "None", name="a" * 50))
    head, row = on_a_terminal(hpctrain, "ps", NO_COLOR="1").splitlines()
    assert head.split() == ["JOB", "RUN", "STATE"]
    assert row.split() == ["41", "a" * 50, "RUNNING"]
