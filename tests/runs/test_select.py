"""Which runs a person means."""

from pathlib import Path

import pytest

from hpctrain.jobs import targets
from hpctrain.jobs.targets import RunFilter
from hpctrain.runs.store import Attempt, Listing, Run

NOW = 1_000_000.0
RUNS = (
    Run(id="sft-a", tag="sft-a", created=NOW - 100),
    Run(
        id="sft-ab",
        tag="sft-ab",
        created=NOW - 1000,
        stage="sft",
        attempts=(Attempt(name="1.0", started=NOW - 500, ended=NOW - 10),),
    ),
    Run(id="grid_0", tag="grid", index=0, created=NOW - 8 * 86_400),
    Run(id="grid_1", tag="grid", index=1),
    Run(id="grid_10", tag="grid", index=10, stage="dpo", created=NOW),
)


LISTING = Listing(path=Path("runs"), runs=RUNS)


def chosen(*words: str, **more: object) -> list[str]:
    return [run.id for run in RunFilter(words=words, **more).choose(LISTING, NOW)]  # type: ignore[arg-type]


def test_age_counts_from_what_happened_last() -> None:
    assert chosen(older_than_s=50) == ["sft-a", "grid_0"]
    assert "grid_1" not in chosen(older_than_s=0)  # of an age that nobody knows


def test_kinds_all_hold_and_of_one_kind_any() -> None:
    assert chosen("grid", stages=("dpo", "sft")) == ["grid_10"]
    assert chosen("sft-*", "grid", stages=("dpo", "sft")) == ["sft-ab", "grid_10"]
    assert RunFilter().has("failed")
    assert RunFilter(states=("failed", "stopped")).has("stopped")
    assert not RunFilter(states=("failed",)).has("running")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("12h", 43_200), ("7d", 604_800), ("2w", 1_209_600), (" 0s ", 0)],
)
def test_age(text: str, seconds: int) -> None:
    assert targets.parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "-7d", "1.5h", "7 d", "7D", "\u0667d", "7dd"])
def test_what_is_no_age(text: str) -> None:
    with pytest.raises(ValueError, match="is not an age"):
        targets.parse_age(text)
