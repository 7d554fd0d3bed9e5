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
_NAMED = re.compile(r"([A-Za-z0-9_.-]+)([\"']?\s*[=:]\s*[\"']?)([^\s\"'`,;(){}\[\]<>]+)")
#: What HTTP sends for a password.
_HEADER = re.compile(
    r"(\bauthorization[\"']?\s*[=:]\s*[\"']?(?:(?:bearer|basic|token)\s+)?|\bbearer\s+(?=\S{16}))[^\s\"'`,;(){}\[\]<>]{6,}", re.IGNORECASE
)
_SPACES = re.compile(r"(\s+)")
_SHORTEST = 6


def text(line: str) -> str:
    """Return a line without the words that look like a token, and without the values of what is named like one."""

    def named(found: re.Match[str]) -> str:
        name, between, value = found.groups()
        # What is assigned to a password need not be as long as a key.
        assigned = len(value) >= _SHORTEST and not value.replace(".", "").isdigit()
        hide = named_secret(_plain(name)) and (assigned or looks_secret(_plain(name), value))
        return f"{name}{between}{HIDDEN}" if hide else found[0]

    words = _SPACES.split(_HEADER.sub(lambda found: f"{found[1]}{HIDDEN}", _NAMED.sub(named, line)))
    for at in range(0, len(words) - 2, 2):  # each word with the one behind it: `--password VALUE`
        if named_secret(_plain(words[at])) and looks_secret(_plain(words[at]), words[at + 2].strip("\"'`,;")):
            words[at + 2] = HIDDEN
    line = "".join(words)
    return _WORD.sub(lambda found: HIDDEN if looks_secret("", found[0]) else found[0], line)


def _plain(name: str) -> str:
    return name.strip("-\"'`").replace("-", "_")


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
