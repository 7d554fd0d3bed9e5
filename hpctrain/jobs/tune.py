"""What a study searches: the definition that a job's script carries, as JSON in `runs/.studies/`.

Pure. `config.tune` reads what a person writes, `training.study` asks optuna. A definition is kept under the digest of its text, so that a
job that waits keeps its own, whatever becomes of config.yaml.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from hpctrain.jobs.spec import short_digest

Scalar = str | int | float | bool | None
Direction = Literal["minimize", "maximize"]
Sampler = Literal["tpe", "random", "grid"]
PrunerKind = Literal["median", "hyperband", "none"]
Kept = Literal["last", "best"]

#: Where studies lie in `runs/`, and the journal of one.
STUDIES, JOURNAL = ".studies", "journal.log"
#: How metrics are called that should fall, and those that should rise.
_FALL = ("loss", "perplexity", "error", "wer", "cer", "mse", "mae", "rmse")
_RISE = ("accuracy", "acc", "f1", "precision", "recall", "mcc", "auc", "auroc", "bleu", "rouge", "reward", "r2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Where the values of one argument come from.

    Attributes:
        kind: `float` and `int` have bounds, both included; `choice` has values.
        log: the logarithm is what is spread evenly.
        step: between two values; None for every real number, or every whole one.
    """

    kind: Literal["float", "int", "choice"]
    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None
    choices: tuple[Scalar, ...] = ()

    def holds(self, value: Scalar) -> bool:
        """Whether `value` is one of these."""
        if self.kind == "choice":
            return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in self.choices)
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            return False
        if self.kind == "int" and value != int(value):
            return False
        steps = (value - self.low) / self.step if self.step else 0.0
        return math.isclose(steps, round(steps), abs_tol=1e-9)

    @property
    def in_words(self) -> str:
        """What it holds: `whole numbers from 0 to 10`."""
        if self.kind == "choice":
            return f"one of {', '.join(map(spoken, self.choices))}"
        every = f", every {spoken(self.step)}" if self.step else ""
        return f"{'whole' if self.kind == 'int' else 'real'} numbers from {spoken(self.low)} to {spoken(self.high)}{every}"

    def grid(self) -> tuple[Scalar, ...] | None:
        """Return all values, or None where they are not to be counted."""
        if self.kind == "choice":
            return self.choices
        if self.kind == "float" and self.step is None:
            return None
        step = self.step or 1
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        if self.kind == "int":
            return tuple(int(self.low) + number * int(step) for number in range(count))
        return tuple(float(f"{self.low + number * step:.12g}") for number in range(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruner:
    """When a trial is stopped early.

    Attributes:
        startup_trials: of the median: how many trials must have completed before one is compared with them.
        startup_steps: no trial is stopped before this step of its training.
        most_steps: of hyperband: the step at which a trial is done, where the config says it.
        first_step: of hyperband: the step of the first evaluation, where the config says it.
    """

    kind: PrunerKind = "median"
    startup_trials: int = 5
    startup_steps: int = 0
    most_steps: int | None = None
    first_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A study.

    Attributes:
        study: its name.
        space: argument of the training → where its values come from.
        first: what `training:` says of arguments of the space: the first trial takes these.
        trials: how many are to complete or be stopped early.
        value: a trial's value is its `last` evaluation, or its `best` one.
        config: the config file's name and its text, where there was one: what `hpctrain tune best --to` writes again.
        words: options that were typed besides, as `hpctrain render` takes them.
    """

    study: str
    space: Mapping[str, Distribution]
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
        return json.dumps({"schema": 1, **asdict(self)}, indent=1, ensure_ascii=True) + "\n"

    @property
    def file(self) -> str:
        """Return the name of its file."""
        return f"{self.study}-{short_digest(self.text)}.json"


def from_json(value: Mapping[str, Any]) -> Definition:
    """Return the definition in what `Definition.text` has written.

    Raises:
        ValueError: it is something else.
    """
    try:
        said = dict(value)
        if said.pop("schema") != 1:
            raise ValueError("another schema")
        said["space"] = {key: Distribution(**{**each, "choices": tuple(each.get("choices", ()))}) for key, each in said["space"].items()}
        said["pruner"] = Pruner(**said["pruner"])
        said["config"] = tuple(said["config"]) if said.get("config") else None
        said["words"] = tuple(said.get("words", ()))
        return Definition(**said)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"it is no definition of a study: {error}") from error


def direction_of(metric: str) -> Direction | None:
    """Return where a metric should go, where its name says it."""
    words = metric.lower().replace("-", "_").split("_")
    if any(word in _FALL for word in words):
        return "minimize"
    return "maximize" if any(word.startswith(_RISE) for word in words) else None


def points(definition: Definition) -> list[dict[str, Scalar]]:
    """Return all points of a grid, the last key varying fastest; none where the space has no end."""
    axes = [(key, each.grid()) for key, each in definition.space.items()]
    if any(values is None for _, values in axes):
        return []
    return [dict(zip((key for key, _ in axes), row, strict=True)) for row in itertools.product(*(values or () for _, values in axes))]


def size(space: Mapping[str, Distribution]) -> int | None:
    """Return how many points a space has, without making them; None for no end."""
    product = 1
    for each in space.values():
        if each.kind == "choice":
            product *= len(each.choices)
        elif each.kind == "float" and each.step is None:
            return None
        else:
            product *= math.floor((each.high - each.low) / (each.step or 1) + 1e-9) + 1
    return product


def spoken(value: Scalar) -> str:
    """Return a value as the training's command line has it: `0.00012`, `true`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def words_of(values: Mapping[str, Scalar]) -> list[str]:
    """Return `--key value` words; null leaves the argument out."""
    return [word for key, value in values.items() if value is not None for word in (f"--{key}", spoken(value))]


def differences(old: Definition, new: Definition) -> list[str]:
    """Return why trials of `new` cannot stand beside those of `old` in one study."""
    found = []
    for name in ("metric", "direction", "value"):
        before, now = getattr(old, name), getattr(new, name)
        if before != now:
            found.append(f"{name} was {before}, and is {now} now")
    for key in dict.fromkeys((*old.space, *new.space)):
        if key not in new.space or key not in old.space:
            found.append(f"{key} {'is not in the space any more' if key in old.space else 'was not in the space'}")
        elif old.space[key].kind != new.space[key].kind:
            found.append(f"{key} was {old.space[key].kind}, and is {new.space[key].kind} now")
        elif old.space[key].choices != new.space[key].choices:
            found.append(f"{key} had other choices: {', '.join(map(spoken, old.space[key].choices))}")
        elif old.space[key].log != new.space[key].log:
            found.append(f"{key} was {'' if old.space[key].log else 'not '}on a logarithmic scale")
    return found
