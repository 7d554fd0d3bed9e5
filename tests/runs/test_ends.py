"""Which ends of an array's tasks are told: with files that tasks of several nodes write at the same moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.runs import ends, launch
from hpctrain.runs.ends import Round

BOTH = ("completed", "failed")


def tasks(tmp_path: Path, expected: int | None, points: int | None = None) -> Round:
    return Round(folder=tmp_path / "ends/call", tag="S", expected=expected, points=points)


def told(given: Round, *outcomes: str, on: tuple[str, ...] = BOTH) -> list[str]:
    return [each.text for point, outcome in enumerate(outcomes) for each in ends.ended(given, point, outcome, f"said {point}", on)]


def test_a_hundred_failures_are_five_messages(tmp_path: Path) -> None:
    assert told(tasks(tmp_path, 100), *["failed"] * 100) == [
        "said 0", "said 1", "said 2",
        "S: more points have failed than the first 3; of the others the end tells: hpctrain report S",
        "S has ended, 100 points: 100 failed (S_0, S_1, S_2, S_3, S_4, ...); next: hpctrain report S",
    ]  # fmt: skip


def test_points_that_end_well_are_told_together(tmp_path: Path) -> None:
    end = "S has ended, 3 points: 2 completed, 1 stopped; next: hpctrain report S"
    assert told(tasks(tmp_path, 3), "completed", "stopped", "completed") == [end]


def test_a_failure_that_is_the_end_is_one_message(tmp_path: Path) -> None:
    assert told(tasks(tmp_path, 2), "completed", "failed") == [
        "said 1; S has ended, 2 points: 1 completed, 1 failed (S_1); next: hpctrain report S"
    ]


@pytest.mark.parametrize(
    ("on", "outcomes", "count"),
    [
        (("failed",), ("completed", "completed"), 0),
        (("completed",), ("failed", "failed"), 0),
        (("completed",), ("failed", "completed"), 1),
        (("stopped",), ("failed", "interrupted"), 1),
        (("failed",), ("interrupted", "completed"), 0),
    ],
)
def test_only_what_was_asked_for(tmp_path: Path, on: tuple[str, ...], outcomes: tuple[str, ...], count: int) -> None:
    assert len(told(tasks(tmp_path, 2), *outcomes, on=on)) == count


def test_an_end_that_cannot_be_known_is_not_told(tmp_path: Path) -> None:
    assert told(tasks(tmp_path, None), "completed", "failed", "completed") == ["said 1"]


def test_a_point_that_slurm_starts_again_is_told_of_when_it_is_over(tmp_path: Path) -> None:
    given = tasks(tmp_path, 2)
    assert told(given, "completed", "interrupted") == [
        "S has ended, 2 points: 1 completed, 1 interrupted; Slurm may start those again that were interrupted; next: hpctrain report S"
    ]
    (given.folder / "1.interrupted").unlink()  # the job script does, when it starts
    assert [each.text for each in ends.ended(given, 1, "completed", "", BOTH)] == [
        "S has ended, 2 points: 2 completed; next: hpctrain report S"
    ]
    assert ends.ended(given, 1, "completed", "", BOTH) == []


RACE = """
import sys, time
from pathlib import Path
from hpctrain.runs import ends
given = ends.Round(folder=Path(sys.argv[1]), tag="S", expected=40)
print("ready", flush=True)
sys.stdin.readline()
for point in range(int(sys.argv[2]), 40, 2):
    for each in ends.ended(given, point, "failed", f"said {point}", ("failed",)):
        print(each.text, flush=True)
