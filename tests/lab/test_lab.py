"""The lab is a real cluster: its GPUs are counted, its accounts enforced, its jobs killed by the
kernel.
"""

import re
import sys
from pathlib import Path

import pytest

from tests.lab.conftest import Lab

pytestmark = pytest.mark.slurm

LAB = Path(__file__).with_name("lab")
# Writes to 400 MB of memory; -S -E so that nothing else is imported.
GREEDY = f"{sys.executable} -S -E -c 'print(len(b\"x\" * 400_000_000))'"


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
