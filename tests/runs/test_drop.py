"""Removing runs: whole or not at all, whatever starts or is killed meanwhile."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpctrain.errors import HpctrainError
from hpctrain.runs import drop, store
from hpctrain.runs.store import Run
from tests.runs import make

HERE = str(Path(__file__).parent)


def build(runs: Path, run_id: str = "sft-1") -> Run:
    directory = make.run(runs, run_id)
    make.metrics(make.attempt(directory, outcome="failed", status=1), {"step": 10, "loss": 1.0})
    (directory / "checkpoints" / "checkpoint-10").mkdir(parents=True)
    (directory / "checkpoints" / "checkpoint-10" / "model.safetensors").write_bytes(b"x" * 1000)
    return read(runs, run_id)


def read(runs: Path, run_id: str = "sft-1") -> Run:
    found = store.read_run(runs, run_id)
    assert found is not None
    return found


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_a_run_goes_and_nothing_else(tmp_path: Path) -> None:
    run, other = build(tmp_path), build(tmp_path, "sft-10")
    (tmp_path / "sft-1" / "code").symlink_to(
        tmp_path / "sft-10", target_is_directory=True
    )  # a link is removed, and not followed
    before = files(tmp_path / "sft-10")
    drop.drop(tmp_path, run)
    assert [path.name for path in tmp_path.iterdir()] == ["sft-10"]
    assert files(tmp_path / "sft-10") == before
    drop.drop(tmp_path, run)  # somebody else was faster
    assert read(tmp_path, "sft-10") == other


CHANGES: dict[str, Callable[[Path], object]] = {
    "attempt": lambda run: make.attempt(run, "124"),
    "half an attempt": lambda run: (run / "attempts" / "124.0").mkdir(),
    "log": lambda run: make.metrics(run / "attempts" / "123.0", {"step": 11}),
    "checkpoint": lambda run: (run / "checkpoints" / "checkpoint-11").mkdir(),
    "end": lambda run: (run / "attempts" / "123.0" / "end.json").unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_has_changed_since_it_was_judged_stays(tmp_path: Path, change: str) -> None:
    run, directory = build(tmp_path), tmp_path / "sft-1"
    CHANGES[change](directory)
    before = files(directory)
    with pytest.raises(HpctrainError, match="sft-1 has changed while it was being removed"):
        drop.drop(tmp_path, run)
    assert files(directory) == before
    assert [path.name for path in tmp_path.iterdir()] == ["sft-1"]


def test_a_removal_that_was_killed_is_finished(tmp_path: Path) -> None:
    for name in ("sft-1", "sft-2"):
        build(tmp_path, name)
    (tmp_path / "sft-1").rename(tmp_path / ".dropped-ab.sft-1")
    drop.clean(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["sft-2"]


def test_weight(tmp_path: Path) -> None:
    build(tmp_path)
    size = sum(path.lstat().st_size for path in (tmp_path / "sft-1").rglob("*"))
    (tmp_path / "huge").write_bytes(b"x" * 10**6)
    (tmp_path / "sft-1" / "link").symlink_to(tmp_path / "huge")
    assert size < drop.weigh(tmp_path, "sft-1")[0] < size + 1000
    assert drop.weigh(tmp_path, "sft-1")[1] is None
    (tmp_path / "sft-2").symlink_to(tmp_path / "sft-1")
    assert "is a link to" in str(drop.weigh(tmp_path, "sft-2")[1])


@pytest.mark.slow
def test_a_job_that_starts_meanwhile_loses_nothing(tmp_path: Path) -> None:
    """A job makes attempts, one after the other, while the run is dropped again and again: what
    came after the judgement is there.
    """
    job = f"""
import os, sys, time
sys.path.insert(0, {HERE!r})
from pathlib import Path
import make
home, number, first = Path({str(tmp_path / "runs" / "sft-1")!r}), 0, 0
while True:
    number += 1
    name = home / "attempts" / f"{{number}}.0"
    first = first if name.parent.exists() else number
    while True:
        try:
            name.mkdir(parents=True, exist_ok=True)
            make.write(name / "start.json", {{"job_id": str(number), "at": time.time()}})
        except FileNotFoundError:  # the directory went away between the two lines; the script's start would be repeated
            continue
        break
    print(number, flush=True)
    time.sleep(0.003 if number % 7 else 0.0)
    while name.exists() and number - first > 20:  # on a slow disk, removals would never catch up
        time.sleep(0.001)
"""
    runs = tmp_path / "runs"
    runs.mkdir()
    process = subprocess.Popen([sys.executable, "-c", job], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    dropped, kept, judged = 0, 0, 0
    began = time.monotonic()
    # A disk that others use makes a removal take a second in place of a millisecond.
    while not kept or dropped < (100 if time.monotonic() - began < 6 else 21):
        assert time.monotonic() - began < 600, (dropped, kept)
        run = store.read_run(runs, "sft-1")
        if run is None or run.last is None:
            continue
        try:
            drop.drop(runs, run)
        except HpctrainError:
            kept += 1
            continue
        dropped += 1
        judged = max(int(attempt.name.partition(".")[0]) for attempt in run.attempts)
    process.send_signal(signal.SIGKILL)
    said = [int(line) for line in process.stdout.read().split()]
    process.wait()
    there = {int(path.name.partition(".")[0]) for path in (runs / "sft-1" / "attempts").glob("*.0")}
    assert {number for number in said if number > judged} <= there
    assert [
        path.name
        for path in runs.iterdir()
        if path.name != "sft-1" and not path.name.startswith(".kept")
    ] == []


@pytest.mark.slow
def _build_missing(folder: Path, count: int) -> dict[str, bytes]:
    """Make the runs that are not there, and return what each of them holds."""
    for number in range(count):
        if not (folder / f"sft-{number}").exists():
            build(folder, f"sft-{number}")
    return files(folder / "sft-0") | {"run.json": b""}


@pytest.mark.slow
def test_a_drop_that_is_killed_leaves_whole_runs_or_none(tmp_path: Path) -> None:
    draw = random.Random(5)
    code = f"""
from pathlib import Path
from hpctrain.runs import drop, store
runs = Path({str(tmp_path)!r})
print(flush=True)
for name in store.names(runs)[0]:
    drop.drop(runs, store.read_run(runs, name))
"""
    halves, went = 0, 0
    for tried in range(60):
        whole = _build_missing(tmp_path, 150)
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(draw.uniform(0.002, 0.02))
            process.kill()
        halves += len(list(tmp_path.glob(".dropp*")))
        for name in store.names(tmp_path)[0]:
            assert files(tmp_path / name) | {"run.json": b""} == whole
        drop.clean(tmp_path)
        assert list(tmp_path.glob(".dropp*")) == []
        went += 150 - len(store.names(tmp_path)[0])
        if tried >= 7 and halves and went:
            break
    assert halves > 0, "no kill has met a removal: the test has shown nothing"
    assert went > 0
