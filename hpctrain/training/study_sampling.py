"""Which values a trial tries, and when one is stopped: the choice of optuna's samplers and pruners. No torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpctrain.jobs import tune
from hpctrain.jobs.tune import Definition, Distribution, Scalar

if TYPE_CHECKING:
    from optuna import Study, Trial


def fixed(
    definition: Definition, tried: Sequence[Mapping[str, Scalar]], failed: Sequence[Mapping[str, Scalar]] = ()
) -> Mapping[str, Scalar]:
    """Return the values that no sampler chooses: those of the config, for the first trial, and each point of a grid.

    Args:
        definition: of the study.
        tried: the values of the trials so far, but for those that have failed.
        failed: the values of those. Of a grid they come last: the run of such a trial may be submitted again, and goes on with them.
    """
    if definition.sampler == "grid":
        left = [point for point in tune.points(definition) if point not in tried]
        return next((point for point in left if point not in failed), left[0] if left else {})
    return {} if tried else definition.first


def suggest(study: Study, trial_id: int, definition: Definition) -> dict[str, Scalar]:
    """Return a trial's values; those that it has already, it keeps."""
    import optuna

    study.sampler = _sampler(definition, study._storage.get_trial(trial_id).number)
    trial = optuna.Trial(study, trial_id)
    return {key: _value(trial, key, each) for key, each in definition.space.items()}


def _value(trial: Trial, key: str, where: Distribution) -> Any:
    if where.kind == "choice":
        return trial.suggest_categorical(key, where.choices)
    if where.kind == "int":
        return trial.suggest_int(key, int(where.low), int(where.high), step=int(where.step or 1), log=where.log)
    return trial.suggest_float(key, where.low, where.high, step=where.step, log=where.log)


def _sampler(definition: Definition, number: int) -> Any:
    """Return a sampler whose numbers belong to this trial: with one seed for all processes, each would draw what the others draw."""
    import warnings

    import optuna

    seed = int.from_bytes(hashlib.sha256(f"{definition.seed} {number}".encode()).digest()[:4], "big")
    if definition.sampler != "tpe":
        return optuna.samplers.RandomSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant_liar is experimental, and has been since 2.8
        # What others are trying counts as bad: trials that run at a time do not all try the same.
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


def pruner(definition: Definition) -> Any:
    """Return optuna's pruner."""
    import optuna

    asked = definition.pruner
    if asked.kind == "none":
        return optuna.pruners.NopPruner()
    if asked.kind == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=asked.startup_trials, n_warmup_steps=asked.startup_steps)
    least = max(1, asked.startup_steps, asked.first_step or 1)
    return optuna.pruners.HyperbandPruner(min_resource=least, max_resource=asked.most_steps or "auto")
