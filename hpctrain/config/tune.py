"""`tune:` of config.yaml: parsed to a `config.study.Definition`, with all problems reported at
once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from hpctrain.clusters.fieldtypes import Name, whole
from hpctrain.config.study import (
    Definition,
    Direction,
    Distribution,
    Kept,
    Pruner,
    PrunerKind,
    Sampler,
    Scalar,
    direction_of,
    spoken,
)
from hpctrain.util import yaml12
from hpctrain.util.schema import KeyPath, Problem, Section, each_item, kind_of, short
from hpctrain.util.yaml12 import Plain, to_json_value

if TYPE_CHECKING:
    from hpctrain.config.schema import Config

#: The limit of Slurm's arrays at most sites (MaxArraySize is 1001), and more than most studies
#: need.
MOST_TRIALS = 1000
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_METRIC = re.compile(r"eval_[A-Za-z0-9_.-]{1,100}\Z")
_EXAMPLE = "learning_rate: {low: 1e-5, high: 1e-3, log: true}"
_FORMS = "{low: …, high: …}, with log: true or step: … where wanted, or {choices: [8, 16, 32]}"
#: Arguments for a training's location or identity: each trial has its own directory, and trials of
#: one study must be comparable.
_NOT_TUNED = (
    "output_dir",
    "resume_from_checkpoint",
    "trial",
    "config",
    "evaluate_only",
    "run_name",
    "eval_strategy",
    "dataset_test_split",
)


class PrunerSection(Section):
    """`pruner:` which trials are stopped early."""

    kind: PrunerKind = "median"
    startup_trials: Annotated[int, whole(0, 1000)] = 5
    startup_steps: Annotated[int, whole(0, 10**9)] = 0


def _pruner(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


def _metric(value: Any) -> str:
    if not isinstance(value, str) or not _METRIC.match(value):
        written = repr(short(value)) if isinstance(value, str) else kind_of(value)
        raise Problem(f"must be a metric of an evaluation, such as eval_loss, not {written}")
    return str(value)


def _space(value: Any) -> dict[str, Distribution]:
    found: dict[str, Distribution] = {}

    def check(key: str, written: Any) -> Distribution:
        _check_key(key)
        if (other := next((each for each in found if _same(each, key)), None)) is not None:
            raise Problem(f"is the argument {other} again")
        found[key] = _distribution(written)
        return found[key]

    hint = f"arguments of the training, each with where its values come from, such as {_EXAMPLE}"
    return each_item(hint, check)(value or None)


def _same(one: str, other: str) -> bool:
    """Whether the training's parser treats two names as the same argument."""
    return one.replace("-", "_") == other.replace("-", "_")


def _check_key(key: str) -> None:
    if not _KEY.match(key):
        raise Problem("is not an argument of a training, such as learning_rate")
    if key.replace("-", "_") in _NOT_TUNED:
        raise Problem("cannot be searched: all trials of a study have it in common")


def _distribution(written: Any) -> Distribution:
    if isinstance(written, list):
        raise Problem(
            "must hold keys and values, not a list; values to choose from are {choices: [...]}"
        )
    if not isinstance(written, dict):
        kind = kind_of(written) if written is None else repr(short(str(written)))
        raise Problem(f"must be {_FORMS}, not {kind}")
    data = {key: value for key, value in written.items() if value is not None or key == "choices"}
    unknown = [key for key in data if key not in ("low", "high", "log", "step", "choices")]
    if unknown:
        raise Problem(f"has an unknown key {unknown[0]!r}; it must be {_FORMS}")
    if "choices" in data:
        if len(data) > 1:
            raise Problem("has choices and bounds; keep one of them")
        return Distribution(kind="choice", choices=_choices(data["choices"]))
    if missing := [key for key in ("low", "high") if key not in data]:
        raise Problem(f"lacks {' and '.join(missing)}; it must be {_FORMS}")
    return _bounds(data)


def _choices(values: Any) -> tuple[Scalar, ...]:
    if not isinstance(values, list) or len(values) < 2:
        raise Problem("must have two choices or more, as a list: {choices: [8, 16, 32]}")
    found: list[Scalar] = []
    for value in values:
        if isinstance(value, dict | list):
            raise Problem(
                "must have choices that are a number, a word, true, false or null, not"
                f" {kind_of(value)}"
            )
        read: Scalar = to_json_value(value)
        if isinstance(read, str) and (_CONTROL.search(read) or read.startswith("--")):
            raise Problem(f"has a choice that no argument can be: {short(read)!r}")
        # optuna compares with ==, for which 1 and true are equal; and "1" and 1 are the same word
        # on the training's command line.
        if any(
            read == known or (None not in (read, known) and spoken(read) == spoken(known))
            for known in found
        ):
            raise Problem(f"has the choice {spoken(read)} twice")
        found.append(read)
    return tuple(found)


def _number(value: Any, name: str) -> int | float:
    read = to_json_value(value) if isinstance(value, Plain) else value
    if isinstance(read, bool) or not isinstance(read, int | float) or abs(read) > 1e300:
        raise Problem(f"must have a number for {name}, not {short(str(value))!r}")
    return read


