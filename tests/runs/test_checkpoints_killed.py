"""Processes that are killed while they save: there is a complete checkpoint at every moment after
the first.
"""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.runs import checkpoints
from tests.runs.checkpoint_maker import save

HERE = Path(__file__).parent

#: Saves, publishes, rotates, without an end; says each step once it is done.
SAVES = """
import sys; from pathlib import Path
sys.path.insert(0, sys.argv[1])
from checkpoint_maker import save
from hpctrain.runs import checkpoints
directory, first, stride = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
checkpoints.clean(directory)
step = first
while True:
    save(directory, step, {f"part-{number}": str(step).encode() * 2000 for number in range(6)})
    print(step, flush=True)
    checkpoints.rotate(directory, 2)
    step += stride
"""


def _start(directory: Path, first: int, stride: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", SAVES, str(HERE), str(directory), str(first), str(stride)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_every_call_of_the_file_system_may_be_the_last_one(tmp_path: Path) -> None:
    """Stop a replacement and a rotation after each of their changes to the file system, one after
    the other.
    """
    program = """
import os, signal, sys; from pathlib import Path
sys.path.insert(0, sys.argv[1])
from checkpoint_maker import save
from hpctrain.runs import checkpoints
directory, left = Path(sys.argv[2]), int(sys.argv[3])
def watch(event, arguments):
    global left
    if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir") or (event == "open" and arguments[1] not in (None, "r", "rb")):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
save(directory, 40, {"a": b"new"})
save(directory, 50, {"a": b"new"})
checkpoints.rotate(directory, 1)
"""
    seen, count = set(), 0
    while True:
        directory = tmp_path / str(count)
        for step in (30, 40):
            save(directory, step, {"a": b"old"})
        done = subprocess.run(
            [sys.executable, "-c", program, str(HERE), str(directory), str(count)]
        )
        newest, _ = checkpoints.newest_complete(directory, digests=True)
        assert newest.manifest.step >= 40
        seen.update(path.name.partition("-")[0] for path in directory.iterdir())
        # What goes on from there gets the same end as what was never killed.
        checkpoints.clean(directory)
        newest, _ = checkpoints.newest_complete(directory, digests=True)
        assert newest.manifest.step >= 40
        save(directory, 50, {"a": b"new"})
        checkpoints.rotate(directory, 1)
        assert [path.name for path in directory.iterdir()] == ["checkpoint-50"]
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        count += 1
    assert count > 15
    assert {".saving", ".replaced", ".removing"} <= seen


@pytest.mark.slow
def test_a_reader_always_finds_a_complete_one_while_another_process_saves_and_thins_out(
    tmp_path: Path,
) -> None:
    child = _start(tmp_path, 1, 1)
    try:
        child.stdout.readline()
        before = 0
        for _ in range(300):
            newest, _ = checkpoints.newest_complete(tmp_path, digests=False)
            assert newest.manifest.step >= before
            before = newest.manifest.step
    finally:
        child.kill()
        child.communicate()
    assert before > 1
