"""Requeue, signals and the stand-ins for scontrol, scancel and squeue on the local scheduler."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hpctrain.errors import HpctrainError
from hpctrain.scheduler.local.scheduler import LocalScheduler
from hpctrain.scheduler.parse import records
from tests.scheduler.local_jobs import LISTENS, directory, end_all, output, processes, record, submit, wait, wait_for

pytestmark = pytest.mark.slow

LOGS = "#SBATCH --output=logs/%A_%a.out\n#SBATCH --error=logs/%A_%a.err\n#SBATCH --open-mode=append\n"
APPEND = "#SBATCH --open-mode=append\n"


@pytest.fixture(autouse=True)
def _in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("HPCTRAIN_LOCAL_KILL_WAIT", "5")
    yield
    end_all()


def test_a_job_requeues_itself_under_the_same_id_until_it_is_done() -> None:
    body = """echo "$SLURM_JOB_ID ${SLURM_RESTART_COUNT-unset} $1 $SLURM_JOB_END_TIME"
[ "${SLURM_RESTART_COUNT:-0}" -eq 2 ] && exit 0
sleep 1.1
scontrol requeue "$SLURM_JOB_ID"
exit 85"""
    job_id = submit(body, f"#SBATCH --time=10\n{APPEND}", arguments=["tag"])
    assert wait(job_id).state == "COMPLETED"
    said = [line.split() for line in output(job_id).splitlines()]
    assert [words[:3] for words in said] == [[job_id, "unset", "tag"], [job_id, "1", "tag"], [job_id, "2", "tag"]], "appended"
    ends = [int(words[3]) for words in said]
    assert ends == sorted(set(ends)), "each start has its own end"


def test_a_requeue_that_is_the_scripts_last_word_counts() -> None:
    body = """[ -z "${SLURM_RESTART_COUNT-}" ] || exit 0
touch ready; while [ ! -e go ]; do sleep 0.05; done
exec scontrol requeue $SLURM_JOB_ID"""
    job_id = submit(body)
    wait_for(lambda: Path("ready").exists() and "batch" in json.loads((directory(job_id) / "state.json").read_text()))
    supervisor = psutil.Process(json.loads((directory(job_id) / "supervisor.json").read_text())["pid"])
    batch = psutil.Process(json.loads((directory(job_id) / "state.json").read_text())["batch"])
    supervisor.suspend()  # it looks only once the script has ended
    Path("go").touch()
    wait_for(lambda: batch.status() == psutil.STATUS_ZOMBIE)
    supervisor.resume()
    assert wait(job_id).state == "COMPLETED"
    assert json.loads((directory(job_id) / "state.json").read_text())["restarts"] == 1


def test_without_append_the_log_is_the_last_starts_as_in_slurm() -> None:
    job_id = submit('echo "${SLURM_RESTART_COUNT:-0}"; [ -n "${SLURM_RESTART_COUNT-}" ] || scontrol requeue $SLURM_JOB_ID')
    assert wait(job_id).state == "COMPLETED"
    assert output(job_id) == "1\n"


def test_requeue_from_outside_ends_every_process_first() -> None:
    body = """[ -z "${SLURM_RESTART_COUNT-}" ] || { echo again; exit 0; }
