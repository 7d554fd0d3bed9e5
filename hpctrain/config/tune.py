"""`tune:` of config.yaml: what a study searches → `jobs.tune.Definition`, with every problem at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from hpctrain.fieldtypes import Boolean, Name, Section, Text, choice, kind, problem, problems, short, whole
from hpctrain.jobs.tune import Definition, Distribution, Pruner, Scalar, direction_of, size, spoken
from hpctrain.yaml12 import Plain, to_json_value

if TYPE_CHECKING:
    from hpctrain.config.schema import Config

#: What Slurm's arrays have room for at most sites (MaxArraySize is 1001), and more than most studies need.
MOST_TRIALS = 1000
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_METRIC = re.compile(r"eval_[A-Za-z0-9_.-]{1,100}\Z")
_EXAMPLE = "learning_rate: {low: 1e-5, high: 1e-3, log: true}"
_FORMS = "{low: …, high: …}, with log: true or step: … where wanted, or {choices: [8, 16, 32]}"
#: Arguments that say where a training lies, or what it is: each trial has its own directory, and one study compares like with like.
_NOT_TUNED = ("output_dir", "resume_from_checkpoint", "trial", "config", "evaluate_only", "run_name", "eval_strategy", "dataset_test_split")


class PrunerSection(Section):
    """`pruner:` which trials are stopped early."""

    kind: Annotated[Text, choice("median", "hyperband", "none")] = "median"
    startup_trials: Annotated[int, whole(0, 1000)] = 5
    startup_steps: Annotated[int, whole(0, 10**9)] = 0


def _pruner(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


def _metric(value: Any) -> str:
    if not isinstance(value, str) or not _METRIC.match(value):
        written = repr(short(value)) if isinstance(value, str) else kind(value)
        raise problem(f"must be a metric of an evaluation, such as eval_loss, not {written}")
    return str(value)


def _space(value: Any) -> dict[str, Distribution]:
    if not isinstance(value, dict) or not value:
        raise problem(f"must hold arguments of the training, each with where its values come from, such as {_EXAMPLE}")
    found: dict[str, Distribution] = {}
    wrong: dict[str, str] = {}
    for key, written in value.items():
        if isinstance(written, Distribution):
            found[key] = written
            continue
        try:
            _check_key(key)
            if (other := next((each for each in found if _same(each, key)), None)) is not None:
                raise problem(f"is the argument {other} again")
            found[key] = _distribution(written)
        except PydanticCustomError as error:
            wrong[key] = error.message()
    if wrong:
        raise problems(wrong)
    return found


def _same(one: str, other: str) -> bool:
    """Whether two names are one argument to the training's parser."""
    return one.replace("-", "_") == other.replace("-", "_")


def _check_key(key: str) -> None:
    if not _KEY.match(key):
        raise problem("is no argument of a training, such as learning_rate")
    if key.replace("-", "_") in _NOT_TUNED:
        raise problem("cannot be searched: all trials of a study have it in common")


def _distribution(written: Any) -> Distribution:
    if isinstance(written, list):
        raise problem("must hold keys and values, not a list; values to choose from are {choices: [...]}")
    if not isinstance(written, dict):
        raise problem(f"must be {_FORMS}, not {kind(written) if written is None else repr(short(str(written)))}")
    data = {key: value for key, value in written.items() if value is not None or key == "choices"}
    unknown = [key for key in data if key not in ("low", "high", "log", "step", "choices")]
    if unknown:
        raise problem(f"has an unknown key {unknown[0]!r}; it must be {_FORMS}")
    if "choices" in data:
        if len(data) > 1:
            raise problem("has choices and bounds; keep one of them")
        return Distribution(kind="choice", choices=_choices(data["choices"]))
    if missing := [key for key in ("low", "high") if key not in data]:
        raise problem(f"lacks {' and '.join(missing)}; it must be {_FORMS}")
    return _bounds(data)


def _choices(values: Any) -> tuple[Scalar, ...]:
    if not isinstance(values, list) or len(values) < 2:
        raise problem("must have two choices or more, as a list: {choices: [8, 16, 32]}")
    found: list[Scalar] = []
    for value in values:
        if isinstance(value, dict | list):
            raise problem(f"must have choices that are a number, a word, true, false or null, not {kind(value)}")
        read: Scalar = to_json_value(value)
        if isinstance(read, str) and (_CONTROL.search(read) or read.startswith("--")):
            raise problem(f"has a choice that no argument can be: {short(read)!r}")
        # optuna compares with ==, to which 1 and true are one; and "1" and 1 are one word on the training's command line.
        if any(read == known or (None not in (read, known) and spoken(read) == spoken(known)) for known in found):
            raise problem(f"has the choice {spoken(read)} twice")
        found.append(read)
    return tuple(found)


def _number(value: Any, name: str) -> int | float:
    read = to_json_value(value) if isinstance(value, Plain) else value
    if isinstance(read, bool) or not isinstance(read, int | float) or abs(read) > 1e300:
        raise problem(f"must have a number for {name}, not {short(str(value))!r}")
    return read


