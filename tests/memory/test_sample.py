"""The memory line and the JSON object carry a sample without loss, and nothing else is taken for
one.
"""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.memory import Sample, format_line, from_json, parse_line, to_json
from hpctrain.memory.sample import EVENTS

size = st.none() | st.integers(0, 2**45)
count = st.integers(0, 2**45)
text = st.text(max_size=30) | st.sampled_from(
    ["-", "", '"', "\\", "a | b", "x\ny", "GPU-1 used=1/2M", "nœud"]
)
samples = st.builds(
    Sample,
    time_ms=st.integers(0, 253_402_300_799_999),
    step=count,
    event=st.sampled_from(EVENTS),
    host=text,
    rank=count,
    world_size=count,
    local_rank=count,
    gpu_index=size,
    gpu_name=st.none() | text,
    gpu_uuid=st.none() | text,
    **{
        field.name: size
        for field in dataclasses.fields(Sample)
        if field.name.endswith(("_mib", "_percent"))
    },
)

FULL = Sample(
    time_ms=1_795_208_883_123,
    step=10,
    event="step",
    host="node01",
    rank=3,
    world_size=8,
    local_rank=3,
    torch_allocated_mib=12605,
    torch_peak_mib=15380,
    torch_reserved_mib=17920,
    gpu_index=3,
    gpu_name="NVIDIA A100-SXM4-64GB",
    gpu_uuid="GPU-5a4ffd4b-0d1d-4c0e-9d8c-2f2a5a7a8b9c",
    gpu_used_mib=18400,
    gpu_total_mib=65536,
    gpu_utilisation_percent=97,
    rss_mib=1204,
    children_rss_mib=310,
    node_used_mib=120345,
    node_total_mib=515000,
    cgroup_used_mib=9000,
    cgroup_limit_mib=64000,
)
LINE = (
    "[memory] 2026-11-20T21:08:03.123Z step=10 event=step host=node01 rank=3/8 local=3 | torch"
    ' allocated=12605M peak=15380M reserved=17920M | gpu 3 "NVIDIA A100-SXM4-64GB"'
    " GPU-5a4ffd4b-0d1d-4c0e-9d8c-2f2a5a7a8b9c used=18400/65536M util=97% | process rss=1204M"
    " children=310M | node used=120345/515000M | cgroup used=9000/64000M"
)


def test_the_line_is_the_documented_one() -> None:
    assert format_line(FULL) == LINE
    assert parse_line(LINE) == FULL


def test_a_machine_without_gpu_and_limit_has_a_short_line() -> None:
    bare = Sample(
        time_ms=0,
        step=0,
        event="train_begin",
        host="n",
        rank=0,
        world_size=1,
        local_rank=0,
        rss_mib=5,
    )
    line = format_line(bare)
    assert (
        line == "[memory] 1970-01-01T00:00:00.000Z step=0 event=train_begin host=n rank=0/1 local=0"
        " | torch - | gpu - | process rss=5M children=- | node - | cgroup -"
    )
    assert parse_line(line) == bare


@given(samples)
def test_line_and_json_are_inverses_and_one_line(sample: Sample) -> None:
    line = format_line(sample)
    assert line.isascii()
    assert line.splitlines() == [line]
    assert parse_line(line) == sample
    record = to_json(sample)
    assert record.splitlines() == [record]
    assert from_json(record) == sample


@given(
    samples,
    st.sampled_from(
        ["3: ", "[default3]:", "[rank3]:", "node01: ", " 50%|####    | 5/10 [00:02<00:01]"]
    ),
)
def test_a_launchers_label_in_front_is_skipped(sample: Sample, label: str) -> None:
    assert parse_line(label + format_line(sample) + "\n") == sample


@given(samples, st.data())
def test_a_line_that_was_cut_is_no_sample(sample: Sample, data: st.DataObject) -> None:
    line = format_line(sample)
    end = data.draw(st.integers(0, len(line) - 1))
    cut = parse_line(line[:end])
    # A number at the very end can lose digits and still be a number; nothing else may pass.
    assert cut is None or line[end - 1 :].strip("0123456789M- ") == ""


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[memory]",
        "[memory] warning: rank 0 on n, step 3: the node uses 99M, 99.0% of its 100M",
        "[train] step=5/60 loss=8.1",
        LINE + " more",
        LINE + LINE[:100],
        LINE.replace("step=10", "step=ten"),
        LINE.replace("event=step", "event=steps"),
        LINE.replace("2026-11-20T21", "2026-13-20T21"),
        LINE.replace(" | torch", " || torch"),
        LINE.replace('"NVIDIA', '"\\x'),
    ],
)
def test_anything_else_is_no_sample(line: str) -> None:
    assert parse_line(line) is None


def test_a_whole_line_behind_a_torn_one_is_read() -> None:
    assert parse_line(LINE[:120] + LINE) == FULL


@pytest.mark.parametrize(
    "record",
    [
        "",
        "[]",
        "{}",
        to_json(FULL).replace('"step": 10', '"step": "10"'),
        to_json(FULL).replace('"step": 10', '"step": true'),
        to_json(FULL).replace('"step": 10', '"step": null'),
    ],
)
def test_bad_json_is_refused(record: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json.JSONDecodeError is one too
        from_json(record)


def test_json_of_a_later_version_is_read() -> None:
    assert from_json(to_json(FULL)[:-1] + ', "new": 1}') == FULL
