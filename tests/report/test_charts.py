"""Bars and curves in characters, and the charts of a report."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.memory.sample import Sample
from hpctrain.report import document, html, live
from hpctrain.runs.history import History, Point, RankMemory

numbers = st.floats(allow_nan=True, allow_infinity=True)
steps = st.lists(st.integers(0, 10**7), max_size=50, unique=True).map(sorted)


@pytest.mark.parametrize(
    ("part", "bar"),
    [
        (0.0, "▕        ▏"),
        (0.5, "▕████    ▏"),
        (7.0, "▕████████▏"),
        (-1.0, "▕        ▏"),
        (None, "▕????????▏"),
        (math.nan, "▕????????▏"),
    ],
)
def test_bars(part: float | None, bar: str) -> None:
    assert live.bar(part, 10) == bar


@given(steps, st.data(), st.integers(20, 200), st.integers(3, 30))
def test_a_curve_has_its_size(xs: list[int], data: st.DataObject, width: int, height: int) -> None:
    points = [(float(x), data.draw(numbers)) for x in xs]
    lines = live.curve(points, width, height)
    assert all(len(line) == width for line in lines)
    assert len(lines) == (height if any(math.isfinite(y) for _, y in points) else 1)


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([], "no loss yet"),
        ([(1.0, math.nan)], "every loss is NaN or infinite"),
        ([(1.0, math.inf), (2.0, math.nan)], "every loss is NaN or infinite"),
    ],
)
def test_nothing_to_draw_is_said(points: list[live.Point], said: str) -> None:
    assert [line.rstrip() for line in live.curve(points, 40, 5)] == [said]


def test_a_loss_that_is_no_number_any_more_is_said_and_its_marks_have_a_key() -> None:
    values = [2.5, 2.25, math.nan, math.nan]
    past = History(
        points=tuple(
            Point(at=1.0 + n, step=n, event="log", values={"loss": y}) for n, y in enumerate(values)
        )
    )
    (chart,), _ = document.history_charts(past)
    says = "train: from 2.5 to 2.25, lowest 2.25, highest 2.5; 2 of 4 are NaN or infinite"
    assert chart.says == says
    assert ("bad", "NaN or infinite") in html.keys(chart)


def test_repeated_steps_are_drawn_once_and_no_peak_is_lost() -> None:
    rows = [(1, 5.0), (2, 4.0), (3, 9.0), (2, 3.5), (3, 3.0)]
    samples = tuple(
        Sample(
            time_ms=1000 * at,
            step=step,
            event="step",
            host="n1",
            rank=0,
            world_size=1,
            local_rank=0,
            gpu_used_mib=int(1024 * loss),
        )
        for at, (step, loss) in enumerate(rows)
    )
    past = History(
        points=tuple(
            Point(at=float(at), step=step, event="log", values={"loss": loss})
            for at, (step, loss) in enumerate(rows)
        ),
        ranks=(RankMemory(rank=0, samples=samples),),
    )
    (loss,), _ = document.history_charts(past)
    assert (loss.series[0].x, loss.series[0].y) == ((1, 2, 3), (5.0, 3.5, 3.0))
    (memory,) = document.memory_charts(past)
    assert (memory.series[0].x, memory.series[0].y) == ((1, 2, 3), (5.0, 4.0, 9.0))


# -- What a report says of the config is what a person would write into one
