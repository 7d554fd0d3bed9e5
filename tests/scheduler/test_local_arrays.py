"""Arrays on the local scheduler: Slurm's variables, so many tasks at a time, and what becomes of
those that wait.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.local import gpus, jobs, plan
from hpctrain.local.scheduler import LocalScheduler
from hpctrain.slurm.notations import array
from tests.scheduler.local_jobs import (
    directory,
    processes,
    record,
    submit,
    wait,
)
from tests.waiting import wait_until

LOGS = "#SBATCH --output=logs/%A_%a_%j_%x.out\n#SBATCH --error=logs/%A_%a.err\n"
#: Says that it runs, and goes on when the file `go` is there, or one of its own.
HELD = """i=$SLURM_ARRAY_TASK_ID; touch on.$i
while [ ! -e go ] && [ ! -e go.$i ]; do sleep 0.05; done; rm on.$i"""


pytestmark = pytest.mark.usefixtures("local_jobs")


def on() -> list[int]:
    return sorted(int(path.suffix[1:]) for path in Path.cwd().glob("on.*"))


def by_id() -> dict[str, tuple[str, str | None]]:
    return {each.job_id: (each.state, each.reason) for each in LocalScheduler().status()}


def test_every_task_has_slurms_variables_its_own_id_and_its_own_log() -> None:
    body = (
        'echo "$SLURM_JOB_ID $SLURM_JOBID $1 $2"; env | grep ^SLURM_ARRAY_ | sort; ['
        " $SLURM_ARRAY_TASK_ID != 4 ] || exit 3"
    )
    job_id = submit(body, f"{LOGS}#SBATCH --array=1-10:3\n", arguments=["tag", "a b"])
    whole = wait(job_id)
    assert (whole.job_id, whole.state, whole.exit_code) == (
        job_id,
        "FAILED",
        3,
    ), "the worst of its tasks"
    first = int(job_id)
    for place, index in enumerate((1, 4, 7, 10)):
        own = first + 1 + place
        text = Path(f"logs/{job_id}_{index}_{own}_try.out").read_text().splitlines()
        assert text == [
            f"{own} {own} tag a b",
            f"SLURM_ARRAY_JOB_ID={job_id}",
            "SLURM_ARRAY_TASK_COUNT=4",
            f"SLURM_ARRAY_TASK_ID={index}",
            "SLURM_ARRAY_TASK_MAX=10",
            "SLURM_ARRAY_TASK_MIN=1",
            "SLURM_ARRAY_TASK_STEP=3",
        ]
        task = record(f"{job_id}_{index}")
        assert (task.job_id, task.state, task.exit_code) == (
            f"{job_id}_{index}",
            *(("FAILED", 3) if index == 4 else ("COMPLETED", 0)),
        )
        assert record(str(own)) == task, "its own id names it too"
        logs = LocalScheduler().logs(f"{job_id}_{index}")
        assert logs.output == Path.cwd() / f"logs/{job_id}_{index}_{own}_try.out"
    assert submit("true") == str(first + 5), "no other job gets the id of a task"


def test_so_many_at_a_time_and_the_others_wait_in_one_row() -> None:
    job_id = submit(HELD, f"{LOGS}#SBATCH --array=0-4%2\n")
    wait_until(lambda: on() == [0, 1])
    states = {
        f"{job_id}_0": ("RUNNING", None),
        f"{job_id}_1": ("RUNNING", None),
        f"{job_id}_[2-4%2]": ("PENDING", "JobArrayTaskLimit"),
    }
    wait_until(lambda: by_id() == states, f"{states}")
    assert not (directory(job_id) / "tasks" / "2").exists(), "what waits costs nothing"
    assert (record(f"{job_id}_3").state, record(job_id).state) == ("PENDING", "RUNNING")
    Path("go.1").touch()
    wait_until(lambda: on() == [0, 2])
    Path("go").touch()
    assert wait(job_id).state == "COMPLETED"
    assert [each.state for each in LocalScheduler().status()] == ["COMPLETED"] * 5


def test_gpus_decide_how_many_and_no_two_tasks_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4")
    body = f"srun bash -c 'echo $CUDA_VISIBLE_DEVICES > gpus.$SLURM_ARRAY_TASK_ID'; {HELD}"
    job_id = submit(body, f"{LOGS}#SBATCH --array=0-5\n#SBATCH --gres=gpu:2\n")
    wait_until(lambda: on() == [0, 1])
    wait_until(lambda: by_id()[f"{job_id}_[2-5]"] == ("PENDING", "Resources"))
    other = submit(
        "srun bash -c 'echo $CUDA_VISIBLE_DEVICES'; while [ ! -e go ]; do sleep 0.05; done",
        "#SBATCH --gres=gpu:1\n",
    )
    with pytest.raises(
        HpctrainError, match="the job requests 1 GPU and this machine has 5, 5 of them in use"
    ):
        submit("true", "#SBATCH --gres=gpu:1\n")
    Path("go.0").touch()
    wait_until(lambda: on() == [1, 2])
    assert Path("gpus.2").read_text() == "0,1\n", "those that task 0 has given back"
    Path("go").touch()
    assert (wait(job_id).state, wait(other).state) == ("COMPLETED", "COMPLETED")
    assert Path(f"logs/out_{other}.log").read_text() == "4\n"
    assert {Path(f"gpus.{index}").read_text() for index in range(6)} <= {
        "0,1\n",
        "2,3\n",
        "0,2\n",
        "1,2\n",
        "0,3\n",
        "1,3\n",
        "3,4\n",
    }


def test_device_picks_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    body = "srun bash -c 'echo $CUDA_VISIBLE_DEVICES ${ACCELERATE_USE_CPU-gpu}'"
    for device, directives, shown in (
        ("1", "#SBATCH --gres=gpu:1\n", "1"),
        ("2,3", "#SBATCH --gpus=2\n", "2,3"),
        ("0,3", "", "0,3"),
    ):
        job_id = submit(body, directives, scheduler=LocalScheduler(device=device))
        assert wait(job_id).state == "COMPLETED"
        assert Path(f"logs/out_{job_id}.log").read_text() == f"{shown} gpu\n"
    with pytest.raises(HpctrainError, match="the job requests 2 GPUs and --device names 1"):
        submit(body, "#SBATCH --gpus=2\n", scheduler=LocalScheduler(device="1"))
    with pytest.raises(UsageError, match=r"there is no GPU 9; this machine has 0, 1, 2, 3"):
        submit(body, scheduler=LocalScheduler(device="1,9"))


def test_cancel_one_task_those_that_wait_and_all() -> None:
    job_id = submit(HELD, f"{LOGS}#SBATCH --array=0-9%2\n")
    wait_until(lambda: on() == [0, 1])
    LocalScheduler().cancel([f"{job_id}_1", f"{job_id}_[5-7]"])
    assert [record(f"{job_id}_{index}").state for index in (1, 5, 6, 7)] == ["CANCELLED"] * 4
    wait_until(lambda: on() == [0, 1, 2])  # the file of task 1 is a leftover
    assert processes(directory(job_id) / "tasks" / "1") == []
    assert by_id()[f"{job_id}_[5-7]"] == ("CANCELLED", None)
    assert by_id()[f"{job_id}_[3-4,8-9%2]"] == ("PENDING", "JobArrayTaskLimit")
    LocalScheduler().cancel([job_id])
    assert processes(directory(job_id)) == []
    assert record(job_id).state == "CANCELLED"
    assert {state for state, _ in by_id().values()} == {"CANCELLED"}
    assert sorted(index for each in by_id() for index in array.split(each)[1].indices) == list(
        range(10)
    )  # type: ignore[union-attr]


def test_what_sbatch_would_refuse() -> None:
    with pytest.raises(UsageError, match="Invalid job array specification: '5-1'"):
        submit("true", array="5-1")
    with pytest.raises(UsageError, match="Invalid job array specification: 'x'"):
        submit("true", "#SBATCH --array=x\n")
    with pytest.raises(UsageError, match="must be at least 1, got 0"):
        submit("true", array="0-1", scheduler=LocalScheduler(parallel=0))
    assert LocalScheduler().status() == []


def supervisor_of(job_id: str) -> int:
    number: int = json.loads((directory(job_id) / "supervisor.json").read_text())["pid"]
    return number


def test_tasks_of_a_dead_supervisor_do_not_wait_forever() -> None:
    job_id = submit(HELD, f"{LOGS}#SBATCH --array=0-3\n")
    wait_until(lambda: on() == [0])
    os.kill(supervisor_of(job_id), signal.SIGKILL)
    wait_until(lambda: by_id().get(f"{job_id}_[1-3]") == ("NODE_FAIL", jobs.GONE))
    assert record(f"{job_id}_2").state == "NODE_FAIL"
    assert record(f"{job_id}_0").state == "RUNNING", "what runs has a supervisor of its own"
    Path("go").touch()
    wait_until(lambda: record(f"{job_id}_0").state == "COMPLETED")
    assert record(job_id).state == "NODE_FAIL"


SUBMIT = """
import sys
from pathlib import Path
from hpctrain.local import gpus, jobs
from hpctrain.local.scheduler import LocalScheduler
for number in range(4):
    print(jobs.new(tasks=int(sys.argv[1])).path.name, flush=True)
