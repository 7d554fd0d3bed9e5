"""The order of rows when rows of alike length share a step, the same on every rank and after every resume."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

_STEPS_SORTED = 50
"""Steps whose rows are drawn first and sorted by length then, as in transformers' LengthGroupedSampler."""


class LengthGroupedSampler(torch.utils.data.Sampler):  # type: ignore[misc]  # torch is not there on the login node
    """Yields all rows once per epoch, rows of alike length in one optimizer step, the steps in a random order.

    transformers' sampler of that name draws from the random numbers of the process: ranks that have drawn differently by then (dropout on
    the CPU) see other orders, so that some rows are trained on twice and others never. Here the order follows from the seed and the
    epoch alone. The step with the longest row comes first: what does not fit into memory fails at once.

    Args:
        lengths: tokens of each row.
        step_rows: rows of one optimizer step, of all processes.
        seed: of the order.
    """

    def __init__(self, lengths: Sequence[int], *, step_rows: int, seed: int) -> None:
        super().__init__()
        self._lengths = torch.as_tensor(lengths)
        self._rows, self._seed, self._epoch = step_rows, seed, 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._lengths)

    def set_epoch(self, epoch: int) -> None:
        """Note the epoch; its order is drawn when it is iterated over."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        """Yield the row numbers of one epoch."""
        draw = torch.Generator().manual_seed(self._seed + self._epoch)
        drawn = torch.randperm(len(self), generator=draw)
        many = max(1, min(len(self) // (4 * self._rows), _STEPS_SORTED)) * self._rows
        steps: list[Any] = []
        for begin in range(0, len(self), many):
            part = drawn[begin : begin + many]
            steps += part[self._lengths[part].argsort(descending=True, stable=True)].split(self._rows)
        last = [steps.pop()] if len(steps[-1]) < self._rows else []  # a step that is not full stays the last one
        order = torch.randperm(len(steps), generator=draw).tolist()
        if steps:
            longest = max(order, key=lambda number: int(self._lengths[steps[number][0]]))
            order.remove(longest)
            order.insert(0, longest)
        for step in [*(steps[number] for number in order), *last]:
            yield from step.tolist()
