"""Files that are followed, and what happens to them between two looks."""

from __future__ import annotations

from pathlib import Path

from hpctrain.logs.grow import Growing
from hpctrain.logs.model import LogFile


def test_a_file_that_was_emptied_and_has_grown_beyond_its_old_size_is_read_from_its_beginning(tmp_path: Path) -> None:
    path, told = tmp_path / "out.log", []
    path.write_bytes(b"first\n")
    growing = Growing(LogFile(path=path, name="out.log", stream="out"), tell=lambda _file, change: told.append(change))
    assert growing.look() == b"first\n"
    path.write_bytes(b"another, and longer\n")  # as a requeued job does whose log is opened for writing, and not for appending
    assert growing.look() == b"another, and longer\n"
    assert told == ["truncated"]
    with path.open("ab") as stream:
        stream.write(b"more\n")
    assert growing.look() == b"more\n"
    assert told == ["truncated"]


def test_bytes_that_come_late_over_nfs_are_no_other_file(tmp_path: Path) -> None:
    path, told = tmp_path / "out.log", []
    path.write_bytes(b"first\n" + bytes(20))
    growing = Growing(LogFile(path=path, name="out.log", stream="out"), tell=lambda _file, change: told.append(change))
    growing.look()
    path.write_bytes(b"first\nof another node's, now\nmore\n")
    growing.look()
    assert told == []
