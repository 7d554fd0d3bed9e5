"""The seconds in which slurmctld and slurmdbd do not say the same of a job: what each verb makes of answers as Slurm 22.05 gave them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hpctrain.cli import runs_jobs
from hpctrain.runs import states as run_states
from hpctrain.runs.store import Attempt, Run
from hpctrain.scheduler.parse.records import SEPARATOR
from hpctrain.scheduler.slurm import SlurmScheduler

if TYPE_CHECKING:
    from conftest import Desk

COLUMNS = ("JobID", "JobName", "State", "ExitCode", "DerivedExitCode", "ElapsedRaw", "Timelimit", "NNodes", "Partition", "Start", "Comment")
START = "2026-11-22T07:49:27"


def queued(state: str, reason: str = "None", job: str = "27") -> str:
    return SEPARATOR.join((job, "sft", state, reason, "0:42", "1:00:00", "2", "gpu", START, "hpctrain:abc"))


def accounted(state: str, exit_code: str = "0:0", *, name: str = "sft", limit: str = "01:00:00", nodes: str = "2", job: str = "27") -> str:
    return SEPARATOR.join((job, name, state, exit_code, "0:0", "42", limit, nodes, "gpu", START, ""))


@pytest.fixture
def slurm(desk: Desk) -> Desk:
    for name in ("sbatch", "scancel"):
        desk.program(name, "true")
    desk.program("scontrol", "exit 1")
    return desk


def says(slurm: Desk, *, squeue: str = "", sacct: str = "") -> None:
    slurm.write("queue", squeue + "\n" * bool(squeue))
    slurm.write("accounts", sacct + "\n" * bool(sacct))
    slurm.program("squeue", f"cat {slurm.directory}/queue")
    slurm.program("sacct", f"cat {slurm.directory}/accounts")


def test_a_job_that_is_cleaned_up_has_not_ended_for_slurmctld_and_has_for_slurmdbd(slurm: Desk) -> None:
    says(slurm, squeue=queued("COMPLETING"), sacct=accounted("CANCELLED by 0", "0:15"))
    [record] = SlurmScheduler().status(["27"])
    assert (record.state, record.is_final) == ("COMPLETING", False), "its nodes are not free yet"
    assert " COMPLETING " in slurm.run("ps").out
    watched = slurm.run("watch", "27", "--once")
    assert "ending for 0:00:42 of 1:00:00 on 2 nodes" in watched.out, watched
    cancelled = slurm.run("cancel", "27")
    assert cancelled.out == "cancelled job 27 (sft); it was ending already\n", "a requeue would bring it back"
    last = Attempt(name="27.0", job_id="27", slurm_job_id="27", outcome="stopped", reason="signal")
    state = run_states.state_of(Run(id="r", tag="r", attempts=(last,)), ("27",), {"27": "COMPLETING"})
    assert (state.word, state.live) == ("stopped", ("27",)), "nothing of it is removed yet"


def test_nodes_that_are_being_prepared(slurm: Desk) -> None:
    says(slurm, squeue=queued("CONFIGURING"))
    assert " CONFIGURING " in slurm.run("ps").out
    assert "its nodes are being prepared for 0:00:42" in slurm.run("watch", "27", "--once").out
    word = runs_jobs._ask(["27"], [], max_age_s=0.0)[0]
    assert run_states.state_of(Run(id="r", tag="r"), ("27",), word).word == "running"
    assert slurm.run("cancel", "27").out == "cancelled job 27 (sft)\n"


def test_a_job_that_slurmdbd_has_not_heard_all_of_keeps_its_name(slurm: Desk) -> None:
    """`allocation` is slurmdbd's word for a name that it does not know yet; limit and nodes are not known either."""
    says(slurm, squeue=queued("FAILED", "NonZeroExitCode"), sacct=accounted("FAILED", "3:0", name="allocation", limit="", nodes="1"))
    for record in (*SlurmScheduler().status(["27"]), *SlurmScheduler().status()):
        assert (record.name, record.state, record.exit_code, record.nodes, record.time_limit_s) == ("sft", "FAILED", 3, 2, 3600)
    assert "exit code 3" in slurm.run("ps", "sft").out
    # It is asked for again as long as it is half: the steps, which say what killed it, come too.
    says(slurm, sacct=accounted("OUT_OF_MEMORY", "0:125"))
    [record] = SlurmScheduler().status(["27"], max_age_s=15.0)
    assert record.state == "OUT_OF_MEMORY"


def test_a_job_that_slurmdbd_still_calls_running_has_ended_for_slurmctld(slurm: Desk) -> None:
    says(slurm, squeue=queued("COMPLETED"), sacct=accounted("RUNNING"))
    slurm.program("scontrol", "echo 'JobId=27 JobName=sft UserId=me(0) GroupId=me(0) JobState=COMPLETED ExitCode=0:0 RunTime=00:00:42'")
    [record] = SlurmScheduler().status(["27"])
    assert (record.state, record.exit_code) == ("COMPLETED", 0)


def test_a_job_that_slurmctld_has_forgotten_is_known_to_slurmdbd_or_to_nobody(slurm: Desk) -> None:
    says(slurm, sacct=accounted("COMPLETED"))
    assert " COMPLETED " in slurm.run("ps", "27").out
    says(slurm)
    assert slurm.refused("ps", "28").lines[0] == "error: there is no job '28'"
    slurm.program("sacct", "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1")
    for words in (("ps", "29"), ("cancel", "29"), ("logs", "29")):
        unknown = slurm.refused(*words, code=3)
        assert unknown.lines[:2] == [
            "error: whether there is a job '29' is not known",
            "  sacct said: Problem talking to the database: Connection refused",
        ]
    slurm.program("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert slurm.refused("ps", "30").lines[0] == "error: there is no job '30'", "a site without accounting has no trouble with it"


def test_a_silent_slurmctld_is_waited_for_once_in_a_command(slurm: Desk) -> None:
    says(slurm, sacct=accounted("RUNNING"))
    slurm.set(HPCTRAIN_SLURM_TIMEOUT="1")
    slurm.program("squeue", f"echo asked >> {slurm.directory}/asked; sleep 20")
    slurm.program("scontrol", f"echo asked >> {slurm.directory}/asked; sleep 20")
    slurm.program("sacct", "echo 'sacct: error: no' >&2; exit 1")
    slurm.write("logs/output_sft_27.log", "step 1\n")
    said = slurm.run("explain", "27")
    assert (said.code, said.out) == (0, "nothing points to a failure\n")
    assert said.lines[-2:] == [
        "note: whether job 27 still runs, or how it ended, is not known",
        "note: squeue did not answer within 1 s; hpctrain ps 27 asks again",
    ]
    assert (slurm.directory / "asked").read_text() == "asked\n"
    says(slurm, squeue=queued("RUNNING"))
    assert slurm.run("ps").code == 0, "the next command asks again"
