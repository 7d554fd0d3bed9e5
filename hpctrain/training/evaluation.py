"""The evaluation-only mode: `--evaluate_only true` evaluates weights on the evaluation split, trains nothing, and ends.

What is measured is logged, goes into the run's metrics, and into RUN_DIR/evaluation.json (or below `output_dir`, where there is no run):

    {"schema": 1, "weights": "runs/sft-1/model", "step": 40, "dataset": "dataset", "split": "test", "rows": 400, "processes": 2,
     "metrics": {"eval_loss": 2.1, "eval_token_loss": 2.0, "eval_perplexity": 7.4, "eval_mean_token_accuracy": 0.61,
                 "eval_runtime": 3.2, "eval_samples_per_second": 125.0, "eval_tokens_per_second": 18200.0}}

`eval_loss` is what a training logs: the mean over the batches' losses. `eval_token_loss` is the mean over all tokens that the loss looks
at, whatever the batches were, and the perplexity is its exponential. Where the rows do not divide evenly among the processes, some of
them are evaluated twice (accelerate's `even_batches`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpctrain.errors import HpctrainError
from hpctrain.runs import files, layout
from hpctrain.training.meter import Tally
from hpctrain.training.options import Options
from hpctrain.training.process import say
from hpctrain.training.run_files import RunFiles
from hpctrain.training.saving import RECORD, replaced
from hpctrain.training.settings import Survival
from hpctrain.training.stop import Stopped

REASON = "evaluated"
"""The word of a run that has only evaluated, in attempts/ATTEMPT/exit."""

#: An adapter_config.json's keys, as ModelConfig names them.
_OF_ADAPTER = {
    "r": "lora_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout", "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save", "use_rslora": "use_rslora", "use_dora": "use_dora", "target_parameters":
    "lora_target_parameters",
}  # fmt: skip


def with_adapter(options: Options) -> Options:
    """Return the options with the shape of the adapter whose weights are to be evaluated: nobody has to say it again."""
    adapter = options.weights.adapter
    if adapter is None:
        return options
    config = files.read_json(adapter / "adapter_config.json") or {}
    known = {theirs: ours for theirs, ours in _OF_ADAPTER.items() if hasattr(options.model, ours)}
    model = copy(options.model)
    model.use_peft = True
    for theirs, ours in known.items():  # set, as they are: ModelConfig makes another thing of a list of one name
        if config.get(theirs) is not None:
            setattr(model, ours, config[theirs])
    return replace(options, model=model)


def evaluate(trainer: Any, options: Options, survival: Survival) -> str:
    """Evaluate, write down what was measured, and return the word for how it ended; to be called by all processes.

    Raises:
        Stopped: somebody wants the run to stop, or its job ends.
        HpctrainError: the result cannot be written.
    """
    data = options.eval_dataset
    folder = Path(str(options.weights.adapter or options.weights.model))
    trainer.state.global_step = step_of(folder)
    if trainer.is_world_process_zero():
        say(f"[train] evaluates {folder} on {len(data)} rows of {options.script.dataset_test_split}; nothing is trained")
    counts = _Counts(trainer)
    metrics = _measured(trainer, counts)
    metrics |= counts.metrics(metrics.get("eval_runtime"))
    result = {
        "schema": 1, "weights": str(folder), "step": trainer.state.global_step, "dataset": str(options.script.dataset_name),
        "split": options.script.dataset_test_split, "rows": len(data), "processes": trainer.args.world_size, "metrics": metrics,
    }  # fmt: skip
    problem = _write(trainer, survival, result) if trainer.is_world_process_zero() else None
    problem = trainer.ranks.share(problem)
    if problem is not None:
        raise HpctrainError(problem, fix=f"ls -ld {_folder(trainer, survival)}")
    return REASON


def step_of(folder: Path) -> int:
    """Return the optimizer steps that weights have seen, as their folder says it; 0 where it does not."""
    for name, key in ((RECORD, "step"), ("trainer_state.json", "global_step")):
        value = (files.read_json(folder / name) or {}).get(key)
        if isinstance(value, int):
            return value
    return 0


def line(metrics: Mapping[str, float]) -> str:
    """Return the metrics as a line of the log: `[train] evaluated: loss=2.1034 perplexity=7.42 …`."""
    named = {name.removeprefix("eval_"): value for name, value in metrics.items()}
    order = ["loss", "token_loss", "perplexity", "mean_token_accuracy"]
    shown = [name for name in order if name in named] + sorted(name for name in named if name not in order)
    return "[train] evaluated: " + " ".join(f"{name}={named[name]:.6g}" for name in shown)


def _measured(trainer: Any, counts: _Counts) -> dict[str, float]:
    """Return what the Trainer measures, and what TRL adds to its log.

    Raises:
        Stopped: by agreement of all processes, between two batches.
    """
    from hpctrain.training.survivor_trainer import _EvaluationCutError

    # The surviving Trainer looks for signals and for the stop file in evaluations that it knows of.
    with replaced(trainer, "prediction_step", counts.prediction_step), replaced(trainer._loop, "evaluating", True):
        try:
            metrics = trainer.evaluate()
        except _EvaluationCutError as cut:
            if trainer.is_world_process_zero():
                say(f"[train] the evaluation is broken off ({cut.wish.reason}); started again, it begins anew")
                trainer.forget_stop_file()
            raise Stopped(cut.wish, trainer.state.global_step) from None
    logged = trainer.state.log_history[-1] if trainer.state.log_history else {}
    both = {**logged, **metrics}
    dropped = {"epoch", "step", "eval_num_tokens", "eval_model_preparation_time"}  # of a training; nothing was trained here
    return {name: float(value) for name, value in both.items() if name not in dropped and isinstance(value, int | float)}


class _Counts:
    """Sums up, batch by batch, what the mean over batches loses: how many tokens each loss is the mean of."""

    def __init__(self, trainer: Any) -> None:
        self._inner = trainer.prediction_step
        self._ranks = trainer.ranks
        self._tally, self._batch = Tally(), Tally()
        self._sum = 0.0
        self._trained: int | None = 0

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        """Evaluate one batch, as Trainer.prediction_step does, and count it."""
        self._tally.add(inputs)
        self._batch.add(inputs)
        found = self._inner(model, inputs, *args, **named)
        trained = self._batch.take()[3]
        if trained is None or self._trained is None or found[0] is None:
            self._trained = None
        elif trained:
            self._sum += float(found[0]) * trained
            self._trained += trained
        return found

    def metrics(self, seconds: float | None) -> dict[str, float]:
        """Return the metrics of all processes, given how long it took."""
        _, useful, _, _ = self._tally.take()
        every = self._ranks.gather((self._sum, self._trained, useful))
        found: dict[str, float] = {}
        if all(trained is not None for _, trained, _ in every) and (tokens := sum(trained for _, trained, _ in every)):
            loss = sum(each for each, _, _ in every) / tokens
            found["eval_token_loss"] = loss
            found["eval_perplexity"] = math.exp(loss) if loss < 700 else math.inf
        if seconds and all(useful is not None for _, _, useful in every):
            found["eval_tokens_per_second"] = sum(useful for _, _, useful in every) / seconds
        return found


def _folder(trainer: Any, survival: Survival) -> Path:
    return survival.run_dir or Path(trainer.args.output_dir)


def _write(trainer: Any, survival: Survival, result: dict[str, Any]) -> str | None:
    """Write the result down and say it; return what kept it from being written."""
    path = _folder(trainer, survival) / layout.EVALUATION
    metrics = result["metrics"]
    if survival.run_dir is not None:
        RunFiles().only_evaluated(trainer.args, trainer.state, metrics)
    say(line(metrics))
    finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(path, {**result, "metrics": finite})
    except OSError as error:
        return f"cannot write {path}: {error.strerror or os.strerror(error.errno or 0)}"
    say(f"[train] the metrics are in {path}")
    return None
