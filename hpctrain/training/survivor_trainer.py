"""A Trainer that stops by agreement, saves whole checkpoints, and goes on from them as if nothing had happened.

    from trl import SFTTrainer
    from hpctrain.training.survivor_trainer import SurvivorMixin

    class Trainer(SurvivorMixin, SFTTrainer): ...

Works before any trainer that builds on transformers' (5.23 or later in kind: `_run_epoch` and `_maybe_log_save_evaluate` are methods). A
stop (SIGTERM, SIGUSR1, the job's time limit, the file RUN_DIR/stop) ends `train()` with `Stopped`, a SystemExit, when all is saved. It
never evaluates, logs or saves more or less than an uninterrupted run does: what was due at the step of the stop is done after the
resume, before the next step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpctrain.errors import HpctrainError
from hpctrain.runs import checkpoints
from hpctrain.training import kept, stop
from hpctrain.training.deadline import RULE, Deadline
from hpctrain.training.estimate import duration
from hpctrain.training.kept import Due
from hpctrain.training.process import say
from hpctrain.training.saves import SavesMixin
from hpctrain.training.saving import replaced
from hpctrain.training.settings import Survival
from hpctrain.training.stop import Stopped, Wish

__all__ = ["Stopped", "SurvivorMixin"]


class _StopNowError(Exception):
    """Saved; leave the training loop without anything that belongs to its end."""

    def __init__(self, wish: Wish) -> None:
        super().__init__(wish.reason)
        self.wish = wish


class _EvaluationCutError(Exception):
    """The evaluation is broken off, on all ranks."""

    def __init__(self, wish: Wish, why: str | None) -> None:
        super().__init__(why)
        self.wish, self.why = wish, why


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of Trainer._maybe_log_save_evaluate."""

    tr_loss: Any
    grad_norm: Any
    model: Any
    trial: Any
    epoch: Any
    ignore_keys_for_eval: Any
    start_time: Any
    learning_rate: Any = None

    def named(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass
class _Loop:
    """Where the training loop is."""

    seen_step: int = 0
    stepped_at: float = field(default_factory=time.monotonic)
    began: float = field(default_factory=time.monotonic)
    evaluating: bool = False
    saved_at_start: tuple[int, tuple[bool, ...]] | None = None
    resumed: str | None = None
    """The checkpoint that is resumed, until all of it was taken up."""
    random_state: dict[str, Any] | None = None
    """What replaces the checkpoint's random numbers, after what was due had drawn some."""


class SurvivorMixin(SavesMixin):
    """See the module. Put it before the trainer's class.

    Args:
        survival: where and how; by default what the job script's environment says.
    """

    def __init__(self, *args: Any, survival: Survival | None = None, **named: Any) -> None:
        behind = super()
        if missing := [name for name in ("_run_epoch", "_finalize_training", "_maybe_log_save_evaluate") if not hasattr(behind, name)]:
            raise HpctrainError(
                f"this transformers has a training loop that is not known here: Trainer has no {missing[0]}",
                fix="pip install 'transformers>=5.23'",
            )
        super().__init__(*args, survival=survival or Survival.from_environment(), **named)
        self._loop = _Loop()
        self._stop_file = stop.StopFile(self.survival.run_dir, self.survival.attempt)

    def train(self, resume_from_checkpoint: str | bool | None = None, **named: Any) -> Any:
        """Train, as Trainer.train does; a resume is decided before (hpctrain.training.resume).

        Raises:
            Stopped: the training has stopped before its end, and saved.
            NotFiniteError: the gradient norm is NaN or infinite.
            SaveError: a checkpoint could not be saved.
            HpctrainError: the time that is left is too short for a single step.
        """
        stop.listen()
        if resume_from_checkpoint is True:
            resume_from_checkpoint = self._newest()
        checkpoint = str(resume_from_checkpoint) if resume_from_checkpoint else None
        self._loop = _Loop(resumed=checkpoint)
        self._begin_deadline(checkpoint)
        self._clean_leftovers()
        with self.notes, replaced(self.args, "eval_on_start", self.args.eval_on_start and checkpoint is None):
            try:
                return super().train(resume_from_checkpoint=checkpoint, **named)  # type: ignore[misc]
            except _StopNowError as stopped:
                wish = stopped.wish
        self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
        if self.ranks.rank == 0:
            self._stop_file.consume()
            stop.write_exit(wish.code, wish.reason)
        self.ranks.highest(0)  # nobody leaves before the reason is written: launchers end the others with the first
        raise Stopped(wish, self.state.global_step)

    def forget_stop_file(self) -> None:
        """The training is done: a wish to stop it must not stop what continues it one day."""
        self._stop_file.consume()

    # -- the deadline --------------------------------------------------------------------------------------------------

    def _newest(self) -> str:
        newest = checkpoints.newest_complete(Path(self._get_output_dir(None)), digests=True)[0] if self.ranks.rank == 0 else None
        path = self.ranks.share(newest and str(newest.path))
        if path is None:
            raise ValueError(f"there is no complete checkpoint in {self._get_output_dir(None)}")
        return str(path)

    def _begin_deadline(self, checkpoint: str | None) -> None:
        found = kept.read(Path(checkpoint), self.ranks.rank) if checkpoint else None
        times = found.times if found is not None else {}
        self._deadline = Deadline(
            self.survival.end,
            now=time.time(),
            save=self.survival.save_seconds,
            leaving=self.survival.leaving_seconds,
            evaluation=times.get("evaluation"),
            step=times.get("step"),
        )
        if self._deadline.end is not None and self.ranks.rank == 0:
            self.notes.add(f"the time limit ends in {duration(self._deadline.end - time.time())}; {RULE}")
        why = self.ranks.share(self._deadline.too_late(time.time()))
        if why is not None:
            raise _too_late(why)

    # -- the end of a step ---------------------------------------------------------------------------------------------

    def _maybe_log_save_evaluate(  # noqa: PLR0917 - the arguments are Trainer's
        self, tr_loss: Any, grad_norm: Any, model: Any, trial: Any, epoch: Any, ignore_keys_for_eval: Any, start_time: Any,
        learning_rate: Any = None,
    ) -> None:  # fmt: skip
        call = _Call(tr_loss, grad_norm, model, trial, epoch, ignore_keys_for_eval, start_time, learning_rate)
        if self.state.global_step != self._loop.seen_step:
            self._step_ended(call)
        else:
            self._due.epoch_ended = True
        self._log_evaluate_save(call)
        self._loop.stepped_at = time.monotonic()

    def _step_ended(self, call: _Call) -> None:
        """Find out whether this is the last step for now; the training goes on when this returns."""
        self._loop.seen_step = step = self.state.global_step
        self._deadline.note_step(time.monotonic() - self._loop.stepped_at)
        self._due = Due(boundary=self.state.epoch >= math.floor(call.epoch) + 1, grad_norm=call.grad_norm, learning_rate=call.learning_rate)
        bad = self._look_at_norm(step, call.tr_loss if call.grad_norm is None else call.grad_norm)
        wish, why = self._own_wish()
        measure = self.ranks.rank == 0 and self._deadline.wants_a_save(time.time()) and not self.control.should_save
        agreed, measure_now, bad_step = self.ranks.highest(wish, measure, bad[0] if bad else 0)
        if bad_step:
            raise self._lost(bad_step, bad)
        if agreed:
            self._say(Wish(agreed), why)
            self._log_only(call)
            self._save_and_stop(Wish(agreed), call)
        elif measure_now:
            if self.ranks.rank == 0:
                say(f"[train] half of the time is gone and no save was measured: saving at step {step}")
            self._log_only(call)
            with self._as_if_not_saved():
                self._save_here(call)

    def _own_wish(self) -> tuple[Wish, str | None]:
        """Return what this rank wants, and why, at the end of a step; the clock and the stop file are rank 0's."""
        if self.ranks.rank == 0:
            if self._stop_file.there():
                return Wish.STOP_FILE, None
            due = {"evaluate": self.control.should_evaluate, "save": self.control.should_save}
            if why := self._deadline.must_stop(time.time(), **due):
                return Wish.DEADLINE, why
        return (Wish.SIGNAL if stop.signalled() else Wish.NONE), None

    def _say(self, wish: Wish, why: str | None) -> None:
        why = self.ranks.share(why) if wish is Wish.DEADLINE else why
        named = [name for name in self.ranks.gather(stop.signalled()) if name] if wish is Wish.SIGNAL else []
        if self.ranks.rank == 0:
            words = {Wish.SIGNAL: f"{named[0]} came" if named else "a signal came", Wish.STOP_FILE: "the file stop is there"}
            step, most = self.state.global_step, self.state.max_steps
            say(f"[train] {words.get(wish, why)}: saving and stopping at step {step} of {most}")

    def _log_only(self, call: _Call) -> None:
        """Write the line of the log that is due; evaluation and save stay due."""
        evaluate, save = self.control.should_evaluate, self.control.should_save
        self.control.should_evaluate = self.control.should_save = False
        super()._maybe_log_save_evaluate(**call.named())  # type: ignore[misc]
        self.control.should_evaluate, self.control.should_save = evaluate, save

    def _save_here(self, call: _Call) -> None:
        """Save with what is due written down, and leave it due."""
        evaluate, save = self.control.should_evaluate, self.control.should_save
        self._due.evaluate, self._due.save = evaluate, save
        self._save_checkpoint(call.model, call.trial)
        self.control = self.callback_handler.on_save(self.args, self.state, self.control)
        self.control.should_evaluate, self.control.should_save = evaluate, save

    def _save_and_stop(self, wish: Wish, call: _Call, why: str | None = None) -> None:
        before = self._saved
        self._save_here(call)
        if wish is Wish.DEADLINE and self._saved == before == self._loop.saved_at_start:
            raise _too_late(why or "an evaluation takes longer than that")  # requeued, it would do the same again
        raise _StopNowError(wish)

    @contextmanager
    def _as_if_not_saved(self) -> Iterator[None]:
        """Let a save that an uninterrupted run would not make leave no trace in a sum."""
        sums = self.state.total_flos, self.current_flos
        yield
        self.state.total_flos, self.current_flos = sums

    # -- evaluation ----------------------------------------------------------------------------------------------------

    def _log_evaluate_save(self, call: _Call) -> None:
        random_state = kept.random_state() if self.control.should_evaluate else None
        save, training = self.control.should_save, self.model.training
        try:
            super()._maybe_log_save_evaluate(**call.named())  # type: ignore[misc]
        except _EvaluationCutError as cut:
            self._forget_evaluation()
            self.model_wrapped.train(training)
            kept.set_random_state(random_state or {})
            self.control.should_evaluate, self.control.should_save = True, save
            self._say(cut.wish, cut.why)
            self._save_and_stop(cut.wish, call, cut.why)

    def _evaluate(self, *args: Any, **named: Any) -> Any:
        began = time.monotonic()
        self._loop.evaluating = True
        try:
            metrics = super()._evaluate(*args, **named)  # type: ignore[misc]
        finally:
            self._loop.evaluating = False
        self._deadline.evaluation = time.monotonic() - began
        self._due.evaluate = False
        return metrics

    def _forget_evaluation(self) -> None:
        """Drop what TRL has added up in the half of an evaluation."""
        sums = getattr(self, "_metrics", None)
        if isinstance(sums, dict) and isinstance(sums.get("eval"), dict):
            sums["eval"].clear()

    def prediction_step(self, *args: Any, **named: Any) -> Any:
        """One batch of an evaluation; between two of them the training can stop."""
        began = time.monotonic()
        found = super().prediction_step(*args, **named)  # type: ignore[misc]
        # Ranks may have different numbers of batches otherwise.
        if self._loop.evaluating and self.accelerator.even_batches:
            self._deadline.note_part(time.monotonic() - began)
            wish, why = Wish.SIGNAL if stop.signalled() else Wish.NONE, None
            if self.ranks.rank == 0:
                why = self._deadline.must_stop_evaluating(time.time())
                wish = Wish.STOP_FILE if self._stop_file.there() else Wish.DEADLINE if why else wish
            (agreed,) = self.ranks.highest(wish)
            if agreed:
                raise _EvaluationCutError(Wish(agreed), why)
        return found

    # -- after a resume ------------------------------------------------------------------------------------------------

    def _run_epoch(self, **named: Any) -> Any:
        self._epoch_rng = None
        if self._loop.resumed is not None:
            if not self._take_up(named["start_time"], named["epoch"], named["ignore_keys_for_eval"]):
                return None
            if named["steps_trained_in_current_epoch"] > 0 and self._epoch_rng is not None:
                # The order of an epoch's data is drawn when the epoch begins, from its random numbers; those of the step come later.
                kept.set_random_state(self._epoch_rng)
                _set_epoch(named["train_dataloader"], named["epoch"])
        if self._epoch_rng is None:
            self._epoch_rng = kept.random_state()
        self._loop.stepped_at = time.monotonic()
        return super()._run_epoch(**named)  # type: ignore[misc]

    def _load_rng_state(self, checkpoint: Any) -> None:
        if self._loop.random_state is None:
            super()._load_rng_state(checkpoint)  # type: ignore[misc]
        else:
            kept.set_random_state(self._loop.random_state)

    def _take_up(self, start_time: float, epoch: int, ignore_keys_for_eval: Any) -> bool:
        """Restore what transformers does not, do what was due, and say whether there are steps to do."""
        checkpoint, self._loop.resumed = Path(self._loop.resumed or ""), None
        self._loop.seen_step = step = self.state.global_step
        super()._load_rng_state(str(checkpoint))  # type: ignore[misc]
        found = kept.read(checkpoint, self.ranks.rank)
        due = found.due if found is not None else Due()
        if found is not None:
            kept.restore_sums(self, found.sums)
            inside = not due.boundary
            self._epoch_rng = found.epoch_rng if inside else None
            self._trained_before = found.times.get("training") or 0.0
        if checkpoint.parent.absolute() == Path(self._get_output_dir(None)).absolute():
            self._saved = self._loop.saved_at_start = (step, due.key())
        self._due = replace(due)
        self.model_wrapped.train(due.training)
        call = _Call(self._tr_loss, due.grad_norm, self.model_wrapped, None, epoch, ignore_keys_for_eval, start_time, due.learning_rate)
        self._do_what_was_due(due, call)
        if self.control.should_training_stop:
            return False
        self._loop.random_state = kept.random_state()
        return True

    def _do_what_was_due(self, due: Due, call: _Call) -> None:
        self.control.should_training_stop = due.ended or self.state.global_step >= self.state.max_steps
        self.control.should_log = False
        self.control.should_evaluate, self.control.should_save = due.evaluate, due.save
        self._log_evaluate_save(call)
        if not due.epoch_ended and (due.boundary or self.control.should_training_stop):
            self._due.epoch_ended = True
            self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
            self._log_evaluate_save(call)

    def _finalize_training(self, trial: Any, num_train_samples: Any, start_time: float) -> Any:
        if self._loop.resumed is not None:  # all epochs were done
            self._take_up(start_time, 0, None)
        self._point_at_best()
        # Trainer would remove the last checkpoint for that of the best step.
        with replaced(self.args, "save_total_limit", None):
            return super()._finalize_training(trial, num_train_samples, start_time - self._trained_before)  # type: ignore[misc]


def _too_late(why: str) -> HpctrainError:
    return HpctrainError(
        f"the job has no time for a single step: {why}",
        details=("requeued, it would do no more",),
        fix="hpctrain submit ... --time LONGER",
    )


def _set_epoch(loader: Any, epoch: int) -> None:
    """Tell every sampler behind a data loader the epoch: accelerate does not pass it through what skips the first batches."""
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)
    behind = getattr(loader, "batch_sampler", None)
    while behind is not None:
        for sampler in (behind, getattr(behind, "sampler", None)):
            if sampler is not None and hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        behind = getattr(behind, "batch_sampler", None)
