"""A study: `tune:` of config.yaml, parsed with all problems reported at once; and its definition,
which a job's script uses as JSON in `runs/.studies/`.

Pure; `training.study` calls optuna. The name of the definition's file contains a digest of its text,
so that a queued job keeps its definition even if config.yaml changes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from hpctrain.clusters.fieldtypes import Name, Text, matching, whole
from hpctrain.config.spec import short_digest
from hpctrain.util import stored, yaml12
from hpctrain.util.schema import KeyPath, Problem, Section, kind_of, short

if TYPE_CHECKING:
    from hpctrain.config.schema import Config

Scalar = str | int | float | bool | None
Direction = Literal["minimize", "maximize"]
Sampler = Literal["tpe", "random"]
PrunerKind = Literal["median", "none"]
Kept = Literal["last", "best"]

#: The directory of studies in `runs/`, and the journal of one.
STUDIES, JOURNAL = ".studies", "journal.log"
#: Words in names of metrics to minimize, and of those to maximize.
_FALL = ("loss", "perplexity", "error", "wer", "cer", "mse", "mae", "rmse")
_RISE = (
    "accuracy",
    "acc",
    "f1",
    "precision",
    "recall",
    "mcc",
    "auc",
    "auroc",
    "bleu",
    "rouge",
    "reward",
    "r2",
)


#: The limit of Slurm's arrays at most sites (MaxArraySize is 1001), and more than most studies
#: need.
MOST_TRIALS = 1000
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_METRIC = re.compile(r"eval_[A-Za-z0-9_.-]{1,100}\Z")
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


class Pruner(Section):
    """`pruner:` when a trial is stopped early.

    Attributes:
        startup_trials: of the median pruner: number of completed trials before it compares.
        startup_steps: no trial is stopped before this step of its training.
    """

    kind: PrunerKind = "median"
    startup_trials: Annotated[int, whole(0, 1000)] = 5
    startup_steps: Annotated[int, whole(0, 10**9)] = 0


def _pruner(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


def _number(value: Any) -> float:
    read = yaml12.to_json_value(value)
    if isinstance(read, bool) or not isinstance(read, int | float) or abs(read) > 1e300:
        raise Problem(f"must be a number, not {short(str(value))!r}")
    return read


def _choices(values: Any) -> tuple[Scalar, ...]:
    found: list[Scalar] = []
    for value in values if isinstance(values, list) else ():
        read = yaml12.to_json_value(value)
        if (
            isinstance(read, dict | list)
            or str(read).startswith("--")
            or _CONTROL.search(str(read))
        ):
            raise Problem(f"must be numbers, words, true, false or null, not {kind_of(value)}")
        # optuna compares with ==, for which 1 and true are equal; and "1" and 1 are the same word
        # on the training's command line.
        is_none = read is None
        if any(
            read == each or (not is_none and each is not None and spoken(read) == spoken(each))
            for each in found
        ):
            raise Problem(f"has the choice {spoken(read)} twice")
        found.append(read)
    if len(found) < 2:
        raise Problem("must be a list of two choices or more: {choices: [8, 16, 32]}")
    return tuple(found)


class Space(Section):
    """The search space of one argument; `low` and `high` are inclusive.

    Attributes:
        log: uniform in the logarithm.
        step: between two values; None for every real number, or every integer.
    """

    low: Annotated[float, _number] | None = None
    high: Annotated[float, _number] | None = None
    log: bool = False
    step: Annotated[float, _number] | None = None
    choices: Annotated[tuple[Scalar, ...], _choices] = ()

    def problems(self) -> Iterator[tuple[KeyPath, str]]:
        """Yield contradictions."""
        low, high, step = self.low, self.high, self.step
        if self.choices and (low, high, step, self.log) != (None, None, None, False):
            yield (), "has choices and bounds; keep one of them"
        elif not self.choices and (low is None or high is None):
            yield (), f"must be {_FORMS}"
        elif low is not None and high is not None:
            if low >= high:
                yield (), f"must have low below high, not {spoken(low)} and {spoken(high)}"
            elif self.log and (low <= 0 or step is not None):
                yield (), "has log, which needs a low above 0 and no step"
            elif step is not None and not 0 < step <= high - low:
                yield (), f"must have a step above 0 and at most {spoken(high - low)}"

    @property
    def kind(self) -> Literal["float", "int", "choice"]:
        """The type of the values: integers, if all bounds are."""
        if self.choices:
            return "choice"
        bounds = (self.low, self.high, self.step or 0)
        return "int" if all(isinstance(each, int) for each in bounds) else "float"

    def holds(self, value: Scalar) -> bool:
        """Whether `value` is in the space."""
        if self.choices:
            return spoken(value) in map(spoken, self.choices)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        is_inside = (self.low or 0) <= value <= (self.high or 0)
        steps = (value - (self.low or 0)) / self.step if self.step else 0.0
        is_of_kind = self.kind == "float" or value == int(value)
        return is_inside and is_of_kind and math.isclose(steps, round(steps), abs_tol=1e-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A study.

    Attributes:
        study: its name.
        space: training argument → its search space.
        first: values in `training:` for arguments of the space, used by the first trial.
        trials: number of trials to complete or be stopped early.
        value: a trial's value is its `last` evaluation, or its `best` one.
        config: the config file's name and its text, if there was one: the base for `hpctrain tune
            best --to`.
        words: further options on the command line, as `hpctrain render` accepts them.
    """

    study: str
    space: Mapping[str, Space]
    first: Mapping[str, Scalar] = field(default_factory=dict)
    trials: int = 20
    metric: str = "eval_loss"
    direction: Direction = "minimize"
    sampler: Sampler = "tpe"
    seed: int = 0
    value: Kept = "last"
    pruner: Pruner = field(default_factory=Pruner)
    config: tuple[str, str] | None = None
    words: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return it as JSON."""
        made = {"schema": 1, **asdict(self)}
        return json.dumps(made, indent=1, default=partial(Section.to_data, defaults=False)) + "\n"

    @property
    def file(self) -> str:
        """Return the name of its file."""
        return f"{self.study}-{short_digest(self.text)}.json"


def from_json(value: Any) -> Definition:
    """Return the definition in the decoded JSON of `Definition.text`.

    Raises:
        ValueError: it is something else.
    """
    is_ours = isinstance(value, Mapping) and value.get("schema") == 1
    found = stored.made(Definition, value) if is_ours else None
    if found is None:
        raise ValueError("it is not a definition of a study")
    return found


def _direction_of(metric: str) -> Direction | None:
    words = metric.lower().replace("-", "_").split("_")
    if any(word in _FALL for word in words):
        return "minimize"
    return "maximize" if any(word.startswith(_RISE) for word in words) else None


def spoken(value: Scalar) -> str:
    """Format a value for the training's command line: `0.00012`, `true`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def words_of(values: Mapping[str, Scalar]) -> list[str]:
    """Return `--key value` words; null omits the argument."""
    return [
        word
        for key, value in values.items()
        if value is not None
        for word in (f"--{key}", spoken(value))
    ]


