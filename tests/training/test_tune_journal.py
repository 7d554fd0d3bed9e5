"""The journal of a study under what happens on clusters: many writers, killed ones, half lines, full disks, locks of other machines."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hpctrain.errors import HpctrainError
from hpctrain.training import study_journal
from hpctrain.training.study_journal import Lock, append

HOLDER = """
import os, sys, time
from pathlib import Path
from hpctrain.training.study_journal import Lock
Lock(Path(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal.log"
    path.write_bytes(b'{"a":1}\n')
    return path


def holder(lock: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def foreign(**changes: object) -> str:
    return json.dumps({"token": "t", "host": "nid0007", "pid": 1, "born": "5", "space": "another boot", "job": "1", **changes})


def test_the_lock_of_a_killed_process_is_taken_at_once(journal: Path) -> None:
    lock = journal.with_name("journal.log.lock")
    process = holder(lock)
    done = threading.Event()
    waiter = threading.Thread(target=lambda: (append(journal, b'{"b":2}\n'), done.set()))
    waiter.start()
    assert not done.wait(0.5), "it is held by a process that lives"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert done.wait(20), "study_journal.GRACE_S is a minute"
    waiter.join()
    assert journal.read_bytes() == b'{"a":1}\n{"b":2}\n'
    assert sorted(path.name for path in journal.parent.iterdir()) == ["journal.log"], "nothing is left lying about"


def test_a_process_id_that_was_given_out_again_is_not_the_holder(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    space = study_journal._space()
    lock.write_text(foreign(pid=os.getpid(), born="1", space=space))
    with Lock(lock):
        pass
    assert not lock.exists()


@pytest.mark.slow
def test_a_lock_of_another_machine_is_left_alone_until_it_has_not_changed_for_long(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text(foreign())
    began = time.monotonic()
    with Lock(lock, grace=1.0):
        assert time.monotonic() - began >= 1.0
    lock.write_text(foreign())
    stop = threading.Event()

    def keep_busy() -> None:
        for number in range(1000):
            temporary = tmp_path / "t"
            temporary.write_text(foreign(token=str(number)))
            temporary.replace(lock)
            if stop.wait(0.05):
                lock.unlink(missing_ok=True)
                return

    busy = threading.Thread(target=keep_busy)
    busy.start()
    taken = threading.Event()
    # Long enough that no holder's moment lasts so on a busy machine.
    waiter = threading.Thread(target=lambda: (Lock(lock, grace=4.0).acquire(), taken.set()))
    waiter.start()
    assert not taken.wait(6.0), "each holder had it for a moment only: none was left behind"
    stop.set()
    assert taken.wait(20)
    busy.join()
    waiter.join()


def test_a_fresh_lock_is_not_removed_for_the_stale_one_before_it(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    mine = Lock(lock)
    mine.acquire()
    Lock(lock)._remove(foreign())
    assert mine.is_ours()
    mine.release()
    assert not lock.exists()


def test_who_has_lost_the_lock_does_not_give_back_the_next_ones(tmp_path: Path) -> None:
    first, second = Lock(tmp_path / "lock"), Lock(tmp_path / "lock")
    first.acquire()
    (tmp_path / "lock").unlink()
    second.acquire()
    first.release()
    assert second.is_ours()


def test_without_hard_links_there_is_another_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with Lock(tmp_path / "lock") as lock:
        assert lock.is_ours()
        assert not Lock(tmp_path / "lock")._create("{}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("half", [b'{"op_co', b'{"op": 1}', b"x" * 200_000])
def test_a_half_line_of_a_killed_writer_is_cut_off(journal: Path, half: bytes) -> None:
    with journal.open("ab") as stream:
        stream.write(half)
    append(journal, b'{"b":2}\n{"c":3}\n')
    assert journal.read_bytes() == b'{"a":1}\n{"b":2}\n{"c":3}\n'


@pytest.mark.parametrize("line", [b"not JSON\n", b"\0" * 50 + b"\n", b'{"op_co\n', b"\n"])
def test_a_last_line_that_is_no_json_is_cut_off(journal: Path, line: bytes) -> None:
    with journal.open("ab") as stream:
        stream.write(line)
    append(journal, b'{"b":2}\n')
    assert journal.read_bytes() == b'{"a":1}\n{"b":2}\n'


def test_a_journal_of_nothing_but_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    path.write_bytes(b'{"op')
    append(path, b'{"b":2}\n')
    assert path.read_bytes() == b'{"b":2}\n'


FULL = """
import resource, sys
from pathlib import Path
from hpctrain.training.study_journal import append
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
append(Path(sys.argv[1]), b"x" * 5000 + b"\\n")
"""


def test_a_writer_without_room_takes_its_half_line_back(journal: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, str(journal)], capture_output=True, text=True)
    assert "cannot write the journal of the study" in done.stderr
    assert journal.read_bytes() == b'{"a":1}\n'
    append(journal, b'{"b":2}\n')
    assert journal.read_bytes() == b'{"a":1}\n{"b":2}\n'


def test_a_lock_for_which_there_is_no_room_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: object, **__: object) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        Lock(tmp_path / "lock").acquire()
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_stay_is_an_error(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_journal, "_write", lambda *_: None)
    with pytest.raises(HpctrainError, match="does not stay there"):
        append(journal, b'{"b":2}\n')
