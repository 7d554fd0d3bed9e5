"""A sweep in a file of its own: JSON or YAML by its content, keys and values or a bare list of points."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import yaml

from hpctrain import yaml12
from hpctrain.config.sweep import Path as KeyPath
from hpctrain.config.sweep import SweepProblemsError, read
from hpctrain.errors import UsageError
from hpctrain.jobs import shell
from hpctrain.jobs.sweep import Sweep
from hpctrain.jobs.sweep.table import from_json
from hpctrain.yaml12 import Place, Plain, problems_in

#: Of a file with a sweep: 10,000 points of 6 kB each.
MAX_BYTES = 64_000_000


def load(path: Path, title: str, *, again: str, pipe: bool = False) -> Sweep:
    """Return the sweep in the file at `path`, which messages call `title`.

    Args:
        path: of the file, at most MAX_BYTES.
        title: its name in messages.
        again: the command that an error tells to type.
        pipe: a pipe will do, because it is read only once.

    Raises:
        UsageError: it cannot be read, or everything that is wrong with it.
    """
    try:
        text = _content(path, title, pipe=pipe).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {title} with a sweep", fix="--sweep with one of: ls *.json *.yaml") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read {title}: {reason}", fix=f"ls -l {shell.quote(title)}") from error
    return of_text(text, title, again=again)


def _content(path: Path, title: str, *, pipe: bool) -> bytes:
    """Return what a regular file holds, or a pipe; a device has no end, and a pipe cannot be read again."""
    is_pipe = stat.S_ISFIFO(mode := path.stat().st_mode)
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or (is_pipe and pipe)):
        copy = f"cat {shell.quote(title)} > sweep.yaml, then --sweep sweep.yaml"
        raise UsageError(
            f"a sweep is read from a file, and {title} is {'a pipe' if is_pipe else 'a device or a socket'}",
            fix=copy if is_pipe else "--sweep with one of: ls *.json *.yaml",
        )
    # Without O_NONBLOCK for a pipe: its writer may come later, or be slow.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if is_pipe else os.O_NONBLOCK)), "rb") as stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise UsageError(f"{title} is larger than {MAX_BYTES // 1_000_000} MB", fix="write the sweep as a grid, or in parts")
    return content


def of_text(text: str, title: str, *, again: str) -> Sweep:
    """Return the sweep in `text`; `title` is the file's name.

    Raises:
        UsageError: everything that is wrong with it.
    """
    fix = f"edit {title}, then run: {again}"
    value, places = _value(text, title, fix)
    if value is None:
        raise UsageError(f"{title} is empty", fix=fix)
    try:
        return read(value)
    except SweepProblemsError as error:
        found = [(_place(text, places, title, problem.path), problem.sentence()) for problem in error.problems]
        found.sort(key=lambda entry: (entry[0].line, entry[0].column) if isinstance(entry[0], Place) else (0, 0))
        lines = tuple(f"{place}: {sentence}" for place, sentence in found)
        raise UsageError(problems_in(len(lines), title), details=lines, fix=fix) from error


def _value(text: str, title: str, fix: str) -> tuple[Any, dict[yaml12.Path, Place] | None]:
    """Return what is in `text`, and the places in it; None for JSON, whose places are looked for when one is needed."""
    try:
        return _json(text, title, fix), None
    except json.JSONDecodeError as error:
        if title.endswith(".json"):
            place = Place(title, error.lineno, error.colno)
            raise UsageError(f"{title} is not valid JSON", details=(f"{place}: {error.msg}",), fix=fix) from error
    return _yaml(text, title, fix)


def _json(text: str, title: str, fix: str) -> Any:
    """Return the JSON in `text`: ten times as fast as YAML, and a list of ten thousand points is long. Numbers stay as written."""
    twice: list[str] = []

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [key for key, _ in pairs]
            twice.extend(key for key in found if names.count(key) > 1)
        return found

    try:
        value = json.loads(text, parse_float=Plain, parse_int=Plain, parse_constant=Plain, object_pairs_hook=mapping)
    except RecursionError as error:
        raise UsageError(f"{title} is nested too deeply", fix=fix) from error
    if twice:
        _tell_places(text, title, fix)
        problems = tuple(f"duplicate key {key!r}" for key in dict.fromkeys(twice))
        raise UsageError(problems_in(len(problems), title), details=problems, fix=fix)
    return from_json(value)


def _tell_places(text: str, title: str, fix: str) -> None:
    """Raise the error about duplicate keys with their places, where JSON is YAML too (without tabs, say) and reading it is quick."""
    if len(text) > 200_000:
        return
    try:
        _yaml(text, title, fix)
    except UsageError as error:
        if error.details and all("duplicate key" in line for line in error.details):
            raise


def _yaml(text: str, title: str, fix: str) -> tuple[Any, dict[yaml12.Path, Place]]:
    """Return what `yaml12.load` gives of mappings, of lists too."""
    try:
        node = None if yaml12._too_deep(text, title) else yaml.compose(text, Loader=yaml12._Loader)
    except yaml.YAMLError:
        node = None
    if not isinstance(node, yaml.SequenceNode):
        document = yaml12.load(text, title)
        return document.data or None, document.places
    builder = yaml12._Builder(title)
    try:
        value = builder.build(node, ())
    except yaml12._TooLargeError as error:
        raise UsageError(f"{title} holds too many values for YAML", details=(str(error),), fix="write it as JSON, or as a grid") from error
    if builder.problems:
        raise UsageError(problems_in(len(builder.problems), title), details=tuple(builder.problems), fix=fix)
    return value, builder.places


def _place(text: str, places: dict[yaml12.Path, Place] | None, title: str, path: KeyPath) -> Place | str:
    if places is None:
        position = _json_position(text, path)
        return Place(title, text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position))
    return next((places[path[:end]] for end in range(len(path), -1, -1) if path[:end] in places), title)


_BLANK = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def _json_position(text: str, path: KeyPath) -> int:
    """Return where in `text`, which is JSON, the value at `path` begins (of a mapping's value, its key), as far as the path leads."""
    begin = position = _skip(text, 0)
    for part in path:
        inside = _member(text, position, part)
        if inside is None:
            break
        begin, position = inside
    return begin


def _member(text: str, position: int, part: str | int) -> tuple[int, int] | None:
    """Return where the member `part` of the list or mapping at `position` begins, and where its value does."""
    if text[position] not in "[{":
        return None
    mapping, number = text[position] == "{", 0
    position = _skip(text, position + 1)
    while text[position] not in "]}":
        begin, key = position, str(number)
        if mapping:
            key, position = _DECODER.raw_decode(text, position)
            position = _skip(text, _skip(text, position) + 1)
        if (mapping and key == part) or (not mapping and number == part):
            return begin, position
        _, position = _DECODER.raw_decode(text, position)
        position = _skip(text, position)
        if text[position] == ",":
            position = _skip(text, position + 1)
        number += 1
    return None


def _skip(text: str, position: int) -> int:
    blank = _BLANK.match(text, position)
    return blank.end() if blank else position
