"""Who is held out: as many as asked, the same whatever else is there, others for another seed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.preparation import split

pytestmark = pytest.mark.torch  # numpy is of the [train] extra

KEYS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=200, unique=True)


def keys(values: list[int]) -> Any:
    import numpy as np

    return np.array(values, dtype=np.uint64)


@given(KEYS, st.integers(-(2**70), 2**70), st.data())
def test_exactly_as_many_as_asked_are_held_out(values: list[int], seed: int, data: st.DataObject) -> None:
    drawn = split.draws(keys(values), seed)
    wanted = data.draw(st.integers(0, len(values)))
    cut = data.draw(st.integers(0, len(values)))
    bound = split.bound(lambda: iter([drawn[:cut], drawn[cut:]]), wanted)
    assert int(split.below(drawn, bound).sum()) == wanted
    assert split.bound(lambda: iter([drawn]), wanted) == bound, "the bound depends on how the draws come"


@given(KEYS, st.integers(0, 1000))
def test_a_draw_depends_on_the_key_and_the_seed_alone(values: list[int], seed: int) -> None:
    together = split.draws(keys(values), seed)
    alone = [int(split.draws(keys([value]), seed)[0]) for value in values]
    assert together.tolist() == alone
    assert len(set(alone)) == len(alone), "two keys share a draw"


def test_draws_are_spread_and_another_seed_draws_otherwise() -> None:
    import numpy as np

    numbers = np.arange(100_000, dtype=np.uint64)
    for seed in (0, 1, 7):
        share = split.below(split.draws(numbers, seed), (1 << 64) // 10).mean()
        assert 0.095 < share < 0.105
    first, second = (split.below(split.draws(numbers, seed), (1 << 64) // 10) for seed in (0, 1))
    assert 0.005 < (first & second).mean() < 0.015


def test_equal_draws_are_held_out_together() -> None:
    drawn = keys([5, 5, 5, 9])
    bound = split.bound(lambda: iter([drawn]), 1)
    assert split.below(drawn, bound).tolist() == [True, True, True, False]


def test_more_than_there_are() -> None:
    drawn = keys([1, 2])
    assert split.bound(lambda: iter([drawn]), 3) == 1 << 64
    assert split.below(drawn, 1 << 64).all()
    assert split.bound(lambda: iter([drawn]), 0) == 0
