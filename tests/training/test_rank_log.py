"""A rank's own lines: beside the shared log, never in its way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import logging, os, sys, warnings
from hpctrain.training import rank_log
path = rank_log.keep()
print("said", "in parts")
sys.stderr.writelines(["one\\n", "two\\n"])
warnings.warn("careful")
logging.warning("logged")
os.write(1, b"of C++\\n")
assert sys.stdout.fileno() == 1 and not sys.stdout.isatty()
sys.stdout.flush()
raise RuntimeError("boom")
"""


def rank(run_dir: Path, number: int = 1, world: int = 2, **more: str) -> subprocess.CompletedProcess[str]:
    own = {
        "RANK": str(number),
        "WORLD_SIZE": str(world),
        "HPCTRAIN_RUN_DIR": str(run_dir),
        "HPCTRAIN_ATTEMPT": "7.0",
        "SLURMD_NODENAME": "n01",
    }
    return subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env={**os.environ, **own, **more}, timeout=60)


def test_what_python_writes_is_in_both(tmp_path: Path) -> None:
    done = rank(tmp_path)
    own = (tmp_path / "attempts" / "7.0" / "ranks" / "rank-1.log").read_text()
    assert sorted(done.stdout.splitlines()) == ["of C++", "said in parts"]
    lines = own.splitlines()
    assert lines[0] == "hpctrain: rank 1 of 2 on n01"
    for line in ("said in parts", "one", "two", "WARNING:root:logged", "RuntimeError: boom"):
        assert lines.count(line) == 1
        assert line in done.stdout + done.stderr
    assert any("UserWarning: careful" in line for line in lines)
    assert "of C++" not in own
    rank(tmp_path)
    assert (tmp_path / "attempts" / "7.0" / "ranks" / "rank-1.log").read_text().startswith(own)


@pytest.mark.parametrize(("world", "more"), [(1, {}), (2, {"HPCTRAIN_RANK_LOGS": "0"}), (2, {"HPCTRAIN_ATTEMPT": ""})])
def test_one_process_and_who_does_not_want_it_has_none(tmp_path: Path, world: int, more: dict[str, str]) -> None:
    done = rank(tmp_path, 0, world, **more)
    assert "boom" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_file_system_that_refuses_is_no_reason_not_to_train(tmp_path: Path) -> None:
    (tmp_path / "attempts").write_text("no folder")
    assert sorted(rank(tmp_path).stdout.splitlines()) == ["of C++", "said in parts"]
    done = subprocess.run(
        [sys.executable, "-c", "import os\nfrom hpctrain.training.rank_log import _Copy\n"
         "copy = _Copy(os.open('/dev/full', os.O_WRONLY))\ncopy.write('x')\ncopy.write('y')\nprint('goes on')"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "goes on\n"
