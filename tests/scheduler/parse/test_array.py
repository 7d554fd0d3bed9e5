"""Job arrays: `--array` to indices and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.slurm.notations import array

INDICES = st.sets(st.integers(0, 2000), min_size=1, max_size=60)


@pytest.mark.parametrize(
    ("text", "indices", "limit", "step"),
    [
        ("0-9%2", tuple(range(10)), 2, 1),
        ("0,3,7-9", (0, 3, 7, 8, 9), None, 1),
        ("1-10:3", (1, 4, 7, 10), None, 3),
        ("1-4:3,9", (1, 4, 9), None, 3),
        ("3,1,1", (1, 3), None, 1),
        ("1-3,2-5", (1, 2, 3, 4, 5), None, 1),
        ("1-4:9", (1,), None, 9),
        ("01", (1,), None, 1),
        ("[4-6%1]", (4, 5, 6), 1, 1),
        (" 1\n", (1,), None, 1),
    ],
)
def test_what_slurm_takes(
    text: str, indices: tuple[int, ...], limit: int | None, step: int
) -> None:
    assert array.parse(text) == array.Array(indices, limit, step)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "a",
            "5-1",
            "1-",
            "-1",
            "1-3:0",
            "1 ,2",
            "0x1",
            "1.5",
            "1-2:1-3",
            "1,",
            "1,,2",
            "%2",
            "1-2%0",
            "1-2%-1",
            "1-2%a",
            "1-3%2,5",
        ),
        *("4000001", "1-99999999999", "\N{ARABIC-INDIC DIGIT ONE}", "1-2%"),
    ],
)
def test_what_is_no_array(text: str) -> None:
    with pytest.raises(ValueError, match="Invalid job array specification"):
        array.parse(text)


def test_the_sites_largest_index() -> None:
    assert array.parse("0-1000", max_index=1000).indices[-1] == 1000
    with pytest.raises(ValueError, match="1001 is past the largest index, 1000"):
        array.parse("0-1001", max_index=1000)


@given(INDICES, st.none() | st.integers(1, 99))
def test_round_trip(indices: set[int], limit: int | None) -> None:
    text = array.compress(indices, limit=limit)
    read = array.parse(text)
    assert (set(read.indices), read.limit) == (indices, limit)
    assert str(read) == text
    assert list(read.indices) == sorted(indices)


def test_what_a_job_id_names() -> None:
    assert array.split("123") == ("123", None)
    assert array.split("123_4") == ("123", array.Array((4,)))
    assert array.split("123_[4-6%2]") == ("123", array.Array((4, 5, 6), 2))
    for wrong in ("", "x", "123_", "123_x", "_4", "12 3"):
        with pytest.raises(ValueError, match="Invalid job"):
            array.split(wrong)


@given(INDICES, st.integers(0, 2100))
def test_membership(indices: set[int], index: int) -> None:
    text = array.compress(indices, limit=3)
    assert array.contains(text, index) is (index in indices)
    assert len(array.parse(text)) == len(indices)
