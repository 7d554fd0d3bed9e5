"""What a report says is shown to colleagues: words that look like a secret are left out of it. PURE."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hpctrain.jobs.secret_forms import looks_secret, named_secret

HIDDEN = "(hidden)"
#: A word: what no shell, YAML or JSON keeps together ends it.
_WORD = re.compile(r"[^\s\"'`,;(){}\[\]<>]+")
_NAMED = re.compile(r"([A-Za-z0-9_.-]+)(\s*[=:]\s*[\"']?|\s+)([^\s\"'`,;(){}\[\]<>]+)")


def text(line: str) -> str:
    """Return a line without the words that look like a token, and without the values of what is named like one."""

    def named(found: re.Match[str]) -> str:
        name, between, value = found.groups()
        hide = named_secret(name.lstrip("-").replace("-", "_")) and looks_secret(name.lstrip("-").replace("-", "_"), value)
        return f"{name}{between}{HIDDEN}" if hide else found[0]

    return _WORD.sub(lambda found: HIDDEN if looks_secret("", found[0]) else found[0], _NAMED.sub(named, line))


def value(name: str, item: Any) -> Any:
    """Return a value of a config or of an environment with what looks like a secret left out, however deep it lies."""
    if isinstance(item, Mapping):
        return {str(key): value(str(key), inner) for key, inner in item.items()}
    if isinstance(item, Sequence) and not isinstance(item, str):
        return [value(name, inner) for inner in item]
    if isinstance(item, str):
        if named_secret(name) and item and not item.startswith(("/", "~", "$", ".")):  # a file that holds one may be named
            return HIDDEN
        return text(item)
    return item


def shown(item: Any) -> str:
    """Return a value as a table shows it."""
    return item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
