"""The lab is a real cluster: its GPUs are counted, its accounts enforced, its jobs killed by the
kernel.
"""

import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.lab.conftest import Lab
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm

LAB = Path(__file__).with_name("lab")
# Writes to 400 MB of memory; -S -E so that nothing else is imported.
GREEDY = f"{sys.executable} -S -E -c 'print(len(b\"x\" * 400_000_000))'"


def test_up_again_changes_nothing_and_prints_one_line(lab: Lab) -> None:
    directory = str(Path(lab.env["SLURM_CONF"]).parent.parent)
    state = Path(directory, "state.json").read_text()
    # stdout is a pipe, as in eval "$(lab up)": a daemon that held it open would make this hang.
    done = lab.run(str(LAB), "up", "--dir", directory)
    assert done.stdout == f"export SLURM_CONF={lab.env['SLURM_CONF']}\n"
    assert Path(directory, "state.json").read_text() == state


def test_gpus_are_given_as_on_a_real_node(lab: Lab) -> None:
    step = ("srun", "--ntasks=1", "--mem=100", "--time=5")
    # SLURM_JOB_GPUS belongs to the batch script, SLURM_STEP_GPUS to a step; --gres never sets
    # SLURM_GPUS_PER_NODE.
    show = (
        "bash",
        "-c",
        "echo ${CUDA_VISIBLE_DEVICES:-no} ${SLURM_STEP_GPUS:-no} ${SLURM_GPUS_PER_NODE:-no}",
    )
    assert lab.run(*step, "--gres=gpu:4", *show).stdout == "0,1,2,3 0,1,2,3 no\n"
    assert lab.run(*step, *show).stdout == "no no no\n"
    refused = lab.run("sbatch", "--test-only", "--gres=gpu:5", "--wrap=true", check=False)
    assert refused.returncode == 1
    assert "Requested node configuration is not available" in refused.stderr


def test_a_step_that_outgrows_its_memory_is_killed(lab: Lab, tmp_path: Path) -> None:
    size = ("--ntasks=1", "--mem=120", "--time=5")
    step, batch = lab.submit(f"srun {GREEDY}", tmp_path, *size), lab.submit(GREEDY, tmp_path, *size)
    fields = ("ExitCode", "DerivedExitCode")
    seen = {
        job.replace(step, "STEP").replace(batch, "BATCH"): tuple(row.values())
        for rows in (lab.finished(step, *fields), lab.finished(batch, *fields))
        for job, row in rows.items()
    }
    # A step's end is the step's alone, the job is merely FAILED; a batch script's end is the job's
    # too.
    assert seen == {
        "STEP": ("FAILED", "1:0", "0:125"),
        "STEP.batch": ("FAILED", "1:0", ""),
        "STEP.0": ("OUT_OF_MEMORY", "0:125", ""),
        "BATCH": ("OUT_OF_MEMORY", "0:125", "0:0"),
        "BATCH.batch": ("OUT_OF_MEMORY", "0:125", ""),
    }
    for job in (step, batch):
        log = (tmp_path / f"{job}.out").read_text()
        assert re.search(
            r"oom-kill event\(s\)|oom_kill events? in StepId", log
        )  # as 22.05 and 24.11 say it
        assert "400000000" not in log


def test_accounting_keeps_comment_account_and_script(lab: Lab, tmp_path: Path) -> None:
    comment = f"hpctrain:{uuid.uuid4()}"
    job = lab.submit(
        "echo kept",
        tmp_path,
        f"--comment={comment}",
        "--account=euhpc_a06_067",
        "--mem=50",
        "--time=5",
    )
    rows = lab.finished(job, "Comment", "Account", "ExitCode")
    assert rows[job] == {
        "State": "COMPLETED",
        "Comment": comment,
        "Account": "euhpc_a06_067",
        "ExitCode": "0:0",
    }
    # slurmctld sends the script a few seconds after the job's other facts.
    show = ("sacct", "--batch-script", f"--jobs={job}")
    wait_until(lambda: "echo kept" in lab.run(*show).stdout, "the script in the database")
    assert (tmp_path / f"{job}.out").read_text() == "kept\n"


def test_env_and_status_of_a_lab_that_is_down(tmp_path: Path) -> None:
    for verb, out in (("env", ""), ("status", f"lab is down ({tmp_path})\n"), ("down", "")):
        done = subprocess.run(
            [str(LAB), verb, "--dir", str(tmp_path)], capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (0 if verb == "down" else 1, out)
