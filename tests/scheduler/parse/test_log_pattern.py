"""Patterns in the names of logs; against Slurm itself in tests/lab/test_oracles.py."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpctrain.slurm.notations import log_pattern

VALUES = {"j": "62", "x": "sft", "A": "60", "a": "4", "u": "me"}
without_backslash = st.text(
    st.sampled_from("%jxAa5/. ") | st.characters(exclude_characters="\\", exclude_categories=["Cs"])
)


@given(without_backslash)
@example("/100%j%%x")
def test_an_escaped_path_means_itself(path: str) -> None:
    assert log_pattern.expand(log_pattern.escape(path), VALUES) == path


@given(without_backslash)
def test_an_escaped_path_does_not_disturb_what_follows(path: str) -> None:
    assert (
        log_pattern.expand(f"{log_pattern.escape(path)}/out_%j.log", VALUES) == f"{path}/out_62.log"
    )


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("logs/output_sft_%j.log", "logs/output_sft_62.log"),
        ("%x-%A_%a.out", "sft-60_4.out"),
        ("x%%j_%5j_%x_%q_%3x_%.log", "x%j_00062_sft_%q_sft_%.log"),
        ("%%%j", "%62"),
        ("x%j%", "x62%"),
        (r"\%j.log", "%j.log"),
        (r"\\r_%j.log", r"\r_%j.log"),
        (r"sub/a\b_%j.log", "sub/ab_%j.log"),
    ],
)
def test_expand(pattern: str, name: str) -> None:
    assert log_pattern.expand(pattern, VALUES) == name
