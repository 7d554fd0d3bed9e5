"""An export or import that a full disk, a signal or the memory ends shows nothing half, and leaves nothing for long."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from checkpoint_maker import fill, make_run, small_disk, tree

from hpctrain.runs import archive, unpack


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", steps=())
    fill(run, {f"part-{number}": os.urandom(100_000) for number in range(6)})
    archive.export_runs([run], tmp_path / "out.tar")
    with small_disk(tmp_path / "disk", "400k") as disk:
        for compress in ("", ".gz"):
            with pytest.raises(OSError, match="No space left"):
                archive.export_runs([run], disk / f"out.tar{compress}")
        (disk / "runs").mkdir()
        with pytest.raises(OSError, match="No space left"):
            unpack.import_runs(tmp_path / "out.tar", disk / "runs")
        assert [str(path.relative_to(disk)) for path in disk.rglob("*")] == ["runs"]


@pytest.mark.slow
def test_an_import_that_is_killed_shows_nothing_of_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", steps=())
    fill(run, {f"part-{number}": bytes(3_000_000) for number in range(30)})
    archive.export_runs([run], tmp_path / "out.tar")
    program = (
        "import sys; from pathlib import Path; from hpctrain.runs import unpack; print(flush=True)\n"
        "unpack.import_runs(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    killed = 0
    for number in range(12):
        other = tmp_path / f"other-{number}"
        child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "out.tar"), str(other)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.012 * number)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        visible = [path.name for path in other.glob("[!.]*")]
        if visible:
            assert tree(other / "sft-1").keys() - {"attempts/11.1/end.json"} == tree(run).keys()
        else:
            killed += 1
            shutil.rmtree(other, ignore_errors=True)
            unpack.import_runs(tmp_path / "out.tar", other)
        shutil.rmtree(other)
    assert killed > 0


@pytest.mark.slow
def test_a_large_file_needs_no_memory(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", steps=())
    with (run / "large.bin").open("wb") as stream:
        stream.truncate(500 << 20)
    program = (
        "import resource, sys; from pathlib import Path; from hpctrain.runs import archive, unpack\n"
        "resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))\n"
        "run, out, other = map(Path, sys.argv[1:]); archive.export_runs([run], out); unpack.import_runs(out, other)"
    )
    words = [sys.executable, "-c", program, str(run), str(tmp_path / "out.tar.gz"), str(tmp_path / "other")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stderr == ""
    assert (tmp_path / "other/sft-1/large.bin").stat().st_size == 500 << 20


_SLOW = """\
import sys, time
from pathlib import Path
from hpctrain.cli import runs_archive
from hpctrain.runs import archive
def slowly(count):
    print("going", flush=True)
    time.sleep(60)
with runs_archive.tidy_end():
    archive.export_runs([Path(sys.argv[1])], Path(sys.argv[2]), progress=slowly)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_export_that_is_ended_leaves_nothing_for_long(tmp_path: Path, number: signal.Signals) -> None:
    run = make_run(tmp_path / "runs")
    (tmp_path / "out.tar.part").write_text("somebody's")
    export = subprocess.Popen([sys.executable, "-c", _SLOW, str(run), str(tmp_path / "out.tar")], stdout=subprocess.PIPE, text=True)
    assert export.stdout is not None
    assert export.stdout.readline() == "going\n"
    with pytest.raises(KeyError):  # one that goes on keeps what it writes
        archive.export_runs([run], tmp_path / "out.tar", progress=lambda count: {}[count])
    assert len(list(tmp_path.glob("out.tar.*-*.part"))) == 1
    export.send_signal(number)
    export.communicate()
    assert export.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert len(list(tmp_path.glob("out.tar.*-*.part"))) == (number == signal.SIGKILL)
    archive.export_runs([run], tmp_path / "out.tar")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.tar", "out.tar.part", "runs"]