def _bounds(data: Mapping[str, Any]) -> Distribution:
    low, high = _number(data["low"], "low"), _number(data["high"], "high")
    step = _number(data["step"], "step") if "step" in data else None
    log = str(data.get("log", "false")).lower()
    if log not in ("true", "false"):
        raise problem(f"must have log: true or log: false, not {short(log)!r}")
    if low >= high:
        raise problem(f"must have low below high, not {spoken(low)} and {spoken(high)}")
    if log == "true" and low <= 0:
        raise problem(f"must have a low above 0, because it is the logarithm that is spread, not {spoken(low)}")
    if log == "true" and step is not None:
        raise problem("has log and step; keep one of them")
    if step is not None and not 0 < step <= high - low:
        raise problem(f"must have a step above 0 and at most {spoken(high - low)}, not {spoken(step)}")
    number = "int" if all(isinstance(each, int) for each in (low, high, *(() if step is None else (step,)))) else "float"
    return Distribution(kind=cast("Any", number), low=low, high=high, log=log == "true", step=step)


class Tune(Section):
    """`tune:` a study, whose trials are the tasks of an array job."""

    space: Annotated[dict[str, Distribution], BeforeValidator(_space)] = Field(default_factory=dict, validate_default=True)
    study: Name | None = None
    trials: Annotated[int, whole(1, MOST_TRIALS)] = 20
    parallel: Annotated[int, whole(1, MOST_TRIALS)] = 4
    metric: Annotated[str, BeforeValidator(_metric)] = "eval_loss"
    direction: Annotated[Text, choice("minimize", "maximize")] | None = None
    sampler: Annotated[Text, choice("tpe", "random", "grid")] = "tpe"
    seed: Annotated[int, whole(0, 2**31 - 1)] = 0
    value: Annotated[Text, choice("last", "best")] | None = None
    pruner: Annotated[PrunerSection, BeforeValidator(_pruner)] = Field(default_factory=PrunerSection)
    try_training: Boolean = True


def check(config: Config) -> None:
    """Refuse what cannot be together with a study.

    Raises:
        PydanticCustomError: every problem.
    """
    tune = config.tune
    if tune is None:
        return
    wrong: dict[str, tuple[str, tuple[str, ...]]] = {}
    for other in ("sweep", "stages"):
        if getattr(config, other) is not None:
            wrong["tune"] = (f"and {other} are two ways to make many jobs of one config; keep one of them", ("tune",))
    if tune.direction is None and direction_of(tune.metric) is None:
        wrong["direction"] = (
            f"is missing: {tune.metric} does not say where it should go: minimize or maximize",
            ("tune", "metric"),
        )
    if tune.sampler == "grid":
        most = size(tune.space)
        open_ = [key for key, each in tune.space.items() if each.kind == "float" and each.step is None]
        if open_:
            wrong["sampler"] = (f"grid needs a step, or choices, for {' and '.join(open_)}", ("tune", "sampler"))
        elif most is not None and tune.trials > most:
            wrong["trials"] = (f"must be at most {most}, because the grid has no more points, not {tune.trials}", ("tune", "trials"))
    wrong |= {f"space.{key}": (what, ("tune", "space", key)) for key, what in _against_training(config, tune)}
    if wrong:
        text = "; ".join(f"{key} {message}" for key, (message, _) in wrong.items())
        keys = {key: message for key, (message, _) in wrong.items()}
        raise PydanticCustomError(
            "hpctrain", "{message}", {"message": text, "keys": keys, "paths": {key: at for key, (_, at) in wrong.items()}}
        )


def _against_training(config: Config, tune: Tune) -> Iterator[tuple[str, str]]:
    """Yield the arguments of the space that do not go with what `training:` says, and why."""
    for key in tune.space:
        for other in config.training:
            if other != key and _same(other, key):
                yield key, f"is called {other} in training; one name for one argument"
    for key, value in _asked_first(config).items():
        if not tune.space[key].holds(value):
            yield key, f"is {spoken(value)} in training, which the first trial takes, and holds {tune.space[key].in_words}"


def _asked_first(config: Config) -> dict[str, Scalar]:
    """Return what `training:` says of arguments of the space."""
    tune = config.tune
    if tune is None or not tune.try_training or tune.sampler == "grid":
        return {}
    return {key: to_json_value(config.training[key]) for key in tune.space if config.training.get(key) is not None}


def study_name(config: Config) -> str:
    """Return the name of the config's study: the job's, where it has none of its own."""
    return (config.tune.study if config.tune is not None else None) or config.job_name


def definition(config: Config, *, file: tuple[str, str] | None = None, words: tuple[str, ...] = ()) -> Definition:
    """Return the study of a config that has one.

    Args:
        config: validated.
        file: name and text of the config file.
        words: options that were typed besides.
    """
    tune = config.tune
    if tune is None:
        raise ValueError("a config with tune has a study")
    said = {key: to_json_value(value) for key, value in config.training.items()}
    best = said.get("load_best_model_at_end") is True or said.get("early_stopping_patience") is not None
    most, first = (said.get(key) for key in ("max_steps", "eval_steps"))
    pruner = Pruner(
        kind=cast("Any", tune.pruner.kind), startup_trials=tune.pruner.startup_trials, startup_steps=tune.pruner.startup_steps,
        most_steps=most if type(most) is int and most > 0 else None, first_step=first if type(first) is int and first > 0 else None,
    )  # fmt: skip
    return Definition(
        study=study_name(config), space=dict(tune.space), first=_asked_first(config), trials=tune.trials, metric=tune.metric,
        direction=cast("Any", tune.direction or direction_of(tune.metric)), sampler=cast("Any", tune.sampler), seed=tune.seed,
        value=cast("Any", tune.value or ("best" if best else "last")), pruner=pruner, config=file, words=words,
    )  # fmt: skip
