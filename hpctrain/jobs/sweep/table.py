r"""The table of a sweep: line k+1 is point k, `JSON<TAB>WORDS`, which array tasks read with sed and eval.

WORDS are words of bash, quoted so that each line stays one line and nothing in a value is ever run. With `pass: arguments` they are
`--key value`, for `command+=(WORDS)`; with `pass: environment` they are `NAME=value`, for `export WORDS`; with `pass: file` there are
none, because the script reads the JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from hpctrain.errors import UsageError
from hpctrain.jobs import shell
from hpctrain.jobs.spec import short_digest
from hpctrain.jobs.sweep.model import Point, Sweep, argument_name
from hpctrain.jobs.sweep.words import argument_words, word
from hpctrain.yaml12 import Plain, to_json_value

#: What `export` gets where a point sets no variable: alone, it would list all of them, and the log would hold them.
_NOTHING = "HPCTRAIN_POINT"
#: A number of JSON (RFC 8259), which is written as it was: 1e-5 stays 1e-5.
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?\Z")
#: What `shell.quote` leaves as it is, asked here because there may be a hundred thousand numbers.
_BARE = re.compile(r"[A-Za-z0-9_.+-]+\Z")


@dataclass(frozen=True, slots=True)
class Table:
    """The table as text, and the digest of it in its file's name: equal sweeps share a file, and a queued job keeps its own."""

    text: str
    digest: str

    @property
    def name(self) -> str:
        """The file's name."""
        return f"points-{self.digest}.tsv"


def swept_arguments(sweep: Sweep) -> frozenset[str]:
    """Return the training arguments that the table holds, and that the script must leave out; none but with `pass: arguments`."""
    if sweep.passed != "arguments":
        return frozenset()
    return frozenset(argument_name(key) for key in sweep.keys if key not in sweep.config_keys)


def table(sweep: Sweep, points: Sequence[Point], *, training: Mapping[str, Any] = MappingProxyType({}), home: str | None = None) -> Table:
    """Return the table of ALL points of a sweep, whichever of them run.

    Args:
        sweep: that they are of.
        points: from 0, with no gap.
        training: the config's own arguments: a point that has no value for an argument that other points have gets it from here.
        home: takes the place of a leading `~`, as in config.yaml, in the words and in the JSON; the words are quoted, so no shell does it.

    Raises:
        UsageError: a value that no command line can carry.
    """
    if [point.index for point in points] != list(range(len(points))):
        raise ValueError("a table holds all points, in order")
    writer = _Writer(sweep, training, home)
    text = "".join(f"{writer.json(point)}\t{writer.words(point)}\n" for point in points)
    return Table(text, short_digest(text))


def read_point(line: str, index: int) -> Point:
    """Return the point of a line of a table, its values as they were written; `index` is the line's number, from 0."""
    read = json.loads(line.partition("\t")[0], parse_float=Plain, parse_int=Plain)
    return Point(index, tuple((key, from_json(value)) for key, value in read.items()))


def from_json(value: Any) -> Any:
    """Return a value of JSON, whose numbers are `Plain` already, in the form that YAML gives: truth values are `Plain` too."""
    if isinstance(value, bool):
        return Plain(str(value).lower())
    if isinstance(value, dict):
        return {key: from_json(item) for key, item in value.items()}
    return [from_json(item) for item in value] if isinstance(value, list) else value


def json_text(value: Any) -> str:
    """Return a value as JSON in ASCII, on one line."""
    if isinstance(value, Plain) and _JSON_NUMBER.match(value):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {json_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(json_text(item) for item in value) + "]"
    return json.dumps(to_json_value(value))


class _Writer:
    """Writes points; the values of a sweep are few, so that each is quoted once."""

    def __init__(self, sweep: Sweep, training: Mapping[str, Any], home: str | None) -> None:
        self.sweep, self.home = sweep, home
        self.names = {key: argument_name(key) for key in sweep.keys if key not in sweep.config_keys}
        swept = swept_arguments(sweep)
        self.fallback = {name: value for name, value in training.items() if name in swept}
        self._quoted: dict[tuple[str, str, bool], str] = {}
        self._json: dict[tuple[str, bool], str] = {}

    def json(self, point: Point) -> str:
        return "{" + ", ".join(f'"{key}": {self._json_of(value)}' for key, value in point.values) + "}"

    def words(self, point: Point) -> str:
        if self.sweep.passed == "file":
            return ""
        values = {self.names[key]: value for key, value in point.values if key in self.names}
        if self.sweep.passed == "environment":
            return self._joined(values, self._assignment) or _NOTHING
        for name, value in self.fallback.items():
            values.setdefault(name, value)
        return self._joined(values, self._argument)

    def _json_of(self, value: Any) -> str:
        value = self._at_home(value)
        if not isinstance(value, str):
            return json_text(value)
        key = (str(value), isinstance(value, Plain))
        if key not in self._json:
            self._json[key] = json_text(value)
        return self._json[key]

    def _joined(self, values: Mapping[str, Any], write: Any) -> str:
        parts = []
        for name, value in values.items():
            if not isinstance(value, str):
                text = write(name, value)
            else:
                key = (name, str(value), isinstance(value, Plain))
                if key not in self._quoted:
                    self._quoted[key] = write(name, value)
                text = self._quoted[key]
            if text:
                parts.append(text)
        return " ".join(parts)

    def _argument(self, name: str, value: Any) -> str:
        if self.sweep.booleans == "flags" and isinstance(value, Plain) and value.lower() in ("true", "false"):
            return f"--{name}" if value.lower() == "true" else ""
        return " ".join(self._quote(name, text) for text in argument_words([(name, value)]))

    def _assignment(self, name: str, value: Any) -> str:
        return "" if value is None else f"{name}={self._quote(name, word(value))}"

    def _at_home(self, value: Any) -> Any:
        """Return a value with the home directory in place of a leading `~`, wherever it becomes a word or a value of its own."""
        if isinstance(value, list) and self.sweep.passed != "environment":  # there, a list is one word of JSON
            return [self._at_home(item) if isinstance(item, str) else item for item in value]
        if self.home is not None and isinstance(value, str) and (value == "~" or value.startswith("~/")):
            return self.home + value[1:]
        return value

    def _quote(self, name: str, text: str) -> str:
        text = self._at_home(text)
        if _BARE.match(text):
            return text
        try:
            return shell.quote(text)
        except ValueError as error:
            raise UsageError(f"{name}: {error}", fix=f"mend the value of {name} in the sweep") from error
