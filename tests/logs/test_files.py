"""Which files are logs, what their names say, and reading them whatever happens to them meanwhile."""

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctrain.logs import files as log_files
from hpctrain.logs import read

RUN_SCRIPT = """#!/bin/bash
#SBATCH --job-name=sft
#SBATCH --chdir={project}
#SBATCH --output={project}/logs/output_sft_%j.log
#SBATCH --error={project}/logs/error_sft_%j.log
"""


def attempt(project: Path, name: str, job: str, at: float) -> Path:
    folder = project / "runs" / "first" / "attempts" / name
    folder.mkdir(parents=True)
    start = {
        "schema": 1,
        "job_id": job,
        "slurm_job_id": job,
        "restart": int(name.partition(".")[2]),
        "host": "n01",
        "at": at,
    }
    (folder / "start.json").write_text(json.dumps(start))
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "run.json").write_text(
        '{"schema": 1, "run_id": "first", "tag": "first"}'
    )
    (tmp_path / "runs" / "first" / "script.sbatch").write_text(RUN_SCRIPT.format(project=tmp_path))
    return tmp_path


def test_a_runs_logs_over_restarts_and_resubmissions_are_in_order(project: Path) -> None:
    attempt(project, "70.0", "70", 2000.0)  # the ids of Slurm begin anew at some time
    attempt(project, "500.0", "500", 1000.0)
    ranks = attempt(project, "500.1", "500", 1500.0) / "ranks"
    ranks.mkdir()
    for rank in (500, 2):  # a rank that is the number of its job
        (ranks / f"rank-{rank}.log").write_text("x\n")
    for job in ("70", "500"):
        for stream in ("output", "error"):
            (project / "logs" / f"{stream}_sft_{job}.log").write_text("x\n")
    (project / "logs" / "output_sft.log").symlink_to("output_sft_70.log")
    files = log_files.of_run(project / "runs" / "first")
    assert [
        (file.path.name, file.job, file.attempt, file.stream, file.rank, file.copy)
        for file in files
    ] == [
        ("output_sft_500.log", "500", None, "out", None, False),
        ("error_sft_500.log", "500", None, "err", None, False),
        ("rank-2.log", "500", "500.1", "both", 2, True),
        ("rank-500.log", "500", "500.1", "both", 500, True),
        ("output_sft_70.log", "70", "70.0", "out", None, False),
        ("error_sft_70.log", "70", "70.0", "err", None, False),
    ]
    assert [file.order for file in files] == list(range(6))


def test_logs_of_a_project_that_was_moved_are_found_by_their_names(project: Path) -> None:
    attempt(project, "70.0", "70", 2000.0)
    script = project / "runs" / "first" / "script.sbatch"
    script.write_text(RUN_SCRIPT.format(project="/nowhere/else"))
    (project / "logs" / "output_sft_70.log").write_text("x\n")
    assert [file.path.name for file in log_files.of_run(project / "runs" / "first")] == [
        "output_sft_70.log"
    ]


def test_patterns_of_slurm_stand_for_all_tasks(tmp_path: Path) -> None:
    for task in (0, 2, 10):
        (tmp_path / f"n01_rank-{task}.out").write_text("x")
    files = log_files.of_job(tmp_path / "%N_rank-%2t.out")
    assert [file.rank for file in files] == [0, 2, 10]


