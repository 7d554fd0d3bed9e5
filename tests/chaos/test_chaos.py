"""The short campaign on the real Slurm, and what the campaign's judge says of runs that are not
well.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CANNOT_RUN_HERE = 3


@pytest.mark.slurm
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(3600)
def test_the_short_campaign(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            str(HERE / "campaign.py"),
            "--short",
            "--minutes",
            "50",
            "--out",
            str(tmp_path / "chaos"),
        ],
        capture_output=True,
        text=True,
    )
    if done.returncode == CANNOT_RUN_HERE and not (
        os.environ.get("CI") or os.environ.get("HPCTRAIN_REQUIRE_LAB")
    ):
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads((tmp_path / "chaos" / "report.json").read_text())
    assert len(found["faults"]) >= 5
    assert found["skipped"] == []


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"equal": False}, "the final weights are not those of the uninterrupted run"),
        ({"lost": 16}, "16 steps lost, 15 allowed"),
        ({"humans": 0}, "submitted again by hand 0 times, 1 expected"),
        ({"attempts": 1}, "started 1 times: the fault did not interrupt it"),
    ],
)
def test_the_judge_finds_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, seen: dict[str, int], words: str
) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    faults = importlib.import_module("faults")
    fault = faults.Fault("kill", "SIGKILL", faults.nothing, lost=15, human=1)
    well = {"humans": 1, "attempts": 2, "lost": 15, "equal": True}
    assert faults.judged(fault, **well) == []
    assert faults.judged(fault, **{**well, **seen}) == [words]
