"""`hpctrain explain JOB` with the programs of Slurm 20.11, whose accounting does not know where a job writes: as recorded there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Desk

RECORDED = Path(__file__).parents[1] / "scheduler" / "recorded" / "slurm-20.11"


def slurm(desk: Desk, *, remembers: bool = True) -> None:
    """Put the programs on PATH; a slurmctld that does not remember knows of no job any more, minutes after its end."""
    desk.program("sbatch", "exit 1")
    desk.program("sinfo", "exit 1")
    desk.program("sacctmgr", "exit 1")
    desk.program("sacct", f'[ "$1" = --helpformat ] && exec cat {RECORDED}/helpformat.txt\nexec cat {RECORDED}/sacct.txt')
    shown = f'[ "$1 $2" = "show job" ] && grep "^JobId=${{!#}} " {RECORDED}/scontrol.txt && exit 0' if remembers else ""
    desk.program("scontrol", f"{shown}\necho 'slurm_load_jobs error: Invalid job id specified' >&2\nexit 1")
    desk.program("squeue", f"exec cat {RECORDED}/squeue.txt" if remembers else "true")


def explained(desk: Desk, job: str) -> tuple[list[dict[str, Any]], str]:
    said = desk.run("explain", job, "--json")
    assert said.code == 0, said.err
    return json.loads(said.out)["diagnoses"], said.err


def test_a_log_that_could_not_be_opened(desk: Desk) -> None:
    """22.05 says 0:53 of it; 20.11 says 1:0, as of any script that fails."""
    slurm(desk)
    (only,), _ = explained(desk, "6009")
    assert (only["id"], only["certainty"]) == ("output-directory-missing", "likely")
    assert "/home/ada/train/nowhere" in only["cause"]


@pytest.mark.parametrize("there", [True, False])
def test_an_empty_log_that_could_be_opened_is_another_matter(desk: Desk, there: bool) -> None:
    slurm(desk)
    desk.program(
        "scontrol", f'[ "$1 $2" = "show job" ] && grep "^JobId=6009 " {RECORDED}/scontrol.txt | sed "s#/home/ada/train/nowhere#$PWD#g"'
    )
    if there:
        desk.write("6009.out", "")
    assert explained(desk, "6009")[0] == []


@pytest.mark.parametrize("name", ["slurm-6010.out", "step-oom-6010.err", "logs/output_sft_6010.log"])
def test_the_log_of_a_job_that_slurmctld_has_forgotten_is_looked_for_here(desk: Desk, name: str) -> None:
    slurm(desk, remembers=False)
    for other in ("slurm-16010.out", "logs/output_sft_60101.log", "6010.py"):
        desk.write(other, "slurmstepd: error: *** JOB 16010 ON node13 CANCELLED AT 2026-11-22T08:16:56 DUE TO NODE FAILURE ***\n")
    _, said = explained(desk, "6010")
    assert "where job 6010 writes is not known" in said
    desk.write(name, "srun: error: node13: task 0: Out Of Memory\n")
    (only,), said = explained(desk, "6010")
    assert (only["id"], only["evidence"][0]["line"]) == ("host-oom", 1)
    assert "is not known" not in said