trap 'echo batch got TERM' TERM
srun bash -c 'trap "echo saved; exit 0" TERM; setsid sleep 300 & touch started; while true; do sleep 0.1; done' &
while kill -0 $! 2>/dev/null; do wait $!; done
sleep 300"""
    job_id = submit(body, APPEND)
    wait_for(lambda: Path("started").exists())
    old = processes(directory(job_id))
    LocalScheduler().requeue([job_id])
    assert wait(job_id).state == "COMPLETED"
    assert sorted(output(job_id).splitlines()) == ["again", "batch got TERM", "saved"]
    assert output(job_id).endswith("again\n")
    assert "DUE TO JOB REQUEUE" in output(job_id, "err")
    assert [process for process in old if process.is_running() and process.status() != psutil.STATUS_ZOMBIE] == []


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


def test_no_requeue_is_refused_in_slurms_words() -> None:
    body = "scontrol requeue $SLURM_JOB_ID 2>&1; echo $?; scontrol requeue 4711 2>&1; while [ ! -e stop ]; do sleep 0.05; done"
    job_id = submit(body, "#SBATCH --no-requeue\n")
    wait_for(lambda: "4711" in output(job_id) if Path(f"logs/out_{job_id}.log").exists() else False)
    assert output(job_id) == (f"Requested operation is presently disabled for job {job_id}\n1\nInvalid job id specified for job 4711\n")
    with pytest.raises(HpctrainError) as refused:
        LocalScheduler().requeue([job_id, "4711"])
    assert refused.value.details[0].strip() == f"Requested operation is presently disabled for job {job_id}"
    Path("stop").touch()
    assert wait(job_id).state == "COMPLETED"
    job_id = submit("true")
    wait(job_id)
    with pytest.raises(HpctrainError) as refused:
        LocalScheduler().requeue([job_id])
    assert "already completing or completed" in refused.value.details[0]


def test_cancel_during_a_requeue_wins() -> None:
    body = "trap '' TERM; touch started.${SLURM_RESTART_COUNT:-0}; while true; do sleep 0.1; done"
    job_id = submit(body)
    wait_for(lambda: Path("started.0").exists())
    LocalScheduler().requeue([job_id])
    wait_for(lambda: record(job_id).state == "COMPLETING")
    LocalScheduler().cancel([job_id])
    assert record(job_id).state == "CANCELLED"
    assert not Path("started.1").exists()
    assert processes(directory(job_id)) == []


def test_scancel_signal_reaches_the_tasks_and_neither_their_children_nor_the_shell() -> None:
    body = f"""{LISTENS}
trap 'echo batch got USR1' USR1; trap 'echo batch got TERM' TERM
srun bash -c 'bash listen.sh child & set -- task; . ./listen.sh; wait' &
step=$!
while [ ! -e child.ready ] || [ ! -e task.ready ]; do sleep 0.05; done
scancel --signal=USR1 $SLURM_JOB_ID
while ! grep -q 'task got USR1' logs/out_$SLURM_JOB_ID.log; do sleep 0.05; done
scancel --batch --signal=SIGTERM $SLURM_JOB_ID
while ! grep -q 'batch got TERM' logs/out_$SLURM_JOB_ID.log; do sleep 0.05; done
kill -USR2 $step
while ! grep -q 'task got USR2' logs/out_$SLURM_JOB_ID.log; do sleep 0.05; done
touch stop
while kill -0 $step 2>/dev/null; do wait $step; done"""
    job_id = submit(body)
    assert wait(job_id).state == "COMPLETED", output(job_id, "err")
    assert output(job_id).splitlines() == ["task got USR1", "batch got TERM", "task got USR2"]


def test_sigterm_to_srun_ends_the_step_at_once() -> None:
    body = """srun bash -c 'trap "echo saved" TERM; touch started; while true; do sleep 0.1; done' & step=$!
while [ ! -e started ]; do sleep 0.05; done
kill -TERM $step; wait $step; echo "status $?"
"""
    job_id = submit(body)
    assert wait(job_id).state == "COMPLETED"
    assert output(job_id) == "status 137\n", "the task is not asked"
    assert "srun: forcing job termination\nsrun: error: 127.0.0.1: task 0: Killed\n" in output(job_id, "err")


def test_kill_wait_ends_what_does_not_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCTRAIN_LOCAL_KILL_WAIT", "1")
    job_id = submit("trap '' TERM; srun bash -c 'trap \"\" TERM; touch started; while true; do sleep 0.1; done'; sleep 300")
    wait_for(lambda: Path("started").exists())
    LocalScheduler().cancel([job_id])
    assert (record(job_id).state, processes(directory(job_id))) == ("CANCELLED", [])


def test_a_job_that_cancels_itself_and_a_signal_that_is_none() -> None:
    job_id = submit("scancel --signal=FOO $SLURM_JOB_ID 2>&1; echo $?; scancel 4711 2>&1; scancel $SLURM_JOB_ID; sleep 300")
    assert wait(job_id).state == "CANCELLED"
    assert output(job_id).splitlines() == [
        "Unknown job signal: FOO",
        "1",
        "scancel: error: Kill job error on job id 4711: Invalid job id specified",
    ]


def test_the_time_limit_leaves_the_tasks_kill_wait_to_save() -> None:
    body = "srun bash -c 'trap \"echo saved; exit 0\" TERM; while true; do sleep 0.1; done' & wait"
    job_id = submit(body, "#SBATCH --time=0:02\n")
    assert wait(job_id).state == "TIMEOUT"
    assert output(job_id) == "saved\n"


def test_scontrol_show_job_is_what_our_own_parser_reads() -> None:
    body = "scontrol show job -o -d $SLURM_JOB_ID; scontrol show job $SLURM_JOB_ID > many; scontrol show job -o $SLURM_JOB_ID "
    job_id = submit(body + "| grep -o ' EndTime=[-0-9T:]*' > end; echo $SLURM_JOB_END_TIME >> end", "#SBATCH --time=1:00:00\n")
    assert wait(job_id).state == "COMPLETED"
    (fields,) = records.parse_scontrol_jobs(output(job_id))
    read = records.from_scontrol(fields)
    assert (read.job_id, read.name, read.state, read.time_limit_s, read.nodes) == (job_id, "try", "RUNNING", 3600, 1)
    assert (fields["Requeue"], fields["Restarts"], fields["Dependency"]) == ("1", "0", "(null)")
    assert fields["StdOut"] == str(Path(f"logs/out_{job_id}.log").absolute())
    assert fields["Command"] == str(Path("job.sbatch").absolute())
    assert re.findall(r"JobState=[A-Z]*", Path("many").read_text()) == ["JobState=RUNNING"]
    shown, seconds = Path("end").read_text().split()
    assert int(time.mktime(time.strptime(shown.partition("=")[2], "%Y-%m-%dT%H:%M:%S"))) == int(seconds)


def test_scontrol_and_squeue_show_the_tasks_of_an_array() -> None:
    body = """scontrol show job -o ${SLURM_ARRAY_JOB_ID} > all
