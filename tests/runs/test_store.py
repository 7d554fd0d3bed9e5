"""Reading a run: what is there is told, what cannot be read is named, and nothing keeps the reader
waiting.
"""

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hpctrain.runs import store
from hpctrain.runs.store import Attempt, Run, read_run
from tests.runs import make

FILES = (
    "run.json",
    "attempts/123.0/start.json",
    "attempts/123.0/end.json",
    "attempts/123.0/metrics.jsonl",
)


def read(runs: Path, run: str = "sft-1") -> Run:
    found = read_run(runs, run)
    assert found is not None
    return found


def test_a_run_is_read_whole(tmp_path: Path) -> None:
    directory = make.run(tmp_path, "t_3", tag="t", index=3, stage="sft")
    make.attempt(
        directory, "123_3", slurm_job_id="126", outcome="requeued", status=85, reason="deadline"
    )
    last = make.attempt(
        directory, "123_3", slurm_job_id="126", restart=1, at=make.AT + 100, said="85 deadline"
    )
    make.metrics(
        last,
        {"step": 10, "loss": 2.5},
        {"step": 20, "loss": 1.5},
        {"event": "end", "step": 21, "train_loss": 2.0},
    )
    (directory / "checkpoints" / "checkpoint-20").mkdir(parents=True)
    (directory / "checkpoints" / ".saving-40.126.1").mkdir()
    assert read(tmp_path, "t_3") == Run(
        id="t_3",
        tag="t",
        name="sft",
        stage="sft",
        index=3,
        created=make.AT,
        last_step=21,
        last_loss=1.5,
        checkpoints=1,
        attempts=(
            Attempt(
                name="126.0",
                job_id="123_3",
                slurm_job_id="126",
                host="node1",
                started=make.AT,
                ended=make.AT + 60,
                status=85,
                outcome="requeued",
                reason="deadline",
            ),
            Attempt(
                name="126.1",
                job_id="123_3",
                slurm_job_id="126",
                restart=1,
                host="node1",
                started=make.AT + 100,
                reason="deadline",
                exit_code=85,
            ),
        ),
    )
    assert read(tmp_path, "t_3").since == make.AT + 100
    assert read(tmp_path, "t_3").job_ids == ("123_3",)


def test_a_directory_without_a_run_is_none(tmp_path: Path) -> None:
    (tmp_path / "Nov20_10-11-12_host").mkdir()  # as TensorBoard makes them in ./runs
    (tmp_path / "Nov20_10-11-12_host" / "events.out.tfevents.1").touch()
    (tmp_path / "notes.txt").touch()
    (tmp_path / ".launches").mkdir()
    (tmp_path / "a\x1b[31mb").mkdir()
    assert store.names(tmp_path) == (["Nov20_10-11-12_host"], ["a\x1b[31mb"])
    assert read_run(tmp_path, "Nov20_10-11-12_host") is None
    assert read_run(tmp_path, "missing") is None


def test_a_run_that_has_just_been_made(tmp_path: Path) -> None:
    (tmp_path / "sft-1" / "attempts" / "123.0").mkdir(parents=True)
    assert read(tmp_path) == Run(
        id="sft-1", tag="sft-1", attempts=(Attempt(name="123.0", slurm_job_id="123"),)
    )


