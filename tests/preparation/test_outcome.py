"""The figures of a manifest."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctrain.preparation import manifest, outcome
from hpctrain.preparation.assemble import Counts

LENGTHS = st.dictionaries(st.integers(1, 100_000), st.integers(1, 50), min_size=1)


@given(LENGTHS)
def test_the_histogram_counts_every_example_once(lengths: dict[int, int]) -> None:
    found = outcome.histogram(lengths)
    assert sum(count for _, count in found) == sum(lengths.values())
    bounds = [bound for bound, _ in found]
    assert bounds == [bounds[0] << step for step in range(len(bounds))]
    assert found[0][1]
    assert found[-1][1]
    for bound, count in found:
        least = 0 if bound == bounds[0] else bound // 2
        assert count == sum(times for length, times in lengths.items() if least < length <= bound)


def test_bounds_of_a_histogram() -> None:
    assert outcome.histogram({16: 1, 17: 2, 64: 3}) == ((16, 1), (32, 2), (64, 3))
    assert outcome.histogram({3: 1, 40: 1}) == ((16, 1), (32, 0), (64, 1))
    assert outcome.histogram({}) == ()


def test_the_longest_of_a_batch_is_as_long_as_drawing_says() -> None:
    lengths = {10: 5, 100: 3, 1000: 2}
    chosen = random.Random(0)
    everyone = [length for length, count in lengths.items() for _ in range(count)]
    drawn = statistics.mean(max(chosen.choices(everyone, k=8)) for _ in range(20_000))
    assert outcome.expected_longest(lengths, 8) == pytest.approx(drawn, rel=0.02)
    assert outcome.expected_longest({7: 3}, 8) == pytest.approx(7)


def test_padding_of_packed_and_of_single_rows() -> None:
    counts = Counts(rows=2, examples=6, tokens=150, trained=90, longest=80, lengths={25: 6})
    assert outcome.split_of(counts, capacity=100).padded == pytest.approx(200 / 150, abs=1e-4)
    assert outcome.split_of(counts, capacity=None).padded == 1.0


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    split = outcome.split_of(Counts(rows=2, examples=6, tokens=150, trained=90, longest=80, lengths={25: 6}), capacity=None)
    made = manifest.Manifest(
        sources=({"path": "a", "bytes": 1},), form="text", columns={"text": "t"}, loss_on="all", tokenizer="f", tokenizer_name="m",
        template=None, vocabulary=9, max_length=80, packed=False, splits={"train": split}, rows=7, dropped={"no text": 1},
        dropped_first={"no text": "a:3"}, truncated=1, seed=2, digest="d", settings={"eos": True}, version="1",
    )  # fmt: skip
    (tmp_path / manifest.NAME).write_text(made.to_json(), encoding="utf-8")
    assert manifest.read(tmp_path) == made