scontrol show job -o ${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID > one
squeue -h -j $SLURM_ARRAY_JOB_ID -o '%i|%A|%F|%K|%T|%t|%r|%j|%E' > queue
squeue --noheader --job=$SLURM_JOB_ID --format=%.14i%5t > mine
squeue -j $SLURM_JOB_ID > headed
squeue -h -j 4711 2> unknown; echo $? >> unknown
squeue -h -j $SLURM_JOB_ID -o %y 2> field
while [ ! -e stop ]; do sleep 0.05; done"""
    job_id = submit(body, LOGS, array="0,2-4%1")
    own = int(job_id) + 1
    wait_for(lambda: Path("field").exists() and Path("field").read_text())
    one, waiting = records.parse_scontrol_jobs(Path("all").read_text())
    assert (one["JobId"], one["ArrayJobId"], one["ArrayTaskId"], one["JobState"]) == (str(own), job_id, "0", "RUNNING")
    assert (waiting["ArrayTaskId"], waiting["JobState"], waiting["Reason"]) == ("2-4%1", "PENDING", "JobArrayTaskLimit")
    assert records.from_scontrol(records.parse_scontrol_jobs(Path("one").read_text())[0]).job_id == f"{job_id}_0"
    assert Path("queue").read_text().splitlines() == [
        f"{job_id}_0|{own}|{job_id}|0|RUNNING|R|None|try|(null)",
        f"{job_id}_[2-4%1]|{job_id}|{job_id}|2-4%1|PENDING|PD|JobArrayTaskLimit|try|(null)",
    ]
    assert Path("mine").read_text() == f"{job_id}_0".rjust(14) + "R    \n"
    assert Path("headed").read_text().split()[:2] == ["JOBID", "PARTITION"]
    assert Path("unknown").read_text() == "slurm_load_jobs error: Invalid job id specified\n1\n"
    assert "Invalid job format specification: y" in Path("field").read_text()
    Path("stop").touch()
    assert wait(job_id).state == "COMPLETED"


def test_our_own_query_formats_are_answered() -> None:
    body = f"squeue -h -u $USER -t all -o '{records.SQUEUE_FORMAT}'"
    job_id = submit(f"export USER=$(id -un)\n{body}", "#SBATCH --time=5\n")
    assert wait(job_id).state == "COMPLETED"
    (read,) = records.parse_squeue(output(job_id))
    assert (read.job_id, read.name, read.state, read.time_limit_s, read.nodes) == (job_id, "try", "RUNNING", 300, 1)


def test_a_killed_supervisor_is_no_reason_to_wait() -> None:
    first = submit("touch started; sleep 300")
    second = submit("true", dependency=f"afterok:{first}")
    wait_for(lambda: Path("started").exists() and record(second).reason == "Dependency")
    for job_id in (first, second):
        os.kill(json.loads((directory(job_id) / "supervisor.json").read_text())["pid"], signal.SIGKILL)
    wait_for(lambda: [record(job_id).state for job_id in (first, second)] == ["NODE_FAIL", "NODE_FAIL"])
    LocalScheduler().cancel([first, second])
    assert processes(directory(first)) == []
