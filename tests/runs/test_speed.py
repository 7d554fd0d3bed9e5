"""The line of the speed and its row of metrics.jsonl are read back as they were written."""

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


@given(speeds)
def test_a_line_says_the_same_when_it_is_read_and_written_again(measured: Speed) -> None:
    line = progress.format_line(measured)
    assert "\n" not in line
    read = progress.parse_line(f"[default3]: {line}\n")
    assert read is not None
    assert progress.format_line(read) == line
    assert progress.parse_line(line[:-1] + " x") is None
    assert (read.step, read.max_steps, read.host_mib) == (
        measured.step,
        measured.max_steps,
        measured.host_mib,
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


@pytest.mark.parametrize(
    "line",
    ["[speed] step=20/1000", "[train] step=20/1000 loss=1.2", "[speed] step=a/b tokens/s=1", ""],
)
def test_other_lines_are_none(line: str) -> None:
    assert progress.parse_line(line) is None


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
