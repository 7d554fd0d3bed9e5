"""bench/gpu, rehearsed whole on the CPU at toy size."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GPU = Path(__file__).parents[2] / "bench" / "gpu"


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
