"""The rails that the shipped trainings run on: options, start or resume, the watchers, the final weights, and the end of the process.

A task (hpctrain/training/task.py) says what is trained. Defaults of all of them, where the libraries would do something else without a
word:
    dtype                  of LoRA's frozen base: bfloat16 on a GPU that has it. Everything else: float32, as TRL, because small
                           updates of bfloat16 weights round to nothing
    bf16                   as TRL on a GPU that has it, off elsewhere
    use_cpu                on when ACCELERATE_USE_CPU says so; without a GPU and without that word nothing is trained
    output_dir             $HPCTRAIN_RUN_DIR/checkpoints when that variable is set; the final weights go to $HPCTRAIN_RUN_DIR/model then
    metric_for_best_model  eval_loss with --early_stopping_patience
    disable_tqdm           on when standard output is not a terminal
    logging_nan_inf_filter off: a loss that is NaN is shown as such (transformers logs 0.0)
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from hpctrain.errors import HpctrainError
from hpctrain.memory.reader import node_name
from hpctrain.runs import layout
from hpctrain.training import preflight, rank_log, resume, stop, trackers
from hpctrain.training.options import Options, read_options
from hpctrain.training.process import WAIT_S, leave, own_rank, quiet_bitsandbytes, say
from hpctrain.training.task import Task

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

#: Variables of `accelerate launch` and of torchrun, which both end with 1 whatever code a process of theirs ends with.
_HIDES_CODES = {"ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID"}


def main(task: Task, argv: list[str] | None = None) -> NoReturn:
    """Train, and end the process; rank 0 writes the code and why into attempts/ATTEMPT/exit.

    Exit codes: 0 trained or evaluated, 1 the training failed, 2 it could not begin, 85 stopped to go on later, 86 stopped because somebody
    wanted it.
    """
    stop.listen()
    rank_log.keep()
    for name, value in OFFLINE.items():
        os.environ.setdefault(name, value)
    together = False
    try:
        _import_quietly()
        reason = train(read_options(sys.argv[1:] if argv is None else argv, task))
        code = layout.DONE
    except stop.Stopped as stopped:
        code, reason, together = int(stopped.code or 0), stopped.reason, True
    except HpctrainError as error:
        _fail(error)
    except SystemExit as exit_:  # --help
        code, reason = exit_.code if isinstance(exit_.code, int) else 1, None
    except KeyboardInterrupt:
        code, reason = 130, "error"
    except BaseException:  # shown here, because os._exit shows nothing
        sys.stdout.flush()
        sys.stderr.write(traceback.format_exc())
        code, reason = layout.FAILED, "error"
    _end(code, reason, together=together)


def _import_quietly() -> None:
    """Import transformers, which says in every process that W&B is offline, whether or not anything is reported to it.

    A library that it cannot import is said with a fix where it is needed.
    """
    quiet_bitsandbytes()
    mode = os.environ.pop("WANDB_MODE", None)
    try:
        importlib.import_module("transformers.integrations.integration_utils")
    except ImportError:  # said with a fix, where it is needed
        pass
    finally:
        if mode is not None:
            os.environ["WANDB_MODE"] = mode


def _end(code: int, reason: str | None, *, together: bool) -> NoReturn:
    """Write the reason, close the trackers, and end; `together`: when all ranks have come here, launchers end the others with the first."""
    said = bool(os.environ.get(layout.RUN_DIR_VARIABLE) and os.environ.get(layout.ATTEMPT_VARIABLE))
    if own_rank() == 0:
        said = reason is not None and stop.write_exit(code, reason)
        trackers.finish(code)
    torch = sys.modules.get("torch")
    if together and torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    # A launcher takes 85 for a crash: it prints a traceback, hides the code, and calls the step failed. The file says what is meant.
    leave(layout.DONE if together and said and _HIDES_CODES & set(os.environ) else code)


def _fail(error: HpctrainError) -> NoReturn:
    """Show an error once, from rank 0, which also says to the job script that no requeue helps; another rank only if rank 0 had none."""
    message = error.render() + "\n"
    if own_rank() != 0:
        # A launcher ends all with SIGTERM as soon as one has ended: rank 0, with the same error.
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until and not stop.signalled():
            time.sleep(0.1)
        if stop.signalled():
            leave(error.exit_code)
        message = f"rank {own_rank()} on {node_name()}: {message}"
    sys.stdout.flush()
    sys.stderr.write(message)
    sys.stderr.flush()
    _end(error.exit_code, getattr(error, "reason", "error"), together=False)


def train(options: Options) -> str:
    """Train, or go on with it, and save the final weights; or only evaluate, where that is asked for.

    Returns:
        Why it ended: `completed`, `early-stopping`, `evaluated`, or `pruned` (by the study of `hpctrain tune`).

    Raises:
        Stopped: it saved and stopped before its end.
        HpctrainError: it cannot go on.
        Exception: whatever the libraries raise.
    """
    from hpctrain.training.ranks import Ranks
    from hpctrain.training.settings import Survival

    training, asked = options.training, options.survival
    ends = {name: getattr(asked, name) for name in ("early_stopping_patience", "early_stopping_threshold")}
    record = resume.record(training, options.model, *options.own, dataset=options.script.dataset_name, splits=options.splits, ends=ends)
    ranks = Ranks(float(training.ddp_timeout))
    # A run that is saving meanwhile may show each rank something else.
    options = replace(options, weights=ranks.share(options.weights))
    options.model.model_name_or_path = options.weights.model
    survival = Survival.from_environment(record=record, stop_on_nan=asked.stop_on_nan, ranks=ranks)
    if options.mode.evaluate_only:
        return _evaluate(options, survival)
    start = resume.decided(ranks, _request(options, record), survival)
    if own_rank() == 0:
        for line in start.lines:
            say(line)
    if start.complete is not None:
        return "completed"
    survival = survival.after(start.save_seconds, start.leaving_seconds)
    watch = _Watch(options, survival)
    trainer = _trainer(options, survival, _callbacks(options, survival, watch, start.step if start.checkpoint else None))
    watch.attach(trainer)
    if start.checkpoint is None:
        _load_adapter(trainer, options)
    with watch:
        trainer.train(resume_from_checkpoint=start.checkpoint)
    if options.mode.trial is not None and _is_pruned(trainer):
        return "pruned"  # its weights are of no use to anybody
    return _save(trainer, survival)


def _evaluate(options: Options, survival: Any) -> str:
    """Evaluate the weights, and return why it ended; nothing of a training is looked at, or written."""
    from hpctrain.training import evaluation
    from hpctrain.training.memory_callback import MemoryCallback

    options = evaluation.with_adapter(options)
    options.training.report_to = []
    every = options.monitor.memory_every
    trainer = _trainer(options, survival, [MemoryCallback(every=every)] if every > 0 else [], log=False)
    trainer.notes.say()
    _load_adapter(trainer, options)
    return evaluation.evaluate(trainer, options, survival)


def _load_adapter(trainer: Any, options: Options) -> None:
    if options.weights.adapter is not None:
        from hpctrain.training.starting import load_adapter

        load_adapter(trainer.model, options.weights.adapter)


def _request(options: Options, record: dict[str, Any]) -> resume.Request:
    asked = options.survival
    return resume.Request(
        output_dir=Path(options.training.output_dir),
        explicit=options.training.resume_from_checkpoint,
        anew=options.weights.in_words(),
        init_from=asked.init_from,
        world_size=options.training.world_size,
        record=record,
        accepted=resume.Accepted(
            missing_state=asked.resume_with_missing_state,
            other_world_size=asked.resume_with_other_world_size,
            other_data=asked.resume_with_other_data,
            no_manifest=asked.resume_without_manifest,
        ),
    )


class _Watch:
    """What measures the training: its callbacks, and, around it, what is kept of a failure."""

    def __init__(self, options: Options, survival: Any) -> None:
        from hpctrain.training.fit_file import FitFile
        from hpctrain.training.run_files import RunFiles
        from hpctrain.training.speed_callback import SpeedCallback
        from hpctrain.training.start_callback import StartCallback

        fit_file = FitFile(survival.run_dir, survival.cluster)
        self.files = RunFiles() if survival.run_dir is not None else None
        self.start = StartCallback(options, survival, fit_file)
        self.speed = SpeedCallback(
            every=options.monitor.speed_every,
            survival=survival,
            ranks=survival.ranks,
            expected=lambda: self.start.expectation,
            run_files=self.files,
            fit_file=fit_file,
        )

    def attach(self, trainer: Any) -> None:
        """Watch this Trainer, which was built with the callbacks."""
        self.start.attach(trainer)
        self.speed.attach(trainer)

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is not None and not isinstance(error, stop.Stopped):
            self.speed.interrupted(error)


def _trainer(options: Options, survival: Any, callbacks: list[Any], *, log: bool = True) -> Any:
    """Return the Trainer with these callbacks; `log`: and with the one that writes what it logs."""
    from transformers import PrinterCallback

    from hpctrain.training.process import disable_progress_bars
    from hpctrain.training.train_log import TrainLogCallback

    if options.training.disable_tqdm:
        disable_progress_bars()
    trainer = options.task.trainer(options, survival, callbacks)
    if options.training.disable_tqdm:
        trainer.remove_callback(PrinterCallback)
        if log:
            trainer.add_callback(TrainLogCallback())
    _check_sharding(trainer)
    return trainer


def _callbacks(options: Options, survival: Any, watch: _Watch, resumed_step: int | None) -> list[Any]:
    from transformers import EarlyStoppingCallback

    from hpctrain.training.memory_callback import MemoryCallback

    found: list[Any] = trackers.setup(options.training, run_dir=survival.run_dir, run_id=survival.run_id, resumed_step=resumed_step)
    found.append(watch.start)
    if watch.files is not None:
        found.append(watch.files)
    found.append(watch.speed)
    if options.monitor.memory_every > 0:
        found.append(MemoryCallback(every=options.monitor.memory_every))
    patience = options.survival.early_stopping_patience
    if patience is not None:
        found.append(EarlyStoppingCallback(patience, options.survival.early_stopping_threshold))
    if options.mode.trial is not None:
        from hpctrain.training.trial_callback import TrialCallback

        found.append(TrialCallback(options.mode.trial, ranks=survival.ranks))
    return found


def _is_pruned(trainer: Any) -> bool:
    from hpctrain.training.trial_callback import pruned

    return pruned(trainer)


def _save(trainer: Any, survival: Any) -> str:
    """Save the final weights, say how it went, and return why it ended."""
    from hpctrain.training.saving import save_final, save_whole

    args, state = trainer.args, trainer.state
    saved = Path(args.output_dir)
    if survival.run_dir is not None and saved.absolute() == (survival.run_dir / "checkpoints").absolute():
        record = {**survival.record, "step": state.global_step, "max_steps": state.max_steps}
        saved = save_final(trainer, run_dir=survival.run_dir, record=record)
    else:
        save_whole(trainer, saved)
    if trainer.is_world_process_zero():
        trainer.forget_stop_file()
        say(_summary(state, str(saved)))
    return "completed" if state.global_step >= state.max_steps else "early-stopping"


def _check_sharding(trainer: Any) -> None:
    """Refuse to train unsharded where the job asked for shards; on the CPU, where accelerate leaves FSDP out, say so.

    Raises:
        UsageError: on a GPU.
    """
    problem = preflight.sharding_problem(os.environ, trainer.accelerator.distributed_type.name)
    if problem is None:
        return
    if not trainer.args.use_cpu:
        raise preflight.usage_error([problem])
    if trainer.is_world_process_zero():
        trainer.notes.add(f"warning: {problem.what}; that is all there is on the CPU")


def _summary(state: Any, output_dir: str) -> str:
    """Return the last line: finished, or stopped early, with the first and the last loss that were logged."""
    losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
    went = f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, " if losses else ""
    word = "finished" if state.global_step >= state.max_steps else "stopped early"
    return f"[train] {word}: {state.global_step} of {state.max_steps} steps, {went}model saved in {output_dir}"