def _bounds(data: Mapping[str, Any]) -> Distribution:
    low, high = _number(data["low"], "low"), _number(data["high"], "high")
    step = _number(data["step"], "step") if "step" in data else None
    log = str(data.get("log", "false")).lower()
    if log not in ("true", "false"):
        raise Problem(f"must have log: true or log: false, not {short(log)!r}")
    if low >= high:
        raise Problem(f"must have low below high, not {spoken(low)} and {spoken(high)}")
    if log == "true" and low <= 0:
        raise Problem(
            "must have a low above 0, because it is the logarithm that is spread, not"
            f" {spoken(low)}"
        )
    if log == "true" and step is not None:
        raise Problem("has log and step; keep one of them")
    if step is not None and not 0 < step <= high - low:
        raise Problem(
            f"must have a step above 0 and at most {spoken(high - low)}, not {spoken(step)}"
        )
    bounds = (low, high) if step is None else (low, high, step)
    number: Literal["int", "float"] = (
        "int" if all(isinstance(each, int) for each in bounds) else "float"
    )
    return Distribution(kind=number, low=low, high=high, log=log == "true", step=step)


class Tune(Section):
    """`tune:` a study, whose trials are the tasks of an array job."""

    space: Annotated[Mapping[str, Distribution], _space]
    study: Name | None = None
    trials: Annotated[int, whole(1, MOST_TRIALS)] = 20
    parallel: Annotated[int, whole(1, MOST_TRIALS)] = 4
    metric: Annotated[str, _metric] = "eval_loss"
    direction: Direction | None = None
    sampler: Sampler = "tpe"
    seed: Annotated[int, whole(0, 2**31 - 1)] = 0
    value: Kept | None = None
    pruner: Annotated[PrunerSection, _pruner] = PrunerSection()
    try_training: bool = True


def problems(config: Config) -> Iterator[tuple[KeyPath, str]]:
    """Yield keys that cannot be combined with a study."""
    tune = config.tune
    if tune is None:
        return
    for other in ("sweep", "stages"):
        if getattr(config, other) is not None:
            yield (
                ("tune",),
                f"and {other} are two ways to make many jobs of one config; keep one of them",
            )
    if tune.direction is None and direction_of(tune.metric) is None:
        yield (
            ("tune", "direction"),
            f"is missing: {tune.metric} does not tell the direction: minimize or maximize",
        )
    for key, space in tune.space.items():
        path = ("tune", "space", key)
        for other in config.training:
            if other != key and _same(other, key):
                yield path, f"is called {other} in training; one name for one argument"
        first = _asked_first(config)
        if key in first and not space.holds(first[key]):
            yield (
                path,
                f"is {spoken(first[key])} in training, which the first trial takes, and holds"
                f" {space.in_words}",
            )


def _asked_first(config: Config) -> dict[str, Scalar]:
    """Return the values in `training:` for arguments of the space."""
    tune = config.tune
    if tune is None or not tune.try_training:
        return {}
    return {
        key: to_json_value(config.training[key])
        for key in tune.space
        if config.training.get(key) is not None
    }


def study_name(config: Config) -> str:
    """Return the name of the config's study, or the job's name."""
    return (config.tune.study if config.tune is not None else None) or config.job_name


def definition(
    config: Config, *, file: tuple[str, str] | None = None, words: tuple[str, ...] = ()
) -> Definition:
    """Return the study of a config that has one.

    Args:
        config: validated.
        file: name and text of the config file.
        words: further options on the command line.
    """
    tune = config.tune
    if tune is None:
        raise ValueError("a config with tune has a study")
    said = {key: to_json_value(value) for key, value in config.training.items()}
    best = (
        said.get("load_best_model_at_end") is True
        or said.get("early_stopping_patience") is not None
    )
    pruner = Pruner(
        kind=tune.pruner.kind,
        startup_trials=tune.pruner.startup_trials,
        startup_steps=tune.pruner.startup_steps,
    )
    return Definition(
        study=study_name(config),
        space=dict(tune.space),
        first=_asked_first(config),
        trials=tune.trials,
        metric=tune.metric,
        direction=tune.direction or direction_of(tune.metric) or "minimize",
        sampler=tune.sampler,
        seed=tune.seed,
        value=tune.value or ("best" if best else "last"),
        pruner=pruner,
        config=file,
        words=words,
    )


def with_values(text: str, values: Mapping[str, Scalar]) -> str:
    """Return the config `text` without `tune`, and with `values` under `training`; null omits an
    argument.
    """
    data = {key: value for key, value in yaml12.load(text, "config").data.items() if key != "tune"}
    found = {
        key: value if value is None or isinstance(value, str) else Plain(spoken(value))
        for key, value in values.items()
    }
    training = (data.get("training") or {}) | found
    data["training"] = {
        key: value for key, value in training.items() if found.get(key, "") is not None
    }
    return yaml12.dump(data)
