"""A Trainer mixin that stops all ranks together, saves complete checkpoints, and resumes from them
bit for bit.

    from trl import SFTTrainer
    from hpctrain.training.survival.trainer import SurvivorMixin

    class Trainer(SurvivorMixin, SFTTrainer): ...

Works with any subclass of transformers' Trainer (hpctrain/training/private_apis.py). A stop
(SIGTERM, SIGUSR1, the job's time limit, the file RUN_DIR/stop) ends `train()` with `Stopped`, a
SystemExit, after saving. Evaluations, logs and saves are the same as in an uninterrupted run: what
was due at the step of the stop is done after the resume, before the next step.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer
from transformers.trainer_callback import ExportableState
from transformers.trainer_pt_utils import LengthGroupedSampler

from hpctrain.errors import HpctrainError
from hpctrain.runs import checkpoints
from hpctrain.runs.manifest import read_manifest
from hpctrain.training import private_apis
from hpctrain.training.process import Ranks, note, say
from hpctrain.training.survival import ResilienceContext, saving, stop
from hpctrain.training.survival.stop import Stopped, StopReason
from hpctrain.training.survival.time_limit import RULE, Deadline
from hpctrain.util import files
from hpctrain.util.text import duration

__all__ = ["Stopped", "SurvivorMixin"]


class StopNowError(Exception):
    """Leaves an evaluation, and then the training loop after a save without the loop's final
    actions; on all ranks.
    """

    def __init__(self, wish: StopReason, why: str | None = None) -> None:
        super().__init__(why)
        self.wish, self.why = wish, why


class NotFiniteError(HpctrainError):
    """The gradient norm is NaN or infinite: the weights are lost, except those of the last
    checkpoint.
    """

    reason = "nan"


class _Norm:
    """The gradient norm of a step: a number or a tensor.

    A GPU value is copied to the host asynchronously and read one step later: reading it at once
    would synchronize with the GPU.
    """

    def __init__(self, step: int, value: Any) -> None:
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        self.step, self.copied = step, None
        if getattr(value, "is_cuda", False):
            self.value = value.detach().to("cpu", non_blocking=True)
            self.copied = torch.cuda.Event()
            self.copied.record()
        else:
            self.value = value.detach().clone() if hasattr(value, "detach") else value


class _SeededLengths(LengthGroupedSampler):  # type: ignore[misc]  # transformers is not there on the login node
    """An order that depends only on the seed and the epoch. transformers draws it from the random
    state of each rank; where those differ (dropout on the CPU), the ranks train on some rows twice
    and never on others.
    """

    def __init__(self, sampler: LengthGroupedSampler, seed: int) -> None:
        super().__init__(sampler.batch_size, lengths=list(sampler.lengths))
        self._seed = seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        self.generator = torch.Generator().manual_seed(self._seed + epoch)


#: Methods that Trainer calls during a save; none may be skipped, see saving.py.
_PARTS = (
    "create_model_card",
    "save_model",
    "_save_optimizer_and_scheduler",
    "_save_scaler",
    "_save_rng_state",
)
_LONG_EVALUATION = "an evaluation takes longer than that"
#: The arguments of Trainer._maybe_log_save_evaluate, by name.
_Call = dict[str, Any]


@dataclass
class _Loop:
    seen_step: int = 0
    stepped_at: float = field(default_factory=time.monotonic)
    evaluating: bool = False
    saved_at_start: tuple[int, tuple[bool, ...]] | None = None
    #: The checkpoint to resume from, until it is fully restored.
    resumed: str | None = None
    #: Replaces the checkpoint's random state, after what was due has drawn random numbers.
    random_state: dict[str, Any] | None = None


class SurvivorMixin(Trainer):  # type: ignore[misc]  # transformers is not there on the login node
    """See the module. Put it before the other trainer class in the bases.

    Args:
        survival: the context; by default from the job script's environment.

    Attributes:
        private_apis: the classes whose internals it relies on.
        stop_file: the user's request to stop; a training that is done consumes it, so that it does
            not stop a continuation.
    """

    private_apis: tuple[str, ...] = ("transformers.Trainer",)
    control: Any  # Trainer's
    current_flos: Any

    def __init__(self, *args: Any, survival: ResilienceContext | None = None, **named: Any) -> None:
        private_apis.check(*self.private_apis)
        super().__init__(*args, **named)
        self.survival = survival = survival or ResilienceContext.from_environment()
        self.ranks = survival.ranks or Ranks(float(self.args.ddp_timeout))
        self.try_name: str = self.ranks.share(
            survival.attempt or f"{socket.gethostname()}-{os.getpid()}"
        )
        self._norms: deque[_Norm] = deque(maxlen=2)
        self._due = saving.Due()
        self._saved: tuple[int, tuple[bool, ...]] | None = None
        self._epoch_rng: dict[str, Any] | None = None
        self._deadline = Deadline(None, now=time.time())
        self._loop = _Loop()
        self.stop_file = stop.StopFile(survival.run_dir, survival.attempt)

    def train(self, resume_from_checkpoint: str | bool | None = None, **named: Any) -> Any:
        """Train as Trainer.train does; hpctrain.training.survival.resume decides what to resume
        from.

        Raises:
            Stopped: the training saved and stopped before its end.
            NotFiniteError: the gradient norm is NaN or infinite.
            SaveError: a checkpoint could not be saved.
            HpctrainError: the remaining time is too short for a single step.
        """
        stop.listen()
        if resume_from_checkpoint is True:
            directory = Path(self._get_output_dir(None))
            newest = self.ranks.from_first(
                lambda: checkpoints.newest_complete(directory, digests=True)[0]
            )
            if newest is None:
                raise ValueError(f"there is no complete checkpoint in {directory}")
            resume_from_checkpoint = str(newest.path)
        checkpoint = str(resume_from_checkpoint) if resume_from_checkpoint else None
        self._loop = _Loop(resumed=checkpoint)
        self._begin_deadline(checkpoint)
        self._clean_leftovers()
        first_evaluation = self.args.eval_on_start and checkpoint is None
        try:
            with saving.replaced(self.args, "eval_on_start", first_evaluation):
                return super().train(resume_from_checkpoint=checkpoint, **named)
        except StopNowError as stopped:
            wish = stopped.wish
            if wish is StopReason.DEADLINE and self.state.global_step == 0:  # of eval_on_start
                raise _too_late(stopped.why or _LONG_EVALUATION) from None
        self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
        if self.ranks.rank == 0:
            self.stop_file.consume()
            stop.write_exit(wish.code, wish.reason)
        # Wait until the reason is written: launchers end all ranks with the first.
        self.ranks.highest(0)
        raise Stopped(wish, self.state.global_step)

    # -- the deadline ------------------------------------------------------------------------------

    def _begin_deadline(self, checkpoint: str | None) -> None:
        found = saving.read_rank_state(Path(checkpoint), self.ranks.rank) if checkpoint else None
        manifest = read_manifest(Path(checkpoint)) if checkpoint else None
        self._deadline = Deadline(
            self.survival.end,
            now=time.time(),
            save=manifest.seconds if manifest is not None else None,
            step=found.step_seconds if found is not None else None,
        )
        if self._deadline.end is not None and self.ranks.rank == 0:
            left = duration(self._deadline.end - time.time())
            note(f"the time limit ends in {left}; {RULE}")
        if why := self.ranks.share(self._deadline.too_late(time.time())):
            raise _too_late(why)

    # -- the end of a step -------------------------------------------------------------------------

    def _maybe_log_save_evaluate(  # noqa: PLR0917 - the arguments are Trainer's
        self,
        tr_loss: Any,
        grad_norm: Any,
        model: Any,
        trial: Any,
        epoch: Any,
        ignore_keys_for_eval: Any,
        start_time: Any,
        learning_rate: Any = None,
    ) -> None:
        call: _Call = {
            "tr_loss": tr_loss,
            "grad_norm": grad_norm,
            "model": model,
            "trial": trial,
            "epoch": epoch,
            "ignore_keys_for_eval": ignore_keys_for_eval,
            "start_time": start_time,
            "learning_rate": learning_rate,
        }
        if self.state.global_step != self._loop.seen_step:
            self._step_ended(call)
        else:
            self._due.epoch_ended = True
        self._log_evaluate_save(call)
        self._loop.stepped_at = time.monotonic()

    def _step_ended(self, call: _Call) -> None:
        self._loop.seen_step = step = self.state.global_step
        self._deadline.steps.append(time.monotonic() - self._loop.stepped_at)
        self._due = saving.Due(
            boundary=self.state.epoch >= math.floor(call["epoch"]) + 1,
            grad_norm=call["grad_norm"],
            learning_rate=call["learning_rate"],
        )
        skipped = self.accelerator.optimizer_step_was_skipped
        # The launcher's config may request fp16, too.
        fp16 = self.args.fp16 or self.accelerator.mixed_precision == "fp16"
        # With fp16, the scaler lowers the scale after a skipped step, and the training continues.
        # DeepSpeed skips every step with nonfinite gradients, in any precision; its norm may be
        # from an earlier step.
        if self.survival.stop_on_nan and not (skipped and fp16):
            norm = call["tr_loss"] if call["grad_norm"] is None else call["grad_norm"]
            self._norms.append(_Norm(step, math.nan if skipped else norm))
        wish, why = self._own_wish(partial(self._deadline.must_stop, save=self.control.should_save))
        measure = (
            self.ranks.rank == 0
            and self._deadline.wants_a_save(time.time())
            and not self.control.should_save
        )
        agreed, measure_now, bad_step = self.ranks.highest(wish, measure, self._nonfinite_step())
        if bad_step:
            raise _lost(bad_step)
        if agreed:
            self._say(StopReason(agreed), why)
            self._save_and_stop(StopReason(agreed), call)
        elif measure_now:
            if measure:
                say(f"[train] half of the time limit is over: saving at step {step} to measure it")
            self._save_here(call)

    def _nonfinite_step(self, *, wait: bool = False) -> int:
        """Return the step now known to have a nonfinite gradient norm; 0 for none."""
        for norm in self._norms:
            if norm.copied is not None:
                if not wait and norm is self._norms[-1]:
                    continue
                norm.copied.synchronize()
            if not math.isfinite(float(norm.value)):
                return norm.step
        return 0

    def _own_wish(self, late: Callable[[float], str | None]) -> tuple[StopReason, str | None]:
        """Return this rank's reason to stop. Only rank 0 checks the clock (`late` returns why it is
        time to stop) and the stop file.
        """
        if self.ranks.rank == 0:
            if self.stop_file.there():
                return StopReason.STOP_FILE, None
            if why := late(time.time()):
                return StopReason.DEADLINE, why
        return (StopReason.SIGNAL if stop.signalled() else StopReason.NONE), None

    def _say(self, wish: StopReason, why: str | None) -> None:
        if wish is StopReason.STOP_FILE:
            why = "the file stop is there"
        elif wish is StopReason.SIGNAL:
            named = [name for name in self.ranks.gather(stop.signalled()) if name]
            why = f"{named[0] if named else 'a signal'} came"
        if self.ranks.rank == 0:
            step, most = self.state.global_step, self.state.max_steps
            say(f"[train] {why}: saving and stopping at step {step} of {most}")

    def _save_here(self, call: _Call) -> None:
        """Log what is due, and save; an evaluation and a regular save stay due."""
        evaluate, save = self.control.should_evaluate, self.control.should_save
        self.control.should_evaluate = self.control.should_save = False
        super()._maybe_log_save_evaluate(**call)
        # An uninterrupted run would not make this save: it must not change the sums.
        sums = self.state.total_flos, self.current_flos
        self._due.evaluate, self._due.save = evaluate, save
        self._save_checkpoint(call["model"], call["trial"])
        self.state.total_flos, self.current_flos = sums
        self.control = self.callback_handler.on_save(self.args, self.state, self.control)
        self.control.should_evaluate, self.control.should_save = evaluate, save

    def _save_and_stop(self, wish: StopReason, call: _Call, why: str | None = None) -> None:
        before = self._saved
        self._save_here(call)
        if wish is StopReason.DEADLINE and self._saved == before == self._loop.saved_at_start:
            # A requeue would end the same way.
            raise _too_late(why or _LONG_EVALUATION)
        raise StopNowError(wish)

    # -- evaluation --------------------------------------------------------------------------------

    def _log_evaluate_save(self, call: _Call) -> None:
        random_state = saving.random_state() if self.control.should_evaluate else None
        save, training = self.control.should_save, self.model.training
        try:
            super()._maybe_log_save_evaluate(**call)
        except StopNowError as cut:
            sums = getattr(self, "_metrics", None)
            if isinstance(sums, dict) and isinstance(sums.get("eval"), dict):
                sums["eval"].clear()  # TRL's, of the interrupted evaluation
            self.model_wrapped.train(training)
            saving.set_random_state(random_state or {})
            self.control.should_evaluate, self.control.should_save = True, save
            self._say(cut.wish, cut.why)
            self._save_and_stop(cut.wish, call, cut.why)

    def _evaluate(self, *args: Any, **named: Any) -> Any:
        self._loop.evaluating = True
        try:
            metrics = super()._evaluate(*args, **named)
        finally:
            self._loop.evaluating = False
        self._due.evaluate = False
        return metrics

    def prediction_step(self, *args: Any, **named: Any) -> Any:
        """Evaluate one batch; the training can stop between two batches."""
        began = time.monotonic()
        found = super().prediction_step(*args, **named)
        # Otherwise, ranks may have different numbers of batches.
        if self._loop.evaluating and self.accelerator.even_batches:
            self._deadline.batches.append(time.monotonic() - began)
            wish, why = self._own_wish(self._deadline.must_stop_evaluating)
            (agreed,) = self.ranks.highest(wish)
            if agreed:
                raise StopNowError(StopReason(agreed), why)
        return found

    # -- after a resume ----------------------------------------------------------------------------

    def _run_epoch(self, **named: Any) -> Any:
        self._epoch_rng = None
        if self._loop.resumed is not None:
            if not self._take_up(
                named["start_time"], named["epoch"], named["ignore_keys_for_eval"]
            ):
                return None
            if named["steps_trained_in_current_epoch"] > 0 and self._epoch_rng is not None:
                # The data order is drawn from the random state at the start of the epoch; the state
                # of the step is restored later.
                saving.set_random_state(self._epoch_rng)
                _set_epoch(named["train_dataloader"], named["epoch"])
        if self._epoch_rng is None:
            self._epoch_rng = saving.random_state()
        self._loop.stepped_at = time.monotonic()
        return super()._run_epoch(**named)

    def _load_rng_state(self, checkpoint: Any) -> None:
        if self._loop.random_state is None:
            super()._load_rng_state(checkpoint)
        else:
            saving.set_random_state(self._loop.random_state)

    def _take_up(self, start_time: float, epoch: int, ignore_keys_for_eval: Any) -> bool:
        """Restore what transformers does not, do what was due, and return whether there are steps
        left.
        """
        checkpoint, self._loop.resumed = Path(self._loop.resumed or ""), None
        self._loop.seen_step = step = self.state.global_step
        super()._load_rng_state(str(checkpoint))
        found = saving.read_rank_state(checkpoint, self.ranks.rank)
        due = found.due if found is not None else saving.Due()
        if found is not None:
            saving.restore_sums(self, found.sums)
            self._epoch_rng = None if due.boundary else found.epoch_rng
        if checkpoint.parent.absolute() == Path(self._get_output_dir(None)).absolute():
            self._saved = self._loop.saved_at_start = (step, due.key())
        self._due = replace(due)
        self.model_wrapped.train(due.training)
        self._do_what_was_due(
            due,
            {
                "tr_loss": self._tr_loss,
                "grad_norm": due.grad_norm,
                "model": self.model_wrapped,
                "trial": None,
                "epoch": epoch,
                "ignore_keys_for_eval": ignore_keys_for_eval,
                "start_time": start_time,
                "learning_rate": due.learning_rate,
            },
        )
        if self.control.should_training_stop:
            return False
        self._loop.random_state = saving.random_state()
        return True

    def _do_what_was_due(self, due: saving.Due, call: _Call) -> None:
        self.control.should_training_stop = (
            due.ended or self.state.global_step >= self.state.max_steps
        )
        self.control.should_log = False
        self.control.should_evaluate, self.control.should_save = due.evaluate, due.save
        self._log_evaluate_save(call)
        if not due.epoch_ended and (due.boundary or self.control.should_training_stop):
            self._due.epoch_ended = True
            self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
            self._log_evaluate_save(call)

    def _finalize_training(self, trial: Any, num_train_samples: Any, start_time: float) -> Any:
        if self._loop.resumed is not None:  # all epochs are done
            self._take_up(start_time, 0, None)
        self._point_at_best()
        # Trainer would remove the last checkpoint in favor of the best one.
        with saving.replaced(self.args, "save_total_limit", None):
            return super()._finalize_training(trial, num_train_samples, start_time)

    # -- a checkpoint ------------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save, unless exactly this state was saved already.

        Raises:
            NotFiniteError: the weights are lost, so nothing is saved; on all ranks.
            SaveError: on all ranks.
        """
        (bad_step,) = self.ranks.highest(self._nonfinite_step(wait=True))
        if bad_step:
            raise _lost(bad_step)
        step = self.state.global_step
        self._due.ended = bool(self.control.should_training_stop) and step < self.state.max_steps
        if self._saved == (step, self._due.key()):
            self._point_at_best()
            return
        directory = Path(super()._get_output_dir(trial))
        attempt = saving.Attempt(self.ranks, directory / f"checkpoint-{step}", step, self.try_name)
        attempt.begin()
        during: dict[str, Any] = {name: partial(attempt.do, getattr(self, name)) for name in _PARTS}
        during["_get_output_dir"] = lambda *_, **__: str(attempt.writing.parent)
        with ExitStack() as stack:
            for name, value in during.items():
                stack.enter_context(saving.replaced(self, name, value))
            attempt.do(super()._save_checkpoint, model, trial)
        self._point_at_best(saved=attempt.final)
        attempt.do(self._save_own, attempt.writing)
        seconds = attempt.finish(
            step=step,
            needed=tuple(map(saving.rank_file, range(self.ranks.size))),
            survival=self.survival,
        )
        self._deadline.saves.append(seconds)
        self._saved = (step, self._due.key())
        self._rotate(directory)

    def _save_own(self, directory: Path) -> None:
        due = self._due
        due.training = bool(self.model.training)
        if due.grad_norm is not None:
            due.grad_norm = float(due.grad_norm)
        saving.write_rank_state(
            directory,
            self.ranks.rank,
            saving.RankState(saving.sums_of(self), due, self._epoch_rng, self._deadline.step),
        )
        if self.ranks.rank == 0:
            self.state.save_to_json(str(directory / "trainer_state.json"))
            files.write_json(directory / saving.RECORD, dict(self.survival.record))

    def _rotate(self, directory: Path) -> None:
        limit, step = self.args.save_total_limit, self.state.global_step
        if self.ranks.rank != 0 or limit is None or limit <= 0:
            return
        kept = {f"checkpoint-{self.state.best_global_step}", f"checkpoint-{step}"}
        try:
            checkpoints.rotate(directory, limit, kept, at=step)
        except (OSError, HpctrainError) as error:
            say(f"[train] notice: old checkpoints could not be removed: {error}")

    def _clean_leftovers(self) -> None:
        """Remove unfinished saves of ended attempts, on rank 0; leftovers that cannot be removed
        are harmless.
        """
        output = Path(super()._get_output_dir(None))
        folders = {output, self.survival.run_dir or output}
        for folder in folders if self.ranks.rank == 0 else ():
            try:
                for name in checkpoints.clean(
                    folder, lambda path, attempt: saving.is_over(path, attempt, self.survival)
                ):
                    say(f"[train] removed {name}: its save was not finished")
            except (OSError, HpctrainError) as error:
                say(f"[train] notice: unfinished saves could not be removed: {error}")

    def _point_at_best(self, *, saved: Path | None = None) -> None:
        """Update the best checkpoint's path in the state to the current output directory, which may
        have been moved.

        Args:
            saved: the checkpoint that is being saved.
        """
        if not self.state.best_global_step:
            return
        best = Path(super()._get_output_dir(None)) / f"checkpoint-{self.state.best_global_step}"
        if best == saved or best.is_dir():
            self.state.best_model_checkpoint = str(best)

    # -- what else a resume needs ------------------------------------------------------------------

    def _init_training_state(self, *args: Any, **named: Any) -> Any:
        found = super()._init_training_state(*args, **named)
        self._point_at_best()
        return found

    def _load_callback_state(self) -> None:
        """Restore only the state of callbacks, such as the patience of early stopping.

        transformers' own restore_callback_states_from_checkpoint is off by default. It recreates
        the callbacks with the options of the earlier start, moves them after all others, and
        restores the control flags from the time of the save.
        """
        stored, self.state.stateful_callbacks = self.state.stateful_callbacks, {}
        # Saving fails for a callback that is missing from the state.
        for callback in (*self.callback_handler.callbacks, self.control):
            if isinstance(callback, ExportableState):
                name = type(callback).__name__
                state = stored.get(name)
                if callback is not self.control and isinstance(state, dict):
                    vars(callback).update(state["attributes"])
                self.state.stateful_callbacks[name] = callback.state()

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        sampler = super()._get_train_sampler(train_dataset)
        if not isinstance(sampler, LengthGroupedSampler):
            return sampler
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return _SeededLengths(sampler, seed)

    def _get_dataloader(self, *args: Any, **named: Any) -> Any:
        loader = super()._get_dataloader(*args, **named)
        base = getattr(loader, "base_dataloader", loader)
        base.worker_init_fn = partial(stop.start_worker, base.worker_init_fn)
        return loader


def _lost(step: int) -> NotFiniteError:
    return NotFiniteError(
        f"the gradient norm of step {step} is nan or inf",
        details=("the weights since then are lost; checkpoints were saved before it only",),
        hint=(
            "look at the data of that step; then use a lower --learning_rate, --max_grad_norm 1.0,"
            " more --warmup_steps, or --bf16 true instead of fp16; --stop_on_nan false continues"
            " regardless"
        ),
    )


def _too_late(why: str) -> HpctrainError:
    return HpctrainError(
        f"the job has no time for a single step: {why}",
        details=("requeued, it would do no more",),
        hint="submit it with a longer --time",
    )


def _set_epoch(loader: Any, epoch: int) -> None:
    """Set the epoch on every sampler of a data loader: accelerate does not pass it through its
    skip-first-batches wrapper.
    """
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)
    behind = getattr(loader, "batch_sampler", None)
    while behind is not None:
        for sampler in (behind, getattr(behind, "sampler", None)):
            if sampler is not None and hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        behind = getattr(behind, "batch_sampler", None)
