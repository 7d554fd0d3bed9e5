"""What the programs of other Slurm versions printed of one queue, in the words in which hpctrain asked them (recorded/slurm-*).

Recorded with tests/lab/other_slurm: the rough lab's two nodes, and jobs of which some have ended, one runs and some wait.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from hpctrain.scheduler import discover, start_sooner
from hpctrain.scheduler.parse import accounting_sacct, accounting_shown, records
from hpctrain.scheduler.parse.accounting import Account

RECORDED = Path(__file__).with_name("recorded")
VERSIONS = {"slurm-24.11": (24, 11), "slurm-26.05": (26, 5)}
MIB = 1024**2

pytestmark = pytest.mark.parametrize("version", VERSIONS)


@cache
def text(version: str, name: str) -> str:
    return (RECORDED / version / f"{name}.txt").read_text()


def accounts(version: str) -> dict[str, Account]:
    fields = accounting_sacct.fields_of(text(version, "sacct-helpformat"))
    return {each.job_id: each for each in accounting_sacct.newest(accounting_sacct.parse(text(version, "sacct"), fields))}


def test_the_queue(version: str) -> None:
    found = {each.job_id: each for each in records.parse_squeue(text(version, "squeue"))}
    assert {job: (each.state, each.reason) for job, each in found.items()} == {
        "1001": ("COMPLETED", None), "1002": ("FAILED", "NonZeroExitCode"), "1003_0": ("COMPLETED", None),
        "1003_1": ("FAILED", "NonZeroExitCode"), "1003_2": ("COMPLETED", None), "1004": ("FAILED", "RaisedSignal:9(Killed)"),
        "1007": ("CANCELLED", None), "1008": ("RUNNING", None), "1009": ("PENDING", "Resources"), "1010": ("PENDING", "JobHeldUser"),
        "1011": ("PENDING", "BeginTime"), "1012_[1-4%2]": ("PENDING", "Dependency"), "1014": ("PENDING", "Dependency"),
        "1013": ("PENDING", "QOSMaxWallDurationPerJobLimit"),
    }  # fmt: skip
    first = found["1001"]
    assert (first.name, first.comment, first.nodes, first.time_limit_s) == ("two nodes", "hpctrain:0123 mine", 2, 180)
    assert (found["1008"].elapsed_s, found["1008"].time_limit_s, found["1009"].time_limit_s) == (12, 1800, 3600)


def test_the_status_in_accounting(version: str) -> None:
    found = {each.job_id: each for each in records.parse_sacct(text(version, "sacct-status"))}
    said = {job: (each.state, each.exit_code, each.signal) for job, each in found.items() if each.is_final}
    assert said == {
        "1001": ("COMPLETED", 0, None), "1002": ("OUT_OF_MEMORY", 1, None), "1003_0": ("COMPLETED", 0, None), "1003_1": ("FAILED", 7, None),
        "1003_2": ("COMPLETED", 0, None), "1004": ("FAILED", 0, 9), "1007": ("CANCELLED", 0, None),
    }  # fmt: skip


def test_the_record_of_accounting(version: str) -> None:
    found = accounts(version)
    first, killed, task, gone = found["1001"], found["1002"], found["1003_2"], found["1007"]
    assert (first.n_nodes, first.nodes, first.gpus, first.cpus, first.memory_bytes) == (2, "node[3-4]", 8, 2, 100 * MIB)
    assert (first.name, first.comment, first.restarts) == ("two nodes", "hpctrain:0123 mine", 0)
    assert [(step.name, step.state) for step in first.steps] == [("batch", "COMPLETED"), ("0", "COMPLETED")]
    assert (killed.state, killed.exit_code, killed.steps[1].state, killed.memory_bytes) == ("OUT_OF_MEMORY", 1, "OUT_OF_MEMORY", 50 * MIB)
    assert (task.slurm_job_id, task.state) == ("1003", "COMPLETED"), "the last task has the array's own number"
    assert (gone.state, gone.cancelled_by) == ("CANCELLED", 0)
    assert (found["1008"].state, found["1008"].ended) == ("RUNNING", None)
    assert (found["1009"].state, found["1009"].gpus, found["1009"].started) == ("PENDING", 4, None)
    assert (first.command or "").startswith("sbatch --parsable --job-name=two nodes")
    assert first.output == "/home/ada/fx/%x-%j.out", "accounting keeps the pattern, and no path"


def test_the_controller_says_of_a_job_what_accounting_says(version: str) -> None:
    shown = {each["JobId"]: each for each in records.parse_scontrol_jobs(text(version, "scontrol-jobs"))}
    assert len(shown) == 14
    first = accounting_shown.from_scontrol(shown["1001"])
    known = accounts(version)["1001"]
    same = ("state", "name", "n_nodes", "nodes", "gpus", "cpus", "memory_bytes", "time_limit_s", "comment", "submitted", "started", "ended")
    for name in same:
        assert getattr(first, name) == getattr(known, name), name
    assert first.output == "/home/ada/fx/two nodes-1001.out"
    assert first.error in (None, first.output), "26.05 leaves it empty where it is the same"
    waits = start_sooner.wish_of(shown["1009"])
    assert (waits.nodes, waits.gpus, waits.time_limit_s, waits.partition, waits.account) == (2, 2, 3600, "boost_usr_prod", "proj_b")
    queue = {each.job_id: each for each in accounting_shown.from_squeue(text(version, "squeue-accounts"))}
    assert (queue["1001"].gpus, queue["1001"].n_nodes, queue["1002"].state, queue["1009"].reason) == (8, 2, "FAILED", "Resources")


def test_when_a_job_would_start(version: str) -> None:
    start, said = start_sooner.answer(text(version, "test-only"))
    assert start is not None, said


def test_the_cluster(version: str) -> None:
    live = discover.from_texts({name: text(version, name) for name in ("nodes", "partitions", "config", "users", "qos")})
    assert live.silent == ()
    assert (live.version, live.cluster_name, live.enforces_accounts, live.kill_wait) == (VERSIONS[version], "lab2", True, 15)
    assert live.accounts == ("euhpc_a06_067", "proj_b")
    assert live.partitions is not None
    assert {each.name for each in live.partitions} == {"boost_usr_prod", "debug", "low", "low_grace", "low_cancel", "high"}
    default = live.partition(None)
    assert default is not None
    assert (default.name, default.time_max, default.gpus_max, default.exclusive) == ("boost_usr_prod", 86_400, 4, False)
