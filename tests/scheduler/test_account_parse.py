"""What sacct, scontrol and squeue print of jobs, as accounts.

Slurm 22.05's rows were printed by the lab (tests/lab). Those of other versions have the fields that
their sacct lists with --helpformat, and the forms that their source prints: ReqMem with `n` or `c`
behind it up to 20.11 (src/sacct/print.c), FailedNode since 23.02, StdOut since 24.05, Restarts
since 24.11.
"""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.slurm.notations import records
from hpctrain.slurm.notations.records import JobRecord, StepUsage
from tests.scheduler.sacct_rows import AGAIN, JOB, REQUEUED, STEP, VERSIONS, text

MIB, GIB = 1024**2, 1024**3


def one(
    *rows: Mapping[str, str],
    fields: tuple[str, ...] = records.FIELDS,
) -> JobRecord:
    [account] = records.newest(records.parse_sacct(text(list(rows), fields), fields))
    return account


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_read(version: str) -> None:
    fields = records.fields_of("  ".join(("AllocCPUS", *VERSIONS[version], "UID")))
    assert set(fields) == set(VERSIONS[version]), (
        "each is asked for what it knows, and for nothing else"
    )
    account = one(JOB, STEP, fields=fields)
    assert (account.job_id, account.state, account.user, account.account, account.qos) == (
        "27",
        "COMPLETED",
        "ada",
        "proj_b",
        "normal",
    )
    assert (
        account.submitted,
        account.started,
        account.ended,
        account.elapsed_s,
        account.time_limit_s,
    ) == (
        1695321621.0,
        1695321637.0,
        1695321640.0,
        3,
        120,
    )
    assert (account.nodes, account.n_nodes, account.cpus, account.gpus, account.memory_bytes) == (
        "node[1-2]",
        2,
        2,
        4,
        100 * MIB,
    )
    assert (account.restarts, account.source, account.reason, account.comment) == (
        0,
        "sacct",
        None,
        None,
    )
    assert account.steps == (
        StepUsage(
            name="0",
            state="COMPLETED",
            exit_code=0,
            elapsed_s=3,
            n_tasks=2,
            nodes="node[1-2]",
            max_rss_bytes=2708 * 1024,
        ),
    )
    assert account.max_rss_bytes == 2708 * 1024
    assert account.command == ("sbatch job.sh" if "SubmitLine" in fields else None)
    assert account.output == ("/home/ada/p/%j.out" if "StdOut" in fields else None)


@pytest.mark.parametrize(
    ("allocated", "required", "bytes_"),
    [
        ("cpu=8,mem=100G,node=2", "mem=64G", 50 * GIB),  # the job got more than it asked for
        ("cpu=8,mem=62.50G,node=2", "", int(31.25 * GIB)),
        ("", "cpu=8,mem=128G,node=2", 64 * GIB),  # it waits
        ("", "", None),
        ("mem=x", "", None),
    ],
)
def test_memory_is_that_of_a_node(allocated: str, required: str, bytes_: int | None) -> None:
    account = one(JOB | {"AllocTRES": allocated, "ReqTRES": required, "NCPUS": "8"})
    assert account.memory_bytes == bytes_


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("gres/gpu=4,gres/gpu:a100=4", 4),
        ("cpu=8,gres/gpu:a100=4,gres/gpu:h100=2", 6),
        ("cpu=8,mem=4G", None),
        ("gres/gpumem=4G,gres/gpu=2", 2),
    ],
)
def test_gpus_are_those_of_the_job(tres: str, gpus: int | None) -> None:
    assert one(JOB | {"AllocTRES": tres}).gpus == gpus


def test_one_that_was_cancelled_and_one_that_runs() -> None:
    cancelled = one(
        JOB
        | {
            "State": "CANCELLED by 1000",
            "Start": "None",
            "NodeList": "None assigned",
            "AllocTRES": "",
            "Reason": "Priority",
        }
    )
    assert (
        cancelled.state,
        cancelled.cancelled_by,
        cancelled.started,
        cancelled.nodes,
        cancelled.gpus,
        cancelled.is_final,
    ) == (
        "CANCELLED",
        1000,
        None,
        None,
        4,
        True,
    )
    running = one(JOB | {"State": "RUNNING", "End": "Unknown", "Timelimit": "UNLIMITED"})
    assert (running.ended, running.time_limit_s, running.is_final) == (None, None, False)
    assert one(JOB | {"Timelimit": "Partition_Limit", "FailedNode": "node2"}).failed_node == "node2"


@pytest.mark.parametrize("version", ["22.05", "24.11"])
def test_requeued_starts_are_one_job(version: str) -> None:
    account = one(
        REQUEUED, STEP, AGAIN, STEP, STEP | {"JobID": "27.batch"}, fields=VERSIONS[version]
    )
    assert (account.restarts, account.submitted, account.started, len(account.steps)) == (
        1,
        1695321621.0,
        1695321637.0,
        2,
    )
    assert [
        (each.state, each.started, len(each.steps), each.earlier) for each in account.earlier
    ] == [("REQUEUED", 1695321622.0, 1, ())]


def test_a_reused_id_is_the_newest_job() -> None:
    old = JOB | {
        "Submit": "1600000000",
        "Start": "1600000010",
        "End": "1600000900",
        "JobName": "old",
    }
    assert (one(old, JOB).name, one(JOB, old).name) == ("sft", "sft")
    assert one(old | {"JobName": "sft"}, JOB).restarts == 0, (
        "the same work again is no restart of a job that ended"
    )


def test_arrays_and_heterogeneous_jobs() -> None:
    tasks = [
        JOB | {"JobID": f"22_{task}", "JobIDRaw": raw}
        for task, raw in ((0, "23"), (1, "24"), (3, "22"))
    ]
    waiting = JOB | {
        "JobID": "22_[4-9%2]",
        "JobIDRaw": "22",
        "State": "PENDING",
        "Start": "Unknown",
    }
    het = JOB | {"JobID": "40+1", "JobIDRaw": "41"}
    rows = [
        *tasks[:1],
        STEP | {"JobID": "22_0.batch", "JobIDRaw": "23.batch"},
        *tasks[1:],
        waiting,
        het,
    ]
    accounts = records.parse_sacct(text(rows, records.FIELDS), records.FIELDS)
    assert [(each.job_id, each.slurm_job_id, len(each.steps)) for each in accounts] == [
        ("22_0", "23", 1),
        ("22_1", "24", 0),
        ("22_3", "22", 0),
        ("22_[4-9%2]", "22", 0),
        ("40+1", "41", 0),
    ]


anything = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=20)


@given(
    name=anything, directory=anything, comment=anything, line=anything, rss=st.integers(1, 10**9)
)
def test_what_a_user_writes_moves_nothing_else(
    name: str, directory: str, comment: str, line: str, rss: int
) -> None:
    row = JOB | {"JobName": name, "WorkDir": directory, "Comment": comment, "SubmitLine": line}
    step = STEP | {"MaxRSS": f"{rss}K"}
    accounts = records.parse_sacct(text([row, step], records.FIELDS), records.FIELDS)
    assert accounts[0].job_id == "27"
    assert (accounts[0].state, accounts[0].nodes, accounts[0].gpus, accounts[0].started) == (
        "COMPLETED",
        "node[1-2]",
        4,
        1695321637.0,
    )
    assert [each.max_rss_bytes for each in accounts[0].steps] == [rss * 1024]
