"""The time of steps, the wait for data and the tokens, counted by hand against a clock that is
ours.
"""

import importlib
import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def speed() -> Any:
    """Return the module, imported when a test runs: it brings transformers."""
    return importlib.import_module("hpctrain.training.monitoring.speed")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Loop:
    """What the Trainer does, with durations that are given."""

    def __init__(self, speed: Any) -> None:
        self.clock = Clock()
        self.meter = speed.Meter(self.clock)

    def step(self, compute: float, wait: float = 0.0, batches: int = 1) -> None:
        def load() -> Iterator[int]:
            for number in range(batches):
                self.clock.now += wait / batches
                yield number

        assert list(self.meter.batches(load())) == list(range(batches))
        self.clock.now += compute
        self.meter.step_ended()

    def passes(self, seconds: float) -> None:
        self.clock.now += seconds
        self.meter.skip()


def test_the_first_step_is_not_measured(speed: Any) -> None:
    loop = Loop(speed)
    loop.step(60.0, wait=5.0)
    loop.step(1.0, wait=0.5, batches=4)
    loop.step(2.0)
    window = loop.meter.take()
    assert (window.steps, window.seconds, window.wait) == (2, 3.5, 0.5)
    assert loop.meter.take().steps == 0


def test_evaluations_and_saves_are_no_part_of_the_steps(speed: Any) -> None:
    loop = Loop(speed)
    loop.passes(9.0)  # one that was due when the run stopped
    assert loop.meter.take() == speed.Window()
    loop.step(1.0)
    loop.step(1.0)
    loop.passes(30.0)
    loop.passes(7.0)
    loop.step(1.0, wait=0.25)
    window = loop.meter.take()
    assert (window.steps, window.seconds, window.wait) == (2, 2.25, 0.25)
    loop.passes(5.0)
    assert loop.meter.take().seconds == 0.0


# -- several processes -----------------------------------------------------------------------------


def test_together_tokens_add_up_and_the_slowest_counts(speed: Any) -> None:
    one = speed.Window(steps=10, seconds=5.0, wait=1.0, tokens=1000, useful=800, trained=300)
    two = speed.Window(steps=10, seconds=4.0, wait=2.0, tokens=1000, useful=900, trained=200)
    did = speed.together([one, two])
    assert (did.steps, did.seconds, did.tokens, did.useful) == (10, 5.0, 2000, 1700)
    assert (did.wait / did.seconds, did.trained) == (0.5, 500)
    assert did.per_second(did.tokens) == 400.0


def test_what_one_does_not_know_nobody_knows(speed: Any) -> None:
    known = speed.Window(steps=1, seconds=1.0, tokens=5)
    did = speed.together([known, replace(known, useful=math.nan)])
    assert (did.tokens, did.per_second(did.useful)) == (10, None)


def test_the_fullest_gpu_and_the_fullest_node(speed: Any) -> None:
    def report(node: str, peak: int | None, host: int | None) -> Any:
        sample = SimpleNamespace(host=node, torch_peak_mib=peak)
        whole = speed.Window()
        return speed.RankReport(sample=sample, window=whole, host=host, host_peak=0)

    every = [
        report("a", 10, 100),
        report("a", 40, None),
        report("b", 30, 150),
        report("b", None, 70),
    ]
    assert speed.fullest(every) is every[1].sample
    assert speed.fullest_node(every, "host") == 220
    assert speed.fullest([report("a", None, 1)]) is None
    assert speed.fullest_node([], "host") is None


# -- tokens ----------------------------------------------------------------------------------------


def tallied(speed: Any, *batches: dict[str, Any]) -> tuple[float | None, ...]:
    meter = speed.Meter(Clock())
    meter.step_ended()
    for batch in batches:
        meter.count(batch)
    window = meter.take()
    counts = (window.tokens, window.useful, window.trained)
    return tuple(None if math.isnan(count) else count for count in counts)


def test_tokens_of_padded_rows(speed: Any) -> None:
    import torch

    ids = torch.zeros((2, 4), dtype=torch.int64)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    labels = torch.tensor(
        [[5, -100, 7, -100], [5, 6, -100, -100]]
    )  # the first token of a row is predicted by nothing
    assert tallied(speed, {"input_ids": ids, "attention_mask": mask, "labels": labels}) == (
        8,
        5,
        2,
    )
    twice = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    assert tallied(speed, twice, twice) == (16, 10, 4)


def test_tokens_of_examples_laid_end_to_end(speed: Any) -> None:
    import torch

    positions = torch.tensor([[0, 1, 2, 0, 1]])
    ids = torch.zeros((1, 5), dtype=torch.int64)
    shifted = torch.tensor([[1, 2, -100, 4, -100]])
    assert tallied(
        speed, {"input_ids": ids, "position_ids": positions, "shift_labels": shifted}
    ) == (
        5,
        5,
        3,
    )
    ends = torch.tensor([0, 3, 5], dtype=torch.int32)
    assert tallied(speed, {"input_ids": ids, "cu_seq_lens_q": ends, "labels": ids}) == (5, 5, 4)


def test_a_batch_that_says_nothing_of_its_padding_or_has_one_label_a_row(speed: Any) -> None:
    import torch

    ids = torch.zeros((2, 4), dtype=torch.int64)
    assert tallied(speed, {"input_ids": ids, "labels": torch.tensor([0, 1])}) == (
        8,
        None,
        None,
    )
    assert tallied(speed, {"pixels": ids}) == (0, None, None)
    assert tallied(speed) == (0, 0, 0)


def test_the_lengths_of_a_dataset() -> None:
    import datasets

    from hpctrain.training.start_table import lengths_of

    rows = datasets.Dataset.from_dict({"input_ids": [[1] * 3, [1] * 5, [1] * 2]})
    found = lengths_of(rows)
    assert (found.examples, found.tokens, found.longest, found.context) == (3, 10, 5, 3.8)
    picked = lengths_of(rows.select([2, 0]))
    assert (picked.tokens, picked.longest) == (5, 3)
    packed = lengths_of(
        datasets.Dataset.from_dict({"input_ids": [[1] * 8, [1] * 4], "seq_lengths": [[3, 5], [4]]})
    )
    assert (packed.examples, packed.context) == (3, 50 / 12)
    assert lengths_of(datasets.Dataset.from_dict({"text": ["a"]})) is None
    assert lengths_of(object()) is None
