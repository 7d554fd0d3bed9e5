"""Stages: their order, their dependencies, what is wrong with them, and what goes on after a failure."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.jobs import stages
from hpctrain.jobs.stages import Asked, Remaining, Stage


def planned(*asked: Asked) -> list[Stage]:
    made, problems = stages.plan(asked)
    assert problems == []
    return made


def said(*asked: Asked) -> list[tuple[int, str, str]]:
    return stages.plan(asked)[1]


def test_each_starts_from_the_weights_of_the_one_before() -> None:
    first, second, third = planned(Asked(name="a"), Asked(name="b", overrides={"training": {"max_steps": 3}}), Asked(name="c", after="any"))
    assert (first.parent, first.start, first.dependencies) == (None, "none", ())
    assert (second.parent, second.start, second.dependencies) == ("a", "weights", (("a", "afterok"),))
    assert second.overrides == {"training": {"max_steps": 3}}
    assert (third.parent, third.start, third.dependencies) == ("b", "weights", (("b", "afterany"),))


def test_a_script_of_ones_own_only_waits() -> None:
    evaluate = planned(Asked(name="train"), Asked(name="evaluate", ours=False))[1]
    assert (evaluate.parent, evaluate.start, evaluate.dependencies) == ("train", "none", (("train", "afterok"),))


def test_a_start_that_is_written_holds() -> None:
    made = planned(
        Asked(name="a"), Asked(name="b", start="state"), Asked(name="c", start="none"), Asked(name="d", parent="a"),
        Asked(name="e", parent="none"), Asked(name="f", starts_itself=True),
    )  # fmt: skip
    assert [(one.parent, one.start) for one in made] == [
        (None, "none"), ("a", "state"), ("b", "none"), ("a", "weights"), (None, "none"), ("e", "none")
    ]  # fmt: skip


def test_two_parents_and_an_order_that_is_not_the_files() -> None:
    made = planned(
        Asked(name="merge", parent="right", needs=("left", "right")), Asked(name="left", parent="none"), Asked(name="right", parent="none"),
        Asked(name="last", parent="merge"),
    )  # fmt: skip
    assert [(one.name, one.index) for one in made] == [("left", 1), ("right", 2), ("merge", 0), ("last", 3)]
    assert made[2].dependencies == (("right", "afterok"), ("left", "afterok"))
    assert stages.earlier(made, "last") == ["left", "right", "merge"]
    assert stages.earlier(made, "left") == []


def test_all_problems_at_once() -> None:
    problems = said(
        Asked(name="train", start="weights"), Asked(name="train", parent="tain"), Asked(name="none"), Asked(name="TRAIN"),
        Asked(name="eval", ours=False, start="state"), Asked(name="x" * 40, parent="none", needs=("eval", "nothing-like-it")),
        Asked(name="own", needs=("own",), starts_itself=True, start="weights"),
    )  # fmt: skip
    assert [(index, key) for index, key, _ in problems] == [
        (1, "name"), (2, "name"), (3, "name"), (5, "name"), (0, "start"), (1, "from"), (4, "start"), (5, "needs"), (6, "needs"),
        (6, "start"),
    ]  # fmt: skip
    words = [message for _, _, message in problems]
    assert words[0] == "must be another one: 'train' is the name of a stage already"
    assert words[2] == "must be another one: HPCTRAIN_STAGE_TRAIN would stand for 'train' too"
    assert words[5] == f"must be the name of a stage, not 'tain'; the others are TRAIN, eval, {'x' * 40}, own"
    assert "$HPCTRAIN_STAGE_TRAIN" in words[6]


def test_a_name_that_is_no_stages() -> None:
    assert said(Asked(name="a"), Asked(name="train"), Asked(name="b", parent="trian"))[0][2].endswith("not 'trian'; did you mean 'train'?")
    assert said(Asked(name="a", parent="b")) == [(0, "from", "must be left out, not 'b': there is no other stage")]


@pytest.mark.parametrize(
    ("asked", "where", "circle"),
    [
        ((Asked(name="a", parent="c"), Asked(name="b"), Asked(name="c")), (0, "from"), "a waits for c waits for b waits for a"),
        ((Asked(name="a", needs=("b",)), Asked(name="b")), (0, "needs"), "a waits for b waits for a"),
        ((Asked(name="z"), Asked(name="a", parent="b"), Asked(name="b")), (1, "from"), "a waits for b waits for a"),
        ((Asked(name="out", parent="a"), Asked(name="a", parent="b"), Asked(name="b")), (1, "from"), "a waits for b waits for a"),
    ],
)
def test_a_circle_is_named(asked: tuple[Asked, ...], where: tuple[int, str], circle: str) -> None:
    assert said(*asked) == [(*where, f"makes a circle: {circle}")]


def test_names_that_share_a_variable() -> None:
    assert stages.variable("sft-2.b") == "HPCTRAIN_STAGE_SFT_2_B"
    assert [key for _, key, _ in said(Asked(name="a-b"), Asked(name="a.b"), Asked(name="A_B"))] == ["name", "name"]


@given(st.text("aA0._-", min_size=1, max_size=20))
def test_a_variable_is_one_that_bash_can_have(name: str) -> None:
    assert re.fullmatch(r"HPCTRAIN_STAGE_[A-Z0-9_]+", stages.variable(name))


@given(st.data())
def test_any_graph_without_circles_has_an_order(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 8))
    order = data.draw(st.permutations(range(count)))
    needs = {
        number: [f"s{other}" for other in order[:place] if data.draw(st.booleans())] for place, number in enumerate(order)
    }  # fmt: skip
    made = planned(*(Asked(name=f"s{number}", parent="none", needs=tuple(needs[number])) for number in range(count)))
    assert sorted(one.index for one in made) == list(range(count))
    for place, one in enumerate(made):
        before = {other.name for other in made[:place]}
        assert {name for name, _ in one.dependencies} <= before
        # Stable: whoever comes earlier in the file, and could have had this place, has had it.
        assert not [other for other in made[place + 1 :] if other.index < one.index and {name for name, _ in other.dependencies} <= before]


CHAIN = planned(Asked(name="a"), Asked(name="b"), Asked(name="c", after="any"))


@pytest.mark.parametrize(
    ("states", "again", "cancel"),
    [
        ({"a": "completed", "b": "completed", "c": "completed"}, {}, ()),
        ({"a": "completed", "b": "failed"}, {"b": (), "c": (("b", "afterany"),)}, ()),
        ({"a": "completed", "b": "failed", "c": "pending"}, {"b": (), "c": (("b", "afterany"),)}, ("c",)),
        ({"a": "failed", "b": "pending", "c": "pending"}, {"a": (), "b": (("a", "afterok"),), "c": (("b", "afterany"),)}, ("b", "c")),
        ({"a": "completed", "b": "stopped", "c": "completed"}, {"b": ()}, ()),
        ({"a": "running", "b": "pending", "c": "pending"}, {}, ()),
        ({"a": "running", "b": "pending", "c": None}, {"c": (("b", "afterany"),)}, ()),
        ({"a": "unknown", "b": None, "c": "pending"}, {"b": (("a", "afterok"),), "c": (("b", "afterany"),)}, ("c",)),
        ({}, {"a": (), "b": (("a", "afterok"),), "c": (("b", "afterany"),)}, ()),
        ({"a": "completed", "b": "failed", "c": "running"}, {"b": ()}, ()),
    ],
)  # fmt: skip
def test_what_is_submitted_again(states: dict[str, str | None], again: dict[str, object], cancel: tuple[str, ...]) -> None:
    found = stages.remaining(CHAIN, states)
    assert {one.name: one.dependencies for one in found.stages} == again
    assert found.cancel == cancel
    assert [one.name for one in found.stages] == [one.name for one in CHAIN if one.name in again]
    assert isinstance(found, Remaining)