def differences(old: Definition, new: Definition) -> list[str]:
    """Return why trials of `new` cannot be compared with those of `old` in one study."""
    before, now = _comparable(old), _comparable(new)
    return [
        f"{name} was {before.get(name, 'not in the space')}, and is {now.get(name, 'not in the space')} now"
        for name in dict.fromkeys((*before, *now))
        if before.get(name) != now.get(name)
    ]


def _comparable(definition: Definition) -> dict[str, str]:
    """Return what all trials of a study must have in common; bounds may change."""
    kinds = {
        key: f"one of {', '.join(map(spoken, each.choices))}"
        if each.kind == "choice"
        else f"{each.kind}{' on a logarithmic scale' if each.log else ''}"
        for key, each in definition.space.items()
    }
    return {name: getattr(definition, name) for name in ("metric", "direction", "value")} | kinds


def _space(written: Any) -> Any:
    if not isinstance(written, dict) or not written:
        raise Problem(
            "must hold arguments of the training, each with where its values come from, such as"
            " learning_rate: {low: 1e-5, high: 1e-3, log: true}"
        )
    wrong: list[tuple[KeyPath, str]] = []
    for key in written:
        if not _KEY.match(key):
            wrong.append(((key,), "is not an argument of a training, such as learning_rate"))
        if key.replace("-", "_") in _NOT_TUNED:
            wrong.append(((key,), "cannot be searched: all trials of a study have it in common"))
    if wrong:
        raise Problem(below=wrong)
    return written


class Tune(Section):
    """`tune:` a study, whose trials are the tasks of an array job."""

    space: Annotated[Mapping[str, Space], _space]
    study: Name | None = None
    trials: Annotated[int, whole(1, MOST_TRIALS)] = 20
    parallel: Annotated[int, whole(1, MOST_TRIALS)] = 4
    metric: Annotated[Text, matching(_METRIC, "a metric of an evaluation, such as eval_loss")] = (
        "eval_loss"
    )
    direction: Direction | None = None
    sampler: Sampler = "tpe"
    seed: Annotated[int, whole(0, 2**31 - 1)] = 0
    value: Kept | None = None
    pruner: Annotated[Pruner, _pruner] = Pruner()
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
    if tune.direction is None and _direction_of(tune.metric) is None:
        yield (
            ("tune", "direction"),
            f"is missing: {tune.metric} does not tell the direction: minimize or maximize",
        )
    for key, value in _asked_first(config).items():
        if not tune.space[key].holds(value):
            what = f"is {spoken(value)} in training, which the first trial takes"
            yield ("tune", "space", key), f"{what}, and does not include it"


def _asked_first(config: Config) -> dict[str, Scalar]:
    tune = config.tune
    if tune is None or not tune.try_training:
        return {}
    return {
        key: yaml12.to_json_value(config.training[key])
        for key in tune.space
        if config.training.get(key) is not None
    }


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
    said = {key: yaml12.to_json_value(value) for key, value in config.training.items()}
    best = (
        said.get("load_best_model_at_end") is True
        or said.get("early_stopping_patience") is not None
    )
    return Definition(
        study=tune.study or config.job_name,
        space=dict(tune.space),
        first=_asked_first(config),
        trials=tune.trials,
        metric=tune.metric,
        direction=tune.direction or _direction_of(tune.metric) or "minimize",
        sampler=tune.sampler,
        seed=tune.seed,
        value=tune.value or ("best" if best else "last"),
        pruner=tune.pruner,
        config=file,
        words=words,
    )


def with_values(text: str, values: Mapping[str, Scalar]) -> str:
    """Return the config `text` without `tune`, and with `values` under `training`; null omits an
    argument.
    """
    data = {key: value for key, value in yaml12.load(text, "config").data.items() if key != "tune"}
    found = {
        key: value if value is None or isinstance(value, str) else yaml12.Plain(spoken(value))
        for key, value in values.items()
    }
    training = (data.get("training") or {}) | found
    data["training"] = {
        key: value for key, value in training.items() if found.get(key, "") is not None
    }
    return yaml12.dump(data)
