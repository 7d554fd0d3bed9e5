"""Values → the words of a command line, and what must not be among them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from hpctrain.jobs.secret_forms import looks_secret
from hpctrain.yaml12 import Plain, to_json_value


def argument_words(values: Iterable[tuple[str, Any]]) -> list[str]:
    """Return `--key value` words as HfArgumentParser reads them: lists as several words, mappings as JSON; null leaves the key out."""
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
    # YAML's own spellings of truth, in the one that every argument parser takes.
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
