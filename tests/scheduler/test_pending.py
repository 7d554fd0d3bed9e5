"""Why a job waits."""

from pathlib import Path

import pytest

from hpctrain.slurm.pending import REASONS, explain

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
