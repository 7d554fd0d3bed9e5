"""Runs and checkpoints out into one file and back in, on another machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from checkpoint_maker import fill, make_run, save, tree
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.runs import archive, checkpoints, tar_stream, unpack


@pytest.mark.parametrize("name", ["out.tar", "out.tar.gz", "out.tgz"])
def test_a_run_arrives_as_it_left(tmp_path: Path, name: str) -> None:
    here, there = tmp_path / "here/runs", tmp_path / "there/runs"
    run = make_run(here)
    (run / "script.sbatch").write_text("#!/bin/bash\n")
    (run / "script.sbatch").chmod(0o755)
    fill(run, {os.fsdecode(b"caf\xe9.txt"): b"1", "long/" * 40 + "name" * 30: b"2", "umlaut-ä": b"", "empty": b""})
    os.utime(run / "empty", (1000, 1000))
    done = archive.export_runs([run], tmp_path / name)
    assert done.runs == ("sft-1",)
    assert done.left_out == ()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", name]

    shutil.rmtree(tmp_path / "here")
    brought = unpack.import_runs(tmp_path / name, there)
    assert brought.paths == (there / "sft-1",)
    assert [path.name for path in there.iterdir()] == ["sft-1"]
    arrived = there / "sft-1"
    assert (arrived / "script.sbatch").stat().st_mode & 0o777 == 0o755
    assert (arrived / "empty").stat().st_mtime == 1000
    assert (arrived / os.fsdecode(b"caf\xe9.txt")).read_bytes() == b"1"
    assert (arrived / ("long/" * 40 + "name" * 30)).read_bytes() == b"2"
    assert (arrived / "code/lib/tools.py").read_bytes() == b"x = 1\n"
    for folder in ("model", "checkpoints/checkpoint-10", "checkpoints/checkpoint-20"):
        assert checkpoints.problems(arrived / folder, digests=True) == ()
    newest, skipped = checkpoints.newest_complete(arrived / "checkpoints", digests=True)
    assert newest is not None
    assert (newest.step, skipped) == (20, ())


def test_an_ordinary_tar_reads_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    archive.export_runs([run], tmp_path / "out.tgz")
    (tmp_path / "unpacked").mkdir()
    subprocess.run(["tar", "-xzf", str(tmp_path / "out.tgz"), "-C", str(tmp_path / "unpacked")], check=True)
    assert tree(tmp_path / "unpacked/sft-1") == tree(run)


def test_the_same_run_gives_the_same_order(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    archive.export_runs([run], tmp_path / "one.tar")
    archive.export_runs([run], tmp_path / "two.tar")
    names = [
        subprocess.run(["tar", "-tf", str(tmp_path / name)], capture_output=True, check=True).stdout for name in ("one.tar", "two.tar")
    ]
    assert names[0] == names[1]
    assert names[0].splitlines()[0] == b"hpctrain-archive.json"
    assert names[0].splitlines()[-1] == b"hpctrain-digests.json"


@given(
    content=st.dictionaries(
        st.lists(
            st.text(st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1, max_size=30),
            min_size=1,
            max_size=3,
        )
        .map("/".join)
        .filter(lambda name: not {"", ".", ".."} & set(name.split("/")) and name[0] != "."),
        st.binary(max_size=2000),
        max_size=6,
    ),
    compress=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_files_make_the_round_trip(content: dict[str, bytes], compress: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "runs/r").mkdir(parents=True)
        with contextlib.suppress(FileExistsError, NotADirectoryError, IsADirectoryError):  # a file where a directory would have to be
            fill(root / "runs/r", content)
        before = tree(root / "runs/r")
        out = root / ("out.tar.gz" if compress else "out.tar")
        archive.export_runs([root / "runs/r"], out, incomplete=True)  # a folder may be called model
        if before:
            unpack.import_runs(out, root / "other")
            assert tree(root / "other/r") == before


def test_links_and_unfinished_things_stay_behind_and_are_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    (tmp_path / "secret").write_text("of somebody else")
    (run / "notes").symlink_to(tmp_path / "secret")
    (run / "elsewhere").symlink_to(tmp_path)
    os.mkfifo(run / "pipe")
    fill(run / "checkpoints/.saving-30.11.1", {"half": b""})
    fill(run, {f".config.json.{'0' * 32}": b"killed while it was written"})
    # A checkpoint may have been moved to another file system.
    (run / "checkpoints/checkpoint-10").rename(tmp_path / "moved")
    (run / "checkpoints/checkpoint-10").symlink_to(tmp_path / "moved")
    done = archive.export_runs([run], tmp_path / "out.tar", code=False)
    assert sorted(done.left_out) == [
        "sft-1/checkpoints/.saving-30.11.1: unfinished", "sft-1/code: the snapshot of the code", "sft-1/elsewhere: a link",
        "sft-1/notes: a link", "sft-1/pipe: no plain file",
    ]  # fmt: skip
    unpack.import_runs(tmp_path / "out.tar", tmp_path / "other")
    arrived = tree(tmp_path / "other/sft-1")
    assert not any("of somebody else" in data.decode(errors="replace") for data in arrived.values())
    assert not any(path.is_symlink() for path in (tmp_path / "other").rglob("*"))
    assert checkpoints.problems(tmp_path / "other/sft-1/checkpoints/checkpoint-10", digests=True) == ()


def test_checkpoints_that_are_not_complete_are_not_exported_unless_wanted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    os.truncate(run / "checkpoints/checkpoint-10/optimizer.pt", 5)
    with pytest.raises(HpctrainError, match="1 checkpoint is not complete") as raised:
        archive.export_runs([run], tmp_path / "out.tar")
    assert "sft-1/checkpoints/checkpoint-10: optimizer.pt has 5 bytes" in raised.value.render()
    with pytest.raises(HpctrainError, match="checkpoint-10 is not complete"):
        archive.export_checkpoint(run, run / "checkpoints/checkpoint-10", tmp_path / "out.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    archive.export_runs([run], tmp_path / "out.tar", incomplete=True)
    unpack.import_runs(tmp_path / "out.tar", tmp_path / "other")
    assert checkpoints.problems(tmp_path / "other/sft-1/checkpoints/checkpoint-10", digests=False)


def test_a_flipped_bit_in_a_checkpoint_is_met_while_it_is_exported(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    weights = run / "checkpoints/checkpoint-10/model.safetensors"
    weights.write_bytes(b"W" + weights.read_bytes()[1:])
    with pytest.raises(HpctrainError, match=r"checkpoint-10/model\.safetensors has changed since it was saved"):
        archive.export_runs([run], tmp_path / "out.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_log_may_grow_while_it_is_read_and_not_shrink(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    log = run / "attempts/11.1/metrics.jsonl"
    seen = []

    def grows(count: int) -> None:
        seen.append(count)
        with log.open("a") as stream:
            stream.write("more\n")

    before = log.read_bytes()
    archive.export_runs([run], tmp_path / "out.tar", progress=grows)
    unpack.import_runs(tmp_path / "out.tar", tmp_path / "other")
    assert (tmp_path / "other/sft-1/attempts/11.1/metrics.jsonl").read_bytes()[: len(before)] == before
    assert sum(seen) == sum(len(data) for data in tree(tmp_path / "other/sft-1").values()) - len(
        (tmp_path / "other/sft-1/attempts/11.1/end.json").read_bytes()
    )
    with pytest.raises(HpctrainError, match="became shorter"):
        archive.export_runs([run], tmp_path / "out2.tar", progress=lambda count: os.truncate(log, 1))


def test_an_existing_archive_is_replaced_only_when_wanted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    (tmp_path / "out.tar").write_text("precious")
    with pytest.raises(UsageError, match="exists"):
        archive.export_runs([run], tmp_path / "out.tar")
    with pytest.raises(UsageError, match="is a directory"):
        archive.export_runs([run], tmp_path / "runs")
    with pytest.raises(UsageError, match="there is no directory"):
        archive.export_runs([run], tmp_path / "nowhere/out.tar")
    assert (tmp_path / "out.tar").read_text() == "precious"
    archive.export_runs([run], tmp_path / "out.tar", replace=True)
    assert unpack.read_head(tmp_path / "out.tar").runs == ("sft-1",)


def test_several_runs_and_one_that_exists(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "runs", f"sft-{number}", (10,)) for number in (1, 2, 3)]
    archive.export_runs(runs, tmp_path / "out.tar")
    make_run(tmp_path / "other", "sft-2", ())
    before = tree(tmp_path / "other")
    with pytest.raises(UsageError, match="run sft-2 exists"):
        unpack.import_runs(tmp_path / "out.tar", tmp_path / "other")
    with pytest.raises(UsageError, match="--as names one run, and the archive holds 3"):
        unpack.import_runs(tmp_path / "out.tar", tmp_path / "other", as_="sft-9")
    assert tree(tmp_path / "other") == before
    unpack.import_runs(tmp_path / "out.tar", tmp_path / "third")
    assert sorted(path.name for path in (tmp_path / "third").iterdir()) == ["sft-1", "sft-2", "sft-3"]


def test_another_id(tmp_path: Path) -> None:
    archive.export_runs([make_run(tmp_path / "runs")], tmp_path / "out.tar")
    with pytest.raises(UsageError, match="run sft-1 exists") as raised:
        unpack.import_runs(tmp_path / "out.tar", tmp_path / "runs")
    assert raised.value.fix == "the same command with --as sft-1-imported"
    for bad in ("../sft", "", ".sft", "a/b"):
        with pytest.raises(UsageError, match="cannot be a run's id"):
            unpack.import_runs(tmp_path / "out.tar", tmp_path / "runs", as_=bad)
    unpack.import_runs(tmp_path / "out.tar", tmp_path / "runs", as_="sft-1-imported")
    said = json.loads((tmp_path / "runs/sft-1-imported/run.json").read_text())
    assert (said["run_id"], said["tag"], said["imported_as"], said["created"]) == ("sft-1-imported", "sft-1-imported", "sft-1", 90)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (None, ("stopped", "imported")),
        ({"schema": 1, "at": 9, "status": 85, "reason": "deadline", "outcome": "requeued"}, ("stopped", "imported")),
        ({"schema": 1, "at": 9, "status": 0, "reason": "completed", "outcome": "completed"}, ("completed", "completed")),
        ({"schema": 1, "at": 9, "status": 1, "reason": "nan", "outcome": "failed"}, ("failed", "nan")),
    ],
)
def test_no_scheduler_is_asked_about_a_job_of_another_machine(
    tmp_path: Path, end: dict[str, object] | None, expected: tuple[str, str]
) -> None:
    run = make_run(tmp_path / "runs", steps=())
    if end:
        (run / "attempts/11.1/end.json").write_text(json.dumps(end))
    earlier = {"schema": 1, "at": 5, "status": 85, "reason": "deadline", "outcome": "requeued"}
    (run / "attempts/11.0/end.json").write_text(json.dumps(earlier))
    archive.export_runs([run], tmp_path / "out.tar")
    unpack.import_runs(tmp_path / "out.tar", tmp_path / "other")
    said = json.loads((tmp_path / "other/sft-1/attempts/11.1/end.json").read_text())
    assert (said["outcome"], said["reason"]) == expected
    assert json.loads((tmp_path / "other/sft-1/attempts/11.0/end.json").read_text()) == earlier


def test_a_checkpoint_goes_into_its_run_or_brings_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    archive.export_checkpoint(run, run / "checkpoints/checkpoint-20", tmp_path / "c.tar")
    archive.export_checkpoint(run, run / "model", tmp_path / "m.tar")

    brought = unpack.import_checkpoint(tmp_path / "c.tar", tmp_path / "other")  # no run there
    assert brought.paths == (tmp_path / "other/sft-1/checkpoints/checkpoint-20",)
    assert checkpoints.problems(brought.paths[0], digests=True) == ()
    assert (tmp_path / "other/sft-1/run.json").exists()
    assert unpack.import_checkpoint(tmp_path / "c.tar", tmp_path / "other").present
    unpack.import_checkpoint(tmp_path / "m.tar", tmp_path / "other")  # the run is there
    assert checkpoints.problems(tmp_path / "other/sft-1/model", digests=True) == ()
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["sft-1"]

    save(tmp_path / "other/sft-1/checkpoints", 20, {"another": b"1"})
    before = tree(tmp_path / "other")
    with pytest.raises(UsageError, match="has another checkpoint-20"):
        unpack.import_checkpoint(tmp_path / "c.tar", tmp_path / "other")
    with pytest.raises(UsageError, match="holds a checkpoint, and no run"):
        unpack.import_runs(tmp_path / "c.tar", tmp_path / "other")
    assert tree(tmp_path / "other") == before
    assert unpack.import_checkpoint(tmp_path / "c.tar", tmp_path / "other", as_="fresh").paths == (
        tmp_path / "other/fresh/checkpoints/checkpoint-20",
    )
    archive.export_runs([run], tmp_path / "r.tar")
    with pytest.raises(UsageError, match="holds 1 runs"):
        unpack.import_checkpoint(tmp_path / "r.tar", tmp_path / "other")


def test_a_file_of_more_than_8_gib_has_its_size_in_its_head(tmp_path: Path) -> None:
    with tar_stream.open_for_writing(tmp_path / "out.tar", compress=False) as stream:
        tar_stream.write_member(stream, tar_stream.Member("weights", 70 << 30, 0o644, 0), iter(()))
    with tar_stream.Reader(tmp_path / "out.tar") as reader:
        assert reader.next() == tar_stream.Member("weights", 70 << 30, 0o644, 0)
    listed = subprocess.run(["tar", "-tvf", str(tmp_path / "out.tar")], capture_output=True, text=True)
    assert str(70 << 30) in listed.stdout


def test_only_a_plain_file_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "to-fifo").symlink_to("fifo")
    for name in ("fifo", "to-fifo"):
        with pytest.raises(UsageError, match="no plain file") as raised:
            archive.export_runs([run], tmp_path / name, replace=True)
        assert raised.value.fix == "-o sft-1.tar"
    with pytest.raises(UsageError, match="stdout"):
        archive.export_checkpoint(run, run / "model", Path("-"), replace=True)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match="cannot be written: too many"):
        archive.export_runs([run], tmp_path / "loop", replace=True)
    assert (tmp_path / "fifo").is_fifo()
    assert (tmp_path / "to-fifo").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "loop", "runs", "to-fifo"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out.tar").symlink_to("elsewhere/real.tar")
    archive.export_runs([run], tmp_path / "out.tar")
    with pytest.raises(UsageError, match="exists"):
        archive.export_runs([run], tmp_path / "out.tar")
    archive.export_runs([run], tmp_path / "out.tar", replace=True)
    assert (tmp_path / "out.tar").is_symlink()
    assert unpack.read_head(tmp_path / "elsewhere/real.tar").runs == ("sft-1",)
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["real.tar"]


def test_an_archive_does_not_go_into_what_it_holds(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    before = tree(run)
    (tmp_path / "link").symlink_to("runs/sft-1/out.tar")
    for name in ("runs/sft-1/out.tar", "runs/sft-1/run.json", "link", "runs/sft-1/../sft-1/code/x.tar"):
        with pytest.raises(UsageError, match="lies in sft-1, which is exported"):
            archive.export_runs([run], tmp_path / name, replace=True)
    assert tree(run) == before
    archive.export_runs([run], tmp_path / "runs/out.tar")
