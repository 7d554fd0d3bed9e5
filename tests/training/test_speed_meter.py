"""The time of steps, the wait for data and the tokens, counted by hand against a clock that is ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hpctrain.training.meter import Meter, Window
from hpctrain.training.speed_local import Local, fullest, of_a_node, together


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Loop:
    """What the Trainer does, with durations that are given."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.meter = Meter(self.clock)
        self.meter.begin()

    def step(self, compute: float, wait: float = 0.0, batches: int = 1) -> None:
        def load() -> Iterator[int]:
            for number in range(batches):
                self.clock.now += wait / batches
                yield number

        self.meter.batches_asked()
        assert list(self.meter.timed(load())) == list(range(batches))
        self.clock.now += compute
        self.meter.step_ended()
        if not self.meter.measuring:
            self.meter.start()

    def passes(self, what: str, seconds: float) -> None:
        self.clock.now += seconds
        self.meter.ended(what)


def test_the_first_step_is_not_measured() -> None:
    loop = Loop()
    loop.step(60.0, wait=5.0)
    loop.step(1.0, wait=0.5, batches=4)
    loop.step(2.0)
    window = loop.meter.take()
    assert (window.steps, window.seconds, window.wait) == (2, 3.5, 0.5)
    assert loop.meter.take().steps == 0


def test_evaluations_and_saves_are_no_part_of_the_steps() -> None:
    loop = Loop()
    loop.step(1.0)
    loop.step(1.0)
    loop.passes("evaluate", 30.0)
    loop.passes("save", 7.0)
    loop.clock.now += 1.0  # the Trainer's own, before it asks for the next batches
    loop.step(1.0, wait=0.25)
    window = loop.meter.take()
    assert (window.steps, window.seconds, window.wait) == (2, 2.25, 0.25)
    assert loop.meter.took == {"evaluate": 30.0, "save": 7.0}


def test_a_line_between_a_step_and_its_save_splits_nothing() -> None:
    loop = Loop()
    loop.step(1.0)
    loop.step(1.0)
    first = loop.meter.take()  # the line is due at the step's end
    loop.passes("save", 5.0)
    second = loop.meter.take()  # what was measured is kept at the save
    loop.clock.now += 2.0
    loop.step(1.0)
    third = loop.meter.take()
    assert [each.seconds for each in (first, second, third)] == [1.0, 0.0, 1.0]
    assert [each.steps for each in (first, second, third)] == [1, 0, 1]


def test_before_the_first_step_nothing_counts() -> None:
    loop = Loop()
    loop.passes("evaluate", 9.0)  # one that was due when the run stopped
    assert loop.meter.take() == Window()
    assert loop.meter.took == {}


# -- several processes -------------------------------------------------------------------------------------------------


def test_together_tokens_add_up_and_the_slowest_counts() -> None:
    one = Window(steps=10, seconds=5.0, wait=1.0, tokens=1000, useful=800, squares=64000, trained=300)
    two = Window(steps=10, seconds=4.0, wait=2.0, tokens=1000, useful=900, squares=86000, trained=200)
    did = together([one, two])
    assert (did.steps, did.seconds, did.tokens, did.useful, did.trained) == (10, 5.0, 2000, 1700, 500)
    assert did.wait == 0.5
    assert did.per_second(did.tokens) == 400.0
    assert did.context == 150000 / 1700
    assert did.step_s == 0.5


def test_what_one_does_not_know_nobody_knows() -> None:
    did = together([Window(steps=1, seconds=1.0, tokens=5), Window(steps=1, seconds=1.0, tokens=5, useful=None)])
    assert (did.useful, did.tokens, did.per_second(did.useful)) == (None, 10, None)
    assert together([Window()]).step_s is None


def test_the_fullest_gpu_and_the_fullest_node() -> None:
    def local(node: str, peak: int | None, rss: int | None) -> Local:
        return Local(node=node, window=Window(), total=Window(), peak=peak, rss=rss)

    every = [local("a", 10, 100), None, local("a", 40, None), local("b", 30, 150), local("b", None, 70)]
    worst = fullest(every)
    assert worst is not None
    assert (worst[0], worst[1].peak) == (2, 40)
    assert of_a_node(every, "rss") == 220
    assert fullest([None, local("a", None, 1)]) is None
    assert of_a_node([None], "rss") is None


# -- tokens ------------------------------------------------------------------------------------------------------------


def tallied(*batches: dict[str, Any]) -> tuple[int, int | None, int | None, int | None]:
    from hpctrain.training.meter import Tally

    tally = Tally()
    for batch in batches:
        tally.add(batch)
    return tally.take()


@pytest.mark.torch
def test_tokens_of_padded_rows() -> None:
    import torch

    ids = torch.zeros((2, 4), dtype=torch.int64)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    labels = torch.tensor([[5, -100, 7, -100], [5, 6, -100, -100]])  # the first token of a row is predicted by nothing
    assert tallied({"input_ids": ids, "attention_mask": mask, "labels": labels}) == (8, 5, 13, 2)
    twice = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    assert tallied(twice, twice) == (16, 10, 26, 4)


@pytest.mark.torch
def test_tokens_of_examples_laid_end_to_end() -> None:
    import torch

    positions = torch.tensor([[0, 1, 2, 0, 1]])
    ids = torch.zeros((1, 5), dtype=torch.int64)
    shifted = torch.tensor([[1, 2, -100, 4, -100]])
    assert tallied({"input_ids": ids, "position_ids": positions, "shift_labels": shifted}) == (5, 5, 13, 3)
    ends = torch.tensor([0, 3, 5], dtype=torch.int32)
    assert tallied({"input_ids": ids, "cu_seq_lens_q": ends, "labels": ids}) == (5, 5, 13, 4)


@pytest.mark.torch
def test_a_batch_that_says_nothing_of_its_padding_or_has_one_label_a_row() -> None:
    import torch

    ids = torch.zeros((2, 4), dtype=torch.int64)
    assert tallied({"input_ids": ids, "labels": torch.tensor([0, 1])}) == (8, None, None, None)
    assert tallied({"pixels": ids}) == (0, None, None, None)
    assert tallied() == (0, 0, 0, 0)


@pytest.mark.torch
def test_the_lengths_of_a_dataset() -> None:
    import datasets

    from hpctrain.training.lengths import lengths_of

    rows = datasets.Dataset.from_dict({"input_ids": [[1] * 3, [1] * 5, [1] * 2]})
    found = lengths_of(rows)
    assert found is not None
    assert (found.rows, found.tokens, found.longest, found.squares, found.packed) == (3, 10, 5, 38, False)
    picked = lengths_of(rows.select([2, 0]))
    assert picked is not None
    assert (picked.tokens, picked.longest) == (5, 3)
    packed = lengths_of(datasets.Dataset.from_dict({"input_ids": [[1] * 8, [1] * 4], "seq_lengths": [[3, 5], [4]]}))
    assert packed is not None
    assert (packed.examples, packed.squares, packed.packed) == (3, 9 + 25 + 16, True)
    assert packed.context == 50 / 12
    assert lengths_of(datasets.Dataset.from_dict({"text": ["a"]})) is None
    assert lengths_of(object()) is None