def test_a_folder_of_anybodys_logs(tmp_path: Path) -> None:
    for name in (
        "slurm-12.out",
        "slurm-9_3.out",
        "slurm-9_20.out",
        "train.err",
        "train.out",
        "requirements.txt",
        "model.safetensors",
        "config.json",
        "tr/abc_x1/attempt_0/1/stderr.log",
        "tr/abc_x1/attempt_0/0/stderr.log",
        "tr/abc_x1/attempt_0/10/stdout.log",
        "checkpoint-5/train.log",
        "old.log",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x\n")
    (tmp_path / "link.log").symlink_to("old.log")
    files = log_files.of_paths([tmp_path])
    assert [str(file.path.relative_to(tmp_path)) for file in files] == [
        "slurm-9_3.out",
        "slurm-9_20.out",
        "slurm-12.out",
        "old.log",
        "train.out",
        "train.err",
        "tr/abc_x1/attempt_0/0/stderr.log",
        "tr/abc_x1/attempt_0/1/stderr.log",
        "tr/abc_x1/attempt_0/10/stdout.log",
    ]
    by_name = {file.path.name: file for file in files}
    assert by_name["train.out"].stream == "out"
    assert files[-2].rank == 1, "one node's local ranks are ranks"
    assert [
        file.path.name for file in log_files.of_paths([tmp_path / "old.log", tmp_path / "old.log"])
    ] == ["old.log"]


@pytest.mark.parametrize(
    ("name", "stream", "rank", "node", "job"),
    [
        ("slurm-123.out", "out", None, None, "123"),
        ("slurm-123_4.out", "out", None, None, "123_4"),
        ("output_sft_123_4.log", "out", None, None, "123_4"),
        ("error_sft_4711.log", "err", None, None, "4711"),
        ("rank-3.log", "both", 3, None, None),
        ("rank_12.err", "err", 12, None, None),
        ("train-20261122.log", "both", None, None, None),
        ("x.e12345", "err", None, None, "12345"),
        ("4711.out", "out", None, None, "4711"),
        ("train_node-n01.log", "both", None, "n01", None),
        ("slurm-5_rank-3.out", "out", 3, None, "5"),
        ("train_rank_3.log", "both", 3, None, None),
        ("log_node01_rank3.txt", "both", 3, None, None),
        ("output_rank_3.log", "out", 3, None, None),
        # What hpctrain gives: NAME is the user's, and the number is the job's.
        ("error_killed-rank_6.log", "err", None, None, "6"),
        ("output_lora-r8_123.log", "out", None, None, "123"),
        ("output_sft-a100_12.log", "out", None, None, "12"),
        ("output_n01_123_7.log", "out", None, None, "123_7"),
        ("output_sw_63_0.log", "out", None, None, "63_0"),
        ("error_lora_128_4711.log", "err", None, None, "4711"),
        ("output_node_a100_5.log", "out", None, None, "5"),
        ("error_rank-3-sft_99.log", "err", None, None, "99"),
        # Ranks of LoRA, models and hyperparameters are no processes, no nodes and no jobs.
        ("lora_rank8.log", "both", None, None, None),
        ("low-rank_16.log", "both", None, None, None),
        ("sft_r16.log", "both", None, None, None),
        ("gpt2_3.log", "both", None, None, None),
        ("a100_7.out", "out", None, None, None),
        ("llama-3_12.log", "both", None, None, None),
        ("step-1000.log", "both", None, None, None),
        ("seed_1234.log", "both", None, None, None),
        ("exp01_3.log", "both", None, None, None),
    ],
)
def test_what_a_name_says(
    name: str, stream: str, rank: int | None, node: str | None, job: str | None
) -> None:
    file = log_files.log_file(Path("/x") / name)
    assert (file.stream, file.rank, file.node, file.job) == (stream, rank, node, job)


def test_the_name_of_a_job_that_is_known_says_no_rank(tmp_path: Path) -> None:
    for name in ("output_rank_6.log", "rank_6.out"):
        assert [
            (file.rank, file.node, file.job) for file in log_files.of_job(tmp_path / name, job="6")
        ] == [(None, None, "6")]
    assert [file.rank for file in log_files.of_job(tmp_path / "output_n01_7_2.log", job="7_2")] == [
        None
    ]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from([b"a", b"\n", b"bc\n", b"\r", b"\r\n", b"\xc3\xa9", b"\0", b"x" * 50]),
        max_size=60,
    ),
    st.integers(1, 40),
)
def test_how_a_file_is_read_never_changes_its_lines(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], block: int
) -> None:
    content = b"".join(parts)
    path = tmp_path_factory.mktemp("x") / "log"
    path.write_bytes(content)
    pieces = list(read.pieces(path, block=block))
    assert b"".join(pieces) == content
    assert all(piece.endswith(b"\n") for piece in pieces[:-1])
    expected = content.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert list(read.lines(path)) == expected
    growing = read.Growing(path)
    path.write_bytes(b"")
    seen = b""
    with path.open("ab") as stream:
        for begin in range(0, len(content), block):
            stream.write(content[begin : begin + block])
            stream.flush()
            seen += growing.look()
            assert seen.endswith(b"\n") or not seen
    assert seen + growing.rest() == content


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=50), st.integers(0, 60), st.booleans())
def test_the_last_lines_are_found_from_the_end(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], count: int, ends: bool
) -> None:
    lines = [b"x" * size for size in sizes]
    path = tmp_path_factory.mktemp("x") / "log"
    path.write_bytes(b"\n".join(lines) + (b"\n" if ends and lines else b""))
    whole = list(read.lines(path))
    got = list(read.lines(path, start=read.tail(path, count)))
    assert got == (whole[-count:] if count else [])


def test_lines_that_are_too_long_are_divided_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"first\n" + b"y" * 30_000_000 + b"the end\nlast\n")
    lines = list(read.lines(path))
    assert [lines[0], lines[-1]] == [b"first", b"last"]
    assert b"".join(lines[1:-1]) == b"y" * 30_000_000 + b"the end"
    assert max(map(len, lines)) <= 3 << 20


def test_what_cannot_be_read_yields_nothing_and_says_why(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "half.log.gz").write_bytes(gzip.compress(b"line\n" * 10_000)[:60])
    (tmp_path / "no.log.gz").write_bytes(b"\x1f\x8b\x08\0 no such thing")
    for name in ("pipe.log", "gone.log", "no.log.gz", "."):
        assert list(read.pieces(tmp_path / name)) == []
    assert all(line == b"line" for line in list(read.lines(tmp_path / "half.log.gz"))[:-1])
    assert read.problem(tmp_path / "pipe.log") == "it is not a regular file"
    assert read.problem(tmp_path / "gone.log") is None
    assert read.problem(tmp_path) == "is a directory"


def test_a_file_that_grows_is_truncated_replaced_and_rotated(tmp_path: Path) -> None:
    path = tmp_path / "log"
    told: list[str] = []
    growing = read.Growing(path, tell=told.append)
    assert growing.look() == b""  # not there yet
    path.write_bytes(b"one\ntw")
    assert growing.look() == b"one\n"
    with path.open("ab") as stream:
        stream.write(b"o\nthree")
    assert growing.look() == b"two\n"
    path.write_bytes(b"new\n")
    assert growing.look() == b"three\nnew\n"  # the line that will never end is not lost
    path.rename(tmp_path / "log.1")
    path.write_bytes(b"after the rotation\n")
    assert growing.look() == b"after the rotation\n"
    assert told == ["truncated", "replaced"]
    path.unlink()
    assert growing.look() == b""
    path.write_bytes(b"back\nno end")
    assert growing.look() == b"back\n"
    looks = [growing.look() for _ in range(10)]
    assert looks.count(b"no end") == 1, "a line without an end comes after a while, once"
