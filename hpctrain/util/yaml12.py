"""Load YAML without YAML 1.1's surprises, with the place of every value.

PyYAML's own `safe_load` follows YAML 1.1: `time: 1:30:00` becomes 5400 (which Slurm reads as
minutes: 3.75 days), `account: 0123` becomes 83, `qos: no` becomes False, and of two equal keys the
first is silently dropped. Here a scalar stays the text that was written, and the schema decides its
type; duplicate keys are errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hpctrain.errors import UsageError
from hpctrain.util import shell, stored

#: Keys, and indices of lists in digits.
NodePath = tuple[str, ...]
_Loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULLS = {"", "~", "null", "Null", "NULL"}
_INTEGER = re.compile(r"[-+]?[0-9]+\Z")
#: Deeper than any config: beyond some thousands, composing overflows the stack of the C library and
#: crashes Python.
_MAX_DEPTH = 100
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")


class Plain(str):
    """A scalar written without quotes: `4`, `no` and `4e-5` may still become a number or a boolean;
    quoted text never does.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A file's mapping, with the place of each value and key, `file:line:column`, by its path."""

    data: dict[str, Any]
    places: dict[NodePath, str] = field(default_factory=dict)


def read_text(path: Path, title: str, *, missing: str) -> str:
    """Return the text of a file that the user named, which messages call `title`.

    Raises:
        UsageError: it cannot be read, or does not exist; `missing` is then the hint.
    """
    try:
        return stored.read_text(path)
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {title}", hint=missing) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(
            f"cannot read {title}: {reason}", fix=f"ls -l {shell.quote(title)}"
        ) from error


def load(text: str, file: str) -> YamlDocument:
    """Return the mapping in `text`; an empty file is an empty mapping.

    Values are `Plain`, `str`, `None`, `dict` or `list`. `file` is only used in messages.

    Raises:
        UsageError: invalid YAML, not a mapping at the top, or duplicate keys (all of them at once).
    """
    value, places = compose(text, file)
    if value is None:
        return YamlDocument({})
    if not isinstance(value, dict):
        raise UsageError(
            f"{file} must hold keys and values at its top, such as `job_name: sft`",
            hint=_hint(file),
        )
    return YamlDocument(value, places)


def compose(text: str, file: str) -> tuple[Any, dict[NodePath, str]]:
    """Like `load`, for any top-level type, such as a list."""
    text = text.removeprefix("\ufeff")  # some editors add a byte order mark
    node = _composed(text, file)
    if node is None:
        return None, {}
    places: dict[NodePath, str] = {}
    problems: list[str] = []

    def build(node: yaml.Node, path: NodePath) -> Any:
        places.setdefault(path, _place(file, node.start_mark))
        if isinstance(node, yaml.ScalarNode):
            if node.style:  # None from PyYAML's own parser, '' from libyaml's: written plain
                return str(node.value)
            return None if node.value in _NULLS else Plain(node.value)
        if isinstance(node, yaml.SequenceNode):
            return [build(item, (*path, str(index))) for index, item in enumerate(node.value)]
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place, key = _place(file, key_node.start_mark), str(key_node.value)
            if not isinstance(key_node, yaml.ScalarNode):
                problems.append(f"{place}: a key must be a word, not a list or a mapping")
            elif key in built:
                first = places[*path, key]
                problems.append(f"{place}: duplicate key {key!r}; it is also at {first}")
            else:
                places[(*path, key)] = place
                built[key] = build(value_node, (*path, key))
        return built

    try:
        value = build(node, ())
    except RecursionError as error:  # an alias that contains itself
        raise UsageError(f"{file} is nested too deeply", hint=_hint(file)) from error
    if problems:
        raise UsageError(
            problems_in(len(problems), file), details=tuple(problems), hint=_hint(file)
        )
    return value, places


def _hint(file: str) -> str:
    return f"edit {file}, then run the command again"


def problems_in(count: int, source: str) -> str:
    """Return the first line of an error that lists `count` problems."""
    return f"{count} problem{'' if count == 1 else 's'} in {source}"


def position(problem: str) -> tuple[str, int, int]:
    """Return the `FilePlace` that a problem begins with, as a sort key; those without come first."""
    place = re.match(r"(.*?):([0-9]+):([0-9]+): ", problem)
    return (place[1], int(place[2]), int(place[3])) if place is not None else ("", 0, 0)


def to_json_value(value: Any) -> Any:
    """Resolve plain scalars in `value` by YAML 1.2's core schema, for JSON output."""
    if isinstance(value, dict):
        return {key: to_json_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_json_value(item) for item in value]
    if not isinstance(value, Plain) or len(value) > 4000:  # Python refuses to parse longer numbers
        return value
    text = str(value)
    if text in {"true", "True", "TRUE", "false", "False", "FALSE"}:
        return text.lower() == "true"
    if _INTEGER.match(text):
        return int(text)
    return float(text) if _FLOAT.match(text) else text


class _Dumper(yaml.SafeDumper):
    """Writes `Plain` unchanged, and quotes text that would be read as another type."""

    def scalar(self, value: str) -> yaml.ScalarNode:
        if isinstance(value, Plain):
            tag = self.resolve(yaml.ScalarNode, value, (True, False))  # type: ignore[no-untyped-call]
            return self.represent_scalar(tag, str(value))
        ambiguous = not isinstance(to_json_value(Plain(value)), str)
        return self.represent_scalar("tag:yaml.org,2002:str", value, '"' if ambiguous else None)


_Dumper.add_representer(str, _Dumper.scalar)
_Dumper.add_representer(Plain, _Dumper.scalar)


def dump(data: dict[str, Any]) -> str:
    """Write `data`, with values as `load` returns them, as YAML that `load` reads back."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)


def _place(file: str, mark: Any) -> str:
    return f"{file}:{mark.line + 1}:{mark.column + 1}"


def _composed(text: str, file: str) -> yaml.Node | None:
    """Compose `text`, unless it is nested deeper than `_MAX_DEPTH`."""
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_Loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                raise UsageError(
                    f"{file} is nested too deeply",
                    details=(f"{_place(file, event.start_mark)}: more than {_MAX_DEPTH} levels",),
                    hint=_hint(file),
                )
        return yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), f"{file}: {error}"
        if mark is not None:
            context = f"{getattr(error, 'context', None) or ''}, ".removeprefix(", ")
            line = "".join(text.split("\n")[mark.line : mark.line + 1])
            tabs = "; indent with spaces, not tabs" if line[mark.column :].startswith("\t") else ""
            problem = f"{_place(file, mark)}: {context}{getattr(error, 'problem', None)}{tabs}"
        raise UsageError(
            f"{file} is not valid YAML", details=(problem,), hint=_hint(file)
        ) from error
