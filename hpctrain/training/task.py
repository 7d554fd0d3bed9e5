"""What one of the shipped trainings is, beside the rails that all of them run on (hpctrain/training/rails.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpctrain.training.options import Options
    from hpctrain.training.preflight import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """See the module. The functions are called on every rank; none of them prints.

    Attributes:
        module: what `python -m` is given.
        classes: imports the libraries, and returns the dataclasses of the options: those of ScriptArguments, the training arguments and
            ModelConfig first, then the task's own (`Options.own`).
        parser_defaults: what replaces the defaults of those classes before anything is read.
        problems: what is wrong with the options, of a namespace that holds every one of them; nothing was loaded yet.
        prepare: returns the splits as they will be trained on, of the datasets as they were loaded (the second may be None), given the
            namespace; may raise UsageError.
        defaults: returns the values for what was not asked for, of the namespace, whether the CPU is trained on, and the training split.
        trainer: builds the Trainer, of the options, `survival` and the callbacks.
        model_needs: what must lie in the model's folder beside config.json, of the namespace: "weights", "tokenizer".
    """

    module: str
    classes: Callable[[], tuple[type, ...]]
    parser_defaults: Mapping[str, Any] = field(default_factory=dict)
    problems: Callable[[Any], list[Problem]]
    prepare: Callable[[Any, Any, Any], tuple[Any, Any]]
    defaults: Callable[..., dict[str, Any]]
    trainer: Callable[[Options, Any, list[Any]], Any]
    model_needs: Callable[[Any], frozenset[str]] = lambda _: frozenset({"weights", "tokenizer"})

    @property
    def help(self) -> str:
        """The command that shows the options."""
        return f"python -m {self.module} --help"


class Unasked(int):
    """A library's own default of an option, as a default that can be told from the same number that somebody gave."""


def is_unasked(value: Any) -> bool:
    """Say whether an option has the value that it has when nobody gives one."""
    return value is None or isinstance(value, Unasked)
