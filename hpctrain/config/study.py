"""The definition of a study, which a job's script uses as JSON in `runs/.studies/`.

Pure. `config.tune` reads the user's config, `training.study` calls optuna. The file name contains a
digest of the text, so that a queued job keeps its definition even if config.yaml changes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from hpctrain.config.spec import short_digest
from hpctrain.util import stored

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The search space of one argument.

    Attributes:
        kind: `float` and `int` have inclusive bounds; `choice` has values.
        log: uniform in the logarithm.
        step: between two values; None for every real number, or every integer.
    """

    kind: Literal["float", "int", "choice"]
    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None
    choices: tuple[Scalar, ...] = ()

    def holds(self, value: Scalar) -> bool:
        """Whether `value` is in the space."""
        if self.kind == "choice":
            return any(
                value == each and isinstance(value, bool) == isinstance(each, bool)
                for each in self.choices
            )
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not self.low <= value <= self.high
        ):
            return False
        if self.kind == "int" and value != int(value):
            return False
        steps = (value - self.low) / self.step if self.step else 0.0
        return math.isclose(steps, round(steps), abs_tol=1e-9)

    @property
    def in_words(self) -> str:
        """A description: `whole numbers from 0 to 10`."""
        if self.kind == "choice":
            return f"one of {', '.join(map(spoken, self.choices))}"
        every = f", every {spoken(self.step)}" if self.step else ""
        return (
            f"{'whole' if self.kind == 'int' else 'real'} numbers from {spoken(self.low)} to"
            f" {spoken(self.high)}{every}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruner:
    """When a trial is stopped early.

    Attributes:
        startup_trials: of the median pruner: number of completed trials before it compares.
        startup_steps: no trial is stopped before this step of its training.
    """

    kind: PrunerKind = "median"
    startup_trials: int = 5
    startup_steps: int = 0


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


def direction_of(metric: str) -> Direction | None:
    """Return the direction to optimize a metric, if its name implies it."""
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
