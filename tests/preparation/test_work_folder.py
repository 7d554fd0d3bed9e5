"""The work folder: who holds it, and what counts as finished in it."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpctrain.errors import UsageError
from hpctrain.preparation import work_folder


def finish(folder: work_folder.WorkFolder, name: str) -> Path:
    path = folder.pieces / f"{name}.arrow"
    path.write_text(f"content of {name}")
    folder.finish("piece", name, path, {"tokens": 3})
    return path


def test_what_is_finished_is_found_again(tmp_path: Path) -> None:
    with work_folder.held(tmp_path / "d") as folder:
        assert folder.begin(pieces="a", rows="b") == "nothing"
        finish(folder, "1")
    with work_folder.held(tmp_path / "d") as folder:
        assert folder.begin(pieces="a", rows="b") == "pieces"
        assert folder.finished("piece") == {"1": {"tokens": 3}}
        assert folder.finished("shard") == {}


def test_what_is_torn_missing_or_of_another_size_is_not_finished(tmp_path: Path) -> None:
    with work_folder.held(tmp_path / "d") as folder:
        folder.begin(pieces="a", rows="b")
        for name in "1234":
            finish(folder, name)
        (folder.pieces / "1.arrow").write_text("cut")
        (folder.pieces / "2.arrow").unlink()
        (folder.pieces / ".5.arrow.torn").write_text("half")
        journal = folder.path / "finished.jsonl"
        journal.write_bytes(journal.read_bytes()[:-20])  # the kill came while the line of 4 was written
        finish(folder, "6")
        journal.write_bytes(journal.read_bytes() + b'[1]\n{"kind": "piece"}\n\xff\n')
        assert list(folder.finished("piece")) == ["3", "6"]
        folder.begin(pieces="a", rows="b")
        assert sorted(path.name for path in folder.pieces.iterdir()) == ["1.arrow", "3.arrow", "4.arrow", "6.arrow"]


def test_another_request_keeps_only_what_it_can_use(tmp_path: Path) -> None:
    with work_folder.held(tmp_path / "d") as folder:
        folder.begin(pieces="a", rows="b")
        finish(folder, "1")
        (folder.result / "shard").write_text("of b")
        assert folder.begin(pieces="a", rows="c") == "pieces"
        assert list(folder.finished("piece")) == ["1"]
        assert list(folder.result.iterdir()) == []
        assert folder.begin(pieces="x", rows="c") == "stale"
        assert folder.finished("piece") == {}
        assert list(folder.pieces.iterdir()) == []


def test_one_at_a_time_and_free_after_a_kill(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom hpctrain.preparation import work_folder\n"
        "with work_folder.held(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "d")], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    with pytest.raises(UsageError, match="another command is preparing") as refused, work_folder.held(tmp_path / "d"):
        pass
    assert f"process {other.pid}" in refused.value.details[0]
    other.kill()
    other.wait()
    with work_folder.held(tmp_path / "d"):
        pass


def test_the_folder_goes_when_it_is_removed(tmp_path: Path) -> None:
    with work_folder.held(tmp_path / "d") as folder:
        folder.begin(pieces="a", rows="b")
        work_folder.remove(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_knows_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where flock is not to be had, a command on this machine is known by its process, and one elsewhere by its sign of life."""

    def no_flock(descriptor: int, operation: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_flock)
    target = tmp_path / "d"
    lock = work_folder.beside(target) / "lock"
    with work_folder.held(target), pytest.raises(UsageError, match="another command is preparing"), work_folder.held(target):
        pass
    for host, silent, free in (("elsewhere", False, False), ("elsewhere", True, True)):
        lock.write_text(json.dumps({"host": host, "pid": 1}))
        if silent:
            os.utime(lock, (time.time() - 500, time.time() - 500))
        try:
            with work_folder.held(target):
                assert free
        except UsageError:
            assert not free
