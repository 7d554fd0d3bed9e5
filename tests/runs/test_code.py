"""Snapshots of the code: what they hold, that they are shared, what is refused, and what
may be removed.
"""

import os
import time
from pathlib import Path

import pytest

from hpctrain.errors import UsageError
from hpctrain.jobs import project_code
from hpctrain.runs import code, launch
from hpctrain.runs.code import Snapshot

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
    files = (
        path
        for path in snapshot.path.rglob("*")
        if not path.is_dir() and path.name != code.MANIFEST
    )
    return {str(path.relative_to(snapshot.path)): path.read_bytes() for path in files}


def test_a_snapshot_holds_the_files_for_reading(project: Path) -> None:
    snapshot = taken(project)
    assert stored(snapshot) == {
        "train.py": b"print('one')\n",
        "pkg/a.py": b"A = 1\n",
        "pkg/same.py": b"A = 1\n",
        "run.sh": b"#!/bin/sh\n",
    }
    record = snapshot.as_json()
    assert [record[name] for name in ("files", "bytes", "commit", "dirty")] == [4, 35, None, False]
    assert snapshot.path == project / "runs" / ".code" / snapshot.digest
    modes = {
        entry.path: (snapshot.path / entry.path).stat().st_mode & 0o777
        for entry in snapshot.entries.values()
    }
    assert {name: mode & 0o222 for name, mode in modes.items()} == dict.fromkeys(modes, 0)
    assert {name for name, mode in modes.items() if mode & 0o100} == {"run.sh"}


def test_an_equal_snapshot_is_used_again(project: Path) -> None:
    first = taken(project)
    assert first.path is not None
    written = {path: path.stat().st_ino for path in first.path.rglob("*.py")}
    os.utime(project / "train.py")
    assert taken(project).path == first.path
    assert {path: path.stat().st_ino for path in first.path.rglob("*.py")} == written
    assert [path.name for path in first.path.parent.iterdir()] == [first.digest]


def test_links_lead_where_they_led(project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.py"
    outside.write_text("outside")
    (project / "logs").mkdir()
    (project / "logs" / "big").write_text("data")
    links = {
        "near.py": "train.py",
        "pkg/up.py": "../train.py",
        "absolute.py": f"{project}/pkg/a.py",
        "package": "pkg",
        "gone.py": "nowhere.py",
        "out.py": "../outside.py",
        "pkg/out.py": str(outside),
        "data": "logs/big",
        "itself": ".",
        "round.py": "../project/train.py",
    }
    for name, target in links.items():
        (project / name).symlink_to(target)
    snapshot = taken(project)
    made = {name: str((snapshot.path / name).readlink()) for name in links}
    assert made == {
        "near.py": "train.py",
        "pkg/up.py": "../train.py",
        "absolute.py": "pkg/a.py",
        "package": "pkg",
        "gone.py": f"{project}/nowhere.py",
        "out.py": str(outside),
        "pkg/out.py": str(outside),
        "data": f"{project}/logs/big",
        "itself": ".",
        "round.py": "train.py",
    }
    assert {one.path for one in snapshot.skipped} == {
        "out.py",
        "pkg/out.py",
        "data",
        "gone.py",
    }
    assert (snapshot.path / "absolute.py").resolve().is_relative_to(snapshot.path), (
        "the job would read what is edited"
    )


def test_names_of_any_bytes_and_odd_files(project: Path) -> None:
    odd = os.fsdecode(b"\xff\n name.py")
    (project / odd).write_text("odd")
    os.mkfifo(project / "pipe")
    snapshot = taken(project)
    assert stored(snapshot)[odd] == b"odd"
    assert taken(project).digest == snapshot.digest
    assert [(one.path, one.reason) for one in snapshot.skipped] == [
        ("pipe", "is not a regular file")
    ]


def test_what_is_too_large_is_named(project: Path) -> None:
    (project / "weights.bin").write_bytes(bytes(21_000_000))
    with pytest.raises(UsageError) as caught:
        taken(project)
    assert "weights.bin\n" in caught.value.render()
    assert "fix: echo /weights.bin >>.hpctrainignore\n" in caught.value.render()
    assert not (project / "runs").exists()
    (project / ".hpctrainignore").write_text("/weights.bin\n")  # what the error tells to type
    assert "weights.bin" not in stored(taken(project))

    (project / "corpus").mkdir()
    for number in range(3):
        (project / "corpus" / f"part {number}").write_bytes(bytes(400_000 + number))
    with pytest.raises(UsageError) as caught:
        taken(project, limit_bytes=1_000_000)
    said = caught.value.render()
    assert "is 1.14 MiB in 8 files" in said
    assert "fix: echo /corpus/ >>.hpctrainignore\n" in said


def test_what_nothing_refers_to_may_go(project: Path) -> None:
    runs = project / "runs"
    launched = {
        "kind": "run",
        "name": "sft",
        "now": 1.0,
        "cwd": str(project),
        "version": "0",
        "argv": [],
    }
    digests = []
    for number in range(4):
        (project / "train.py").write_text(f"print({number})\n")
        digests.append(taken(project).digest)
    launch.create(runs, "kept", **launched)
    launch.set_code(runs, "kept", {"digest": digests[0]}, None)
    launch.set_code(runs, "kept", {"digest": digests[1]}, None)
    (runs / "some-run").mkdir()
    (runs / "some-run" / "code").symlink_to(f"../.code/{digests[2]}")

    (runs / ".code" / ".making-killed" / "pkg").mkdir(parents=True)
    assert code.remove_unused(runs, now=time.time()) == [], "it was made just now"
    removed = code.remove_unused(runs, now=time.time() + 2 * DAY)
    assert set(removed) == {digests[3], ".making-killed"}
    assert {path.name for path in (runs / ".code").iterdir()} == set(digests[:3])
    for digest in digests[:3]:
        assert (runs / ".code" / digest / "pkg" / "a.py").read_bytes() == b"A = 1\n"