def huge(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(10**12)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "directory": Path.mkdir,
    "fifo": os.mkfifo,
    "huge": huge,
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(b'{"schema": 1, "run_'),
    "binary": lambda path: path.write_bytes(bytes(range(256))),
    "list": lambda path: path.write_bytes(b"[1]\n"),
    "deep": lambda path: path.write_bytes(b"[" * 50_000),
    "types": lambda path: path.write_bytes(
        b'{"run_id": 1, "tag": "../x", "name": ["\\u001b"], "created": "soon", "index":'
        b' true, "stage": {}, "job_id": 7, "restart": {}, "at": 1e400, "outcome":'
        b' "well", "status": "0", "reason": 1, "step": true, "loss": "low"}\n'
    ),
    "loop": lambda path: path.symlink_to(path),
    "closed": lambda path: path.symlink_to("/proc/self/mem"),  # opens, and cannot be read
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("kind", DAMAGES)
def test_hostile_files_are_named_and_the_rest_is_read(tmp_path: Path, file: str, kind: str) -> None:
    directory = make.run(tmp_path)
    make.metrics(make.attempt(directory, outcome="completed"), {"step": 3, "loss": 1.0})
    (directory / file).unlink()
    DAMAGES[kind](directory / file)
    run = read(tmp_path)
    assert run.id == run.tag == "sft-1"
    assert [attempt.name for attempt in run.attempts] == ["123.0"]
    harmless = file.endswith("metrics.jsonl") and kind not in (
        "directory",
        "fifo",
        "loop",
        "closed",
    )
    if kind == "types":
        assert run.problems == ()
        assert None in (run.name, run.attempts[0].job_id, run.attempts[0].outcome, run.last_step)
    elif harmless:  # a log that ends in half a line is no problem
        assert (run.problems, run.last_step) == ((), None)
    else:
        assert len(run.problems) == 1
        assert run.problems[0].startswith(f"{file}: ")


def test_restarts_of_a_job_are_counted_and_jobs_follow_each_other(tmp_path: Path) -> None:
    directory = make.run(tmp_path)
    make.attempt(directory, "9", restart=10, at=make.AT - 50)  # the clock of its node is behind
    make.attempt(directory, "9", restart=2, at=make.AT - 40)
    make.attempt(directory, "9", at=make.AT - 60)
    make.attempt(
        directory, "90000001", at=make.AT - 1000
    )  # on this machine, whose ids are larger than Slurm's
    make.attempt(directory, "10", at=make.AT)
    (directory / "attempts" / "11.0").mkdir()
    assert [attempt.name for attempt in read(tmp_path).attempts] == [
        "90000001.0",
        "9.0",
        "9.2",
        "9.10",
        "10.0",
        "11.0",
    ]


def test_jobs_of_one_id_are_told_apart(tmp_path: Path) -> None:
    """Job 9 worked on the run, then 10, and then another job 9."""
    directory = make.run(tmp_path)
    again = int(make.AT + 90_000)
    make.attempt(directory, "9", at=again).rename(directory / "attempts" / f"9.0.{again}")
    make.attempt(directory, "9", restart=1, at=again + 20).rename(
        directory / "attempts" / f"9.1.{again + 20}"
    )
    make.attempt(directory, "9", restart=2, at=again + 40)
    make.attempt(directory, "9", restart=1, at=make.AT + 50)
    make.attempt(directory, "9", at=make.AT)
    make.attempt(directory, "10", at=make.AT + 100)
    run = read(tmp_path)
    assert [attempt.name for attempt in run.attempts] == [
        "9.0",
        "9.1",
        "10.0",
        f"9.0.{again}",
        f"9.1.{again + 20}",
        "9.2",
    ]
    assert [attempt.job for attempt in run.attempts] == ["9", "9", "10", "9", "9", "9"]


def test_the_end_of_a_log_is_read_and_half_a_line_is_none(tmp_path: Path) -> None:
    directory = make.run(tmp_path)
    path = make.attempt(directory)
    make.metrics(path, *({"step": step, "loss": 1 / step} for step in range(1, 3000)))
    with (path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 4000, "loss": 0.1')
    assert (read(tmp_path).last_step, read(tmp_path).last_loss) == (2999, 1 / 2999)
    with (path / "metrics.jsonl").open("a") as stream:
        stream.write("}")  # the next byte may go on with anything
    assert read(tmp_path).last_step == 2999
    with (path / "metrics.jsonl").open("a") as stream:
        stream.write(
            '\n{"event": "log", "at": 1794600005, "step": 4001, "loss": null, "nonfinite":'
        )
        stream.write(' {"loss": "nan"}}\n')
    assert read(tmp_path).last_step == 4001
    assert math.isnan(read(tmp_path).last_loss or 0.0)


def test_without_a_log_the_newest_checkpoint_tells_the_step(tmp_path: Path) -> None:
    directory = make.run(tmp_path)
    make.attempt(directory)
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-x", ".saving-20.123.0"):
        (directory / "checkpoints" / name).mkdir(parents=True)
    assert (read(tmp_path).last_step, read(tmp_path).checkpoints) == (10, 2)
