"""`sweep:` of config.yaml, and files of sweeps: what people write → `jobs.sweep.Sweep`, with every problem at once.

Points never go through pydantic, because there may be ten thousand of them; what comes out is checked all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from hpctrain.config.sweep_random import read_random
from hpctrain.fieldtypes import as_text, kind, short
from hpctrain.jobs.sweep import Random, Sweep
from hpctrain.jobs.sweep.model import Axes, Values, argument_name, canonical, canonical_point, spoken
from hpctrain.jobs.sweep.words import is_secret

Path = tuple[str | int, ...]
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*\Z")
#: What no command line and no file of UTF-8 can carry. Bytes that are no UTF-8 come as U+DC80 to U+DCFF (PEP 383).
_NO_WORD = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")
#: Shorter than any secret (hpctrain.jobs.secret_forms), and most of what varies.
_SHORT_NUMBER = re.compile(r"[-+0-9.eE]{1,14}\Z")
_AXES = ("grid", "zip", "list", "random")
_KEYS = (*_AXES, "include", "exclude", "throttle", "pass", "booleans", "option")
#: What all jobs of a sweep have in common: how they hang together, the site that they are for, and the directory that holds the table.
_NOT_SWEPT = ("sweep", "stages", "array", "cluster", "chdir")


class Problem(NamedTuple):
    """What is wrong, and where: `message` completes "grid.learning_rate …", and `path` leads into what was written."""

    path: Path
    message: str

    def sentence(self) -> str:
        """Return the message with the key that it is about."""
        return self.message if self.message.startswith("unknown key") else f"{_spoken(self.path) or 'the sweep'} {self.message}"


class SweepProblemsError(ValueError):
    """Everything that is wrong with a sweep."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(problem.sentence() for problem in problems))
        self.problems = problems


def read(value: Any) -> Sweep:
    """Return the sweep that `value` describes: keys and values, or a list of points.

    Args:
        value: as `hpctrain.yaml12` or `hpctrain.config.sweep_file` give it.

    Raises:
        SweepProblemsError: everything that is wrong with it.
    """
    reader = _Reader()
    sweep = reader.sweep({"list": value} if isinstance(value, list) else value)
    if reader.problems or sweep is None:
        # Of a bare list, nobody wrote the word list.
        bare = isinstance(value, list)
        raise SweepProblemsError([Problem(path[1:] if bare and path[:1] == ("list",) else path, text) for path, text in reader.problems])
    return sweep


def _field(value: Any) -> Sweep | str | None:
    if value is None or isinstance(value, Sweep):
        return value
    if isinstance(value, str):
        as_text(value)
        return str(value)
    try:
        return read(value)
    except SweepProblemsError as error:
        # As in fieldtypes.problems: key → message; and where in the section each key is.
        keys: dict[str, str] = {}
        for path, message in error.problems:
            name = _called(path)
            keys[name] = f"{keys[name]}; and {message}" if name in keys else message
        paths = {_called(path): tuple(str(part) for part in path) for path, _ in error.problems if path}
        context = {"message": str(error), "keys": keys, "paths": paths}
        raise PydanticCustomError("hpctrain", "{message}", context) from error


def _called(path: Path) -> str:
    """Return how messages about a whole config call a place in its sweep."""
    spoken_path = _spoken(path)
    return f"sweep: {spoken_path}" if spoken_path.startswith("item ") else spoken_path or "sweep"


#: The type of `Config.sweep`: a checked sweep, or the name of the file that holds it (`hpctrain.config.sweep_file.load`).
SweepField = Annotated[Any, BeforeValidator(_field)]


