"""Time limits, there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.scheduler.parse import duration


@given(st.integers(min_value=0, max_value=duration.MAX_SECONDS))
def test_what_is_written_is_read_back(seconds: int) -> None:
    assert duration.parse(duration.format(seconds)) == seconds


@given(st.integers(0, 400), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_every_form_of_slurm_counts_its_parts(days: int, hours: int, minutes: int, seconds: int) -> None:
    assert duration.parse(f"{minutes}") == minutes * 60
    assert duration.parse(f"{minutes}:{seconds}") == minutes * 60 + seconds
    assert duration.parse(f"{hours}:{minutes}:{seconds}") == hours * 3600 + minutes * 60 + seconds
    assert duration.parse(f"{days}-{hours}") == days * 86400 + hours * 3600
    assert duration.parse(f"{days}-{hours}:{minutes}") == days * 86400 + hours * 3600 + minutes * 60
    assert duration.parse(f"{days}-{hours}:{minutes}:{seconds}") == days * 86400 + hours * 3600 + minutes * 60 + seconds


# The pitfall that started it: PyYAML's 5400 for an unquoted 1:30:00 would be 5400 minutes to Slurm.
@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1:30:00", 5400), ("90", 5400), ("01:30", 90), ("1-0", 86400), (" 30 ", 1800), ("0-2:3", 7380), ("UNLIMITED", None)],
)
def test_known_values(text: str, seconds: int | None) -> None:
    assert duration.parse(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "1h", "30m", "-5", "1:2:3:4", "1-", "-1:00", "1.5", "1 2", "1:00\n2", "٣", "$(date)", "99:", "9" * 5000]
)
def test_what_is_no_time_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time limit|integer string"):
        duration.parse(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1-02:03:04", 93784), ("0:07", 7), ("00:01.234", 1), ("N/A", None), ("UNLIMITED", None), ("INVALID", None), ("NOT_SET", None)],
)
def test_what_slurm_reports(text: str, seconds: int | None) -> None:
    assert duration.parse_reported(text) == seconds


@given(st.text())
def test_no_word_of_slurm_is_an_error(text: str) -> None:
    reported = duration.parse_reported(text)
    assert reported is None or reported >= 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "00:00:00"), (59, "00:00:59"), (3600, "01:00:00"), (86400, "1-00:00:00"), (5400, "01:30:00")]
)
def test_format_is_what_slurm_prints(seconds: int, text: str) -> None:
    assert duration.format(seconds) == text
