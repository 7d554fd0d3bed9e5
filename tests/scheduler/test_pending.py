"""Why a job waits, and how many are ahead."""

import os
from pathlib import Path

import pytest

from hpctrain.slurm import pending
from hpctrain.slurm.notations.records import SEPARATOR, JobRecord
from hpctrain.slurm.pending import REASONS, QueuePlace, explain, place_each

PLAIN, LIMITS = (
    [word for word in part.splitlines() if word[0] != "#"]
    for part in (
        Path(__file__).with_name("recorded").joinpath("reasons.txt").read_text().split("\n\n")
    )
)


@pytest.mark.parametrize("reason", [*PLAIN, *LIMITS])
def test_every_reason_has_words_of_its_own(reason: str) -> None:
    said = explain(reason)
    assert said.words != reason
    assert " " in said.words
    assert said == explain(f"({reason})"), "as squeue's NODELIST(REASON) prints it"
    assert said.fix is None or "{" not in said.fix.replace("{job}", "")


def test_every_row_of_the_table_is_a_reason_of_slurm() -> None:
    assert {name for name in REASONS if " " not in name} == set(PLAIN)


@pytest.mark.parametrize(
    ("reason", "words", "kind"),
    [
        (
            "QOSMaxJobsPerUserLimit",
            "its QOS has no room now: QOSMaxJobsPerUserLimit",
            "limit",
        ),
        (
            "AssocGrpGRESMinutes",
            "your account has no room now: AssocGrpGRESMinutes",
            "limit",
        ),
        (
            "QOSMaxWallDurationPerJobLimit",
            "it requests more than its QOS allows: QOSMaxWallDurationPerJobLimit",
            "never",
        ),
        ("MaxGRESPerAccount", "its QOS has no room now: MaxGRESPerAccount", "limit"),
        ("QOSMinGRES", "it requests less than its QOS wants: QOSMinGRES", "never"),
        (
            "DependencyNeverSatisfied",
            "a job it depends on did not end as it should: it will never start",
            "never",
        ),
        (None, "not looked at yet by the scheduler", "queue"),
        ("ANewReasonOf28.05", "ANewReasonOf28.05", "queue"),
    ],
)
def test_what_some_of_them_say(reason: str | None, words: str, kind: str) -> None:
    assert (explain(reason).words, explain(reason).kind) == (words, kind)


def test_a_reason_with_a_detail() -> None:
    assert (
        "(unavailable: node[1-2])" in explain("ReqNodeNotAvail, UnavailableNodes:node[1-2]").words
    )
    assert len(explain(f"ReqNodeNotAvail, UnavailableNodes:{'node1,' * 200}").words) < 200
    long = (
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority"
        " partitions"
    )
    assert explain(long) == explain(long.replace(" ", "_")) != explain("x")


# the place in the queue


def line(
    job_id: str,
    priority: int,
    user: str = "eve",
    *,
    partition: str = "gpu",
    reason: str = "Priority",
    start: str = "N/A",
) -> str:
    return SEPARATOR.join((job_id, user, str(priority), partition, reason, start)) + "\n"


def waiting(job_id: str, partition: str = "gpu", reason: str = "Priority") -> JobRecord:
    return JobRecord(
        job_id=job_id, scheduler="slurm", state="PENDING", partition=partition, reason=reason
    )


def test_those_of_higher_priority_in_the_partition_are_ahead() -> None:
    queue = (
        line("1", 900, reason="Resources")
        + line("2_[0-99]", 800)
        + line("3", 700, "ada")
        + line("4", 600, "ada", start="1795323307")
        + line("5", 500)
        + line("6", 950, partition="cpu")
        + line("7", 999, reason="JobHeldUser")
        + line("8", 998, reason="Dependency")
        + line("9", 997, reason="BeginTime")
        + "squeue: warning\n"
    )
    assert place_each(queue, [waiting("4"), waiting("99")], user="ada") == {
        "4": QueuePlace(ahead=3, mine=1, expected=1795323307.0)
    }


def test_all_partitions_are_one_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text(
        f"#!/bin/bash\necho \"$*\" >> {tmp_path}/calls\nprintf '%s'"
        f" '{line('1', 9)}{line('2', 8, 'ada')}'\n"
    )
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LOGNAME", "ada")
    jobs = [waiting("2"), waiting("3", "b,a")]
    for _ in range(3):
        assert pending.places(jobs, timeout=60, max_age_s=600)["2"].ahead == 1
    [call] = (tmp_path / "calls").read_text().splitlines()
    assert "-t PENDING -p a,b,gpu" in call
    squeue.write_text("#!/bin/bash\nexit 1\n")
    assert pending.places(jobs, timeout=60, max_age_s=0) == {}
    assert pending.places([], timeout=60, max_age_s=0) == {}
