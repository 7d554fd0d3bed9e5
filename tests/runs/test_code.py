"""Snapshots of the code: what they hold, that they are shared and mended, what is refused, and what may be removed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hpctrain.cli import code as project_code
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.runs import code, code_store, code_unused, launch
from hpctrain.runs.code import Snapshot, Version

DAY = 86_400.0


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project without git."""
    directory = tmp_path / "project"
    (directory / "pkg").mkdir(parents=True)
    (directory / "train.py").write_text("print('one')\n")
    (directory / "pkg" / "a.py").write_text("A = 1\n")
    (directory / "pkg" / "same.py").write_text("A = 1\n")
    (directory / "run.sh").write_text("#!/bin/sh\n")
    (directory / "run.sh").chmod(0o755)
    return directory


def taken(project: Path, **limits: int) -> Snapshot:
    return project_code.snapshot(project, project / "runs", **limits)


def stored(snapshot: Snapshot) -> dict[str, bytes]:
    """Return what is in a snapshot's directory, links resolved, without its manifest."""
    assert snapshot.path is not None
    files = (path for path in snapshot.path.rglob("*") if not path.is_dir() and path.name != code_store.MANIFEST)
    return {str(path.relative_to(snapshot.path)): path.read_bytes() for path in files}


def test_a_snapshot_holds_the_files_for_reading(project: Path) -> None:
    snapshot = taken(project)
    assert stored(snapshot) == {
        "train.py": b"print('one')\n", "pkg/a.py": b"A = 1\n", "pkg/same.py": b"A = 1\n", "run.sh": b"#!/bin/sh\n"
    }  # fmt: skip
    assert (snapshot.files, snapshot.bytes, snapshot.commit, snapshot.dirty) == (4, 35, None, False)
    assert snapshot.path == project / "runs" / ".code" / snapshot.digest
    modes = {entry.path: (snapshot.path / entry.path).stat().st_mode & 0o777 for entry in snapshot.entries}
    assert {name: mode & 0o222 for name, mode in modes.items()} == dict.fromkeys(modes, 0)
    assert {name for name, mode in modes.items() if mode & 0o100} == {"run.sh"}


def test_what_has_changed_meanwhile_does_not_reach_the_snapshot(project: Path) -> None:
    first = taken(project)
    before = stored(first)
    (project / "train.py").write_text("print('two')\n")
    (project / "pkg" / "a.py").unlink()
    (project / "new.py").write_text("")
    (project / "run.sh").chmod(0o644)
    second = taken(project)

    assert stored(first) == before
    assert stored(second)["train.py"] == b"print('two')\n"
    changes = code.differences(code.by_path(first.entries), code.stored(project / "runs", second.digest) or {})
    assert changes == code.Differences(changed=("run.sh", "train.py"), added=("new.py",), removed=("pkg/a.py",))
    assert not code.differences(code.by_path(first.entries), code.by_path(first.entries))


def test_equal_content_is_one_file_on_the_disk(project: Path) -> None:
    first = taken(project)
    (project / "train.py").write_text("print('two')\n")
    second = taken(project)
    assert first.path is not None
    assert second.path is not None
    inode = (first.path / "pkg/a.py").stat().st_ino
    assert {(root / name).stat().st_ino for root in (first.path, second.path) for name in ("pkg/a.py", "pkg/same.py")} == {inode}


def test_equal_content_that_is_executable_is_another_file(project: Path) -> None:
    (project / "run.txt").write_bytes((project / "run.sh").read_bytes())
    for _ in range(2):
        snapshot = taken(project)
        assert snapshot.path is not None
        assert [bool((snapshot.path / name).stat().st_mode & 0o100) for name in ("run.sh", "run.txt")] == [True, False]
        (project / "train.py").write_text("print('another snapshot of the same objects')\n")


def test_an_equal_snapshot_is_used_again(project: Path) -> None:
    first = taken(project)
    assert first.path is not None
    written = {path: path.stat().st_ino for path in first.path.rglob("*")}
    os.utime(project / "train.py")
    assert taken(project).path == first.path
    assert {path: path.stat().st_ino for path in first.path.rglob("*")} == written
    assert sorted(path.name for path in first.path.parent.iterdir()) == sorted([first.digest, "objects"])


@pytest.mark.parametrize("same_size", [True, False])
def test_a_snapshot_that_somebody_wrote_to_is_mended(project: Path, same_size: bool) -> None:
    snapshot = taken(project)
    whole = stored(snapshot)
    assert snapshot.path is not None
    for name in ("train.py", "pkg/a.py"):  # in place, so that the object which it is a link to is spoilt too
        (snapshot.path / name).chmod(0o644)
        (snapshot.path / name).write_bytes(b"#" * (len(whole[name]) + (not same_size)))
    (snapshot.path / "run.sh").unlink()
    assert taken(project).path == snapshot.path
    assert stored(snapshot) == whole
    (project / "other.py").write_text("")
    assert stored(taken(project)) == {**whole, "other.py": b""}, "a spoilt object went into another snapshot"


