"""`hpctrain sync` with a real sshd on loopback and the real rsync."""

import os
from pathlib import Path

import pytest

from tests.sync.far_side import Desk, Host, tree

#: Each test runs several commands over several ssh sessions.
pytestmark = pytest.mark.slow


def test_first_and_second_sync(desk: Desk, far: Host) -> None:
    desk.write("train.py", "print('trained')\n")
    desk.write("data/rows.jsonl", "{}\n" * 1000)
    desk.write("logs/output.log", "content\n")
    desk.write(".env", "content\n")
    work = far.home / "work" / "sft"
    first = desk.sync(f"{far.alias}:work/sft", "--yes")
    assert first.code == 0, first.err
    assert tree(work) == {"train.py", "data/rows.jsonl"}
    assert (work / "train.py").read_text() == "print('trained')\n"

    (work / "runs").mkdir()
    (work / "runs" / "kept").touch()
    second = desk.sync()  # the destination is remembered; nothing to send, so nothing to ask
    assert second.code == 2
    assert desk.sync("--yes").out == f"nothing to send: {far.alias}:work/sft is up to date\n"

    desk.write("train.py", "print('trained better')\n")
    (desk.directory / "data" / "rows.jsonl").unlink()
    assert desk.sync("--yes").out == f"sent 1 file, 24 B to {far.alias}:work/sft\n"
    assert tree(work) == {"train.py", "data/rows.jsonl", "runs/kept"}  # nothing is deleted there


def test_a_dry_run_shows_and_sends_nothing(desk: Desk, far: Host) -> None:
    for number in range(25):
        desk.write(f"data/{number:02}", "content\n")
    said = desk.sync(f"{far.alias}:work", "--dry-run")
    assert said.code == 0, said.err
    assert said.out.splitlines()[-2:] == [
        "and 5 more",
        f"would send 25 files, 200 B to {far.alias}:work",
    ]
    assert tree(far.home) == set()


def test_names_and_modes(desk: Desk, far: Host) -> None:
    for name in ("a b", "$(touch canary)", "new\nline", "-rf", "ünï", "back\\slash"):
        desk.write(name, "content\n")
    desk.write("run.sh", "content\n").chmod(0o755)
    (desk.directory / "link").symlink_to("run.sh")
    assert desk.sync(f"{far.alias}:~/work", "--yes").code == 0
    assert tree(far.home / "work") == tree(desk.directory) - {".hpctrain/sync"}
    assert os.access(far.home / "work" / "run.sh", os.X_OK)
    assert (far.home / "work" / "link").is_symlink()


def test_what_ends_with_an_error(desk: Desk, far: Host, tmp_path: Path) -> None:
    desk.refused(code=2)  # no destination
    desk.write("train.py", "content\n")
    desk.refused(f"{far.alias}:work", code=2)  # nobody to ask
    (far.home / "work").write_text("a file")
    assert desk.refused(f"{far.alias}:work", "--yes", code=1).err
    noisy = far.server.host(tmp_path / "noisy", before="echo welcome;")
    assert "is your shell clean?" in desk.refused(f"{noisy.alias}:work", "--yes", code=1).err
    far.server.stop()
    try:
        desk.refused(f"{far.alias}:work", "--yes", code=3)
    finally:
        far.server.start()
    desk.program("ssh", "exit 127")
    desk.refused(f"{far.alias}:work", "--yes", code=1)


def test_an_ignore_file_that_cannot_be_read_stops_before_anything_is_sent(
    desk: Desk, far: Host
) -> None:
    desk.write("private/patients.csv", "content\n")
    (desk.directory / ".hpctrainignore").mkdir()
    desk.refused(f"{far.alias}:proj", "--yes", code=1)
    assert tree(far.home) == set()


def test_the_functions_of_scripts_are_sent_whatever_is_ignored(desk: Desk, far: Host) -> None:
    for name in (".hpctrain/job-1-2.sh", ".hpctrain/sync2", ".hidden"):
        desk.write(name, "content\n")
    desk.write(".hpctrainignore", ".*\n")
    assert desk.sync(f"{far.alias}:proj", "--yes").code == 0
    assert tree(far.home / "proj") == {".hpctrain/job-1-2.sh"}
