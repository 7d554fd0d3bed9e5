"""Which ends of an array's tasks are told: with files that tasks of several nodes write at the same
moment.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.runs.notify import ArrayEnds
from hpctrain.util import builtin

BOTH = ("completed", "failed")


def tasks(tmp_path: Path, count: int | None) -> ArrayEnds:
    return ArrayEnds(folder=tmp_path / "ends/7", tag="S", count=count)


def told(ends: ArrayEnds, *outcomes: str, on: tuple[str, ...] = BOTH) -> list[str]:
    return [
        each.text
        for point, outcome in enumerate(outcomes)
        for each in ends.record(point, outcome, f"said {point}", on)
    ]


def test_a_hundred_failures_are_five_messages(tmp_path: Path) -> None:
    assert told(tasks(tmp_path, 100), *["failed"] * 100) == [
        "said 0",
        "said 1",
        "said 2",
        "S: more than 3 combinations have failed; see: hpctrain report S",
        "S: 100 combinations ended: 100 failed (S_0, S_1, S_2, S_3, S_4, ...); next: hpctrain report S",
    ]


@pytest.mark.parametrize(
    ("on", "outcomes", "messages"),
    [
        (
            BOTH,
            ("completed", "stopped", "completed"),
            ["S: 3 combinations ended: 2 completed, 1 stopped"],
        ),
        (("failed",), ("completed", "completed"), []),
        (("completed",), ("failed", "failed"), []),
        (
            ("completed",),
            ("failed", "completed"),
            ["S: 2 combinations ended: 1 completed, 1 failed (S_0)"],
        ),
        (
            ("stopped",),
            ("failed", "interrupted"),
            ["S: 2 combinations ended: 1 failed (S_0), 1 interrupted"],
        ),
        (("failed",), ("interrupted", "completed"), []),
        (BOTH, ("failed",), ["said 0", "S: 1 combination ended: 1 failed (S_0)"]),
    ],
)
def test_the_end_of_all_tasks_where_one_ended_as_requested(
    tmp_path: Path, on: tuple[str, ...], outcomes: tuple[str, ...], messages: list[str]
) -> None:
    found = told(tasks(tmp_path, len(outcomes)), *outcomes, on=on)
    assert [each.partition("; next")[0] for each in found] == messages


def test_an_end_that_cannot_be_known_is_not_told(tmp_path: Path) -> None:
    assert told(tasks(tmp_path, None), "completed", "failed", "completed") == ["said 1"]


def test_a_point_that_slurm_starts_again_is_told_of_when_it_is_over(tmp_path: Path) -> None:
    ends = tasks(tmp_path, 2)
    assert len(told(ends, "completed", "interrupted")) == 1
    (ends.folder / "1.interrupted").unlink()  # the job script does, when it starts
    assert [each.text for each in ends.record(1, "completed", "", BOTH)] == [
        "S: 2 combinations ended: 2 completed; next: hpctrain report S"
    ]
    assert ends.record(1, "completed", "", BOTH) == []


RACE = """
import sys, time
from pathlib import Path
from hpctrain.runs import notify
ends = notify.ArrayEnds(folder=Path(sys.argv[1]), tag="S", count=40)
print("ready", flush=True)
sys.stdin.readline()
for point in range(int(sys.argv[2]), 40, 2):
    for each in ends.record(point, "failed", f"said {point}", ("failed",)):
        print(each.text, flush=True)
"""


def test_two_processes_that_end_points_at_the_same_moment_tell_each_thing_once(
    tmp_path: Path,
) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(tmp_path / "call"), str(first)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for first in (0, 1)
    ]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("\n")
        racer.stdin.flush()
    said = [line for racer in racers for line in racer.communicate()[0].splitlines()]
    assert sum(line.startswith("said ") for line in said) == 3, said
    assert sum(line.startswith("S: more than") for line in said) == 1, said
    assert [line for line in said if "40 combinations" in line] == [
        "S: 40 combinations ended: 40 failed (S_0, S_1, S_2, S_3, S_4, ...); next: hpctrain report S"
    ]
    assert len(said) == 5


@pytest.mark.parametrize(("restart", "stays"), [("0", True), ("1", False)])
def test_only_a_start_after_an_interruption_takes_the_mark_away(
    tmp_path: Path, restart: str, stays: bool
) -> None:
    """A point that `resubmit` starts anew is of another round: in the first one, it has been
    interrupted for good.
    """
    script = builtin.path("templates") / "job.sh"
    (line,) = (line for line in script.read_text().splitlines() if "/ends/" in line)
    mark, other = tmp_path / "ends/first/2.interrupted", tmp_path / "ends/first/12.interrupted"
    mark.parent.mkdir(parents=True)
    mark.touch()
    other.touch()
    words = [
        "bash",
        "-euc",
        f"launch=$1 restart=$2 index=2\n{line}",
        "bash",
        str(tmp_path),
        restart,
    ]
    subprocess.run(words, check=True)
    assert (mark.exists(), other.exists()) == (stays, True)
