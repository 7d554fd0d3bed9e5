"""The local scheduler: real scripts, real processes, nothing left behind."""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from hpctrain.errors import HpctrainError
from hpctrain.local import jobs
from hpctrain.local.scheduler import LocalScheduler
from tests.scheduler.local_jobs import (
    directory,
    output,
    processes,
    submit,
    wait,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("local_jobs")


@pytest.mark.parametrize(("code", "state"), [(0, "COMPLETED"), (7, "FAILED")])
def test_exit_code_and_state_are_the_scripts_own(code: int, state: str) -> None:
    record = wait(submit(f"echo out; echo err >&2; exit {code}"))
    assert (record.state, record.exit_code, record.signal) == (state, code, None)
    assert (output(record.job_id), output(record.job_id, "err")) == ("out\n", "err\n")


def test_two_played_nodes_see_what_slurms_would() -> None:
    body = """scontrol show hostnames "$SLURM_JOB_NODELIST"
srun --kill-on-bad-exit=1 \\
    bash -c 'echo "$SLURM_NODEID $SLURM_PROCID $SLURM_LOCALID $SLURM_NTASKS $SLURM_NNODES $SLURMD_NODENAME $1"' _ "a  b"
echo "$SLURM_NODEID $SLURM_PROCID $SLURM_JOB_NUM_NODES $SLURM_NTASKS_PER_NODE $SLURM_TASKS_PER_NODE"
"""
    record = wait(submit(body, "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=2\n"))
    assert record.state == "COMPLETED", output(record.job_id, "err")
    lines = output(record.job_id).splitlines()
    assert lines[:2] == ["127.0.0.1", "127.0.0.2"]
    assert sorted(lines[2:6]) == [
        "0 0 0 4 2 127.0.0.1 a  b",
        "0 1 1 4 2 127.0.0.1 a  b",
        "1 2 0 4 2 127.0.0.2 a  b",
        "1 3 1 4 2 127.0.0.2 a  b",
    ]
    assert lines[6] == "0 0 2 2 2(x2)"


def test_srun_ends_with_the_worst_code_and_kills_the_others() -> None:
    record = wait(
        submit(
            "srun -K1 bash -c 'if [ $SLURM_PROCID = 1 ]; then exit 3; fi; sleep 3000'",
            "#SBATCH --nodes=2\n",
        )
    )
    assert record.state == "FAILED"
    assert (
        record.exit_code == 128 + signal.SIGTERM
    )  # the worst of 3 and of the killed task's, as with the real srun
    assert "srun: error: 127.0.0.2: task 1: Exited with exit code 3" in output(record.job_id, "err")


def test_an_unknown_option_of_srun_is_an_error() -> None:
    record = wait(submit("srun --no-such-thing=3 true"))
    assert record.state == "FAILED"
    assert "unrecognized option '--no-such-thing=3'" in output(record.job_id, "err")


DETACHED = """
setsid sleep 300 &
srun bash -c 'setsid nohup sleep 301 >/dev/null 2>&1 & (trap "" TERM; sleep 302) & touch started; wait'
"""


@pytest.mark.slow
def test_cancel_leaves_no_process_behind_not_even_a_detached_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job_id = submit(DETACHED)
    wait_until(lambda: Path("started").exists() and len(processes(directory(job_id))) >= 5)
    LocalScheduler().cancel([job_id])
    assert processes(directory(job_id)) == []
    (record,) = LocalScheduler().status([job_id])
    assert (record.state, record.signal) == ("CANCELLED", signal.SIGTERM)


def test_what_a_finished_script_left_running_is_ended() -> None:
    record = wait(submit("setsid sleep 300 & disown; exit 0"))
    assert record.state == "COMPLETED"
    assert processes(directory(record.job_id)) == []


@pytest.mark.slow
def test_cancel_on_the_command_line_ends_what_a_killed_supervisor_left(hpctrain: str) -> None:
    job_id = submit("touch started; sleep 600")
    wait_until(lambda: Path("started").exists())
    state = json.loads(
        (Path(os.environ["HPCTRAIN_STATE_DIR"]) / "local" / job_id / "state.json").read_text()
    )
    os.kill(state["supervisor"], signal.SIGKILL)
    wait_until(lambda: LocalScheduler().status([job_id])[0].state == "NODE_FAIL")
    assert len(processes(directory(job_id))) > 0
    done = subprocess.run([hpctrain, "cancel", job_id], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert processes(directory(job_id)) == []
    assert LocalScheduler().status([job_id])[0].state == "CANCELLED"


def test_a_process_that_reuses_the_id_of_a_supervisor_is_not_taken_for_it() -> None:
    job = jobs.new()
    job.write_holder(os.getpid())
    assert job.holder() is not None
    (job.path / "supervisor.json").write_text(json.dumps({"pid": os.getpid(), "created": 1.5}))
    assert job.holder() is None


def test_a_job_on_another_machine_of_a_shared_home_is_left_alone() -> None:
    job_id = submit("true")
    wait(job_id)
    path = Path(os.environ["HPCTRAIN_STATE_DIR"]) / "local" / job_id
    path.joinpath("job.json").write_text(
        path.joinpath("job.json").read_text().replace(socket.gethostname(), "elsewhere")
    )
    path.joinpath("state.json").write_text('{"state": "RUNNING", "supervisor": 1}')
    (record,) = LocalScheduler().status([job_id])
    assert (record.state, record.reason) == ("RUNNING", "on elsewhere")
    with pytest.raises(HpctrainError, match="runs on elsewhere") as refused:
        LocalScheduler().cancel([job_id])
    assert refused.value.fix == f"ssh elsewhere hpctrain cancel {job_id}"


@pytest.mark.slow
def test_the_name_to_follow_moves_to_the_job_that_started_last_and_spares_a_file(
    hpctrain: str,
) -> None:
    Path("train.py").write_text("print('x')\n")
    subprocess.run(
        [hpctrain, "render", "--launcher", "srun", "--script", "train.py"],
        check=True,
        capture_output=True,
    )
    Path("logs/error_sft.log").write_text("precious")
    Path("train.py").write_text("import os\nprint('job', os.environ['SLURM_JOB_ID'])\n")
    first = jobs.next_job_id()
    for expected in (first, first + 1):
        assert (
            subprocess.run(
                [hpctrain, "submit", "--local", "--wait"], capture_output=True
            ).returncode
            == 0
        )
        assert Path("logs/output_sft.log").readlink() == Path(f"output_sft_{expected}.log")
    assert Path("logs/error_sft.log").read_text() == "precious"
    assert (
        "logs/error_sft.log is a file and not a link"
        in Path(f"logs/error_sft_{first}.log").read_text()
    )


def test_the_outer_jobs_variables_do_not_leak_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "5")
    monkeypatch.setenv("PET_NPROC_PER_NODE", "7")
    monkeypatch.setenv("SECRET_TOKEN", "kept")
    record = wait(
        submit('echo "${SLURM_MEM_PER_NODE:-none} ${PET_NPROC_PER_NODE:-none} $SECRET_TOKEN"')
    )
    assert output(record.job_id) == "none none kept\n"
    directory = Path(os.environ["HPCTRAIN_STATE_DIR"]) / "local" / record.job_id
    assert not any(
        b"kept" in path.read_bytes() for path in directory.rglob("*") if path.is_file()
    ), "the environment is never written down"


def test_the_script_of_the_moment_of_submission_runs() -> None:
    job_id = submit("sleep 0.5; echo old\nexit 0")
    Path("job.sbatch").write_text("#!/bin/bash\necho new\n")
    assert wait(job_id).state == "COMPLETED"
    assert output(job_id) == "old\n"


def test_gpus_are_shared_out_among_the_nodes_and_too_few_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    body = (
        "srun bash -c 'echo $SLURM_NODEID $CUDA_VISIBLE_DEVICES $SLURM_GPUS_ON_NODE"
        " ${ACCELERATE_USE_CPU:-gpu}'"
    )
    record = wait(submit(body, "#SBATCH --nodes=2\n#SBATCH --gres=gpu:2\n"))
    assert sorted(output(record.job_id).splitlines()) == ["0 4,5 2 gpu", "1 6,7 2 gpu"]
    with pytest.raises(Exception, match="the job requests 6 GPUs and this machine has 4"):
        submit(body, "#SBATCH --nodes=2\n#SBATCH --gres=gpu:3\n")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    record = wait(submit(body, "#SBATCH --nodes=2\n#SBATCH --gres=gpu:3\n"))
    assert sorted(output(record.job_id).splitlines()) == ["0 4,5,6,7 true", "1 4,5,6,7 true"]
