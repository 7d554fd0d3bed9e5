"""Numbers, lists and tables as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.util import text


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.977 KiB"),
        (1024, "1 KiB"),
        (41_000_000_000, "38.2 GiB"),
        (1 << 40, "1 TiB"),
        (5 << 50, "5,120 TiB"),
    ],
)
def test_size(count: int, shown: str) -> None:
    assert text.size(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-3, "0 s"),
        (99, "99 s"),
        (100, "2 min"),
        (3600, "60 min"),
        (11_520, "3.2 h"),
        (111_600, "31 h"),
        (734_400, "8.5 days"),
    ],
)
def test_duration(seconds: float, shown: str) -> None:
    assert text.duration(seconds) == shown


def test_clock() -> None:
    assert [text.clock(each) for each in (796, 86_400, 360_000)] == [
        "0:13:16",
        "24:00:00",
        "100:00:00",
    ]


@given(st.text())
def test_what_counts_as_a_number_is_one(word: str) -> None:
    assert (text.integer(word) is None) == (not text.is_number(word))


def test_numbers() -> None:
    assert [text.integer(each) for each in ("12", "²", "٣", "", "-1", "9" * 19)] == [12] + [
        None
    ] * 5


def test_count_and_list() -> None:
    assert [
        text.count(1, "file"),
        text.count(1024, "GPU"),
        text.count(2, "process", "processes"),
    ] == [
        "1 file",
        "1,024 GPUs",
        "2 processes",
    ]
    assert [text.listed(each) for each in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]


def test_table_aligns_what_is_wide() -> None:
    assert text.table([["job", "name"], ["7", "训练"], ["12345", "x"]], right={0}) == [
        "  job  name",
        "    7  训练",
        "12345  x",
    ]
    assert text.width("训练") == 4


def test_wrap_keeps_paths_whole() -> None:
    path = "/scratch/" + "x" * 90
    assert text.wrap(f"see {path} there", 40, indent="  ", hanging="    ") == [
        "  see",
        f"    {path}",
        "    there",
    ]
