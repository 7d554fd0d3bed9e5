"""What Slurm 20.11.4 (Debian 11) itself printed of jobs that ended in many ways: recorded/slurm-20.11, of which only paths were changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.scheduler import start_sooner
from hpctrain.scheduler.parse import accounting_sacct, accounting_shown, records
from hpctrain.scheduler.parse.accounting import Account

RECORDED = Path(__file__).parent / "recorded" / "slurm-20.11"
MIB = 1024**2


def said(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text()


def accounts() -> dict[str, Account]:
    fields = accounting_sacct.fields_of(said("helpformat"))
    return {each.job_id: each for each in accounting_sacct.newest(accounting_sacct.parse(said("sacct"), fields))}


def test_sacct_is_asked_for_what_it_has() -> None:
    fields = accounting_sacct.fields_of(said("helpformat"))
    assert set(accounting_sacct.FIELDS) - set(fields) == accounting_sacct.NEW_FIELDS


@pytest.mark.parametrize(
    ("job", "state", "exit_code", "signal", "earlier"),
    [
        ("6002", "PREEMPTED", 0, None, []),
        ("6003", "COMPLETED", 0, None, ["PREEMPTED"]),
        ("6005", "NODE_FAIL", 0, None, []),
        ("6006", "COMPLETED", 0, None, ["NODE_FAIL"]),
        ("6007", "FAILED", 3, None, []),
        ("6008_0", "COMPLETED", 0, None, []),
        ("6008_1", "FAILED", 7, None, []),
        ("6009", "FAILED", 1, None, []),  # no directory for its log: 0:53 in 22.05
        ("6010", "OUT_OF_MEMORY", 0, 125, []),  # a step of it was: FAILED 1:0 in 22.05
        ("6013", "PENDING", 0, None, []),  # requeued in the second of its submission: the record of its first start is gone
        ("6016", "COMPLETED", 0, None, ["REQUEUED"]),  # with rows of other jobs between the two
        ("6017", "TIMEOUT", 0, None, []),
        ("6018", "CANCELLED", 0, None, []),
        ("6020", "FAILED", 15, None, []),
    ],
)
def test_how_each_job_ended(job: str, state: str, exit_code: int, signal: int | None, earlier: list[str]) -> None:
    found = accounts()[job]
    assert (found.state, found.exit_code, found.signal, [each.state for each in found.earlier]) == (state, exit_code, signal, earlier)
    assert found.restarts == len(earlier)


def test_what_a_job_had_and_used() -> None:
    all_of_them = accounts()
    two = all_of_them["6019"]
    assert (two.n_nodes, two.nodes, two.cpus, two.gpus, two.memory_bytes) == (2, "node[13-14]", 8, 8, 400 * MIB)
    killed = all_of_them["6010"]
    assert (killed.memory_bytes, killed.gpus, [step.state for step in killed.steps]) == (150 * MIB, 2, ["OUT_OF_MEMORY"] * 2)
    assert all_of_them["6003"].steps[-1].name == "1"  # a start after a requeue goes on counting
    assert all_of_them["6016"].earlier[0].time_limit_s is None  # Partition_Limit
    assert all_of_them["6018"].comment == "hpctrain:abc mine | yours"
    assert (all_of_them["6018"].cancelled_by, all_of_them["6017"].elapsed_s, all_of_them["6017"].time_limit_s) == (0, 86, 60)


def test_squeue_says_why_jobs_wait() -> None:
    found = {each.job_id: each for each in records.parse_squeue(said("squeue"))}
    assert {job: each.reason for job, each in found.items() if each.state == "PENDING"} == {
        "6011": "DependencyNeverSatisfied", "6012": "JobHeldUser", "6013": "job requeued in held state",
    }  # fmt: skip
    assert found["6018"].comment == "hpctrain:abc mine | yours"
    assert found["6008_1"].state == "FAILED"


def test_scontrol_says_the_same_and_how_often_a_job_came_back() -> None:
    fields = {each["JobName"]: each for each in records.parse_scontrol_jobs(said("scontrol"))}
    held = accounting_shown.from_scontrol(fields["back-held"])
    assert (held.state, held.reason, held.restarts) == ("PENDING", "job_requeued_in_held_state", 1)
    assert records.from_scontrol(fields["step-oom"]).state == "OUT_OF_MEMORY"
    assert fields["no-log"]["StdOut"] == "/home/ada/train/nowhere/6009.out"
    two = accounting_shown.from_scontrol(fields["two-nodes"])
    assert (two.n_nodes, two.cpus, two.gpus, two.memory_bytes) == (2, 8, 8, 400 * MIB)
    # TresPerNode=gpu:4, where 22.05 says gres:gpu:4.
    assert start_sooner.wish_of(fields["two-nodes"]).gpus == 4
