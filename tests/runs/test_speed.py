"""The line of the speed, and its row of metrics.jsonl."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.runs import layout, predicted, progress
from hpctrain.runs.progress import Speed

rates = st.none() | st.floats(0, 1e9)
counts = st.none() | st.integers(0, 10**7)
speeds = st.builds(
    Speed,
    step=st.integers(0, 10**7),
    max_steps=st.integers(0, 10**7),
    tokens_per_s=rates,
    useful_tokens_per_s=rates,
    trained_tokens_per_s=rates,
    mfu=st.none() | st.floats(0, 2),
    data_wait=st.none() | st.floats(0, 1),
    step_s=st.none() | st.floats(1e-6, 1e5),
    peak_mib=counts,
    reserved_mib=counts,
    total_mib=counts,
    rank=counts,
    host_mib=counts,
    eta_s=st.none() | st.floats(0, 1e8),
)


def test_the_line_is_the_documented_one() -> None:
    measured = Speed(
        step=20,
        max_steps=1000,
        tokens_per_s=14210.4,
        useful_tokens_per_s=13180.0,
        trained_tokens_per_s=4120.0,
        mfu=0.412,
        data_wait=0.003,
        step_s=0.812,
        peak_mib=38120,
        reserved_mib=40110,
        total_mib=81559,
        rank=3,
        host_mib=9120,
        eta_s=796.0,
    )
    documented = " ".join((progress.__doc__ or "").split("[speed] ", 1)[1].split("\n\n")[0].split())
    assert progress.format_line(measured) == f"[speed] {documented}"
    assert documented.split(" ")[-1] == "eta=0:13:16"


# -- fit.json --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"schema": 2}', '{"schema": 1, "measured": 3}', '{"schema": 1, "predicted": "x"}'],
)
def test_what_is_no_record_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / layout.FIT).write_text(text)
    assert predicted.read(tmp_path) is None


def test_nothing_measured_compares_nothing() -> None:
    assert predicted.beside({"predicted": None, "measured": None}) == []
    assert (
        predicted.beside(
            {"predicted": {"total": True, "allocated": -1, "tokens_per_s": "x"}, "measured": {}}
        )
        == []
    )


@given(speeds)
def test_the_line_and_the_row_say_the_same(measured: Speed) -> None:
    once = progress.rounded(measured)
    row = {"event": progress.EVENT, "step": once.step, **progress.to_values(once)}
    read = progress.from_row(json.loads(json.dumps(row)))
    assert read is not None
    assert progress.format_line(read) == progress.format_line(once)
