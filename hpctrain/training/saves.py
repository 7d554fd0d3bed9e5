"""The half of the surviving Trainer that saves: whole checkpoints or none, and what is in them besides transformers' own files."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

from hpctrain.errors import HpctrainError
from hpctrain.runs import checkpoints, files
from hpctrain.training import kept, saving
from hpctrain.training.deadline import Deadline
from hpctrain.training.finite import FiniteMixin
from hpctrain.training.kept import Due, Kept
from hpctrain.training.notes import Notes
from hpctrain.training.process import say
from hpctrain.training.ranks import Ranks
from hpctrain.training.settings import Survival
from hpctrain.training.stop import UndisturbedWorker


class SavesMixin(FiniteMixin):
    """Comes before a Trainer's class; `SurvivorMixin` is what to use.

    Args:
        survival: where and how.
    """

    # What the class behind this one has.
    args: Any
    state: Any
    control: Any
    callback_handler: Any
    accelerator: Any
    model: Any
    model_wrapped: Any
    current_flos: Any
    _tr_loss: Any

    def __init__(self, *args: Any, survival: Survival, **named: Any) -> None:
        super().__init__(*args, **named)
        self.survival = survival
        self.notes = Notes()
        self.callback_handler.callbacks.insert(0, self.notes)
        self.ranks = survival.ranks or Ranks(float(self.args.ddp_timeout))
        self.try_name: str = self.ranks.share(survival.attempt or f"{socket.gethostname()}-{os.getpid()}")
        self._attempt: saving.Attempt | None = None
        self._due = Due()
        self._saved: tuple[int, tuple[bool, ...]] | None = None
        self._epoch_rng: dict[str, Any] | None = None
        self._trained_before = 0.0
        self._began = time.monotonic()
        self._deadline = Deadline(None, now=time.time())

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Say nothing of weights that are another one's: a checkpoint holds them once, and transformers misses the second name."""
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or ())
        missing = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(type(load_result)(missing, load_result.unexpected_keys))  # type: ignore[misc]

    # -- a checkpoint --------------------------------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save, unless exactly this was saved already.

        Raises:
            NotFiniteError: the weights are lost: on all ranks, and nothing is saved.
            SaveError: on all ranks.
        """
        self._refuse_lost_weights()
        step = self.state.global_step
        self._due.ended = bool(self.control.should_training_stop) and step < self.state.max_steps
        if self._saved == (step, self._due.key()):
            self._point_at_best()
            return
        directory = Path(super()._get_output_dir(trial))  # type: ignore[misc]
        self._attempt = attempt = saving.Attempt(self.ranks, saving.checkpoint_place(directory, step, self.try_name))
        try:
            attempt.begin()
            attempt.do(super()._save_checkpoint, model, trial)  # type: ignore[misc]
        finally:
            self._attempt = None
        self._point_at_best(saved=directory / f"checkpoint-{step}")
        attempt.do(self._save_own, attempt.place.writing)
        seconds = attempt.finish(
            step=step,
            state=None,
            needed=saving.rank_files(self.ranks.size),
            run_id=self.survival.run_id,
            attempt=self.survival.attempt,
        )
        self._deadline.note_save(seconds)
        self._saved = (step, self._due.key())
        self._rotate(directory)

    def _save_own(self, directory: Path) -> None:
        """Write what transformers does not save, and its own state again, where it names the best checkpoint."""
        training = self._trained_before + time.monotonic() - self._began
        times = {"training": training, "step": self._deadline.step, "evaluation": self._deadline.evaluation}
        self._due.training = bool(self.model.training)
        due = self._due.as_numbers()
        kept.write(directory, self.ranks.rank, Kept(kept.sums_of(self), due, self._epoch_rng, times))
        if self.ranks.rank == 0:
            self.state.save_to_json(str(directory / "trainer_state.json"))
            files.write_json(directory / saving.RECORD, dict(self.survival.record))

    def _rotate(self, directory: Path) -> None:
        """Remove old checkpoints; one that cannot be removed is in nobody's way."""
        limit = self.args.save_total_limit
        if self.ranks.rank != 0 or limit is None or limit <= 0:
            return
        best = f"checkpoint-{self.state.best_global_step}"
        try:
            checkpoints.rotate(directory, limit, {best, f"checkpoint-{self.state.global_step}"}, at=self.state.global_step)
        except (OSError, HpctrainError) as error:
            say(f"[train] notice: old checkpoints could not be removed: {error}")

    def _clean_leftovers(self) -> None:
        """Remove what saves of attempts that are over have left, on rank 0; what cannot be removed is in nobody's way."""
        if self.ranks.rank != 0:
            return
        folders = [Path(super()._get_output_dir(None))]  # type: ignore[misc]
        if self.survival.run_dir is not None:
            folders.append(self.survival.run_dir)
        for folder in folders:
            try:
                removed = checkpoints.clean(folder, lambda path, attempt: saving.is_over(path, attempt, self.survival))
            except (OSError, HpctrainError) as error:
                say(f"[train] notice: unfinished saves could not be removed: {error}")
                continue
            for name in removed:
                say(f"[train] removed {name}: its save was not finished")

    def _point_at_best(self, *, saved: Path | None = None) -> None:
        """Let the state name the best checkpoint where it is now: below the directory that is saved to, wherever that was moved.

        Args:
            saved: what is being saved, and will be there.
        """
        if not self.state.best_global_step:
            return
        best = Path(super()._get_output_dir(None)) / f"checkpoint-{self.state.best_global_step}"  # type: ignore[misc]
        if best == saved or best.is_dir():
            self.state.best_model_checkpoint = str(best)

    # -- what Trainer calls while it saves: nothing may be left out, see saving.py ---------------------------------------

    def _get_output_dir(self, trial: Any) -> str:
        if self._attempt is not None:
            return str(self._attempt.place.writing.parent)
        return str(super()._get_output_dir(trial))  # type: ignore[misc]

    def _go_through(self, action: Any, *args: Any, **named: Any) -> None:
        if self._attempt is None:
            action(*args, **named)
        else:
            self._attempt.do(action, *args, **named)

    def create_model_card(self, *args: Any, **named: Any) -> None:
        """Write the model card, as Trainer.create_model_card does."""
        self._go_through(super().create_model_card, *args, **named)  # type: ignore[misc]

    def save_model(self, *args: Any, **named: Any) -> None:
        """Save the weights, as Trainer.save_model does."""
        self._go_through(super().save_model, *args, **named)  # type: ignore[misc]

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        self._go_through(super()._save_optimizer_and_scheduler, output_dir)  # type: ignore[misc]

    def _save_scaler(self, output_dir: str) -> None:
        self._go_through(super()._save_scaler, output_dir)  # type: ignore[misc]

    def _save_rng_state(self, output_dir: str) -> None:
        self._go_through(super()._save_rng_state, output_dir)  # type: ignore[misc]

    # -- what else a resume needs ----------------------------------------------------------------------------------------

    def _init_training_state(self, *args: Any, **named: Any) -> Any:
        found = super()._init_training_state(*args, **named)  # type: ignore[misc]
        self._point_at_best()
        return found

    def _load_callback_state(self) -> None:
        """Give callbacks their memory back, such as the patience of early stopping, and nothing else.

        transformers' own way (restore_callback_states_from_checkpoint) is off by default; it makes the callbacks anew with the options of
        the earlier start, moves them behind all others, and repeats the flags that were set when the checkpoint was written.
        """
        from transformers.trainer_callback import ExportableState

        stored = self.state.stateful_callbacks
        mine = [callback for callback in [*self.callback_handler.callbacks, self.control] if isinstance(callback, ExportableState)]
        taken: dict[str, int] = {}
        for callback in mine:
            name = type(callback).__name__
            states = stored.get(name, [])
            states = states if isinstance(states, list) else [states]
            number = taken[name] = taken.get(name, -1) + 1
            if callback is not self.control and number < len(states):
                for attribute, value in states[number].get("attributes", {}).items():
                    setattr(callback, attribute, value)
        # Saving fails on a callback that is not in the state, and grows a list for one that is there twice.
        self.state.stateful_callbacks = {}
        for callback in mine:
            name = type(callback).__name__
            several = taken[name] > 0
            self.state.stateful_callbacks[name] = [] if several else callback.state()

    def _get_dataloader(self, *args: Any, **named: Any) -> Any:
        loader = super()._get_dataloader(*args, **named)  # type: ignore[misc]
        base = getattr(loader, "base_dataloader", loader)
        base.worker_init_fn = UndisturbedWorker(base.worker_init_fn)
        return loader
