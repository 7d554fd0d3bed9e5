"""The index: fast, thrown away at will, and never believed against the files."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import make
import pytest

from hpctrain.runs import index
from hpctrain.runs.index import read_all
from hpctrain.runs.store import Run

COUNT = 20
#: Less than any file system's clock: everything is indexed at once, but what changes in the same tick.
AT_ONCE_NS = 0


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for number in range(COUNT):
        directory = make.run(tmp_path / "runs", f"sft-{number:02}", created=make.AT + number)
        last = make.attempt(directory, str(100 + number), outcome="completed" if number else None)
        make.metrics(last, {"step": number, "loss": 1.0})
        (directory / "checkpoints" / "checkpoint-7").mkdir(parents=True)
    time.sleep(0.05)  # the clock of the file system goes in steps of some milliseconds
    return tmp_path / "runs"


def indexed(runs: Path) -> tuple[Run, ...]:
    """Write the index, and make sure that it is used."""
    found = read_all(runs, settled_ns=AT_ONCE_NS)
    assert read_all(runs, settled_ns=AT_ONCE_NS).reread == 0
    return found.runs


def test_what_the_index_says_is_what_the_files_say(runs: Path) -> None:
    assert indexed(runs) == read_all(runs).runs == read_all(runs, index=False).runs
    assert len(indexed(runs)) == COUNT


def test_directories_that_are_no_runs_are_remembered_too_until_they_are(runs: Path) -> None:
    for number in range(COUNT):
        (runs / f"Nov20_{number}").mkdir()
    time.sleep(0.05)
    assert len(indexed(runs)) == COUNT
    make.write(runs / "Nov20_3" / "run.json", {"name": "x"})
    assert next(run.id for run in read_all(runs).runs) == "Nov20_3"
    assert len(read_all(runs).foreign) == COUNT - 1


def change_metrics(directory: Path) -> None:
    make.metrics(directory / "attempts" / "100.0", {"step": 99, "loss": 0.5})


def change_end(directory: Path) -> None:
    make.write(directory / "new", {"outcome": "failed", "status": 1, "reason": "nan"})
    (directory / "new").rename(directory / "attempts" / "100.0" / "end.json")


def change_start(directory: Path) -> None:
    make.write(directory / "attempts" / "100.0" / "start.json", {"job_id": "7"})  # in place


def change_attempts(directory: Path) -> None:
    make.attempt(directory, "555")


def change_who(directory: Path) -> None:
    make.write(directory / "new", {"name": "another", "tag": "sft-00"})
    (directory / "new").rename(directory / "run.json")


def change_checkpoints(directory: Path) -> None:
    (directory / "checkpoints" / "checkpoint-7").rename(directory / "checkpoints" / "checkpoint-8")
    (directory / "checkpoints" / "checkpoint-9").mkdir()


def change_back_in_time(directory: Path) -> None:
    """Put another directory in place, with the times of the first, as rsync and tar do."""
    before = [path.stat() for path in (directory, directory / "attempts")]
    copy = directory.with_name(".copy")
    shutil.copytree(directory, copy)
    make.attempt(copy, "555")
    shutil.rmtree(directory)
    copy.rename(directory)
    for path, about in zip((directory, directory / "attempts"), before, strict=True):
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def change_with_old_times(directory: Path) -> None:
    """Put a file in place, and the times of its directory back."""
    place = directory / "attempts" / "100.0"
    before = place.stat()
    make.write(place / "end.json", {"outcome": "failed", "status": 1, "reason": "nan"})
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))


def change_gone(directory: Path) -> None:
    shutil.rmtree(directory)


CHANGES = (
    change_metrics, change_end, change_start, change_attempts, change_who, change_checkpoints, change_back_in_time, change_with_old_times,
    change_gone,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_at_once(runs: Path, change: object) -> None:
    before = indexed(runs)
    change(runs / "sft-00")  # type: ignore[operator]
    after = read_all(runs).runs
    assert after == read_all(runs, index=False).runs
    assert after != before
    assert after[-1] == before[-1]


def test_what_has_just_changed_is_not_remembered(runs: Path) -> None:
    """A second change within the same tick of a clock that goes in steps would leave the same times behind."""
    assert read_all(runs).reread == COUNT
    assert read_all(runs).reread == COUNT  # all of it is younger than SETTLED_NS
    os.utime(runs / "sft-03", (1, 1))  # its times are old, and that it was changed is not
    assert read_all(runs).reread == COUNT


def test_times_in_the_future_are_not_remembered(runs: Path) -> None:
    later = time.time() + 1000
    os.utime(runs / "sft-03", (later, later))
    read_all(runs, settled_ns=AT_ONCE_NS)
    assert read_all(runs, settled_ns=AT_ONCE_NS).reread == 1


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def damage_value(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"completed", b"qompleted"))


def damage_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def damage_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def damage_folder(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_text("a file")


DAMAGES = (damage_empty, damage_cut, damage_value, damage_fifo, damage_directory, damage_folder)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_costs_only_time(runs: Path, damage: object) -> None:
    before = indexed(runs)
    damage(runs / ".index" / "runs.json")  # type: ignore[operator]
    assert read_all(runs).runs == before


@pytest.mark.parametrize("entry", [None, [], "x", [1], [None, [""], []], [1, ["\0"], [1]], {"stamp": 1}, [0, "abc", "abc"]])
def test_an_index_of_another_make_costs_only_time(runs: Path, entry: object) -> None:
    before = indexed(runs)
    import hashlib

    body = json.dumps({"version": 1, "runs": {run.id: entry for run in before}}).encode()
    (runs / ".index" / "runs.json").write_bytes(hashlib.blake2b(body).hexdigest().encode() + b"\n" + body)
    assert read_all(runs).runs == before


def test_what_cannot_be_read_is_looked_at_each_time(runs: Path) -> None:
    (runs / "sft-05" / "run.json").write_text('{"schema": 1, "na')
    indexed_ = read_all(runs, settled_ns=AT_ONCE_NS)
    assert indexed_.runs[5].problems
    make.write(runs / "sft-05" / "run.json", {"name": "whole"})  # in place, with no change of its directory
    assert read_all(runs).runs[5].name == "whole"


def test_few_changes_do_not_write_it_anew_and_many_do(runs: Path) -> None:
    indexed(runs)
    file = runs / ".index" / "runs.json"
    before = file.stat().st_ino
    change_metrics(runs / "sft-00")
    assert read_all(runs, settled_ns=AT_ONCE_NS).reread == 1
    assert file.stat().st_ino == before
    for number in range(index.WORTH_WRITING):
        make.metrics(runs / f"sft-{number:02}" / "attempts" / f"{100 + number}.0", {"step": 50})
        make.attempt(runs / f"sft-{number:02}", "700")
    time.sleep(0.05)
    assert read_all(runs, settled_ns=AT_ONCE_NS).reread == index.WORTH_WRITING
    assert file.stat().st_ino != before
    assert read_all(runs, settled_ns=AT_ONCE_NS).reread == 0


def test_what_killed_writers_left_goes_after_an_hour(runs: Path) -> None:
    (runs / ".index").mkdir()
    old, young = runs / ".index" / ".new-old", runs / ".index" / ".new-young"
    old.touch()
    young.touch()
    os.utime(old, (1, 1))
    read_all(runs)
    assert (old.exists(), young.exists()) == (False, True)


def test_it_is_not_written_without_being_asked(runs: Path) -> None:
    read_all(runs, index=False)
    assert not (runs / ".index").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_is_closed_is_listed_all_the_same(runs: Path) -> None:
    runs.chmod(0o555)
    try:
        assert len(read_all(runs).runs) == COUNT
    finally:
        runs.chmod(0o755)