def test_a_manifest_that_was_cut_short_is_written_again(project: Path) -> None:
    snapshot = taken(project)
    assert snapshot.path is not None
    (snapshot.path / code_store.MANIFEST).write_text("{")
    assert code.stored(project / "runs", snapshot.digest) is None
    taken(project)
    assert code.stored(project / "runs", snapshot.digest) == code.by_path(snapshot.entries)


def test_a_file_system_without_hard_links_gets_copies(project: Path, tmp_path: Path) -> None:
    """A directory that is mounted again refuses hard links between the two, as such file systems do; only root can mount."""
    runs = project / "runs"
    (runs / ".code" / "objects").mkdir(parents=True)
    (tmp_path / "objects").mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", runs / ".code" / "objects"], capture_output=True).returncode:
        pytest.skip("mount needs root")
    try:
        snapshot = taken(project)
        assert stored(snapshot)["pkg/a.py"] == b"A = 1\n"
        assert snapshot.path is not None
        assert (snapshot.path / "pkg/a.py").stat().st_nlink == 1
        assert not (snapshot.path / "pkg/a.py").stat().st_mode & 0o222
        assert (snapshot.path / "run.sh").stat().st_mode & 0o111
    finally:
        subprocess.run(["umount", runs / ".code" / "objects"], check=True)


