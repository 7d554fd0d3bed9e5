"""Requeue, signals and the shims of scontrol and scancel on the local scheduler."""

import json
import time
from pathlib import Path

import psutil
import pytest

from hpctrain.local.scheduler import LocalScheduler, request_requeue
from hpctrain.slurm.notations import records
from tests.scheduler.local_jobs import (
    LISTENS,
    directory,
    output,
    processes,
    record,
    submit,
    wait,
)
from tests.waiting import wait_until

LOGS = (
    "#SBATCH --output=logs/%A_%a.out\n#SBATCH --error=logs/%A_%a.err\n#SBATCH --open-mode=append\n"
)
APPEND = "#SBATCH --open-mode=append\n"


pytestmark = pytest.mark.usefixtures("local_jobs")


@pytest.fixture(autouse=True)
def _kill_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCTRAIN_LOCAL_KILL_WAIT", "60")


def test_a_job_requeues_itself_under_the_same_id_until_it_is_done() -> None:
    body = """echo "$SLURM_JOB_ID ${SLURM_RESTART_COUNT-unset} $1 $SLURM_JOB_END_TIME"
[ "${SLURM_RESTART_COUNT:-0}" -eq 2 ] && exit 0
sleep 1.1
scontrol requeue "$SLURM_JOB_ID"
exit 85"""
    job_id = submit(body, f"#SBATCH --time=10\n{APPEND}", arguments=["tag"])
    assert wait(job_id).state == "COMPLETED"
    said = [line.split() for line in output(job_id).splitlines()]
    assert [words[:3] for words in said] == [
        [job_id, "unset", "tag"],
        [job_id, "1", "tag"],
        [job_id, "2", "tag"],
    ], "appended"
    ends = [int(words[3]) for words in said]
    assert ends == sorted(set(ends)), "each start has its own end"


def test_a_requeue_that_is_the_scripts_last_word_counts() -> None:
    body = """[ -z "${SLURM_RESTART_COUNT-}" ] || exit 0
touch ready; while [ ! -e go ]; do sleep 0.05; done
exec scontrol requeue $SLURM_JOB_ID"""
    job_id = submit(body)
    wait_until(lambda: Path("ready").exists())
    supervisor = psutil.Process(
        json.loads((directory(job_id) / "supervisor.json").read_text())["pid"]
    )
    (batch,) = supervisor.children()
    supervisor.suspend()  # it looks only once the script has ended
    Path("go").touch()
    wait_until(lambda: batch.status() == psutil.STATUS_ZOMBIE)
    supervisor.resume()
    assert wait(job_id).state == "COMPLETED"
    assert json.loads((directory(job_id) / "state.json").read_text())["restarts"] == 1


def test_requeue_from_outside_ends_every_process_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCTRAIN_LOCAL_KILL_WAIT", "5")  # all of it: the script sleeps on
    body = """[ -z "${SLURM_RESTART_COUNT-}" ] || { echo again; exit 0; }
trap 'echo batch got TERM' TERM
srun bash -c 'trap "echo saved; exit 0" TERM; setsid sleep 300 & touch started; while true; do sleep 0.1; done' &
while kill -0 $! 2>/dev/null; do wait $!; done
sleep 300"""
    job_id = submit(body, APPEND)
    wait_until(lambda: Path("started").exists())
    old = processes(directory(job_id))
    assert request_requeue(job_id) == []
    assert wait(job_id).state == "COMPLETED"
    assert sorted(output(job_id).splitlines()) == ["again", "batch got TERM", "saved"]
    assert output(job_id).endswith("again\n")
    assert "DUE TO JOB REQUEUE" in output(job_id, "err")
    assert [
        process
        for process in old
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ] == []


def test_while_it_ends_for_a_requeue_the_job_does_not_run_and_a_task_requeues_alone() -> None:
    body = """echo "$SLURM_ARRAY_TASK_ID ${SLURM_RESTART_COUNT:-0}"
[ $SLURM_ARRAY_TASK_ID = 1 ] && [ -z "${SLURM_RESTART_COUNT-}" ] || exit 0
over=no; trap 'over=yes' TERM
scontrol requeue ${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
while [ $over = no ]; do sleep 0.05; done
scontrol show job -o $SLURM_JOB_ID | grep -o 'JobState=[A-Z]*'"""
    job_id = submit(body, LOGS, array="0-2%3")
    assert wait(job_id).state == "COMPLETED"
    logs = {index: Path(f"logs/{job_id}_{index}.out").read_text() for index in range(3)}
    assert logs == {0: "0 0\n", 1: "1 0\nJobState=COMPLETING\n1 1\n", 2: "2 0\n"}


