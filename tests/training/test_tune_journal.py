"""The journal of a study after writers that were killed or had no room: optuna can read it, and the
next writer goes on.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tune_made import asked, report, row

from hpctrain.training import study

pytestmark = pytest.mark.torch  # optuna is in the same extra

HOLDER = """
import sys, time
from optuna.storages.journal import JournalFileOpenLock
JournalFileOpenLock(sys.argv[1]).acquire()
print("held", flush=True)
time.sleep(600)
"""
FULL = """
import resource, sys
from pathlib import Path
from hpctrain.training import study
path = study.folder(Path(sys.argv[1]), "s") / "journal.log"
there = study.open_study(Path(sys.argv[1]), "s")
limit = path.stat().st_size + 20
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
study.report(there, 0, 5, 1.0)
"""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    asked(tmp_path, "r_0")
    return tmp_path


@pytest.fixture
def journal(runs: Path) -> Path:
    return study.folder(runs, "s") / "journal.log"


@pytest.mark.parametrize("half", [b'{"op_co', b'{"op": 1}', b"\0" * 200_000])
def test_half_a_line_of_a_killed_writer_is_removed(runs: Path, journal: Path, half: bytes) -> None:
    whole = journal.read_bytes()
    journal.write_bytes(whole + half)
    report(runs, 0, s5=2.0)
    assert row(runs, 0).reports == {5: 2.0}
    assert journal.read_bytes().startswith(whole)


def test_a_writer_without_room_does_no_harm(runs: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, str(runs)], capture_output=True, text=True)
    assert "File too large" in done.stderr
    assert row(runs, 0).reports == {}
    report(runs, 0, s5=2.0)
    assert row(runs, 0).reports == {5: 2.0}
    assert not list(study.folder(runs, "s").glob("*.lock"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ask", "journal.log"])
def test_the_lock_of_a_killed_process_is_taken_when_it_has_not_changed_for_long(
    runs: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = study.folder(runs, "s") / name
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        process.send_signal(signal.SIGKILL)
    monkeypatch.setattr(study, "GRACE_S", 3)
    began = time.monotonic()
    assert asked(runs, "r_1").number == 1
    assert time.monotonic() - began >= 3.0
    assert not list(study.folder(runs, "s").glob("*.lock"))
