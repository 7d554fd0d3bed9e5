"""Best-fit decreasing: nothing lost, nothing too long, as many rows as TRL's."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.preparation.packing import best_fit


@given(st.integers(1, 5000).flatmap(lambda capacity: st.tuples(st.just(capacity), st.lists(st.integers(1, capacity)))))
def test_every_example_is_in_one_row_and_no_row_is_too_long(case: tuple[int, list[int]]) -> None:
    capacity, lengths = case
    rows = best_fit(lengths, capacity)
    assert sorted(position for row in rows for position in row) == list(range(len(lengths)))
    assert all(sum(lengths[position] for position in row) <= capacity for row in rows)
    assert all(rows)
    # Any two rows could not have been one: that much every best fit does.
    sums = sorted(sum(lengths[position] for position in row) for row in rows)
    assert len(sums) < 2 or sums[0] + sums[1] > capacity


@given(st.lists(st.integers(1, 40), max_size=60))
def test_it_is_best_fit_decreasing(lengths: list[int]) -> None:
    """The plain definition, in O(n²): the longest first, each into the fullest row that has room."""
    spaces: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [space for space in spaces if space >= length]
        if fitting:
            spaces[spaces.index(min(fitting))] -= length
        else:
            spaces.append(40 - length)
    ours = [40 - sum(lengths[position] for position in row) for row in best_fit(lengths, 40)]
    assert sorted(ours) == sorted(spaces)


def test_rows_wider_than_one_word_of_the_set() -> None:
    assert best_fit([100_000, 31_072, 31_071], 131_072) == [[0, 1], [2]]
    assert best_fit([3000, 1500, 2500], 4096) == [[0], [2, 1]]


def test_equal_lengths_stay_in_their_order() -> None:
    assert best_fit([4, 4, 4, 4], 8) == [[0, 1], [2, 3]]
    assert best_fit([], 8) == []


@pytest.mark.parametrize("lengths", [[0], [9], [3, -1]])
def test_lengths_that_cannot_be_laid_out(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="for rows of 8"):
        best_fit(lengths, 8)


@pytest.mark.torch
@pytest.mark.parametrize("capacity", [512, 2048, 4096])
def test_as_many_rows_as_trl(capacity: int) -> None:
    import numpy as np
    import pyarrow as pa
    from trl.data_utils import _pack_bfd

    chosen = random.Random(capacity)
    lengths = [min(capacity, int(chosen.lognormvariate(5, 1)) + 1) for _ in range(5000)]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    table = pa.table({"input_ids": pa.ListArray.from_arrays(offsets, pa.array(np.zeros(sum(lengths), dtype=np.int32)))})
    theirs = _pack_bfd(table, capacity)
    ours = best_fit(np.array(lengths), capacity)
    assert len(ours) == theirs.num_rows
    assert sum(lengths) / (len(ours) * capacity) > 0.99
    # TRL packs a thousand examples at a time (the batch of datasets.map): one window of all is never worse.
    batches = sum(_pack_bfd(table.slice(start, 1000), capacity).num_rows for start in range(0, 5000, 1000))
    assert len(ours) <= batches
