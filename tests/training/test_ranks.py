"""Ranks agree, and each has a log of its own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpctrain.errors import HpctrainError
from hpctrain.training.process import Ranks


class TwoRanks(Ranks):
    """One of two processes; what rank 0 shares is left in `sent`."""

    def __init__(self, rank: int, sent: list[Any]) -> None:
        self.rank, self.size, self._sent = rank, 2, sent

    def share(self, value: Any) -> Any:
        if self.rank == 0:
            self._sent.append(value)
        return self._sent[0]


@pytest.mark.parametrize("error", [ValueError("no number"), HpctrainError("too old")])
def test_the_other_ranks_hear_of_whatever_fails_on_rank_0(error: Exception) -> None:
    def fail() -> None:
        raise error

    sent: list[Any] = []
    with pytest.raises(type(error)):
        TwoRanks(0, sent).from_first(fail)
    with pytest.raises(HpctrainError, match=str(error)):
        TwoRanks(1, sent).from_first(fail)


def test_what_rank_0_decides_is_the_same_on_all() -> None:
    sent: list[Any] = []
    assert [TwoRanks(rank, sent).from_first(lambda r=rank: r + 3) for rank in (0, 1)] == [3, 3]  # type: ignore[misc]


# -- A rank's own lines: beside the shared log, never in its way


CODE = """
import logging, os, sys, warnings
from hpctrain.training import process as rank_log
path = rank_log.keep_rank_log()
print("said", "in parts")
sys.stderr.write("one\\ntwo\\n")
warnings.warn("careful")
logging.warning("logged")
os.write(1, b"of C++\\n")
assert sys.stdout.fileno() == 1 and not sys.stdout.isatty()
sys.stdout.flush()
raise RuntimeError("boom")
"""


def rank(
    run_dir: Path, number: int = 1, world: int = 2, **more: str
) -> subprocess.CompletedProcess[str]:
    own = {
        "RANK": str(number),
        "WORLD_SIZE": str(world),
        "HPCTRAIN_RUN_DIR": str(run_dir),
        "HPCTRAIN_ATTEMPT": "7.0",
        "SLURMD_NODENAME": "n01",
    }
    return subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        env={**os.environ, **own, **more},
        timeout=600,
    )


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


@pytest.mark.parametrize(
    ("world", "more"), [(1, {}), (2, {"HPCTRAIN_RANK_LOGS": "0"}), (2, {"HPCTRAIN_ATTEMPT": ""})]
)
def test_one_process_and_who_does_not_want_it_has_none(
    tmp_path: Path, world: int, more: dict[str, str]
) -> None:
    done = rank(tmp_path, 0, world, **more)
    assert "boom" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_file_system_that_refuses_is_no_reason_not_to_train(tmp_path: Path) -> None:
    (tmp_path / "attempts").write_text("no folder")
    assert sorted(rank(tmp_path).stdout.splitlines()) == ["of C++", "said in parts"]