def _spoken(path: Path) -> str:
    """Return how messages call a place: `grid.learning_rate`, `list: item 3: seed`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"{': ' if text else ''}item {part + 1}"
        else:
            text += f"{': ' if 'item' in text else '.' if text else ''}{part}"
    return text


def _config_keys() -> tuple[frozenset[str], frozenset[str]]:
    """Return the sections of config.yaml, and the keys at its top."""
    from hpctrain.config.fields import FIELDS
    from hpctrain.config.schema import Config

    sections = {name for name, entry in Config.model_fields.items() if entry.default_factory is not None}
    single = {entry.path[0] for entry in FIELDS if len(entry.path) == 1}
    return frozenset(sections - set(_NOT_SWEPT)), frozenset(single - set(_NOT_SWEPT))


class _Reader:
    """Reads one sweep, and keeps what is wrong with it."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.sections, self.single = _config_keys()
        self._keys: dict[str, str | None] = {}
        self._values: dict[tuple[str, str], str | None] = {}

    def wrong(self, path: Path, message: str) -> None:
        self.problems.append(Problem(path, message))

    def sweep(self, written: Any) -> Sweep | None:
        if not isinstance(written, dict):
            self.wrong((), f"must hold keys and values, or be a list of points, not {kind(written)}")
            return None
        data = {key: value for key, value in written.items() if value is not None}
        self._unknown(data)
        random = self._random(data.get("random"))
        sweep = Sweep(
            grid=self._axes("grid", data), zipped=self._zip(data), listed=self._points("list", data), random=random,
            include=self._points("include", data), exclude=self._points("exclude", data),
            throttle=self._throttle(data.get("throttle")),
            passed=cast("Any", self._word(data, "pass", ("arguments", "environment", "file"))),
            booleans=cast("Any", self._word(data, "booleans", ("values", "flags"))), option=self._option(data),
        )  # fmt: skip
        self._together(sweep, data)
        config_keys = frozenset(key for key in sweep.keys if self._is_config(key))
        self._environment(sweep, config_keys)
        return replace(sweep, config_keys=config_keys)

    def _unknown(self, data: Mapping[str, Any]) -> None:
        import difflib

        for key in data:
            if key in _KEYS:
                continue
            close = difflib.get_close_matches(key, _KEYS, n=1, cutoff=0.6)
            hint = f"did you mean {close[0]!r}?" if close else "what varies stands under grid, zip, list or random"
            self.wrong((key,), f"unknown key {key!r} in sweep; {hint}")

    def _key(self, written: str, path: Path) -> str | None:
        """Return the key that `written` stands for: `training.seed` is the argument `seed`, unless config.yaml has a key of that name."""
        if written not in self._keys:
            message = self._key_problem(written)
            if message is not None:
                self.wrong(path, message)
            bare = argument_name(written)
            self._keys[written] = None if message is not None else bare if not self._is_config(bare) else written
        return self._keys[written]

    def _key_problem(self, written: str) -> str | None:
        head = written.partition(".")[0]
        if not _KEY.match(written) or not _KEY.match(argument_name(written)) or written.endswith("."):
            return "is no key such as learning_rate or resources.nodes"
        if head in _NOT_SWEPT:
            return f"cannot vary; an argument of the script that is called so is written training.{written}"
        if written in self.sections:
            return f"is a section of config.yaml: write {written}.KEY, or, for an argument of the script, training.{written}"
        return None

    def _is_config(self, key: str) -> bool:
        head, dot, _ = key.partition(".")
        return key in self.single or (bool(dot) and head != "training" and head in self.sections)

    def _value(self, key: str, value: Any, path: Path) -> None:
        """Check one value; each text of a key once, because a sweep repeats itself."""
        if isinstance(value, str):
            if _SHORT_NUMBER.match(value):
                return
            known = (key, value)
            if known not in self._values:
                self._values[known] = self._value_problem(key, value)
            message = self._values[known]
        else:
            message = self._value_problem(key, value)
        if message is not None:
            self.wrong(path, message)

    def _value_problem(self, key: str, value: Any) -> str | None:
        if any(_NO_WORD.search(text) for text in _texts(value)):
            return "holds a NUL character or half of a surrogate pair, which no command line can carry"
        if is_secret(argument_name(key), value):
            return (
                "looks like a secret, and would stand in the table of the sweep; put it into a file, chmod 600, and name that under "
                "environment.secrets"
            )
        return None

    def _axes(self, name: str, data: Mapping[str, Any]) -> Axes:
        written = data.get(name, {})
        if not isinstance(written, dict):
            self.wrong((name,), "must hold keys, each with a list of values, such as learning_rate: [1e-5, 3e-5]")
            return ()
        found: dict[str, tuple[Any, ...]] = {}
        for key, values in written.items():
            path = (name, key)
            meant = self._key(key, path)
            if not isinstance(values, list) or not values:
                self.wrong(path, f"must be a list of values, such as [1e-5, 3e-5], not {kind(values) if values != [] else 'an empty one'}")
                continue
            for number, value in enumerate(values):
                self._value(key, value, (*path, number))
            if name == "grid":
                self._refuse_twice(values, path)
            if meant in found:
                self.wrong(path, "is there twice, once with training. in front")
            elif meant is not None:
                found[meant] = tuple(values)
        return tuple(found.items())

    def _refuse_twice(self, values: list[Any], path: Path) -> None:
        first: dict[str | None, int] = {}
        for number, value in enumerate(values):
            known = first.setdefault(canonical(value), number)
            if known != number:
                self.wrong((*path, number), f"is the same value as item {known + 1}: {short(spoken(((str(path[-1]), value),)))}")

    def _zip(self, data: Mapping[str, Any]) -> Axes:
        axes = self._axes("zip", data)
        lengths = {key: len(values) for key, values in axes}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{key} has {count}" for key, count in lengths.items())
            self.wrong(("zip",), f"must have lists of one length: {counts}")
            return ()
        rows: dict[Any, int] = {}
        for number in range(next(iter(lengths.values()), 0)):
            row = tuple((key, values[number]) for key, values in axes)
            known = rows.setdefault(canonical_point(row), number)
            if known != number:
                self.wrong(("zip",), f"has the same values at item {known + 1} and item {number + 1}: {short(spoken(row))}")
        return axes

    def _points(self, name: str, data: Mapping[str, Any]) -> tuple[Values, ...]:
        written = data.get(name, [])
        if not isinstance(written, list) or (name in data and not written):
            example = '[{"learning_rate": 1e-5, "seed": 1}]'
            self.wrong((name,), f"must be a list of points, such as {example}, not {kind(written) if written != [] else 'an empty one'}")
            return ()
        found: list[Values] = []
        first: dict[Any, int] = {}
        for number, item in enumerate(written):
            values = self._point(item, (name, number))
            if values is None:
                continue
            known = first.setdefault(canonical_point(values), number)
            if known != number:
                self.wrong((name, number), f"is the same point as item {known + 1}: {short(spoken(values))}")
            if name == "exclude" and not values:
                self.wrong((name, number), "must hold a key: without one, it would drop every point")
            found.append(values)
        return tuple(found)

    def _point(self, item: Any, path: Path) -> Values | None:
        if not isinstance(item, dict):
            self.wrong(path, f"must hold keys and values, such as learning_rate: 1e-5, not {kind(item)}")
            return None
        found: dict[str, Any] = {}
        for key, value in item.items():
            meant = self._key(key, (*path, key))
            self._value(key, value, (*path, key))
            if meant in found:
                self.wrong((*path, key), "is there twice, once with training. in front")
            elif meant is not None:
                found[meant] = value
        return tuple(found.items())

    def _random(self, written: Any) -> Random | None:
        if written is None:
            return None
        return read_random(written, key=self._key, value=self._value, wrong=self.wrong)

    def _throttle(self, value: Any) -> int | None:
        if value is None:
            return None
        if not isinstance(value, str) or not re.fullmatch(r"[0-9]{1,9}", value) or int(value) == 0:
            self.wrong(("throttle",), f"must be how many tasks may run at a time, such as 4, not {short(spoken((('', value),))[1:])}")
            return None
        return int(value)

    def _word(self, data: Mapping[str, Any], key: str, allowed: tuple[str, ...]) -> str:
        value = data.get(key, allowed[0])
        if not isinstance(value, str) or value not in allowed:
            self.wrong((key,), f"must be {', '.join(allowed[:-1])} or {allowed[-1]}, not {short(spoken((('', value),))[1:])}")
            return allowed[0]
        return str(value)

    def _option(self, data: Mapping[str, Any]) -> str | None:
        value = data.get("option")
        if value is None:
            return None
        if not isinstance(value, str) or not _OPTION.match(value):
            self.wrong(("option",), "must be the name of an option of the script, without dashes, such as config")
            return None
        if data.get("pass") != "file":
            self.wrong(("option",), "goes with pass: file; it takes the name of the point's file")
        return str(value)

    def _together(self, sweep: Sweep, data: Mapping[str, Any]) -> None:
        """Look at what the parts say of one another."""
        if not any(name in data for name in (*_AXES, "include")):
            self.wrong((), "has no points: it needs grid, zip, list, random or include")
        if sweep.booleans == "flags" and sweep.passed != "arguments":
            self.wrong(("booleans",), f"is about arguments of the command line, and the sweep has pass: {sweep.passed}")
        seen: dict[str, str] = {}
        for axis, keys in _keys_of_axes(sweep):
            for key in keys:
                if key in seen:
                    self.wrong((axis,) if axis == "list" else (axis, key), f"has {key}, which {seen[key]} varies already")
                seen.setdefault(key, axis)
        for number, values in enumerate(sweep.exclude):
            for key, _ in values:
                if key not in seen:
                    self.wrong(("exclude", number, key), "is a key that no point has")
        config = sorted({key for key in sweep.keys if self._is_config(key)})
        for key in config:
            inside = next((other for other in config if other.startswith(f"{key}.")), None)
            if inside is not None:
                self.wrong((), f"varies {key} and {inside}, and the one holds the other")

    def _environment(self, sweep: Sweep, config_keys: frozenset[str]) -> None:
        """With `pass: environment`, arguments are variables, and the job has some of its own."""
        if sweep.passed != "environment":
            return
        from pydantic import TypeAdapter, ValidationError

        from hpctrain.config.environment import VariableNames

        adapter: TypeAdapter[tuple[str, ...]] = TypeAdapter(VariableNames)
        for key in sweep.keys:
            if key in config_keys:
                continue
            try:
                adapter.validate_python([argument_name(key)])
            except ValidationError as error:
                self.wrong((), f"has pass: environment, and {key} {error.errors()[0]['msg']}")


def _keys_of_axes(sweep: Sweep) -> Iterator[tuple[Literal["grid", "zip", "list", "random"], list[str]]]:
    yield "grid", [key for key, _ in sweep.grid]
    yield "zip", [key for key, _ in sweep.zipped]
    yield "list", list(dict.fromkeys(key for values in sweep.listed for key, _ in values))
    if sweep.random is not None:
        yield "random", [key for key, _ in sweep.random.values]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