def test_cancel_during_a_requeue_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCTRAIN_LOCAL_KILL_WAIT", "5")  # all of it: nothing ends by itself
    body = "trap '' TERM; touch started.${SLURM_RESTART_COUNT:-0}; while true; do sleep 0.1; done"
    job_id = submit(body)
    wait_until(lambda: Path("started.0").exists())
    assert request_requeue(job_id) == []
    wait_until(lambda: record(job_id).state == "COMPLETING")
    LocalScheduler().cancel([job_id])
    assert record(job_id).state == "CANCELLED"
    assert not Path("started.1").exists()
    assert processes(directory(job_id)) == []


def test_a_signal_reaches_the_tasks_and_not_their_children() -> None:
    body = f"""{LISTENS}
srun bash -c 'bash listen.sh child & set -- task; . ./listen.sh; wait' &
step=$!
while [ ! -e child.ready ] || [ ! -e task.ready ]; do sleep 0.05; done
scancel --signal=USR1 $SLURM_JOB_ID
while ! grep -q 'task got USR1' logs/out_$SLURM_JOB_ID.log; do sleep 0.05; done
kill -USR2 $step
while ! grep -q 'task got USR2' logs/out_$SLURM_JOB_ID.log; do sleep 0.05; done
touch stop
while kill -0 $step 2>/dev/null; do wait $step; done"""
    job_id = submit(body)
    assert wait(job_id).state == "COMPLETED", output(job_id, "err")
    assert output(job_id).splitlines() == ["task got USR1", "task got USR2"]


def test_a_job_that_cancels_itself_and_what_scancel_does_not_know() -> None:
    job_id = submit(
        "scancel --ctld $SLURM_JOB_ID 2>&1; echo $?; scancel 4711 2>&1; scancel"
        " $SLURM_JOB_ID; sleep 300"
    )
    assert wait(job_id).state == "CANCELLED"
    assert output(job_id).splitlines() == [
        f"scancel: error: the local scheduler knows scancel [--batch] [--signal=NAME] JOB, not: --ctld {job_id}",
        "1",
        "scancel: error: Kill job error on job id 4711: Invalid job id specified",
    ]


def test_the_time_limit_leaves_the_tasks_kill_wait_to_save() -> None:
    body = "srun bash -c 'trap \"echo saved; exit 0\" TERM; while true; do sleep 0.1; done' & wait"
    job_id = submit(body, "#SBATCH --time=0:10\n")
    ended = wait(job_id)
    assert (ended.state, ended.reason) == ("TIMEOUT", "TimeLimit")
    assert output(job_id) == "saved\n"
    assert "DUE TO TIME LIMIT" in output(job_id, "err")
    assert processes(directory(job_id)) == []


def test_scontrol_show_job_is_what_our_own_parser_and_the_job_library_read() -> None:
    body = (
        "scontrol show job -o -d $SLURM_JOB_ID; scontrol show job -o $SLURM_JOB_ID "
        "| grep -o ' EndTime=[-0-9T:]*' > end; echo $SLURM_JOB_END_TIME >> end"
    )
    job_id = submit(body, "#SBATCH --time=1:00:00\n")
    assert wait(job_id).state == "COMPLETED"
    (fields,) = records.parse_scontrol_jobs(output(job_id))
    read = records.from_scontrol(fields)
    assert (read.job_id, read.name, read.state, read.time_limit_s, read.n_nodes) == (
        job_id,
        "try",
        "RUNNING",
        3600,
        1,
    )
    assert (fields["Requeue"], fields["Restarts"], fields["Dependency"]) == ("1", "0", "(null)")
    assert fields["StdOut"] == str(Path(f"logs/out_{job_id}.log").absolute())
    shown, seconds = Path("end").read_text().split()
    assert int(time.mktime(time.strptime(shown.partition("=")[2], "%Y-%m-%dT%H:%M:%S"))) == int(
        seconds
    )
