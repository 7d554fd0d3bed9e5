"""Tells the study of a trial what each evaluation found, and stops the training on all ranks where the study says so.

    from hpctrain.training.trial_callback import TrialCallback
    trainer = Trainer(..., callbacks=[TrialCallback()])

Works in any transformers Trainer: `hpctrain tune` gives the trial's file in HPCTRAIN_TRIAL, and hpctrain's own trainings as --trial FILE.
How the trial ended is told by the job script (hpctrain/training/trial.py), which knows it of a training that has crashed, too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from hpctrain.errors import UsageError
from hpctrain.training.process import say
from hpctrain.training.trial import Reporter

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from hpctrain.training.ranks import Ranks


class TrialCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not there on the login node
    """See the module.

    Args:
        path: of trial.json. Default: the environment's HPCTRAIN_TRIAL; without both, the callback does nothing.
        ranks: all processes of the training, where there is such a group already.

    Attributes:
        pruned: whether the study has stopped the training.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, ranks: Ranks | None = None) -> None:
        self._reporter = Reporter(path)
        self._ranks = ranks
        self._metrics: dict[str, None] = {}
        self._told = False
        self.pruned = False

    def on_train_begin(self, _args: TrainingArguments, _state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        """Make the group of all processes, where there is none yet."""
        if self._reporter.metric is not None and self._ranks is None:
            from hpctrain.training.ranks import Ranks

            self._ranks = Ranks()

    def on_step_begin(self, _args: TrainingArguments, _state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        """Refuse to train on where no evaluation has the metric that is searched for; one of several datasets may come last.

        Raises:
            UsageError: it has not.
        """
        self._check()

    def on_train_end(self, _args: TrainingArguments, _state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        """Refuse the same at the end.

        Raises:
            UsageError: see `on_step_begin`.
        """
        self._check()

    def on_evaluate(
        self, _args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: dict[str, float] | None = None, **_: Any
    ) -> None:
        """Report the metric from rank 0, and agree on whether this trial is to stop."""
        metric, found = self._reporter.metric, metrics or {}
        if metric is None or self._ranks is None:
            return
        self._metrics.update(dict.fromkeys(found))
        if metric not in found or self.pruned:
            return
        self._told = True
        stop = self._ranks.rank == 0 and self._reporter.report(state.global_step, float(found[metric]))
        if self._ranks.highest(int(stop))[0]:
            self.pruned = True
            control.should_training_stop, control.should_save = True, False
        if self._reporter.said is not None:
            say(self._reporter.said)

    def _check(self) -> None:
        if self._told or not self._metrics:
            return
        there = ", ".join(sorted(self._metrics))
        raise UsageError(
            f"no evaluation has the metric {self._reporter.metric!r}, which the study looks at",
            details=(f"  they have {there}",), fix="tune.metric in config.yaml: one of these, and another study (tune.study)",
        )  # fmt: skip


def pruned(trainer: Any) -> bool:
    """Whether the study has stopped this training; says so on rank 0."""
    stopped = any(isinstance(each, TrialCallback) and each.pruned for each in trainer.callback_handler.callbacks)
    if stopped and trainer.is_world_process_zero():
        state = trainer.state
        say(f"[train] pruned: {state.global_step} of {state.max_steps} steps; the weights of a trial that was stopped early are not kept")
    return stopped