def test_links_lead_where_they_led(project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.py"
    outside.write_text("outside")
    (project / "logs").mkdir()
    (project / "logs" / "big").write_text("data")
    links = {
        "near.py": "train.py", "pkg/up.py": "../train.py", "absolute.py": f"{project}/pkg/a.py", "package": "pkg", "gone.py": "nowhere.py",
        "out.py": "../outside.py", "pkg/out.py": str(outside), "data": "logs/big", "itself": ".", "round.py": "../project/train.py",
    }  # fmt: skip
    for name, target in links.items():
        (project / name).symlink_to(target)
    snapshot = taken(project)
    assert snapshot.path is not None
    made = {name: str((snapshot.path / name).readlink()) for name in links}
    assert made == {
        "near.py": "train.py", "pkg/up.py": "../train.py", "absolute.py": "pkg/a.py", "package": "pkg", "gone.py": "nowhere.py",
        "out.py": str(outside), "pkg/out.py": str(outside), "data": f"{project}/logs/big", "itself": ".", "round.py": "train.py",
    }  # fmt: skip
    assert {one.path for one in snapshot.skipped} == {"out.py", "pkg/out.py", "data"}
    assert (snapshot.path / "absolute.py").resolve().is_relative_to(snapshot.path), "the job would read what is edited"


def test_names_of_any_bytes_and_odd_files(project: Path) -> None:
    odd = os.fsdecode(b"\xff\n name.py")
    (project / odd).write_text("odd")
    os.mkfifo(project / "pipe")
    snapshot = taken(project)
    assert stored(snapshot)[odd] == b"odd"
    assert taken(project).digest == snapshot.digest
    assert [(one.path, one.reason) for one in snapshot.skipped] == [("pipe", "is no plain file")]
    assert code.stored(project / "runs", snapshot.digest) == code.by_path(snapshot.entries)


def test_what_is_too_large_is_named(project: Path) -> None:
    (project / "weights.bin").write_bytes(bytes(21_000_000))
    with pytest.raises(UsageError) as caught:
        taken(project)
    assert caught.value.render().splitlines() == [
        "error: 1 file above 20.0 MB, which is no code and does not go into a snapshot",
        "   21.0 MB  weights.bin",
        "what .gitignore or .hpctrainignore names is left out; jobs find it in the project all the same",
        "fix: echo /weights.bin >>.hpctrainignore; or, without a snapshot: hpctrain submit --no-snapshot",
    ]
    assert not (project / "runs").exists()
    (project / ".hpctrainignore").write_text("/weights.bin\n")  # what the error tells to type
    assert "weights.bin" not in stored(taken(project))

    (project / "corpus").mkdir()
    for number in range(3):
        (project / "corpus" / f"part {number}").write_bytes(bytes(400_000 + number))
    with pytest.raises(UsageError) as caught:
        taken(project, limit_bytes=1_000_000)
    said = caught.value.render()
    assert "are 1.2 MB in 8 files, and a snapshot of the code has at most 1.0 MB" in said
    assert "  most of it is in corpus/\n" in said
    assert "fix: echo /corpus/ >>.hpctrainignore;" in said


@pytest.mark.slow
def test_too_many_files_are_not_even_listed(project: Path) -> None:
    (project / "crops").mkdir()
    for number in range(code.LIMIT_FILES):
        (project / "crops" / str(number)).touch()
    with pytest.raises(UsageError, match="more than 20,000 files") as caught:
        taken(project)
    assert caught.value.fix is not None
    assert "/crops/" in caught.value.fix
    assert isinstance(project_code.look(project, project / "runs"), Version)


def test_a_file_that_is_written_to_is_waited_for_or_refused(project: Path) -> None:
    """A writer replaces a file's content in place again and again, faster than the clock that dates files."""
    contents = [letter * 300_000 for letter in (b"a", b"b")]
    (project / "busy.py").write_bytes(contents[0])
    over, at_it = threading.Event(), threading.Event()

    def write() -> None:
        with (project / "busy.py").open("r+b", buffering=0) as stream:
            while not over.is_set():
                for content in contents:
                    stream.seek(0)
                    stream.write(content)
                    at_it.set()
                    time.sleep(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    at_it.wait()
    try:
        with pytest.raises(HpctrainError, match=r"busy\.py changes while it is read"):
            taken(project)
    finally:
        over.set()
        writer.join()
    assert stored(taken(project))["busy.py"] in contents


_SUBMIT = """
import sys, pathlib
from hpctrain.cli import code
project = pathlib.Path(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(code.snapshot(project, project / "runs").digest)
"""


def test_many_at_once_make_one_snapshot(project: Path) -> None:
    for number in range(200):
        (project / "pkg" / f"m{number}.py").write_text(f"M = {number}\n")
    started = [
        subprocess.Popen([sys.executable, "-c", _SUBMIT, str(project)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    assert [process.stdout.readline() for process in started if process.stdout] == ["ready\n"] * 6
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = {process.communicate()[0].strip() for process in started}
    assert [process.returncode for process in started] == [0] * 6
    snapshot = taken(project)
    assert answers == {snapshot.digest}
    assert len(stored(snapshot)) == 204
    assert sorted(path.name for path in (project / "runs" / ".code").iterdir()) == sorted([snapshot.digest, "objects"])
    objects = [path.name for path in (project / "runs" / ".code" / "objects").glob("*/*")]
    assert len(objects) == 203, "left-overs, or a content twice"


def test_a_full_disk_leaves_no_half_snapshot(project: Path, tmp_path: Path) -> None:
    runs = tmp_path / "small"
    runs.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", runs], capture_output=True).returncode:
        pytest.skip("mount needs root")
    try:
        for number in range(40):
            (project / f"m{number}.py").write_bytes(os.urandom(50_000))
        with pytest.raises(HpctrainError) as caught:
            project_code.snapshot(project, runs)
        assert "No space left on device" in caught.value.what
        assert "--no-snapshot" in str(caught.value.fix)
        assert [path.name for path in (runs / ".code").iterdir()] == ["objects"]
        assert not list((runs / ".code" / "objects").glob("*/.*"))
    finally:
        subprocess.run(["umount", runs], check=True)


def test_what_nothing_refers_to_may_go(project: Path) -> None:
    runs = project / "runs"
    launched = {"kind": "run", "name": "sft", "now": 1.0, "cwd": str(project), "version": "0", "argv": []}
    digests = []
    for number in range(4):
        (project / "train.py").write_text(f"print({number})\n")
        digests.append(taken(project).digest)
    launch.create(runs, "kept", **launched)
    launch.set_code(runs, "kept", {"digest": digests[0]}, None, snapshot=digests[0])
    launch.set_code(runs, "kept", {"digest": digests[1]}, None, snapshot=digests[1])
    (runs / "some-run").mkdir()
    (runs / "some-run" / "code").symlink_to(f"../.code/{digests[2]}")

    later = time.time() + 2 * DAY
    assert code_unused.unused_code(runs, now=time.time()) == [], "it was made just now"
    assert [one.digest for one in code_unused.unused_code(runs, now=later)] == [digests[3]]
    alone = [path for path in (runs / ".code" / "objects").glob("*/*") if path.read_bytes() == b"print(3)\n"]
    assert len(alone) == 1
    (runs / ".code" / ".making-killed" / "pkg").mkdir(parents=True)
    assert code_unused.remove_unused_code(runs, digests, now=later) == [digests[3]]
    assert not alone[0].exists()
    assert sorted(path.name for path in (runs / ".code").iterdir()) == sorted([*digests[:3], "objects"])
    for digest in digests[:3]:
        assert (runs / ".code" / digest / "pkg" / "a.py").read_bytes() == b"A = 1\n"
    (project / "train.py").write_text("print(3)\n")
    assert stored(taken(project))["train.py"] == b"print(3)\n"
