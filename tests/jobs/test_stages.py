"""Stages: their order, their dependencies, what is wrong with them, and what goes on after a
failure.
"""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.config import stages
from hpctrain.config.stages import Stage, StageRequest


def planned(*asked: StageRequest) -> list[Stage]:
    made, problems = stages.plan(asked)
    assert problems == []
    return made


def said(*asked: StageRequest) -> list[tuple[int, str, str]]:
    return stages.plan(asked)[1]


def test_each_starts_from_the_weights_of_the_one_before() -> None:
    first, second, third = planned(
        StageRequest(name="a"),
        StageRequest(name="b", overrides={"training": {"max_steps": 3}}),
        StageRequest(name="c", after="any"),
    )
    assert (first.parent, first.start, first.dependencies) == (None, "none", ())
    assert (second.parent, second.start, second.dependencies) == (
        "a",
        "weights",
        (("a", "afterok"),),
    )
    assert second.overrides == {"training": {"max_steps": 3}}
    assert (third.parent, third.start, third.dependencies) == ("b", "weights", (("b", "afterany"),))


def test_a_start_that_is_written_holds() -> None:
    made = planned(
        StageRequest(name="a"),
        StageRequest(name="b", start="state"),
        StageRequest(name="c", start="none"),
        StageRequest(name="d", from_="a"),
        StageRequest(name="e", from_="none"),
        StageRequest(name="f", starts_itself=True),
    )
    assert [(one.parent, one.start) for one in made] == [
        (None, "none"),
        ("a", "state"),
        ("b", "none"),
        ("a", "weights"),
        (None, "none"),
        ("e", "none"),
    ]


def test_two_parents() -> None:
    made = planned(
        StageRequest(name="left", from_="none"),
        StageRequest(name="right", from_="none"),
        StageRequest(name="merge", from_="right", needs=("left", "right")),
        StageRequest(name="last", from_="merge"),
    )
    assert [one.index for one in made] == [0, 1, 2, 3]
    assert made[2].dependencies == (("right", "afterok"), ("left", "afterok"))
    assert stages.earlier(made, "last") == ["left", "right", "merge"]
    assert stages.earlier(made, "left") == []


def test_all_problems_at_once() -> None:
    problems = said(
        StageRequest(name="train", start="weights"),
        StageRequest(name="train", from_="tain"),
        StageRequest(name="none"),
        StageRequest(name="TRAIN"),
        StageRequest(name="eval", ours=False, start="state"),
        StageRequest(name="x" * 40, from_="none", needs=("eval", "nothing-like-it")),
        StageRequest(name="own", needs=("own",), starts_itself=True, start="weights"),
    )
    assert [(index, key) for index, key, _ in problems] == [
        (0, "start"),
        (1, "name"),
        (1, "from"),
        (2, "name"),
        (3, "name"),
        (4, "start"),
        (5, "name"),
        (5, "needs"),
        (6, "needs"),
        (6, "start"),
    ]


@given(st.text("aA0._-", min_size=1, max_size=20))
def test_a_variable_is_one_that_bash_can_have(name: str) -> None:
    assert re.fullmatch(r"HPCTRAIN_STAGE_[A-Z0-9_]+", stages.variable(name))


CHAIN = planned(StageRequest(name="a"), StageRequest(name="b"), StageRequest(name="c", after="any"))


@pytest.mark.parametrize(
    ("states", "again", "cancel"),
    [
        ({"a": "completed", "b": "completed", "c": "completed"}, {}, ()),
        ({"a": "completed", "b": "failed"}, {"b": (), "c": (("b", "afterany"),)}, ()),
        (
            {"a": "completed", "b": "failed", "c": "pending"},
            {"b": (), "c": (("b", "afterany"),)},
            ("c",),
        ),
        (
            {"a": "failed", "b": "pending", "c": "pending"},
            {"a": (), "b": (("a", "afterok"),), "c": (("b", "afterany"),)},
            ("b", "c"),
        ),
        ({"a": "completed", "b": "stopped", "c": "completed"}, {"b": ()}, ()),
        ({"a": "running", "b": "pending", "c": "pending"}, {}, ()),
        ({"a": "running", "b": "pending", "c": None}, {"c": (("b", "afterany"),)}, ()),
        (
            {"a": "unknown", "b": None, "c": "pending"},
            {"b": (("a", "afterok"),), "c": (("b", "afterany"),)},
            ("c",),
        ),
        ({}, {"a": (), "b": (("a", "afterok"),), "c": (("b", "afterany"),)}, ()),
        ({"a": "completed", "b": "failed", "c": "running"}, {"b": ()}, ()),
    ],
)
def test_what_is_submitted_again(
    states: dict[str, str | None], again: dict[str, object], cancel: tuple[str, ...]
) -> None:
    left, blocked = stages.remaining(CHAIN, states)
    assert {one.name: one.dependencies for one in left} == again
    assert blocked == list(cancel)
    assert [one.name for one in left] == [one.name for one in CHAIN if one.name in again]
