"""TRL's SFTTrainer with SurvivorMixin (hpctrain/training/survival/trainer.py). A separate module,
because importing it imports TRL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers.trainer_pt_utils import get_length_grouped_indices
from trl import SFTTrainer

from hpctrain.training.preflight.dataset_facts import lengths_of
from hpctrain.training.survival.trainer import SurvivorMixin


class LengthGroupedSampler(torch.utils.data.Sampler):  # type: ignore[misc]  # torch is not there on the login node
    """Yields all rows once per epoch, with rows of similar length in one optimizer step, and the
    steps in random order.

    transformers' sampler of that name uses the process's random state: if it differs between ranks
    (dropout on the CPU), so does the order, and some rows are trained on twice and others never.
    Here the order depends only on the seed and the epoch, and long and short steps alternate. The
    step with the longest row comes first, so that out-of-memory errors occur at once.

    Args:
        lengths: tokens of each row.
        step_rows: rows per optimizer step, over all processes.
        seed: seed of the order.
    """

    def __init__(self, lengths: Sequence[int], *, step_rows: int, seed: int) -> None:
        super().__init__()
        self._lengths, self._rows, self._seed, self._epoch = list(lengths), step_rows, seed, 0

    def __len__(self) -> int:
        return len(self._lengths)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the next order."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        draw = torch.Generator().manual_seed(self._seed + self._epoch)
        rows = get_length_grouped_indices(self._lengths, self._rows, generator=draw)
        first, *steps = (
            rows[begin : begin + self._rows] for begin in range(0, len(rows), self._rows)
        )
        # An incomplete step stays last.
        last = [steps.pop()] if steps and len(steps[-1]) < self._rows else []
        order = torch.randperm(len(steps), generator=draw).tolist()
        for step in [first, *(steps[number] for number in order), *last]:
            yield from step


class SurvivorSFTTrainer(SurvivorMixin, SFTTrainer):  # type: ignore[misc]  # TRL is not there on the login node
    """SFTTrainer that stops by agreement, saves complete checkpoints, and resumes from them."""

    private_apis = ("transformers.Trainer", "trl.SFTTrainer")

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        data = self.train_dataset if train_dataset is None else train_dataset
        rows = self.args.train_batch_size * self.args.gradient_accumulation_steps
        return self._grouped(data, rows) or super()._get_train_sampler(train_dataset)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        return self._grouped(eval_dataset, self.args.eval_batch_size) or super()._get_eval_sampler(
            eval_dataset
        )

    def _grouped(self, data: Any, rows: int) -> LengthGroupedSampler | None:
        """Return the sampler for `group_by_length`, if requested; `rows` is the number per process
        and step.
        """
        args = self.args
        if args.train_sampling_strategy != "group_by_length" or "input_ids" not in getattr(
            data, "column_names", ()
        ):
            return None
        seed = args.seed if args.data_seed is None else args.data_seed
        lengths = lengths_of(data).tolist()
        return LengthGroupedSampler(lengths, step_rows=rows * args.world_size, seed=seed)
