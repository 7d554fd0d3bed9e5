"""Asking Slurm for accounts, and asking politely: programs on PATH record each call.

The real Slurm is in tests/lab/test_ps.py.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpctrain.errors import SchedulerError
from hpctrain.jobs import schedulers
from hpctrain.slurm import query_cache
from hpctrain.slurm.base import ASK_EVERY_S
from hpctrain.slurm.client import SlurmScheduler
from hpctrain.slurm.notations.records import SEPARATOR
from tests.scheduler.sacct_rows import JOB, STEP, VERSIONS, calls

Programs = Callable[..., None]
SHOWN = (
    "JobId=27 JobName=sft UserId=ada(1000) GroupId=ada(1000) JobState=FAILED Reason=NonZeroExitCode"
    " Restarts=1 ExitCode=1:0 SubmitTime=1695321621 StartTime=1695321637 EndTime=1695321640"
    " NumNodes=2 NodeList=node[1-2] TRES=cpu=2,mem=200M,gres/gpu=4"
)


@pytest.fixture(autouse=True)
def _here(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "programs" in request.fixturenames:
        request.getfixturevalue("programs")(sbatch="")
        monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
        (tmp_path / "slurm.conf").write_text("ClusterName=here\n")


def sacct(rows: list[dict[str, str]], version: str = "22.05") -> str:
    """Return a sacct of a version: it refuses fields that it does not know, as the real one does,
    and prints those that are asked for.
    """
    fields = VERSIONS[version]
    Path("rows.json").write_text(json.dumps(rows))
    return f"""
if [ "$1" = --helpformat ]; then echo 'AllocCPUS {" ".join(fields)}'; exit; fi
exec {sys.executable} - "$@" <<'END'
import json, sys
argv = sys.argv[1:]
asked = argv[argv.index("-o") + 1].split(",")
unknown = set(asked) - set({fields!r})
if unknown:
    sys.exit(f"sacct: fatal: Invalid field requested: {{unknown}}")
ids = set(argv[argv.index("-j") + 1].split(",")) if "-j" in argv else None
for row in json.load(open("rows.json")):
    number = row["JobID"].partition(".")[0]
    if ids is None or number in ids or number.partition("_")[0] in ids:
        print("\\x1f".join(row[name] for name in asked))
