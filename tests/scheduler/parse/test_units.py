"""Times and memory sizes of Slurm, there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.slurm.notations import units


@given(st.integers(min_value=0, max_value=units.MAX_SECONDS))
def test_what_is_written_is_read_back(seconds: int) -> None:
    assert units.parse_time(units.format_time(seconds)) == seconds


# The pitfall that started it: PyYAML's 5400 for an unquoted 1:30:00 would be 5400 minutes to Slurm.
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1:30:00", 5400),
        ("90", 5400),
        ("01:30", 90),
        ("1-0", 86400),
        (" 30 ", 1800),
        ("0-2:3", 7380),
        ("UNLIMITED", None),
    ],
)
def test_known_values(text: str, seconds: int | None) -> None:
    assert units.parse_time(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1h",
        "30m",
        "-5",
        "1:2:3:4",
        "1-",
        "-1:00",
        "1.5",
        "1 2",
        "1:00\n2",
        "٣",
        "$(date)",
        "99:",
        "9" * 5000,
    ],
)
def test_what_is_no_time_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time limit|integer string"):
        units.parse_time(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1-02:03:04", 93784),
        ("0:07", 7),
        ("00:01.234", 1),
        ("N/A", None),
        ("UNLIMITED", None),
        ("INVALID", None),
        ("NOT_SET", None),
    ],
)
def test_what_slurm_reports(text: str, seconds: int | None) -> None:
    assert units.parse_reported_time(text) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "00:00:00"),
        (59, "00:00:59"),
        (3600, "01:00:00"),
        (86400, "1-00:00:00"),
        (5400, "01:30:00"),
    ],
)
def test_format_is_what_slurm_prints(seconds: int, text: str) -> None:
    assert units.format_time(seconds) == text


@given(
    st.integers(0, 10**6),
    st.sampled_from("KMGT"),
    st.sampled_from(["", "B", "iB", "b", "ib"]),
    st.sampled_from(["", " "]),
)
def test_units_are_powers_of_1024(number: int, unit: str, suffix: str, blank: str) -> None:
    expected = number * 1024 ** ("KMGT".index(unit) + 1)
    assert (
        units.parse_memory(f"{number}{blank}{unit}{suffix}")
        == units.parse_memory(f"{number}{unit.lower()}")
        == expected
    )


def test_without_a_unit_it_is_mebibytes() -> None:
    assert units.parse_memory("4000") == 4000 * 1024**2
    assert units.format_memory(64 * 1024**3) == "64G"
    assert units.format_memory(1536 * 1024**2) == "1536M"
    assert units.format_memory(0) == "0"


@pytest.mark.parametrize(
    "text",
    ["", "G", "1.5G", "-1G", "64X", "64GG", "6 4G", "64 G B", "٦٤G", "$(nproc)G", "1e3M", "inf"],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a memory size"):
        units.parse_memory(text)
