"""The Trainer of a classifier: its loss, its metrics, its epochs; and the one that survives."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers import Trainer, TrainerCallback

from hpctrain.training import classify_metrics
from hpctrain.training.classify_data import VOCABULARY, Facts
from hpctrain.training.merge_adapter import CLASSIFIER
from hpctrain.training.process import say
from hpctrain.training.survivor_trainer import SurvivorMixin


def loss_function(facts: Facts, *, weights: str, smoothing: float) -> Callable[..., torch.Tensor]:
    """Return Trainer's compute_loss_func: the same for all models, in float32.

    With several micro batches in a step, or several processes, each row counts alike, also where the last ones hold fewer.

    Args:
        facts: of the data.
        weights: `balanced`: a class with half as many rows counts twice; the mean weight of a training row is 1. Or `none`.
        smoothing: of the labels, 0 to 1.
    """
    kept = _weights(facts) if weights == "balanced" else None

    def compute(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        logits = (outputs["logits"] if isinstance(outputs, dict) else outputs[0]).float()
        weight = None if kept is None else kept.to(logits.device)
        if facts.kind == "regression":
            each = (logits.reshape(-1) - labels.reshape(-1)) ** 2
        elif facts.kind == "multi":
            target = labels * (1 - smoothing) + smoothing / 2
            each = functional.binary_cross_entropy_with_logits(logits, target, reduction="none", pos_weight=weight)
        else:
            each = functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
            each = each if weight is None else each * weight[labels]
        return each.sum() / (each.numel() if num_items_in_batch is None else num_items_in_batch)

    return compute


def _weights(facts: Facts) -> torch.Tensor:
    """Return a weight for each class; of several labels, that of a 1 against a 0. A class without rows has no weight to earn."""
    counts = torch.tensor([max(1, count) for count in facts.counts], dtype=torch.float)
    if facts.kind == "multi":
        return (facts.rows - counts).clamp(min=1) / counts
    present = sum(count > 0 for count in facts.counts)
    return facts.rows / (present * counts)


def metrics_function(facts: Facts) -> Callable[[Any], dict[str, float]]:
    """Return Trainer's compute_metrics."""

    def compute(evaluated: Any) -> dict[str, float]:
        logits = evaluated.predictions[0] if isinstance(evaluated.predictions, tuple) else evaluated.predictions
        return classify_metrics.compute(facts.kind, logits, evaluated.label_ids)

    return compute


def first_output(logits: Any, _labels: Any) -> Any:
    """Return the logits alone of what a model puts out in an evaluation."""
    return logits[0] if isinstance(logits, tuple) else logits


class ClassifierTrainer(Trainer):  # type: ignore[misc]  # transformers is not there on the login node
    """Trainer that tells the data its epoch, and saves the vocabulary of the events with the weights.

    Args:
        vocabulary: the file; None for none.
    """

    def __init__(self, *args: Any, vocabulary: Path | None = None, **named: Any) -> None:
        super().__init__(*args, **named)
        self._vocabulary = vocabulary

    def _run_epoch(self, **named: Any) -> Any:
        self.train_dataset.set_epoch(named["epoch"])
        return super()._run_epoch(**named)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        inner = self.accelerator.unwrap_model(self.model)
        if hasattr(inner, "peft_config"):  # an adapter is saved without the model's configuration, which names the classes
            config = inner.get_base_model().config.to_json_string(use_diff=False)
            (Path(output_dir or self.args.output_dir) / CLASSIFIER).write_text(config, encoding="utf-8")
        if self._vocabulary is not None:
            shutil.copyfile(self._vocabulary, Path(output_dir or self.args.output_dir) / VOCABULARY)


class SurvivorClassifierTrainer(SurvivorMixin, ClassifierTrainer):
    """ClassifierTrainer that stops by agreement, saves whole checkpoints, and goes on from them as if nothing had happened."""


class Notes(TrainerCallback):  # type: ignore[misc]  # transformers is not there on the login node
    """Says on rank 0 what the data is, and which evaluation was the best one.

    Args:
        lines: for the beginning of the log.
    """

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Say the lines."""
        if state.is_world_process_zero:
            for line in self._lines:
                say(line)

    def on_train_end(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Say which weights are kept."""
        if state.is_world_process_zero and args.load_best_model_at_end and state.best_metric is not None:
            name = args.metric_for_best_model.removeprefix("eval_")
            say(f"[train] best: {name} {state.best_metric:.4f} at step {state.best_global_step}; its weights are kept")
