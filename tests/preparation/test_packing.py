"""Packing, the draws of the validation split, and the figures of a manifest."""

import hashlib
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.data import manifest, packing
from hpctrain.data.encode import Encoded
from hpctrain.data.packing import best_fit

pytestmark = pytest.mark.torch  # numpy and pyarrow are of the [train] extra


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
    rows = best_fit(lengths, 40)
    assert sorted(position for row in rows for position in row) == list(range(len(lengths)))
    ours = [40 - sum(lengths[position] for position in row) for row in rows]
    assert sorted(ours) == sorted(spaces)


def test_bounds_of_a_histogram() -> None:
    assert manifest.histogram({16: 1, 17: 2, 64: 3}) == ((16, 1), (32, 2), (64, 3))
    assert manifest.histogram({3: 1, 40: 1}) == ((16, 1), (32, 0), (64, 1))
    assert manifest.histogram({}) == ()


def test_labels_of_single_and_of_packed_rows() -> None:
    """Spans become labels; the first token of an example is never trained on."""
    spans = [((0, 3),), ((1, 2), (2, 4)), ((3, 4),)]
    examples = [
        Encoded(array("i", range(10 * at, 10 * at + 4)), trained)
        for at, trained in enumerate(spans, 1)
    ]
    table = packing.example_table([*examples, examples[0]])
    keys = table["key"].to_pylist()
    assert keys[0] == keys[3]
    assert len(set(keys)) == 3
    labels = [[-100, 11, 12, -100], [-100, 21, 22, 23], [-100, -100, -100, 33]]
    single = packing.single_rows(table.slice(0, 3)).to_pydict()
    assert single["input_ids"] == [[10, 11, 12, 13], [20, 21, 22, 23], [30, 31, 32, 33]]
    assert single["labels"] == labels
    assert single["length"] == [4, 4, 4]
    packed = packing.packed_rows(table.slice(0, 3), 9, 0)
    rows = packed.to_pydict()
    assert sorted(rows["seq_lengths"]) == [[4], [4, 4]]
    joined = [label for row in rows["labels"] for label in row]
    assert sorted(joined) == sorted(label for each in labels for label in each)
    assert packing.update(hashlib.sha256(), packed) == 6
