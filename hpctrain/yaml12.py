"""YAML as people mean it, with the place of every value.

PyYAML's own `safe_load` follows YAML 1.1: `time: 1:30:00` becomes 5400 (which Slurm reads as minutes: 3.75 days),
`account: 0123` becomes 83, `qos: no` becomes False, and of two equal keys the first is dropped without a word. Here a scalar
stays the text that was written, and the schema decides what it is; duplicate keys are errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from hpctrain.errors import UsageError

Path = tuple[str | int, ...]
_Loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULLS = {"", "~", "null", "Null", "NULL"}
#: YAML 1.2, chapter 5.1: everything that is not c-printable.
_NOT_YAML = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_INTEGER = re.compile(r"[-+]?[0-9]+\Z")
#: Deeper than any config: beyond some thousands, composing overflows the stack of the C library, and Python with it.
_MAX_DEPTH = 100
#: More values than any config; a few lines of aliases of aliases could stand for billions.
_MAX_VALUES = 100_000
_KEY = re.compile(r" *[\w'\"-]+ *:")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")


class Plain(str):
    """A scalar written without quotes: `4`, `no` and `4e-5` may still become a number or a truth value; quoted text never does."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a file a value stands; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        """Return `file:line:column`."""
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Document:
    """A file's mapping, with the place of each value and key by its path."""

    data: dict[str, Any]
    places: dict[Path, Place] = field(default_factory=dict)


def load(text: str, file: str) -> Document:
    """Return the mapping in `text`; an empty file is an empty mapping.

    Values are `Plain`, `str`, `None`, `dict` or `list`. `file` is only used in messages.

    Raises:
        UsageError: no YAML, not a mapping at the top, or duplicate keys (all of them at once).
    """
    text = text.removeprefix("\ufeff")  # some editors put a byte order mark in front
    fix = f"edit {file}, then run the command again"
    try:
        too_deep = _too_deep(text, file)
        node = None if too_deep else yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise UsageError(f"{file} is not valid YAML", details=(_describe(error, file, text),), fix=fix) from error
    if too_deep:
        raise UsageError(f"{file} is nested too deeply", details=(f"{too_deep}: more than {_MAX_DEPTH} levels",), fix=fix)
    if node is None or (isinstance(node, yaml.ScalarNode) and not node.style and node.value in _NULLS):
        return Document({})
    if not isinstance(node, yaml.MappingNode):
        raise UsageError(f"{file} must hold keys and values at its top, such as `job_name: sft`", fix=fix)
    builder = _Builder(file)
    try:
        data = builder.build(node, ())
    except _TooLargeError as error:
        raise UsageError(f"{file} holds more than {_MAX_VALUES} values, its aliases written out", details=(str(error),), fix=fix) from error
    if builder.problems:
        raise UsageError(problems_in(len(builder.problems), file), details=tuple(builder.problems), fix=fix)
    return Document(data, builder.places)


def problems_in(count: int, source: str) -> str:
    """Return the first line of an error that lists `count` problems."""
    return f"{count} problem{'' if count == 1 else 's'} in {source}"


def to_json_value(value: Any) -> Any:
    """Return `value` with plain scalars resolved by YAML 1.2's core schema, for what becomes JSON."""
    if isinstance(value, dict):
        return {key: to_json_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_json_value(item) for item in value]
    if not isinstance(value, Plain) or len(value) > 4000:  # Python refuses to read longer numbers
        return value
    text = str(value)
    if text in {"true", "True", "TRUE", "false", "False", "FALSE"}:
        return text.lower() == "true"
    if _INTEGER.match(text):
        return int(text)
    return float(text) if _FLOAT.match(text) else text


class _TooLargeError(Exception):
    """Aliases of aliases have grown past `_MAX_VALUES`."""


class _Builder:
    def __init__(self, file: str) -> None:
        self.file = file
        self.count = 0
        self.places: dict[Path, Place] = {}
        self.problems: list[str] = []
        self._open: list[yaml.Node] = []

    def build(self, node: yaml.Node, path: Path) -> Any:
        self.places.setdefault(path, self._place(node))
        self.count += 1
        if self.count > _MAX_VALUES:
            raise _TooLargeError(f"{self._place(node)}: this one was written out too often")
        if isinstance(node, yaml.ScalarNode):
            if node.style:  # None from PyYAML's own parser, '' from libyaml's: written plain
                return str(node.value)
            return None if node.value in _NULLS else Plain(node.value)
        if any(node is parent for parent in self._open):
            self.problems.append(f"{self._place(node)}: an alias that contains itself")
            return None
        self._open.append(node)
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
            return self._mapping(node, path)
        finally:
            self._open.pop()

    def _mapping(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        built: dict[str, Any] = {}
        first: dict[str, Place] = {}
        for key_node, value_node in node.value:
            place = self._place(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(f"{place}: a key must be a word, not a list or a mapping")
                continue
            key = str(key_node.value)
            if key in built:
                self.problems.append(f"{place}: duplicate key {key!r}; it is also at line {first[key].line}")
                continue
            first[key] = place
            self.places[(*path, key)] = place
            built[key] = self.build(value_node, (*path, key))
        return built

    def _place(self, node: yaml.Node) -> Place:
        return Place(self.file, node.start_mark.line + 1, node.start_mark.column + 1)


def _too_deep(text: str, file: str) -> Place | None:
    """Return where `text` is nested deeper than `_MAX_DEPTH`, if it is."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                mark: Any = event.start_mark
                return Place(file, mark.line + 1, mark.column + 1)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return None


def _indentation(lines: list[str], number: int) -> str:
    """Return the words on a key that stands in no column of those above it; nothing where its column is right."""
    levels: list[int] = []
    above = ""
    for line in lines[:number]:
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        indent, above = len(line) - len(line.lstrip(" ")), text
        levels = [*(level for level in levels if level < indent), indent]
    here = lines[number] if number < len(lines) else ""
    indent = len(here) - len(here.lstrip(" "))
    if not levels or indent in levels or not _KEY.match(here) or (indent > levels[-1] and above.partition(" #")[0].rstrip().endswith(":")):
        return ""
    columns = " or ".join(str(level) for level in sorted(levels, reverse=True))
    return f"; it is indented by {indent} and the keys above by {columns}: keys of one section stand in one column"


def _describe(error: yaml.YAMLError, file: str, text: str) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    if mark is not None:
        context = f"{getattr(error, 'context', None) or ''}, ".removeprefix(", ")
        lines = text.split("\n")
        tab = mark.line < len(lines) and lines[mark.line][mark.column : mark.column + 1] == "\t"
        hint = "; indent with blanks, not tabs" if tab else _indentation(lines, mark.line)
        return f"{Place(file, mark.line + 1, mark.column + 1)}: {context}{problem}{hint}"
    # The reader below the parser gives no place for a character that YAML does not allow.
    odd = _NOT_YAML.search(text)
    if odd is None:
        return f"{file}: {problem}"
    before = text[: odd.start()]
    place = Place(file, before.count("\n") + 1, odd.start() - before.rfind("\n"))
    return f"{place}: the character {odd[0]!r} is not allowed in YAML"
