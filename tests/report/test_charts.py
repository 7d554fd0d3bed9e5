"""Bars and curves: of the width that was asked for, whatever the numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.report import charts, page, page_charts
from hpctrain.runs.history import History, Point

numbers = st.floats(allow_nan=True, allow_infinity=True)
steps = st.lists(st.integers(0, 10**7), max_size=50, unique=True).map(sorted)


@given(st.none() | numbers, st.integers(3, 200), st.booleans())
def test_a_bar_has_its_width(part: float | None, width: int, plain: bool) -> None:
    bar = charts.bar(part, width, plain=plain)
    assert len(bar) == width
    assert bar.isascii() == plain


@pytest.mark.parametrize(
    ("part", "plain", "bar"),
    [
        (0.0, False, "▕        ▏"),
        (0.5, False, "▕████    ▏"),
        (1.0, False, "▕████████▏"),
        (0.001, False, "▕▏       ▏"),  # anything above nothing shows
        (0.9999, False, "▕███████▉▏"),  # and only all of it is full
        (7.0, False, "▕████████▏"),
        (-1.0, True, "[--------]"),
        (0.5, True, "[####----]"),
        (0.9999, True, "[#######-]"),
        (None, True, "[????????]"),
        (math.nan, False, "▕????????▏"),
    ],
)
def test_bars(part: float | None, plain: bool, bar: str) -> None:
    assert charts.bar(part, 10, plain=plain) == bar


def test_levels_say_each_part() -> None:
    assert charts.levels([0, 0.1, 0.5, 0.8, 1, None, math.nan, 9]) == "▁▁▄▇█??█"
    assert charts.levels([0, 0.5, 1, None], plain=True) == ".=#?"


@given(steps, st.data(), st.integers(20, 200), st.integers(3, 30), st.booleans())
def test_a_curve_has_its_size(xs: list[int], data: st.DataObject, width: int, height: int, plain: bool) -> None:
    points = [(float(x), data.draw(numbers)) for x in xs]
    lines = charts.curve(points, width, height, plain=plain)
    assert all(len(line) == width for line in lines)
    assert len(lines) == (height if any(math.isfinite(y) for _, y in points) else 1)
    assert lines == charts.curve(points, width, height, plain=plain)
    if plain:
        assert "\n".join(lines).isascii()


def test_a_falling_curve_falls() -> None:
    lines = charts.curve([(float(step), 10.0 - step) for step in range(11)], 30, 6, plain=True)
    assert lines[0].startswith("      10 +")
    assert lines[4].startswith("       0 +")
    assert lines[5] == "    step  0                 10"
    first, last = lines[0], lines[4]
    assert first[10] != " "
    assert last[29] != " "
    assert first[29] == " "


def test_braille_is_drawn_from_left_above_to_right_below() -> None:
    lines = charts.curve([(0.0, 1.0), (100.0, 0.0)], 30, 5)
    assert lines[0][10] in "⠉⠑⠁⠒⠤⠢"
    assert lines[3][29] in "⣀⡀⢀⠤⡠⢄"
    assert "       1 ┤" in lines[0]
    assert "       0 ┤" in lines[3]


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([], "no loss yet"),
        ([(1.0, math.nan)], "every loss is NaN or infinite"),
        ([(1.0, math.inf), (2.0, math.nan)], "every loss is NaN or infinite"),
    ],
)
def test_nothing_to_draw_is_said(points: list[charts.Point], said: str) -> None:
    assert [line.rstrip() for line in charts.curve(points, 40, 5)] == [said]


def test_one_point_and_equal_ones_are_drawn() -> None:
    for points in ([(5.0, 2.0)], [(1.0, 2.0), (9.0, 2.0)], [(1.0, 0.0), (2.0, 0.0)]):
        lines = charts.curve(points, 40, 5)
        assert any(sign not in " \u2800" for line in lines[:-1] for sign in line[10:])


def test_nan_is_marked_where_it_is() -> None:
    points = [(float(step), math.nan if step >= 80 else 1.0 - step / 100) for step in range(101)]
    top = charts.curve(points, 60, 5, plain=True)[0]
    assert "x" not in top[10:45]
    assert top.endswith("xxxx")


@pytest.mark.parametrize("value", [0.0, 1.0, -1.5, 8.2448, 0.000123456, 12345.678, 1e300, -1.23456e-300, 99999999.0, 5e-324])
def test_numbers_are_short(value: float) -> None:
    text = charts.number(value)
    assert len(text) <= 8
    assert float(text) == pytest.approx(value, rel=0.5)


@given(st.lists(numbers, max_size=300), st.integers(1, 100))
def test_a_spark_is_no_longer_than_asked(values: list[float], width: int) -> None:
    assert len(charts.spark(values, width)) == min(width, len(values))


def test_sparks() -> None:
    assert charts.spark([1, 2, 3, 4], 4) == "▁▃▆█"
    assert charts.spark([math.nan, math.nan], 4) == "??"
    assert charts.spark([], 4) == ""


@pytest.mark.parametrize(
    ("encoding", "terminal", "can"),
    [("utf-8", "xterm", True), ("UTF-8", "", True), ("ascii", "xterm", False), ("latin-1", "xterm", False), (None, "xterm", False),
     ("utf-8", "linux", False), ("utf-8", "dumb", False), ("no-such", "xterm", False)],
)  # fmt: skip
def test_what_a_terminal_can_show(encoding: str | None, terminal: str, can: bool) -> None:
    assert charts.encodable(encoding, terminal) == can


def test_a_loss_that_is_no_number_any_more_is_said_and_its_marks_have_a_key() -> None:
    values = [2.5, 2.25, math.nan, math.nan]
    past = History(points=tuple(Point(at=1.0 + n, step=n, event="log", values={"loss": y}) for n, y in enumerate(values)))
    (chart,) = page_charts.training(past)
    shown = page.figure(chart)
    assert shown["says"] == "train: from 2.5 to 2.25, lowest 2.25, highest 2.5; 2 of 4 are NaN or infinite, the last too"
    assert ("bad", "NaN or infinite") in shown["keys"]
