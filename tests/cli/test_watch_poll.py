"""How often `hpctrain watch` asks Slurm, what it makes of the answers, and how it reads logs as they grow."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hpctrain.cli import watch_poll
from hpctrain.cli.watch_look import LogEnd

if TYPE_CHECKING:
    from conftest import Desk

pytestmark = pytest.mark.usefixtures("no_slurm")

# -- what is meant -----------------------------------------------------------------------------------------------------


def test_nothing_to_watch_is_an_error(desk: Desk) -> None:
    said = desk.refused("watch")
    assert said.lines == ["error: there is nothing to watch: no job of yours is known here, and no run", "fix: hpctrain submit"]


def test_words_that_mean_nothing_are_told_at_once(desk: Desk) -> None:
    said = desk.refused("watch", "nonsense", "123", "90000001_7")
    assert said.lines[0] == "error: there is no run or job 'nonsense', '123', '90000001_7'"


@pytest.mark.parametrize("words", [("--interval", "0"), ("--interval", "x"), ("--no-such",)])
def test_bad_options_are_refused(desk: Desk, words: tuple[str, ...]) -> None:
    desk.refused("watch", *words)


# -- the poll ----------------------------------------------------------------------------------------------------------

SQUEUE = r"""
echo "$*" >> squeue.log
line() { printf '%s\x1f' "$1" sft "$2" "$3" 0:00 10:00 2 gpu 2026-11-22T14:20:00; printf '\n'; }
cat state | while read -r job state reason; do line $job $state $reason; done
"""


@pytest.fixture
def slurm(desk: Desk) -> Desk:
    desk.program("sbatch", "exit 1")
    desk.program(
        "squeue", SQUEUE.replace("squeue.log", str(desk.directory / "squeue.log")).replace("cat state", f"cat {desk.directory / 'state'}")
    )
    desk.program("sacct", "exit 1")
    desk.program("scontrol", "exit 1")
    return desk


def test_a_job_that_waits_is_explained(slurm: Desk) -> None:
    slurm.write("state", "123 PENDING Priority\n")
    said = slurm.run("watch", "123", "--once")
    assert said.code == 0, said.err
    assert "job 123 on Slurm" in said.out
    assert "waiting: jobs with a higher priority are ahead; Slurm expects" in said.out
    assert "14:20" in said.out


def test_slurm_is_asked_every_15_s_at_least_and_less_and_less(slurm: Desk) -> None:
    slurm.write("state", "123 PENDING Priority\n124 RUNNING None\n")
    now = 0.0
    poll = watch_poll.Poll(lambda: now)
    asked = []
    for second in range(400):
        now = float(second)
        before = poll.asked
        poll.ask(["123", "124"])
        if poll.asked > before:
            asked.append(second)
    gaps = [after - before for before, after in itertools.pairwise(asked)]
    assert min(gaps) >= 15
    assert gaps[-1] == 60
    assert gaps == sorted(gaps)
    assert (slurm.directory / "squeue.log").read_text().count("\n") == 1  # the same moment: shared among all that ask
    poll.soon()
    now += 15
    poll.ask(["123", "124"])
    assert poll.asked == len(asked) + 1


def test_a_job_that_has_ended_is_not_asked_for_again(slurm: Desk) -> None:
    slurm.write("state", "123 COMPLETED None\n")
    now = 0.0
    poll = watch_poll.Poll(lambda: now)
    for second in range(0, 600, 5):
        now = float(second)
        poll.ask(["123"])
    assert poll.asked == 1
    assert poll.has_ended("123")


def test_tasks_that_wait_are_found_among_each_other(slurm: Desk) -> None:
    slurm.write("state", "7_1 RUNNING None\n7_[2-4%1] PENDING Resources\n")
    poll = watch_poll.Poll(time.monotonic)
    poll.ask(["7_1", "7_3", "7_9"])
    waiting, other = poll.record("7_3"), poll.record("7_9")
    assert waiting is not None
    assert waiting.state == "PENDING"
    assert other is None
    assert poll.tasks("7") == ["7_1", "7_2", "7_3", "7_4"]


def test_a_controller_that_is_silent_is_a_note(slurm: Desk) -> None:
    slurm.program("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    poll = watch_poll.Poll(time.monotonic)
    poll.ask(["999"])
    assert poll.silent is not None
    assert "Slurm" in poll.silent.what


# -- the log's end -----------------------------------------------------------------------------------------------------


def test_a_log_is_read_as_it_grows_shrinks_and_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = LogEnd(path)
    assert log.new_lines() == []
    path.write_bytes(b"one\ntw")
    assert log.new_lines() == [b"one"]
    with path.open("ab") as stream:
        stream.write(b"o\nthree\n")
    assert log.new_lines() == [b"two", b"three"]
    path.write_bytes(b"new\n")
    assert log.new_lines() == [b"new"]
    other = tmp_path / "other"
    other.write_bytes(b"replaced by a longer one\n")
    other.replace(path)
    assert log.new_lines() == [b"replaced by a longer one"]


def test_of_a_huge_log_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 10_000_000 + b"\n" + b"line\n" * 100_000)
    log = LogEnd(path)
    assert 0 < len(log.new_lines()) <= 52_429
    assert log.new_lines() == []
