"""Saving the batch that made the gradients NaN. Batches are held by reference during the training;
when it happens, each rank writes its batch to RUN_DIR/bad-batch/step-N/rank-R.json.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer

from hpctrain.errors import HpctrainError
from hpctrain.runs import layout
from hpctrain.training.process import say
from hpctrain.util import files

#: Examples written per rank, those of micro batches with a nonfinite loss first.
MAX_EXAMPLES = 64
MAX_TEXT = 2000
_KEPT = ("input_ids", "labels", "attention_mask")


class NotFiniteError(HpctrainError):
    """The gradient norm is NaN or infinite: the weights are lost, except those of the last
    checkpoint.
    """

    reason = "nan"


@dataclass
class Step:
    """One optimizer step of this rank: its micro batches, their losses, and its gradient norm.

    A GPU value is copied to the host asynchronously and read one step later: reading it at once
    would synchronize with the GPU.
    """

    number: int
    batches: list[dict[str, Any]] = field(default_factory=list)
    losses: list[Any] = field(default_factory=list)
    norm: Any = 0.0
    copied: Any = None

    def keep_norm(self, value: Any) -> None:
        """Store the norm, a number or a tensor."""
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        if getattr(value, "is_cuda", False):
            self.norm = value.detach().to("cpu", non_blocking=True)
            self.copied = torch.cuda.Event()
            self.copied.record()
        else:
            self.norm = value.detach().clone() if hasattr(value, "detach") else value


def write_batch(folder: Path, step: Step, *, rank: int, world: int, tokenizer: Any = None) -> None:
    """Write this rank's part of a step to `folder`/rank-N.json.

    Raises:
        OSError, RuntimeError: it cannot be written.
    """
    losses = [float(loss) for loss in step.losses]
    examples = [
        {"micro_batch": number, "text": _text(tokenizer, ids), "input_ids": ids, "labels": labels}
        for number, batch in enumerate(step.batches)
        for ids, labels in _rows(batch)
    ]
    finite = {number for number, loss in enumerate(losses) if math.isfinite(loss)}
    examples.sort(key=lambda example: example["micro_batch"] in finite)
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "schema": 1,
        "step": step.number,
        "rank": rank,
        "world_size": world,
        "grad_norm": _json(float(step.norm)),
        "losses": [_json(loss) for loss in losses],
        "micro_batches": len(step.batches),
        "examples": examples[:MAX_EXAMPLES],
    }
    files.write_json(folder / f"rank-{rank}.json", record)


def _rows(batch: Mapping[str, Any]) -> Iterator[tuple[list[int], list[int] | None]]:
    for row, ids in enumerate(batch["input_ids"]):
        kept = batch["attention_mask"][row].bool() if "attention_mask" in batch else slice(None)
        labels = batch["labels"][row] if "labels" in batch else None
        per_token = labels is not None and labels.shape == ids.shape
        yield ids[kept].tolist(), labels[kept].tolist() if per_token else None  # type: ignore[index]


def _json(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _text(tokenizer: Any, ids: list[int]) -> str | None:
    try:
        return str(tokenizer.decode(ids))[:MAX_TEXT]
    except Exception:  # ids beyond the vocabulary may be the cause
        return None


class FiniteMixin(Trainer):  # type: ignore[misc]  # transformers is not there on the login node
    """Trainer that keeps the last batches; use `SurvivorMixin`, which also stops and resumes."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._steps: deque[Step] = deque(maxlen=2)

    def _step(self, number: int) -> Step:
        if not self._steps or self._steps[-1].number != number:
            self._steps.append(Step(number))
        return self._steps[-1]

    def training_step(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        """Run one micro batch, and hold it until the step after the next."""
        step = self._step(self.state.global_step + 1)
        if self.survival.stop_on_nan and isinstance(inputs, Mapping) and "input_ids" in inputs:
            step.batches.append(
                {name: inputs[name] for name in _KEPT if inputs.get(name) is not None}
            )
        loss = super().training_step(model, inputs, *args, **named)
        step.losses.append(loss)
        return loss

    def _look_at_norm(self, number: int, value: Any) -> int:
        """Store the gradient norm of a step (or its loss, without a norm), and return the step now
        known to be nonfinite; 0 for none.
        """
        skipped = self.accelerator.optimizer_step_was_skipped
        # The launcher's config may request fp16, too.
        fp16 = self.args.fp16 or self.accelerator.mixed_precision == "fp16"
        # With fp16, the scaler lowers the scale after a skipped step, and the training continues.
        # DeepSpeed skips every step with nonfinite gradients, in any precision; its norm may be
        # from an earlier step.
        if self.survival.stop_on_nan and not (skipped and fp16):
            self._step(number).keep_norm(math.nan if skipped else value)
        return self._bad(wait=False)

    def _bad(self, *, wait: bool) -> int:
        for step in self._steps:
            if step.copied is not None:
                if not wait and step is self._steps[-1]:
                    continue
                step.copied.synchronize()
            if not math.isfinite(float(step.norm)):
                return step.number
        return 0

    def _lost(self, number: int) -> NotFiniteError:
        """Save this rank's batch of a step, and return the error; called on all ranks, which wait
        for each other.
        """
        run_dir = Path(self.survival.run_dir or self.args.output_dir)
        folder = run_dir / layout.BAD_BATCH / f"step-{number}"
        step = next((each for each in self._steps if each.number == number), Step(number))
        why = None
        try:
            rank, world = self.ranks.rank, self.ranks.size
            write_batch(folder, step, rank=rank, world=world, tokenizer=self.processing_class)
        except Exception as error:  # must not hide the failure of the training
            why = f"{type(error).__name__}: {error}"
        failures = [each for each in self.ranks.gather(why) if each]
        if failures and self.ranks.rank == 0:
            say(f"[train] notice: the batch of step {number} could not be saved: {failures[0]}")
        details = ["the weights since then are lost; checkpoints were saved before it only"]
        if len(failures) < self.ranks.size:
            details.append(f"the batch of that step is in {folder}")
        norm = float(step.norm)
        return NotFiniteError(
            f"the gradient norm of step {number} is"
            f" {'nan or inf' if math.isfinite(norm) else norm}",
            details=tuple(details),
            hint=(
                "look at the data of that step; then use a lower --learning_rate,"
                " --max_grad_norm 1.0, more --warmup_steps, or --bf16 true instead of fp16;"
                " --stop_on_nan false continues regardless"
            ),
        )
