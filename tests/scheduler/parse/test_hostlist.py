"""Hostlists, there and back; against `scontrol show hostnames` in tests/lab/test_oracles.py."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.slurm.notations import hostlist

_NAME = st.text("abcxyz0123456789-.é٣", min_size=1, max_size=12)
_RACK = st.builds(
    lambda prefix, numbers, width: [f"{prefix}{n:0{width}d}" for n in numbers],
    st.sampled_from(["n", "nid", "r1n", "gpu-"]),
    st.lists(st.integers(0, 1200), max_size=30),
    st.integers(1, 6),
)
hosts = st.one_of(
    st.lists(_NAME, max_size=20),
    st.lists(_RACK, max_size=3).map(lambda racks: [name for rack in racks for name in rack]),
)


@given(hosts)
def test_order_duplicates_and_zeros_survive(names: list[str]) -> None:
    assert hostlist.expand(hostlist.compress(names)) == names


@pytest.mark.parametrize(
    ("compressed", "names"),
    [
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("n[8-010]", ["n8", "n9", "n10"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("b,a,a", ["b", "a", "a"]),
        (" n1 , n2 ", ["n1", "n2"]),
        ("nid[006363,006375-006376]", ["nid006363", "nid006375", "nid006376"]),
        ("", []),
    ],
)
def test_expand(compressed: str, names: list[str]) -> None:
    assert hostlist.expand(compressed) == names


def test_neighbours_are_folded() -> None:
    assert hostlist.compress([f"node{n}" for n in range(1, 13)]) == "node[1-12]"
    assert hostlist.compress(["n01", "n02", "n03", "n05", "login"]) == "n[01-03,05],login"


@pytest.mark.parametrize(
    "text",
    [
        "n[1-2",
        "n1]",
        "n[10-9]",
        "n[]",
        "n[a-b]",
        "n[[1]]",
        "n[1,]",
        "n[-1]",
        "n[٣]",
        "n" * 99 + "[",
    ],
)
def test_what_is_no_hostlist_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="hostlist"):
        hostlist.expand(text)


@pytest.mark.parametrize(
    "text",
    ["n[0-99999999999]", "n[0-65535]m[0-65535]", "a[1-999]b[1-999]c[1-999]d[1-999]", "n[0-65536]"],
)
def test_a_hostlist_that_would_fill_the_memory_is_refused_at_once(text: str) -> None:
    started = time.process_time()  # whatever else the machine does
    with pytest.raises(ValueError, match="more than 65536 hosts"):
        hostlist.expand(text)
    assert time.process_time() - started < 2
