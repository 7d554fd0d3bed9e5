"""Reports each evaluation to the study of a trial, and stops the training on all ranks if the
study's pruner stops the trial.

    from hpctrain.training.trial_callback import TrialCallback
    trainer = Trainer(..., callbacks=[TrialCallback()])

Works in any transformers Trainer: `hpctrain tune` passes the trial's file in HPCTRAIN_TRIAL, and to
hpctrain's own trainings as --trial FILE. The job script reports how the trial ended
(hpctrain/training/trial.py), even after a crash.
"""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hpctrain.errors import UsageError
from hpctrain.training.process import Ranks, say
from hpctrain.training.trial import Reporter


class TrialCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not there on the login node
    """Reports evaluations to the study, see the module.

    Args:
        path: of trial.json. Default: the environment's HPCTRAIN_TRIAL; without both, the callback
            does nothing.
        ranks: all processes of the training, if the group exists already.

    Attributes:
        pruned: whether the study has stopped the training.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, ranks: Ranks | None = None
    ) -> None:
        self._reporter = Reporter(path)
        self._ranks = ranks
        self._metrics: dict[str, None] = {}
        self._told = False
        self.pruned = False

    def on_train_begin(
        self, _args: TrainingArguments, _state: TrainerState, _control: TrainerControl, **_: Any
    ) -> None:
        if self._reporter.metric is not None and self._ranks is None:
            self._ranks = Ranks()

    def on_step_begin(
        self, _args: TrainingArguments, _state: TrainerState, _control: TrainerControl, **_: Any
    ) -> None:
        # Not on_evaluate: of several datasets, the last one may have the metric.
        if self._told or not self._metrics:
            return
        there = ", ".join(sorted(self._metrics))
        raise UsageError(
            f"no evaluation has the metric {self._reporter.metric!r}, which the study looks at",
            details=(f"  they have {there}",),
            hint="set tune.metric in config.yaml to one of these, and begin another study (tune.study)",
        )

    on_train_end = on_step_begin

    def on_evaluate(
        self,
        _args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        metric, found = self._reporter.metric, metrics or {}
        if metric is None or self._ranks is None:
            return
        self._metrics.update(dict.fromkeys(found))
        if metric not in found or self.pruned:
            return
        self._told = True
        stop = self._ranks.rank == 0 and self._reporter.report(
            state.global_step, float(found[metric])
        )
        if self._ranks.highest(int(stop))[0]:
            self.pruned = True
            control.should_training_stop, control.should_save = True, False
        if self._reporter.said is not None:
            say(self._reporter.said)
