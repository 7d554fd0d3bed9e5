"""The training script's arguments, interpreted as its parser would; values that only the parser can
determine stay unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from hpctrain.config.spec import JobSpec
from hpctrain.util.secrets import looks_secret
from hpctrain.util.shell import options_of
from hpctrain.util.yaml12 import Plain, to_json_value

#: The value of an option without one, such as `--bf16`.
FLAG = "true"


class Arguments:
    """The options for `fit`, each as text; several values of one are joined by spaces."""

    def __init__(self, spec: JobSpec) -> None:
        self._values = {
            name: FLAG if value is True else value if isinstance(value, str) else " ".join(value)
            for name, value in options_of(spec.arguments).items()
        }
        #: Further options are in a file, which is not read here.
        self.incomplete = "config" in self._values
        #: hpctrain's own training runs, so the meaning of the arguments is known.
        self.ours = spec.script is None
        #: It is the SFT training.
        self.sft = self.ours and spec.task == "sft"

    def get(self, *names: str) -> str | None:
        """Return the value of the first of these options that is set."""
        return next((self._values[name] for name in names if name in self._values), None)

    def says(self, name: str) -> bool | None:
        """Return an option as a boolean; None if it is not set."""
        value = self._values.get(name)
        return None if value is None else value.lower() in {"true", "1", "yes", "y", "t", "on"}

    @property
    def names(self) -> tuple[str, ...]:
        """The options that are set."""
        return tuple(self._values)


def argument_words(values: Iterable[tuple[str, Any]]) -> list[str]:
    """Return `--key value` words as HfArgumentParser reads them: lists as several words, mappings
    as JSON; null omits the key.
    """
    words: list[str] = []
    for key, value in values:
        if value is None:
            continue
        words.append(f"--{key}")
        if isinstance(value, list):
            words.extend(word(item) for item in value)
        else:
            words.append(word(value))
    return words


def word(value: Any) -> str:
    """Return one value as one word: lists and mappings as JSON."""
    if isinstance(value, dict | list):
        return json.dumps(to_json_value(value), ensure_ascii=False)
    # YAML's spellings of booleans, in the form that every argument parser accepts.
    if isinstance(value, Plain) and value in ("True", "TRUE", "False", "FALSE"):
        return value.lower()
    return str(value)


def is_secret(key: str, value: Any) -> bool:
    """Whether a value, or one inside it, looks like a secret."""
    if isinstance(value, list):
        return any(is_secret(key, item) for item in value)
    if isinstance(value, dict):
        return any(is_secret(str(name), item) for name, item in value.items())
    return value is not None and looks_secret(key, str(value))
