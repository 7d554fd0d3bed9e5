"""Several logs as one: in time's order, each thing said once, and nothing lost that says something
else.
"""

from collections.abc import Iterable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hpctrain.logs import merge, text
from hpctrain.logs.files import LogFile

SHARED = LogFile(path=Path("/x/output.log"), name="output.log")


def of_rank(rank: int) -> LogFile:
    return LogFile(path=Path(f"/x/rank-{rank}.log"), name=f"rank-{rank}.log", rank=rank)


def lines(file: LogFile, *said: str) -> list[merge.Line]:
    return [merge.line_of(file, each.encode(), year=2026) for each in said]


def folded(
    many: Iterable[merge.Line], processes: int | None = None
) -> list[tuple[str, int, list[int]]]:
    return [
        (each.text, each.count, sorted(each.ranks))
        for each in merge.folded(many, processes=processes)
    ]


def test_the_same_warning_of_64_ranks_is_one_line_with_a_count() -> None:
    form = "[rank%d]:W1122 04:10:0%d.1 %d x.py:3] slow, pid=%d"
    said = [
        line
        for rank in range(64)
        for line in lines(of_rank(rank), form % (rank, rank % 10, rank + 900, rank + 7))
    ]
    [one] = merge.folded(said)
    assert (one.count, len(one.ranks)) == (64, 64)
    assert one.text == "W1122 04:10:00.1 900 x.py:3] slow, pid=7"


def test_what_differs_in_more_than_who_and_when_stays() -> None:
    both = [
        "loss 1.5",
        "loss 1.6",
        "device 3 of 8 lost",
        "device 4 of 8 lost",
        "at 0x7f00 failed",
        "at 0x7f01 failed",
    ]
    said = lines(SHARED, *both, "took 3 s", "took 4 s")
    assert [(text, count) for text, count, _ in folded(said)] == [
        ("loss 1.5", 1),
        ("loss 1.6", 1),
        ("device 3 of 8 lost", 2),
        ("at 0x7f00 failed", 2),
        ("took 3 s", 1),
        ("took 4 s", 1),
    ]


def test_each_ranks_own_order_stays() -> None:
    said = [
        line
        for step in range(5)
        for rank in range(4)
        for line in [lines(of_rank(rank), "a", "b", "a", "a", "c")[step]]
    ]
    assert folded(said) == [
        ("a", 4, [0, 1, 2, 3]),
        ("b", 4, [0, 1, 2, 3]),
        ("a", 8, [0, 1, 2, 3]),
        ("c", 4, [0, 1, 2, 3]),
    ]


def test_tracebacks_of_processes_without_labels_become_one() -> None:
    frames = [
        "Traceback (most recent call last):",
        '  File "x.py", line 3, in f',
        "    g()",
        "RuntimeError: boom",
    ]
    mixed = [frames[0], frames[0], frames[1], frames[2], frames[1], frames[2], frames[3], frames[3]]
    assert folded(lines(SHARED, *mixed), 2) == [(frame, 2, []) for frame in frames]
    assert [text for text, _, _ in folded(lines(SHARED, *mixed), 1)] == [
        frames[0],
        *mixed[2:7],
    ], "one process means what it says"


def test_a_line_that_is_repeated_is_counted_and_bars_leave_their_last_state() -> None:
    bars = [
        f"{done}%|{'#' * (done // 10):10}| {done}/100 [00:01<00:09,  1.00it/s]"
        for done in range(0, 101, 10)
    ]
    assert folded(lines(SHARED, *["again"] * 120, *bars, "end"), 1) == [
        ("again", 120, []),
        (bars[-1], 11, []),
        ("end", 1, []),
    ]


def test_times_order_the_lines_of_several_files_and_blocks_stay_together() -> None:
    out = lines(of_rank(0), "before", "2026-11-22 04:10:00 a", "of a", "2026-11-22 04:10:10 c")
    err = lines(
        of_rank(1), "2026-11-22 04:10:05 b", "of b", "2026-11-22 04:09:00 a clock that was set back"
    )
    no_times = lines(of_rank(2), "at the end")
    assert [line.text.rpartition(" ")[2] for line in merge.merged([no_times, out, err])] == [
        "before",
        "a",
        "a",
        "b",
        "b",
        "back",
        "c",
        "end",
    ]
    assert [
        line.text for line in merge.merged([lines(of_rank(0), "1", "2"), lines(of_rank(1), "3")])
    ] == ["1", "2", "3"]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", "c", "rank 1 x", "rank 2 x", ""])),
        max_size=80,
    )
)
def test_nothing_is_lost_and_nothing_is_made_up(said: list[tuple[int, str]]) -> None:
    found: list[merge.Folded] = list(
        merge.folded(lines(of_rank(rank), text)[0] for rank, text in said)
    )
    assert sum(each.count for each in found) == len(said)
    for rank in range(4):
        own = [merge.shape_of(text) for each, text in said if each == rank]
        seen = [each.shape for each in found if rank in each.ranks]
        # Repeated at once is once: what is left of each is the same sequence.
        assert [
            text for number, text in enumerate(own) if number == 0 or own[number - 1] != text
        ] == [text for number, text in enumerate(seen) if number == 0 or seen[number - 1] != text]


def test_the_window_bounds_what_waits() -> None:
    folder, most, count = merge.Folder(processes=2, window=50), 0, 0
    for number in range(5000):
        count += sum(each.count for each in folder.add(lines(SHARED, f"line {number}")[0]))
        most = max(most, number + 1 - count)
    assert most <= 50
    assert count + sum(each.count for each in folder.flush()) == 5000


def test_times() -> None:
    assert text.time_of("2026-11-22T04:10:00.5Z x") == 1795320600.5
    assert text.time_of("[rank3]:[E1122 04:10:00.5 x.cpp] y", year=2026) == text.time_of(
        "2026-11-22 04:10:00,500 y"
    )
    assert text.time_of("*** JOB 1 ON n CANCELLED AT 2026-11-22T05:10:00+01:00 ***") == 1795320600.0
    assert text.time_of("11/22/2026 04:10:00 - INFO - x") == text.time_of("2026-11-22 04:10:00")
    assert text.time_of("[E1122 04:10:00.5 x.cpp] y") is None
    for no_time in (
        "",
        "2026-02-31 04:10:00",
        "a:bc",
        "1:2:3",
        "x" * 200 + " 2026-11-22 04:10:00",
        "3:04:10:00",
    ):
        assert text.time_of(no_time, year=2026) is None
