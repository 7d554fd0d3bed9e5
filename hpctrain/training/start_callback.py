"""The callback that writes the first lines of the log (hpctrain.training.start_table) and begins fit.json."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from hpctrain.training import start_table
from hpctrain.training.expectation import Expectation, expect
from hpctrain.training.fit_file import FitFile
from hpctrain.training.lengths import lengths_of
from hpctrain.training.process import say
from hpctrain.training.settings import Survival

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments


class StartCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not there on the login node
    """See the module. `attach` it to its Trainer.

    Args:
        options: hpctrain.training.options.Options.
        survival: the job's time.
        fit_file: where the expectation goes.

    Attributes:
        expectation: what was worked out; on rank 0, from the beginning of the training on.
    """

    def __init__(self, options: Any, survival: Survival, fit_file: FitFile) -> None:
        self.expectation = Expectation(why="nothing was worked out")
        self._options, self._survival, self._fit_file = options, survival, fit_file
        self._trainer: Any = None
        self._parameters: start_table.Parameters | None = None

    def attach(self, trainer: Any) -> None:
        """Take the Trainer, and speak before its other callbacks do."""
        self._trainer = trainer
        # Now: a model that is divided among processes does not know its size any more.
        self._parameters = start_table.count_parameters(trainer.model)
        callbacks = trainer.callback_handler.callbacks
        callbacks.insert(0, callbacks.pop(callbacks.index(self)))

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        """Write the table, and what was noted before it, on rank 0; the others write nothing before that."""
        if self._trainer is None:
            return
        if state.is_world_process_zero:
            try:
                self._write(args, state)
            except Exception as error:  # a table must not keep a training from beginning
                sys.stderr.write(f"[train] notice: the first lines could not be written: {type(error).__name__}: {error}\n")
                sys.stderr.flush()
            self._trainer.notes.say()
        self._trainer.ranks.highest(0)  # a log begins with its table

    def _write(self, args: TrainingArguments, state: TrainerState) -> None:
        trainer, survival = self._trainer, self._survival
        lengths = lengths_of(trainer.train_dataset)
        longest, context = (lengths.longest, lengths.context) if lengths is not None else (None, None)
        self.expectation = expected = expect(trainer, self._options, longest=longest, context=context)
        self._fit_file.begin(expected.as_record())
        steps, done = int(state.max_steps), int(state.global_step)
        parameters = self._parameters or start_table.count_parameters(trainer.model)
        rows = start_table.table(
            trainer, self._options, parameters=parameters, lengths=lengths, expectation=expected, steps=steps, done=done
        )
        rows["time"] = start_table.time_words(
            expected, lengths, args, steps_left=steps - done, job=survival.job, now=time.time(), save_s=survival.save_seconds
        )
        for line in start_table.lines(rows):
            say(line)