"""


def test_two_processes_that_end_points_at_the_same_moment_tell_each_thing_once(tmp_path: Path) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(tmp_path / "call"), str(first)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for first in (0, 1)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    said = [line for racer in racers for line in racer.communicate()[0].splitlines()]
    assert sum(line.startswith("said ") for line in said) == 3, said
    assert sum(line.startswith("S: more points") for line in said) == 1, said
    assert [line for line in said if "has ended" in line] == [
        "S has ended, 40 points: 40 failed (S_0, S_1, S_2, S_3, S_4, ...); next: hpctrain report S"
    ]
    assert len(said) == 5


def launched(runs: Path, *submissions: tuple[str | None, str, int, str]) -> None:
    """Record a sweep of 6 points in two scripts: (job, array, offset, call) is what was submitted of it."""
    launch.create(runs, "S", kind="sweep", name="S", now=1.0, cwd=str(runs.parent), version="1", argv=(), points=6, table="t")
    for number, array in enumerate(("0-3", "0-1")):
        launch.add_part(runs, "S", launch.Part(script=f"{number}.sbatch", array=array, offset=4 * number, at=1.0))
    for number, (job, array, offset, call) in enumerate(submissions):
        launch.add_submission(runs, "S", launch.Submission(
            token=f"t{number}", argv=(), at=float(number), scheduler="slurm", job_id=job, script=f"{number % 2}.sbatch", array=array,
            offset=offset, call=call,
        ))  # fmt: skip


def test_the_arrays_of_one_sweep_end_together_and_what_is_submitted_again_by_itself(tmp_path: Path) -> None:
    launched(tmp_path, ("10", "0-3%2", 0, "first"), ("11", "0-1", 4, "first"), ("20", "2", 0, "again"))
    first, second, again = (ends.round_of(tmp_path, "S", job, 4) for job in ("10", "11", "20"))
    assert first == second
    assert (first.expected, first.folder.name) == (6, "first")
    assert (again.expected, again.points, again.folder.name) == (1, 6, "again")


def test_while_a_script_is_still_to_be_submitted_the_end_is_not_known(tmp_path: Path) -> None:
    launched(tmp_path, ("10", "0-3", 0, "first"))
    assert ends.round_of(tmp_path, "S", "10", 4).expected is None


def test_an_array_that_somebody_submitted_by_sbatch_has_as_many_tasks_as_slurm_says(tmp_path: Path) -> None:
    slept: list[float] = []
    assert ends.round_of(tmp_path, "S", "77", 5, sleep=slept.append) == Round(
        folder=tmp_path / ".launches/S/ends/job-77", tag="S", expected=5
    )
    assert slept == []


def test_the_record_of_the_job_number_is_waited_for(tmp_path: Path) -> None:
    launched(tmp_path, (None, "0-3", 0, "first"))

    def answered(_: float) -> None:
        launch.add_submission(tmp_path, "S", launch.Submission(
            token="t0", argv=(), at=0.0, scheduler="slurm", job_id="10", script="0.sbatch", array="0-3", call="first",
        ))  # fmt: skip

    assert ends.round_of(tmp_path, "S", "10", 4, sleep=answered).folder.name == "first"


def test_an_end_that_was_told_too_early_is_told_again_with_all_points(tmp_path: Path) -> None:
    """`resubmit` sends two scripts: the only point of the first fails before the second is sent."""
    launched(tmp_path, ("10", "0-3", 0, "first"), ("11", "0-1", 4, "first"), ("20", "2", 0, "again"))
    early = told(ends.round_of(tmp_path, "S", "20", 1), "failed")
    launch.add_submission(tmp_path, "S", launch.Submission(
        token="later", argv=(), at=9.0, scheduler="slurm", job_id="21", script="1.sbatch", array="1", offset=4, call="again",
    ))  # fmt: skip
    late = [each.text for each in ends.ended(ends.round_of(tmp_path, "S", "21", 1), 5, "completed", "said 5", BOTH)]
    assert [each.partition("S has ended, ")[2].partition(";")[0] for each in (*early, *late)] == [
        "1 of 6 points: 1 failed (S_0)", "2 of 6 points: 1 completed, 1 failed (S_0)"
    ]  # fmt: skip


def test_what_ended_before_the_job_number_was_recorded_counts_with_the_others(tmp_path: Path) -> None:
    """The array has started, and the answer of sbatch is on its way."""
    launched(tmp_path, (None, "0-3", 0, "first"), (None, "0-1", 4, "first"))
    early = ends.round_of(tmp_path, "S", "10", 4, sleep=lambda _: None)
    assert early.folder.name == "job-10"
    assert told(early, "failed") == ["said 0"]
    launched(tmp_path, ("10", "0-3", 0, "first"), ("11", "0-1", 4, "first"))
    others = [each.text for point in range(1, 6) for each in ends.ended(
        ends.round_of(tmp_path, "S", "10" if point < 4 else "11", 4), point, "completed", "", BOTH)]  # fmt: skip
    assert others == ["S has ended, 6 points: 5 completed, 1 failed (S_0); next: hpctrain report S"]


@pytest.mark.parametrize(("restart", "stays"), [("0", True), ("1", False)])
def test_only_a_start_after_an_interruption_takes_the_mark_away(tmp_path: Path, restart: str, stays: bool) -> None:
    """A point that `resubmit` starts anew is of another round: in the first one, it has been interrupted for good."""
    script = Path(__file__).parents[1] / "golden/notify-sweep/script.sbatch"
    (line,) = (line for line in script.read_text().splitlines() if "/ends/" in line)
    mark, other = tmp_path / "ends/first/2.interrupted", tmp_path / "ends/first/12.interrupted"
    mark.parent.mkdir(parents=True)
    mark.touch()
    other.touch()
    words = ["bash", "-euc", f"launch=$1 restart=$2 index=2\n{line}", "bash", str(tmp_path), restart]
    subprocess.run(words, check=True)
    assert (mark.exists(), other.exists()) == (stays, True)
