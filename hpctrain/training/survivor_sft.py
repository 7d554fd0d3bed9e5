"""TRL's SFTTrainer that survives (hpctrain/training/survivor_trainer.py); a module of its own, because importing it imports TRL."""

from __future__ import annotations

from typing import Any

from trl import SFTTrainer

from hpctrain.training.row_facts import lengths_of
from hpctrain.training.sampler import LengthGroupedSampler
from hpctrain.training.survivor_trainer import SurvivorMixin


class SurvivorSFTTrainer(SurvivorMixin, SFTTrainer):  # type: ignore[misc]  # TRL is not there on the login node
    """SFTTrainer that stops by agreement, saves whole checkpoints, and goes on from them as if nothing had happened."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        data = self.train_dataset if train_dataset is None else train_dataset
        rows = self.args.train_batch_size * self.args.gradient_accumulation_steps
        return self._grouped(data, rows) or super()._get_train_sampler(train_dataset)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        return self._grouped(eval_dataset, self.args.eval_batch_size) or super()._get_eval_sampler(eval_dataset)

    def _grouped(self, data: Any, rows: int) -> LengthGroupedSampler | None:
        """Return the sampler of `group_by_length`, where that is asked for; `rows` of one process belong together."""
        args = self.args
        if args.train_sampling_strategy != "group_by_length" or "input_ids" not in getattr(data, "column_names", ()):
            return None
        seed = args.seed if args.data_seed is None else args.data_seed
        return LengthGroupedSampler(lengths_of(data), step_rows=rows * args.world_size, seed=seed)