END
"""


def job(job_id: str, **more: str) -> dict[str, str]:
    return JOB | {"JobID": job_id, "JobIDRaw": job_id} | more


def test_an_array_stands_for_its_tasks_and_those_that_wait_for_their_array(
    programs: Programs,
) -> None:
    programs(
        sacct=sacct(
            [
                job("22_0", JobIDRaw="23"),
                job("22_3", JobIDRaw="22"),
                job("22_[4-9%2]", JobIDRaw="22", State="PENDING"),
            ]
        )
    )
    assert [each.job_id for each in schedulers.accounts(["22"])] == ["22_0", "22_3", "22_[4-9%2]"]
    assert [each.job_id for each in schedulers.accounts(["22_3"])] == ["22_3"]
    assert "22_[4-9%2]" in [each.job_id for each in schedulers.accounts(["22_[4-9%2]"])]
    assert [call.split()[-1] for call in calls("sacct")] == [
        "22",
        "22_3",
        "22",
    ], "no sacct is asked for brackets"


def test_nothing_that_is_no_job_id_reaches_a_command_line(programs: Programs) -> None:
    assert SlurmScheduler().accounts(["--help", "1;2", "?abc", "", "1 2"]) == []
    assert not Path("calls.txt").exists()


DOWN = "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "echo 'Slurm accounting storage is disabled' >&2; exit 1",
            "Slurm accounting storage is disabled",
        ),
        (DOWN, "Connection refused"),
    ],
)
def test_without_accounting_slurmctld_says_what_it_knows(
    programs: Programs, body: str, said: str
) -> None:
    programs(sacct=body, scontrol=f"echo '{SHOWN}'")
    [account] = schedulers.accounts(["27"])
    assert (
        account.source,
        account.state,
        account.restarts,
        account.gpus,
        account.exit_code,
        account.steps,
    ) == (
        "scontrol",
        "FAILED",
        1,
        4,
        1,
        (),
    )
    assert said in str(account.note)


def test_nobody_answers(programs: Programs) -> None:
    programs(
        sacct=DOWN,
        scontrol="echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1",
    )
    with pytest.raises(SchedulerError, match="Slurm did not answer"):
        schedulers.accounts(["27"])
    programs(scontrol="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert schedulers.accounts(["27"]) == [], "an answer: there is no such job"


def test_half_a_record_is_made_whole_by_slurmctld(programs: Programs) -> None:
    """Slurmdbd hears of a job's start seconds after its end: till then it has no name, no limit,
    and one node (seen on 22.05).
    """
    now = int(time.time())
    half = job(
        "27",
        JobName="allocation",
        Timelimit="",
        QOS="",
        NodeList="node1",
        NNodes="1",
        End=str(now),
        State="FAILED",
    )
    programs(sacct=sacct([half, STEP]), scontrol=f"echo '{SHOWN} TimeLimit=00:02:00 QOS=normal'")
    [account] = schedulers.accounts(["27"])
    assert (account.name, account.nodes, account.n_nodes, account.time_limit_s, account.qos) == (
        "sft",
        "node[1-2]",
        2,
        120,
        "normal",
    )
    assert (len(account.steps), account.source, account.restarts) == (1, "sacct", 1)
    programs(
        sacct=sacct([half | {"State": "CANCELLED by 0"}, STEP]),
        scontrol=f"echo '{SHOWN.replace('=FAILED', '=COMPLETING')}'",
    )
    [account] = SlurmScheduler().accounts(["27"])
    assert (account.state, account.ended, account.nodes) == (
        "CANCELLED",
        now,
        "node[1-2]",
    ), "its nodes are still cleaned up"
    programs(scontrol=f"echo '{SHOWN.replace('=FAILED', '=RUNNING')}'")
    [account] = SlurmScheduler().accounts(["27"])
    assert account.state == "RUNNING", "it was requeued"
    programs(sacct=sacct([half | {"End": "1695321640"}, STEP]))
    assert [each.name for each in SlurmScheduler().accounts(["27"])] == ["allocation"], (
        "long ago it is a name"
    )


# politeness


def test_the_queue_is_asked_for_once_in_15_s(programs: Programs) -> None:
    programs(squeue=f"echo '{_queued('5')}'")
    for _ in range(4):
        jobs, silent = schedulers.all_jobs()
        assert ([job.job_id for job in jobs], silent) == (["5"], None)
    assert (len(calls("squeue")), len(calls("sacct"))) == (1, 1)
    for name, (at, about, answer) in list(query_cache._answers.items()):
        query_cache._answers[name] = (at - ASK_EVERY_S - 1, about, answer)
    schedulers.all_jobs()
    assert (len(calls("squeue")), len(calls("sacct"))) == (2, 2)
    schedulers.all_jobs(fresh=True)
    assert (len(calls("squeue")), len(calls("sacct"))) == (3, 3), "who acts on the answer asks anew"


def test_the_queue_is_newer_than_what_accounting_answered_before(programs: Programs) -> None:
    programs(squeue=f"cat {Path.cwd()}/queue 2>/dev/null; true", sacct=sacct([job("27")]))
    assert [(each.job_id, each.state) for each in schedulers.all_jobs()[0]] == [("27", "COMPLETED")]
    Path("queue").write_text(f"{_queued('27')}\n")
    query_cache._answers.pop("queue")
    assert [(each.job_id, each.state) for each in schedulers.all_jobs()[0]] == [("27", "PENDING")]


@pytest.mark.parametrize("act", ["submit", "cancel"])
def test_what_we_change_makes_answers_old(programs: Programs, act: str) -> None:
    programs(sbatch="echo 123")
    Path("job.sbatch").write_text("#!/bin/bash\ntrue\n")
    schedulers.all_jobs()
    if act == "submit":
        SlurmScheduler().submit(Path("job.sbatch"))
    else:
        SlurmScheduler().cancel(["5"])
    schedulers.all_jobs()
    assert len(calls("squeue")) == 2


def _queued(job_id: str, state: str = "PENDING") -> str:
    return SEPARATOR.join((job_id, "sft", state, "None", "0:00", "1:00:00", "1", "gpu", "N/A", ""))
