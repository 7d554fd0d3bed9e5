"""A config file with the values of a trial in it, and without the study: comments and order stay. Pure: text → text.

Only the lines that change are touched; what comes out is read again, and must say what was meant. Where a file's form is too odd for that
(anchors, everything on one line), all of it is written anew, without its comments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from hpctrain import yaml12
from hpctrain.errors import UsageError
from hpctrain.jobs.tune import Scalar, spoken

_TRAINING = "training"


def with_values(text: str, values: Mapping[str, Scalar]) -> tuple[str, bool]:
    """Return the config `text` without `tune`, with `values` under `training`, and whether its comments are kept.

    A value that is null leaves its argument out.
    """
    meant = _meant(text, values)
    try:
        changed = _set(_without(text, "tune"), values)
        if yaml12.load(changed, "config").data == meant:
            return changed, True
    except (UsageError, yaml.YAMLError, ValueError, IndexError):
        pass
    return _dump(meant), False


def _meant(text: str, values: Mapping[str, Scalar]) -> dict[str, Any]:
    data = {key: value for key, value in yaml12.load(text, "config").data.items() if key != "tune"}
    training = dict(data.get(_TRAINING) or {})
    for key, value in values.items():
        if value is None:
            training.pop(key, None)
        else:
            training[key] = spoken(value) if isinstance(value, str) else yaml12.Plain(spoken(value))
    return data | {_TRAINING: training}


def _pairs(text: str) -> list[tuple[yaml.Node, yaml.Node]]:
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    return list(node.value) if isinstance(node, yaml.MappingNode) else []


def _without(text: str, key: str) -> str:
    """Return `text` without a key of its top, and the comments that stand behind it, up to the next key's own comment."""
    for name, value in _pairs(text):
        if name.value == key:
            lines = text.splitlines(keepends=True)
            first, last = name.start_mark.line, _last_line(value)
            while first and lines[first - 1].startswith("#"):  # what is said of it
                first -= 1
            return "".join([*lines[:first], *lines[last + 1 :]])
    return text


def _last_line(node: yaml.Node) -> int:
    """Return the line where a value ends: the end mark of a block is where the next thing begins."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _last_line(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.line - (1 if node.end_mark.column == 0 and node.end_mark.line > node.start_mark.line else 0))


def _set(text: str, values: Mapping[str, Scalar]) -> str:
    found = next((value for name, value in _pairs(text) if name.value == _TRAINING), None)
    if not isinstance(found, yaml.MappingNode):
        lines = "".join(f"  {key}: {_written(value)}\n" for key, value in values.items() if value is not None)
        if found is not None:  # `training:` with nothing behind it
            text = _without(text, _TRAINING)
        return f"{text.rstrip()}\n\n{_TRAINING}:\n{lines}" if text.strip() else f"{_TRAINING}:\n{lines}"
    edits: list[tuple[int, int, str]] = []
    known = {name.value: (name, value) for name, value in found.value}
    for key, value in values.items():
        if key in known and value is not None:
            node = known[key][1]
            edits.append((node.start_mark.index, node.end_mark.index, _written(value)))
    edits += _added(text, found, {key: value for key, value in values.items() if key not in known and value is not None})
    edits += [_removed(text, found, *known[key]) for key, value in values.items() if key in known and value is None]
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _added(text: str, training: yaml.MappingNode, values: Mapping[str, Scalar]) -> list[tuple[int, int, str]]:
    if not values:
        return []
    if training.flow_style:
        at = training.end_mark.index - 1
        comma = ", " if training.value else ""
        return [(at, at, comma + ", ".join(f"{key}: {_written(value)}" for key, value in values.items()))]
    name, value = training.value[-1]
    lines = text.splitlines(keepends=True)
    at = sum(len(line) for line in lines[: _last_line(value) + 1])
    indent = " " * name.start_mark.column
    start = "" if text[:at].endswith("\n") else "\n"
    return [(at, at, start + "".join(f"{indent}{key}: {_written(each)}\n" for key, each in values.items()))]


def _removed(text: str, training: yaml.MappingNode, name: yaml.Node, value: yaml.Node) -> tuple[int, int, str]:
    if training.flow_style or len(training.value) == 1:
        raise ValueError("a pair in braces is not taken out by hand")
    lines = text.splitlines(keepends=True)
    starts = [sum(len(line) for line in lines[:number]) for number in (name.start_mark.line, _last_line(value) + 1)]
    return starts[0], starts[1], ""


def _written(value: Scalar) -> str:
    """Return a value as YAML that is read as the same words, and no others."""
    text = spoken(value)
    if not isinstance(value, str):
        return text
    try:
        if yaml12.load(f"key: {text}\n", "value").data == {"key": text} and not set("#{}[],&*?|<>=!%@`:'\"") & set(text):
            return text if isinstance(yaml12.to_json_value(yaml12.Plain(text)), str) else json.dumps(text)
    except UsageError:
        pass
    return json.dumps(text, ensure_ascii=False)


def _dump(data: Mapping[str, Any]) -> str:
    head = "# written anew by hpctrain tune: the comments of the config could not be kept\n"
    return head + "".join(f"{key}: {_flow(value)}\n" for key, value in data.items())


def _flow(value: Any) -> str:
    """Return a value of yaml12 on one line, whose scalars are read as they were."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if value is None:
        return "null"
    plain = isinstance(value, yaml12.Plain) and not set(",[]{}#:'\"") & set(value)
    return str(value) if plain else json.dumps(str(value), ensure_ascii=False)