"""


def test_ids_of_submissions_at_the_same_time_never_meet() -> None:
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", SUBMIT, str(tasks)], stdout=subprocess.PIPE, text=True
        )
        for tasks in (0, 3, 0, 7, 3, 1)
    ]
    taken: list[int] = []
    for program, tasks in zip(programs, (0, 3, 0, 7, 3, 1), strict=True):
        said, _ = program.communicate()
        assert program.returncode == 0
        for first in map(int, said.split()):
            taken += range(first, first + tasks + 1)
    assert len(taken) == len(set(taken)) == 4 * (6 + 14)


CLAIM = """
import os, sys, time
from hpctrain.local import gpus, jobs, plan
from hpctrain.local.jobs import LocalJob
from pathlib import Path
job = LocalJob(Path(sys.argv[1]))
job.write_holder(os.getpid())
while (got := gpus.take(job, 1, ("0", "1"))) is None:
    time.sleep(0.005)
descriptor = os.open(f"gpu{got[0]}", os.O_CREAT | os.O_EXCL)  # fails where another one has it
time.sleep(0.05)
os.close(descriptor); os.unlink(f"gpu{got[0]}")
if sys.argv[2] == "dies":
    os._exit(9)
job.write_state("COMPLETED")
"""


def test_claims_of_gpus_at_the_same_time_and_of_the_dead() -> None:
    machine = plan.LocalMachine(cores=1, gpus=("0", "1"), host=socket.gethostname(), user="me")
    draft = plan.make([], job_id="90000001", directory=".", script="true", machine=machine)
    programs = []
    for number in range(6):
        job = jobs.new()
        job.write_plan(draft)
        argv = [sys.executable, "-c", CLAIM, str(job.path), "dies" if number < 2 else "lives"]
        programs.append(
            subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    ends = [program.communicate() for program in programs]
    assert [program.returncode for program in programs[2:]] == [0] * 4, ends
    assert {program.returncode for program in programs[:2]} <= {0, 9}, ends
    assert gpus.held(("0", "1")) == {}, "the dead hold nothing"
