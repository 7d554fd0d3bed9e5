"""The part of the surviving Trainer that stops at a gradient which is not finite, and saves the batch that made it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpctrain.runs import layout
from hpctrain.training import bad_batch
from hpctrain.training.not_finite import GradNormWatch, NotFiniteError, not_finite
from hpctrain.training.process import say

#: Options that decide what a step does, written beside the batch.
_SHOWN = (
    "seed",
    "data_seed",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "max_grad_norm",
    "bf16",
    "fp16",
    "learning_rate",
)


class FiniteMixin:
    """Comes before a Trainer's class; `SurvivorMixin` is what to use."""

    # What the classes before and behind this one have.
    args: Any
    state: Any
    accelerator: Any
    ranks: Any
    survival: Any
    train_dataset: Any
    processing_class: Any

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._watch = GradNormWatch()
        self._batches = bad_batch.LastBatches()

    def training_step(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        """One micro batch; it is held until the step after the next."""
        if not self.survival.stop_on_nan or not isinstance(inputs, Mapping) or "input_ids" not in inputs:
            return super().training_step(model, inputs, *args, **named)  # type: ignore[misc]
        self._batches.keep(self.state.global_step + 1, inputs)
        loss = super().training_step(model, inputs, *args, **named)  # type: ignore[misc]
        self._batches.keep_loss(loss)
        return loss

    def _look_at_norm(self, step: int, value: Any) -> tuple[int, float] | None:
        """Note the gradient norm of a step (or its loss, where there is none), and return what is known not to be finite by now."""
        skipped = self.accelerator.optimizer_step_was_skipped
        fp16 = self.args.fp16 or self.accelerator.mixed_precision == "fp16"  # a launcher's config may ask for it, too
        if self.survival.stop_on_nan and not (skipped and fp16):  # fp16 lowers its scale after such a step, and goes on
            # DeepSpeed leaves out every step whose gradients are not finite, in any precision; its norm may be that of a step before.
            self._watch.keep(step, math.nan if skipped else value)
        return self._watch.bad(wait=False)

    def _refuse_lost_weights(self) -> None:
        """Wait for the last norm before anything is saved.

        Raises:
            NotFiniteError: on all ranks.
        """
        bad = self._watch.bad(wait=True)
        (step,) = self.ranks.highest(bad[0] if bad else 0)
        if step:
            raise self._lost(step, bad)

    def _lost(self, step: int, bad: tuple[int, float] | None) -> NotFiniteError:
        """Save this rank's batch of a step, and return the error; all ranks do, and none goes on before all have saved."""
        norm = bad[1] if bad and bad[0] == step else None
        folder = Path(self.survival.run_dir or self.args.output_dir) / layout.BAD_BATCH / f"step-{step}"
        failed = self._save_batch(folder, step, norm)
        failures = [each for each in self.ranks.gather(failed) if each is not None]
        if failures and self.ranks.rank == 0:
            say(f"[train] notice: the batch of step {step} could not be saved: {failures[0]}")
        self._batches.drop()
        return not_finite(step, norm, saved=None if len(failures) == self.ranks.size else str(folder))

    def _save_batch(self, folder: Path, step: int, norm: float | None) -> str | None:
        """Return why it could not be saved; None: it is."""
        held = self._batches.of(step)
        if held is None:
            return "it is not held any more"
        about = bad_batch.About(
            rank=self.ranks.rank,
            world=self.ranks.size,
            norm=norm,
            tokenizer=getattr(self, "processing_class", None),
            dataset=getattr(self, "train_dataset", None),
            training={name: getattr(self.args, name, None) for name in _SHOWN},
        )
        try:
            bad_batch.write(folder, held, about)
        except Exception as error:  # the training has failed already; why must be said whatever happens here
            return f"{type(error).__name__}: {error}"
        return None
