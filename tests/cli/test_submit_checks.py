"""`hpctrain submit` looks before it hands over: our scripts by their job, anybody's by their text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hpctrain.runs import launch
from hpctrain.scheduler.parse.records import SEPARATOR

if TYPE_CHECKING:
    from conftest import Desk

GOOD = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --gres=gpu:4
#SBATCH --time=01:00:00
#SBATCH --account=abc@h100
#SBATCH --constraint=h100
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 python train.py
"""


@pytest.fixture
def slurm(desk: Desk) -> Desk:
    desk.program("sbatch", "touch submitted; echo 123")
    for name in ("sinfo", "scontrol", "sacctmgr"):
        desk.program(name, "echo no answer >&2; exit 1")
    return desk


def submitted(desk: Desk) -> bool:
    return (desk.directory / "submitted").exists()


def test_a_script_of_ones_own_is_read_before_it_is_submitted(slurm: Desk) -> None:
    slurm.write("own.sbatch", GOOD.replace("--gres=gpu:4", "--gres=gpu:4\n#SBATCH --gpus-per-node=2"))
    said = slurm.refused("submit", "own.sbatch", code=1)
    assert said.lines[0] == "error: not submitted: 1 error in the job"
    assert said.lines[-1].endswith("hpctrain submit own.sbatch --no-check")
    assert not submitted(slurm)
    assert slurm.run("submit", "own.sbatch", "--no-check").code == 0
    assert submitted(slurm)


def test_a_good_one_is_submitted(slurm: Desk) -> None:
    slurm.write("own.sbatch", GOOD)
    assert slurm.run("submit", "own.sbatch").code == 0
    assert submitted(slurm)


def test_its_directives_are_held_against_the_cluster_of_the_config(slurm: Desk) -> None:
    slurm.write("config.yaml", "cluster: jean_zay\n")
    slurm.write("own.sbatch", GOOD.replace("#SBATCH --constraint=h100\n", ""))
    assert "account-nodes" in slurm.refused("submit", "own.sbatch", code=1).err
    slurm.write("own.sbatch", GOOD)
    assert slurm.run("submit", "own.sbatch").code == 0


def test_our_own_script_by_its_name_is_checked_as_a_job(slurm: Desk) -> None:
    slurm.run("render")
    said = slurm.refused("submit", "sft.sbatch", code=1)
    assert "error model-folder: " in said.err
    assert not submitted(slurm)


def test_the_strongest_word_on_the_cluster_wins(desk: Desk) -> None:
    desk.write("config.yaml", "cluster: leonardo\n")
    for variables, words, partition in (
        ({}, (), "boost_usr_prod"),
        ({"HPCTRAIN_CLUSTER": "tacc_vista"}, (), "gh"),
        ({"HPCTRAIN_CLUSTER": "tacc_vista"}, ("--cluster", "meluxina"), "gpu"),
        ({"HPCTRAIN_CLUSTER": "tacc_vista"}, ("--cluster", "meluxina", "--partition", "mine"), "mine"),
    ):
        desk.set(**variables)
        assert f"#SBATCH --partition={partition}\n" in desk.run("render", "--to", "-", *words).out


def test_a_job_that_is_refused_leaves_nothing_behind(slurm: Desk) -> None:
    before = slurm.snapshot()
    said = slurm.refused("submit", "--nodes", "2", "--", "--seed", "1", code=1)
    assert slurm.snapshot() == before
    assert said.lines[-1].endswith(": hpctrain submit --no-check --nodes 2 -- --seed 1")
    assert "hpctrain render --nodes 2 -- --seed 1 --dataset_name data/my_dataset" in said.err
    assert slurm.run(*said.lines[-1].rpartition(": hpctrain ")[2].split()).code == 0
    assert submitted(slurm)
    assert "--nodes=2\n" in (slurm.directory / "sft.sbatch").read_text()


def test_a_script_that_is_none_leads_to_lint(slurm: Desk) -> None:
    slurm.write("a colleague's.sh", "python train.py\n")
    said = slurm.refused("submit", "a colleague's.sh")
    fix = """hpctrain lint 'a colleague'"'"'s.sh', then: sbatch 'a colleague'"'"'s.sh'; for a script of hpctrain's own: hpctrain render"""
    assert said.lines[-1] == f"fix: {fix}"


def test_the_same_script_twice_is_said_in_a_line(slurm: Desk) -> None:
    slurm.write("config.yaml", "script: train.py\nlauncher: srun\n")
    slurm.write("train.py", "print(1)\n")
    queue = SEPARATOR.join(("123", "sft", "PENDING", "Priority", "0:00", "1:00:00", "1", "gpu", "N/A", ""))
    slurm.program("squeue", f"echo '{queue}'")
    slurm.program("sacct", "exit 1")
    assert slurm.run("render").code == 0
    first = slurm.run("submit", "--no-check")
    assert (first.code, "of the same script" in first.err) == (0, False)
    (tag,) = launch.tags(slurm.directory / "runs")
    again = slurm.run("submit", "--no-check")
    assert again.code == 0, again.err
    assert f"note: job 123, the run {tag} of the same script, is pending; if one is enough: hpctrain cancel 123\n" in again.err
    other = slurm.run("submit", "--no-check", "--time", "10")
    assert (other.code, "of the same script" in other.err) == (0, False)
    slurm.program("squeue", "echo no answer >&2; exit 1")
    assert slurm.run("render", "--force").code == 0
    silent = slurm.run("submit", "--no-check")
    assert (silent.code, "of the same script" in silent.err) == (0, False)


def test_reading_a_script_changes_no_help(slurm: Desk) -> None:
    """Click keeps the help option that a command was first asked for."""
    from hpctrain.cli.job_options import parse_request

    parse_request(("--nodes", "2"))
    assert "-h, --help" in slurm.run("render", "--help").out
