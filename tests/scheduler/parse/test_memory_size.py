"""Memory sizes, there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.scheduler.parse import memory_size


@given(st.integers(min_value=0, max_value=memory_size.MAX_BYTES // 1024))
def test_whole_kibibytes_are_read_back(kibibytes: int) -> None:
    assert memory_size.parse(memory_size.format(kibibytes * 1024)) == kibibytes * 1024


@given(st.integers(min_value=1, max_value=memory_size.MAX_BYTES))
def test_a_request_is_never_rounded_down(size: int) -> None:
    assert 0 <= memory_size.parse(memory_size.format(size)) - size < 1024


@given(st.integers(0, 10**6), st.sampled_from("KMGT"), st.sampled_from(["", "B", "iB", "b", "ib"]), st.sampled_from(["", " "]))
def test_units_are_powers_of_1024(number: int, unit: str, suffix: str, blank: str) -> None:
    expected = number * 1024 ** ("KMGT".index(unit) + 1)
    assert memory_size.parse(f"{number}{blank}{unit}{suffix}") == memory_size.parse(f"{number}{unit.lower()}") == expected


def test_without_a_unit_it_is_mebibytes() -> None:
    assert memory_size.parse("4000") == 4000 * 1024**2
    assert memory_size.format(64 * 1024**3) == "64G"
    assert memory_size.format(1536 * 1024**2) == "1536M"
    assert memory_size.format(0) == "0"


@pytest.mark.parametrize("text", ["", "G", "1.5G", "-1G", "64X", "64GG", "6 4G", "64 G B", "٦٤G", "$(nproc)G", "1e3M", "inf"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a memory size"):
        memory_size.parse(text)
