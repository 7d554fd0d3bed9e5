"""What a run did over all of its starts, thinned as it is read."""

import json
import math
import os
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpctrain.memory import sample
from hpctrain.memory.sample import Sample
from hpctrain.runs import history
from hpctrain.runs.metrics import Thinned
from tests.runs import make

AT = make.AT


def rows(first: int, until: int, at: float, **values: float) -> list[dict[str, Any]]:
    """Return a start's rows: one step a second."""
    steps = range(first + 1, until + 1)
    return [
        {"event": "begin", "step": first, "at": at},
        *({"step": s, "at": at + s - first, "loss": 10 - s / 10, **values} for s in steps),
    ]


def saw(
    run: Path, rank: int, times: list[tuple[float, int]], host: str = "n1", **values: int
) -> Path:
    """Write samples: (seconds, step)."""
    path = run / "memory" / f"rank-{rank}.jsonl"
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as stream:
        for at, step in times:
            event = "train_begin" if step == 0 else "step"
            one = Sample(
                time_ms=int(1000 * at),
                step=step,
                event=event,
                host=host,
                rank=rank,
                world_size=2,
                local_rank=0,
                **values,
            )
            stream.write(sample.to_json(one) + "\n")
    return path


def test_lost_work_is_counted_and_is_no_point(tmp_path: Path) -> None:
    run = make.run(tmp_path, "r")
    make.metrics(
        make.attempt(run, "7", at=AT, outcome="requeued", ended=AT + 50), *rows(0, 29, AT + 5)
    )
    make.metrics(
        make.attempt(run, "7", restart=1, at=AT + 100, outcome="completed", ended=AT + 150),
        *rows(20, 40, AT + 110),
    )
    found = history.read(run)
    assert [point.step for point in found.of("log")] == list(range(1, 41))
    assert [point.at for point in found.of("log")][19:21] == [AT + 25, AT + 111]
    first, second = found.starts
    assert (first.lost_steps, first.lost_s, first.first_step, first.last_step) == (9, 9.0, 0, 29)
    assert (second.lost_steps, second.outcome, second.started, second.ended, second.began) == (
        0,
        "completed",
        AT + 100,
        AT + 150,
        AT + 110,
    )
    assert (found.lost_steps, found.last_step) == (9, 40)


def test_half_lines_and_nonsense(tmp_path: Path) -> None:
    run = make.run(tmp_path, "r")
    path = make.attempt(run, "7", at=AT)
    make.metrics(path, *rows(0, 3, AT))
    nan = {"event": "log", "step": 4, "at": AT + 4, "loss": None, "nonfinite": {"loss": "nan"}}
    junk = [
        b"\xff\xfe\n",
        b"[1]\n",
        b"\n",
        b'{"event": "log"}\n',
        b'{"event": "else", "step": 1, "at": 1}\n',
        b'{"event": "log", "step": 9, "at": NaN}\n',
        b'{"event": "log", "step": 9, "at": 1e400}\n',
        b"[" * 90_000 + b"\n",
        b'{"event": "log", "step": 9, "at": 5, "loss": 1' + b"0" * 400 + b"}\n",
        b"x" * 5_000_000 + b"\n",
        json.dumps(nan).encode() + b"\n",
        b'{"event": "log", "step": 5, "at": 1794600005, "loss": 1',
    ]
    with (path / "metrics.jsonl").open("ab") as stream:
        stream.writelines(junk)
    memory = saw(run, 0, [(AT + 1, 1)])
    with memory.open("ab") as stream:
        stream.write(
            b'{"time_ms": 1}\n[]\nnull\n\xff\n{"time_ms": -5, "step": 1}\n'
            + memory.read_bytes().rstrip(b"\n")[:-3]
        )
    (run / "memory" / "rank-x.jsonl").write_text("{}")
    os.mkfifo(run / "memory" / "rank-9.jsonl")
    found = history.read(run)
    steps = [point.step for point in found.of("log") if "loss" in point.values]
    assert steps == [1, 2, 3, 4]
    assert math.isnan(found.of("log")[-1].values["loss"])
    assert {row["event"] for row in history.read_rows(run)} == {"begin", "log"}
    assert [(each.rank, each.count) for each in found.ranks] == [(0, 1)]


def losses(run: Path) -> list[tuple[int, float]]:
    return [(each["step"], each["loss"]) for each in history.read_rows(run) if "loss" in each]


def test_a_start_from_nothing_replaces_everything_and_order_is_by_time(tmp_path: Path) -> None:
    """Attempt 10 began before attempt 9 by name, and 99 has no start.json."""
    run = make.run(tmp_path, "r")
    for job, at, first, loss in (("10", 5, 0, 1), ("9", 8, 0, 2), ("99", 12, 1, 3)):
        make.metrics(
            make.attempt(run, job, at=at),
            {"event": "begin", "step": first, "at": at},
            {"step": first + 1, "at": at + 1, "loss": loss},
        )
    (run / "attempts" / "99.0" / "start.json").unlink()
    assert losses(run) == [(1, 2), (2, 3)]


def test_several_starts_in_one_file(tmp_path: Path) -> None:
    """Outside Slurm all starts of a run have the same name."""
    run = make.run(tmp_path, "r")
    make.metrics(
        make.attempt(run, "local"),
        {"event": "begin", "step": 0, "at": 1},
        {"step": 1, "at": 2, "loss": 1},
        {"step": 2, "at": 3, "loss": 2},
        {"event": "begin", "step": 1, "at": 4},
        {"step": 2, "at": 5, "loss": 3},
    )
    assert losses(run) == [(1, 1), (2, 3)]


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.floats(-1e6, 1e6), max_size=700), most=st.integers(8, 60))
@example(
    values=[
        0.0,
        0.0,
        -1.0,
        0.0,
        -1.0,
        0.0,
        0.0,
        1.0,
        1.0,
        0.0,
        -1.0,
        1.0,
        0.0,
        -1.0,
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
    ],
    most=19,
)
def test_thinning_keeps_first_last_highest_and_lowest(values: list[float], most: int) -> None:
    thinned: Thinned[tuple[int, float]] = Thinned(
        most, [lambda item: item[1], lambda item: -item[1]]
    )
    items = list(enumerate(values))
    for item in items:
        thinned.add(item)
    kept = thinned.items()
    assert len(kept) <= most
    assert kept == sorted(kept)
    if len(items) < most:
        assert kept == items
    if items:
        assert {items[0], items[-1]} <= set(kept)
        assert max(value for _, value in kept) == max(values)
        assert min(value for _, value in kept) == min(values)
