"""bench/gpu: rehearsed whole on the CPU at toy size, and the page that is made of its results."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

GPU = Path(__file__).parents[2] / "bench" / "gpu"
MACHINE: dict[str, Any] = {
    "gpu": {"name": "NVIDIA H100 80GB HBM3", "driver_version": "580.159"},
    "versions": {"torch": "2.11.0", "bitsandbytes": None},
}


def started(program: str, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, GPU / program, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(1800)  # some twenty trainings
@pytest.mark.usefixtures("no_slurm")
def test_every_part_runs_at_toy_size_and_resumes(tmp_path: Path) -> None:
    words = ("all", "--tiny", "--out", tmp_path / "out", "--work", tmp_path / "work")
    done = started("run.py", *words)
    found = {
        file.stem: json.loads(file.read_text())["measurements"]
        for file in (tmp_path / "out").glob("*.json")
    }
    wrong = {
        (part, name): row
        for part, rows in found.items()
        for name, row in rows.items()
        if not {"result", "skipped"} & set(row)
    }
    assert not wrong, done.stderr[-3000:]
    assert done.returncode == 0
    skipped = {name for rows in found.values() for name, row in rows.items() if "skipped" in row}
    assert skipped == {"out of memory", "QLoRA", "FSDP on one rank"}, "what needs a GPU, no more"
    resumed = found["behaviour"]["resume to the bit"]["result"]
    assert resumed["same_weights"]
    assert resumed["attempts"] > 1
    assert "nan-loss" in found["behaviour"]["NaN"]["result"]["diagnoses"]

    # Cut off: what is there stays, what is missing is made.
    file = tmp_path / "out" / "machine.json"
    text = json.loads(file.read_text())
    del text["measurements"]["copy"]
    file.write_text(json.dumps(text))
    assert started("run.py", "machine", *words[1:]).returncode == 0
    again = json.loads(file.read_text())["measurements"]
    assert again["matrix product"]["at"] == found["machine"]["matrix product"]["at"]
    assert "result" in again["copy"]


def test_the_page_has_what_was_measured_and_what_was_not(tmp_path: Path) -> None:
    results, page = tmp_path / "memory.json", tmp_path / "performance.md"
    page.write_text((GPU.parents[1] / "docs" / "performance.md").read_text())
    row = {
        "predicted_allocated": 3 << 30,
        "peaks": {"torch_peak_mib": 3000},
        "ratio_allocated": 1.024,
    }
    part = {
        "schema": 1,
        "part": "memory",
        "tiny": False,
        "machine": MACHINE,
        "measurements": {
            "0.6b packed": {"result": row, "at": "2026-11-22T10:00:00+00:00"},
            "8b LoRA packed": {"pending": "150 s needed, 90 s were left"},
        },
    }
    results.write_text(json.dumps(part))
    assert started("page.py", results, "--page", page).returncode == 0
    text = page.read_text()
    assert (
        "| 0.6b packed | predicted 3.00 GiB; torch's peak 2.93 GiB; predicted / torch's 1.024 |"
        in text
    )
    assert "| 8b LoRA packed | pending: 150 s needed, 90 s were left |" in text
    assert "driver 580.159; torch 2.11.0; 2026-11-22" in text
    assert "`bench/gpu/start speed --out results`" in text, "what was not measured is listed"
    assert started("page.py", "--page", page).returncode == 0
    assert page.read_text() == (GPU.parents[1] / "docs" / "performance.md").read_text()
