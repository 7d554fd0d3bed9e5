"""The proof: 200 processes write into one runs/ at once, some are killed in the middle of it, and readers list all the time.

A writer reports a thing on its pipe once the call that wrote it has returned. Whatever was reported is there; whatever is there is whole;
the index agrees with the files, and is made again when it is thrown away.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain.runs import files, store
from hpctrain.runs.index import read_all
from hpctrain.runs.store import Run

WRITERS = 200
KILLED = 60
READERS = 2
LISTINGS = 10
#: Long enough that half a file would be seen: many pages.
PADDING = "x" * 20_000


def writer(runs: Path, number: int, report: int) -> None:
    """Make runs until the end of time: run.json, two attempts each, start, log, end; some of them shared with the next writer."""

    def done(*words: object) -> None:
        os.write(report, (" ".join(map(str, words)) + "\n").encode())  # below PIPE_BUF: whole

    for turn in range(1_000_000):
        shared = turn % 3 == 0
        run = f"w-{number // 2 if shared else number}-{turn}{'-s' if shared else ''}"
        home = runs / run
        home.mkdir(exist_ok=True)
        files.write_json(home / "run.json", {"schema": 1, "run_id": run, "tag": run, "name": "w", "created": 1.0, "pad": PADDING})
        done("run", run)
        for restart in range(2):
            job = str(1 + number)
            attempt = home / "attempts" / f"{job}.{restart}"
            attempt.mkdir(parents=True, exist_ok=True)
            files.write_json(
                attempt / "start.json",
                {"schema": 1, "job_id": job, "slurm_job_id": job, "restart": restart, "host": "h", "at": 5.0 + restart, "pad": PADDING},
            )
            done("start", run, attempt.name)
            with (attempt / "metrics.jsonl").open("ab", buffering=0) as stream:
                for step in range(1, 4):
                    stream.write(b'{"event": "log", "step": %d, "loss": 1.0, "at": 1}\n' % step)
            done("step", run, attempt.name, 3)
            files.write_json(attempt / "end.json", {"schema": 1, "at": 9.0, "status": 0, "outcome": "completed", "pad": PADDING})
            done("end", run, attempt.name)


def reader(runs: Path, report: int, seed: int) -> None:
    """List until the end of time, with the index and without, and throw it away now and then; what is half-read is reported."""
    draw, seen = random.Random(seed), 0
    while True:
        listing = read_all(runs, index=draw.random() < 0.8, settled_ns=draw.choice((0, 50_000_000, 500_000_000)))
        wrong = [f"{run.id}: {'; '.join(run.problems)}" for run in listing.runs if run.problems]
        fewer = len(listing.runs) < seen
        seen = len(listing.runs)
        os.write(report, (f"wrong {wrong[:3]} fewer {fewer}\n" if wrong or fewer else f"listed {seen}\n").encode())
        if draw.random() < 0.1:
            shutil.rmtree(runs / ".index", ignore_errors=True)
        time.sleep(0.02)


def start(gate: tuple[int, int], body: object, *arguments: object) -> tuple[int, int]:
    """Start a process of its own, which waits until the gate is closed; return its id and the pipe on which it reports."""
    read_end, write_end = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.close(read_end)
            os.close(gate[1])
            os.read(gate[0], 1)
            os.nice(10 if body is writer else 0)  # who kills and reads must not have to wait for 200
            body(*arguments, write_end)  # type: ignore[operator]
        except BaseException as error:
            os.write(write_end, f"raised {error!r}\n".encode()[:4000])
        finally:
            os._exit(1)
    os.close(write_end)
    return process, read_end


def collect(pipe: int, into: bytearray) -> None:
    os.set_blocking(pipe, False)
    while True:
        try:
            piece = os.read(pipe, 65536)
        except BlockingIOError:
            return
        if not piece:
            return
        into += piece


@pytest.mark.slow
def test_200_processes_write_at_once_some_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    runs, draw = tmp_path / "runs", random.Random(11)
    runs.mkdir()
    said: dict[int, bytearray] = {}
    pipes: dict[int, int] = {}
    gate = os.pipe()
    try:
        for number in range(READERS):
            process, pipe = start(gate, lambda path, seed, report: reader(path, report, seed), runs, number)
            pipes[process], said[process] = pipe, bytearray()
        readers = list(pipes)
        for number in range(WRITERS):
            process, pipe = start(gate, writer, runs, number)
            pipes[process], said[process] = pipe, bytearray()
        writers = list(pipes)[READERS:]
        os.close(gate[1])
        kills = {process: time.monotonic() + draw.uniform(0.5, 6) for process in draw.sample(writers, KILLED)}
        spared = [process for process in writers if process not in kills]
        begun = time.monotonic()
        # On a machine with other things to do, until the readers have had their turns.
        while (now := time.monotonic()) < begun + 7 or (now < begun + 25 and sum(said[each].count(b"\n") for each in readers) < LISTINGS):
            for process, pipe in pipes.items():
                collect(pipe, said[process])
            for process in [process for process, at in kills.items() if at < time.monotonic()]:
                os.kill(process, signal.SIGKILL)
                del kills[process]
            time.sleep(0.01)
    finally:
        for process in pipes:
            os.kill(process, signal.SIGKILL)
    os.close(gate[0])
    for process, pipe in pipes.items():
        os.waitpid(process, 0)
        collect(pipe, said[process])
        os.close(pipe)
    assert all(said[process] for process in spared), "a process was kept from writing"
    judge(runs, [bytes(said[process]).decode() for process in writers], [bytes(said[process]).decode() for process in readers])


def judge(runs: Path, writers: list[str], readers: list[str]) -> None:
    listing = read_all(runs, index=False)
    by_id = {run.id: run for run in listing.runs}
    reported: Counter[str] = Counter()
    for text in writers:
        for line in text.splitlines():
            kind, *words = line.split()
            reported[kind] += 1
            assert kind != "raised", line
            assert holds(by_id.get(words[0]), kind, words[1:]), line
    # Somebody was killed in the middle of a file.
    assert min(reported[kind] for kind in ("run", "start", "step", "end")) >= WRITERS
    assert [run.id for run in by_id.values() if run.problems] == []
    left = [path for path in runs.rglob(".*") if len(path.name.rpartition(".")[2]) == 32]
    assert left, "no kill has met a write: the test has shown nothing"
    listings = [line for text in readers for line in text.splitlines()]
    assert len(listings) >= LISTINGS
    assert [line for line in listings if not line.startswith("listed ")] == []
    # The index that they have left agrees with the files, and so does one that is made anew.
    shown = {run.id: run for run in read_all(runs).runs}
    assert shown == by_id
    shutil.rmtree(runs / ".index", ignore_errors=True)
    time.sleep(0.05)
    assert {run.id: run for run in read_all(runs, settled_ns=0).runs} == by_id
    again = read_all(runs, settled_ns=0)
    assert ({run.id: run for run in again.runs}, again.reread) == (by_id, 0)


def holds(run: Run | None, kind: str, words: list[str]) -> bool:
    """Whether what a writer has reported is there."""
    if run is None:
        return False
    if kind == "run":
        return (run.name, run.created) == ("w", 1.0)
    attempt = next((attempt for attempt in run.attempts if attempt.name == words[0]), None)
    if attempt is None:
        return False
    if kind == "start":
        return replace(attempt, ended=None, outcome=None, status=None).started == 5.0 + attempt.restart and attempt.host == "h"
    if kind == "end":
        return (attempt.outcome, attempt.ended) == ("completed", 9.0)
    return run.last_step == 3


def test_what_a_kill_leaves_behind_is_no_part_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "sft-1").mkdir()
    files.write_json(tmp_path / "sft-1" / "run.json", {"name": "x"})
    (tmp_path / "sft-1" / ".run.json.0123456789abcdef0123456789abcdef").write_text("{")
    (tmp_path / "sft-1" / "attempts" / ".half").mkdir(parents=True)
    run = store.read_run(tmp_path, "sft-1")
    assert run is not None
    assert (run.problems, run.attempts) == ((), ())
