"""The training loop from options to final weights, or an evaluation: start or resume, Trainer,
callbacks, and the last log lines. Imports torch and transformers.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import EarlyStoppingCallback, PrinterCallback

from hpctrain.runs import layout
from hpctrain.training import preflight, trackers
from hpctrain.training.monitoring.log import TrainLogCallback
from hpctrain.training.monitoring.memory_callback import MemoryCallback
from hpctrain.training.monitoring.run_files import RunFiles
from hpctrain.training.monitoring.speed import SpeedCallback
from hpctrain.training.options import Options
from hpctrain.training.process import Ranks, disable_progress_bars, note, say
from hpctrain.training.survival import ResilienceContext, resume
from hpctrain.training.survival.saving import RECORD, replaced, save_final, save_whole
from hpctrain.training.survival.stop import Stopped
from hpctrain.training.survival.trainer import StopNowError
from hpctrain.training.trial_callback import TrialCallback
from hpctrain.util import files


def train(options: Options) -> str:
    """Train or resume, and save the final weights; or only evaluate.

    Returns:
        Why it ended: `completed`, `early-stopping`, `evaluated`, or `pruned` (by the study of
            `hpctrain tune`).

    Raises:
        Stopped: it saved and stopped before the end.
        HpctrainError: it cannot continue.
        Exception: errors of the libraries.
    """
    training, asked = options.training, options.common
    record = resume.record(
        [training, options.model, *options.own, asked], options.script.dataset_name, options.splits
    )
    ranks = Ranks(float(training.ddp_timeout))
    # If another run is saving meanwhile, ranks may see different checkpoints.
    options = replace(options, weights=ranks.share(options.weights))
    options.model.model_name_or_path = options.weights.model
    survival = ResilienceContext.from_environment(
        record=record, stop_on_nan=asked.stop_on_nan, ranks=ranks
    )
    if asked.evaluate_only:
        return _evaluate(options, survival)
    start = ranks.from_first(lambda: resume.decide(options, survival))
    for line in start.lines if ranks.rank == 0 else ():
        say(line)
    if start.complete is not None:
        return "completed"
    run_files = _run_files(survival)
    speed = SpeedCallback(
        every=asked.speed_every,
        survival=survival,
        ranks=ranks,
        run_files=run_files,
        options=options,
    )
    own = [speed] if run_files is None else [speed, run_files]
    resumed_step = start.step if start.checkpoint else None
    trainer = _trainer(options, survival, _callbacks(options, survival, own, resumed_step))
    speed.attach(trainer)
    if start.checkpoint is None:
        _load_adapter(trainer, options)
    trainer.train(resume_from_checkpoint=start.checkpoint)
    if any(
        isinstance(each, TrialCallback) and each.pruned
        for each in trainer.callback_handler.callbacks
    ):
        return "pruned"  # its weights are not needed
    return _save(trainer, survival)


def _load_adapter(trainer: Any, options: Options) -> None:
    if options.weights.adapter is not None:
        from hpctrain.training.merge import load_adapter  # only adapters need peft

        load_adapter(trainer.model, options.weights.adapter)


def _run_files(survival: ResilienceContext) -> RunFiles | None:
    run_dir, attempt = survival.run_dir, survival.attempt
    return None if run_dir is None else RunFiles(run_dir, attempt or "local.0")


def _trainer(options: Options, survival: ResilienceContext, callbacks: list[Any]) -> Any:
    if options.training.disable_tqdm:
        disable_progress_bars()
    trainer = options.task.trainer(options, survival, callbacks)
    if options.training.disable_tqdm:
        trainer.remove_callback(PrinterCallback)
        if not options.common.evaluate_only:
            trainer.add_callback(TrainLogCallback())
    problem = preflight.sharding_problem(os.environ, trainer.accelerator.distributed_type.name)
    if problem is not None and not trainer.args.use_cpu:
        raise preflight.usage_error([problem])
    if problem is not None and trainer.is_world_process_zero():
        note(f"warning: {problem.what}; that is all there is on the CPU")
    return trainer


def _callbacks(
    options: Options, survival: ResilienceContext, own: list[Any], resumed_step: int | None
) -> list[Any]:
    asked = options.common
    found: list[Any] = trackers.setup(
        options.training,
        run_dir=survival.run_dir,
        run_id=survival.run_id,
        resumed_step=resumed_step,
    )
    found += own
    if asked.memory_every > 0:
        found.append(MemoryCallback(every=asked.memory_every))
    if asked.early_stopping_patience is not None:
        found.append(
            EarlyStoppingCallback(asked.early_stopping_patience, asked.early_stopping_threshold)
        )
    if asked.trial is not None:
        found.append(TrialCallback(asked.trial, ranks=survival.ranks))
    return found


def _save(trainer: Any, survival: ResilienceContext) -> str:
    args, state = trainer.args, trainer.state
    saved, run_dir, best = Path(args.output_dir), survival.run_dir, None
    if (
        args.load_best_model_at_end
        and state.best_model_checkpoint is not None
        and Path(state.best_model_checkpoint).is_dir()
    ):
        best = {
            "checkpoint": Path(state.best_model_checkpoint).name,
            "step": state.best_global_step,
            "metric": "eval_" + args.metric_for_best_model.removeprefix("eval_"),
            "value": state.best_metric,
        }
    held = best["step"] if best else state.global_step
    if run_dir is not None and saved.absolute() == (run_dir / "checkpoints").absolute():
        record = {
            **survival.record,
            "step": held,
            "trained_steps": state.global_step,
            "max_steps": state.max_steps,
            "best": best,
        }
        saved = save_final(trainer, run_dir=run_dir, record=record)
    else:
        save_whole(trainer, saved)
    is_done = state.global_step >= state.max_steps
    if trainer.is_world_process_zero():
        trainer.stop_file.consume()
        if best:
            name = best["metric"].removeprefix("eval_")
            say(f"[train] best: {name} {best['value']:.4f} at step {held}; its weights are kept")
        losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
        went = f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, " if losses else ""
        say(
            f"[train] {'finished' if is_done else 'stopped early'}: {state.global_step} of"
            f" {state.max_steps} steps, {went}model{f' of step {held}' if best else ''} saved in"
            f" {saved}"
        )
    return "completed" if is_done else "early-stopping"


# -- an evaluation ---------------------------------------------------------------------------------


def _evaluate(options: Options, survival: ResilienceContext) -> str:
    options.training.report_to = []
    every = options.common.memory_every
    trainer = _trainer(options, survival, [MemoryCallback(every=every)] if every > 0 else [])
    _load_adapter(trainer, options)
    folder = Path(str(options.weights.adapter or options.weights.model))
    trainer.state.global_step = step_of(folder)
    split, rows = options.script.dataset_test_split, len(options.eval_dataset)
    if trainer.is_world_process_zero():
        say(f"[train] evaluates {folder} on {rows} rows of {split}; nothing is trained")
    metrics = _measured(trainer)
    result = {
        "schema": 1,
        "weights": str(folder),
        "step": trainer.state.global_step,
        "dataset": str(options.script.dataset_name),
        "split": split,
        "rows": rows,
        "processes": trainer.args.world_size,
        "metrics": {name: each if math.isfinite(each) else None for name, each in metrics.items()},
    }
    trainer.ranks.from_first(lambda: _write(trainer, survival, result, metrics))
    return "evaluated"


def step_of(folder: Path) -> int:
    """Return the optimizer steps after which weights were saved, from the files beside them; else
    0.
    """
    for name, key in ((RECORD, "step"), ("trainer_state.json", "global_step")):
        value = (files.read_json(folder / name) or {}).get(key)
        if isinstance(value, int):
            return value
    return 0


def _measured(trainer: Any) -> dict[str, float]:
    try:
        # The Trainer checks for signals and the stop file only while `evaluating` is set.
        with replaced(trainer._loop, "evaluating", True):
            metrics = trainer.evaluate()
    except StopNowError as cut:
        if trainer.is_world_process_zero():
            say(
                f"[train] the evaluation is interrupted ({cut.wish.reason}); it will start from"
                " scratch"
            )
            trainer.stop_file.consume()
        raise Stopped(cut.wish, trainer.state.global_step) from None
    logged = trainer.state.log_history[-1] if trainer.state.log_history else {}
    measured = {
        name: float(value)
        for name, value in {**logged, **metrics}.items()
        if name not in _OF_TRAINING and isinstance(value, int | float)
    }
    loss = measured.get("eval_loss")
    if loss is not None and "eval_mean_token_accuracy" in measured:  # a language model's
        measured["eval_perplexity"] = math.inf if loss >= 700 else math.exp(loss)
    return measured


_FIRST = ("loss", "perplexity")
_OF_TRAINING = ("epoch", "step", "eval_num_tokens", "eval_model_preparation_time")


def _write(
    trainer: Any, survival: ResilienceContext, result: dict[str, Any], metrics: dict[str, float]
) -> None:
    path = (survival.run_dir or Path(trainer.args.output_dir)) / layout.EVALUATION
    if (run_files := _run_files(survival)) is not None:
        run_files.begin(trainer.args, trainer.state, "evaluate", metrics)
    named = {name.removeprefix("eval_"): value for name, value in metrics.items()}
    shown = sorted(named, key=lambda name: (name not in _FIRST, name))
    say("[train] evaluated: " + " ".join(f"{name}={named[name]:.6g}" for name in shown))
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(path, result)
    say(f"[train] the metrics are in {path}")
