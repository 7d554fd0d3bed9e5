"""`sweep:` of config.yaml, and sweep files: parsed to a `Sweep`, with all problems reported at once;
expanded into points (parameter combinations), which are grouped by script, and their table.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from hpctrain.clusters.fieldtypes import Text, matching, variable_problem, whole
from hpctrain.config import layers
from hpctrain.config.arguments import argument_words, is_secret, word
from hpctrain.config.fields import FIELDS, PointForm
from hpctrain.config.spec import short_digest
from hpctrain.errors import UsageError
from hpctrain.slurm.notations.array import compress, parse
from hpctrain.util import shell, text, yaml12
from hpctrain.util.schema import NO_KEYS, KeyPath, Problem, Section, as_text

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*(?<!\.)\Z")
_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*\Z")
#: Keys that all jobs of a sweep share: those of the launch, the site, and the directory of the
#: table.
_NOT_SWEPT = frozenset({"sweep", "stages", "array", "cluster", "chdir"})
#: A character beyond U+FFFF in JSON (RFC 8259, 7), which YAML does not support.
_PAIR = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..")
#: Keys and values in the order they were written. A value is `Plain`, `str`, None, or a list or
#: mapping of these.
Values = tuple[tuple[str, Any], ...]
#: Keys, each with the values that it takes in turn.
Axes = tuple[tuple[str, tuple[Any, ...]], ...]


def argument_name(key: str) -> str:
    """Return the training argument of `key`: sweeps use `training.script` for an argument `script`,
    as `script` is a key of config.yaml.
    """
    return key.removeprefix("training.")


@cache
def _config_keys() -> tuple[frozenset[str], frozenset[str]]:
    from hpctrain.config.schema import Config

    sections = {
        name
        for name in Config.fields()
        if isinstance(getattr(Config, name), Section) or getattr(Config, name) is NO_KEYS
    }
    single = {entry.path[0] for entry in FIELDS if len(entry.path) == 1}
    return frozenset(sections - _NOT_SWEPT), frozenset(single - _NOT_SWEPT)


def _is_config(key: str) -> bool:
    sections, single = _config_keys()
    head, dot, _ = key.partition(".")
    return key in single or (bool(dot) and head != "training" and head in sections)


def _problem(written: str, value: Any) -> str | None:
    if not _KEY.match(argument_name(written)):
        return "is not a key such as learning_rate or resources.nodes"
    if written.partition(".")[0] in _NOT_SWEPT:
        return f"cannot vary; an argument of that name is written training.{written}"
    if written in _config_keys()[0]:
        return f"is a section: write {written}.KEY, or, for an argument, training.{written}"
    if is_secret(argument_name(written), value):
        return (
            "looks like a secret, and would be readable in the table of the sweep; put it into a file,"
            " chmod 600, and name that under environment.secrets"
        )
    return None


def _values(written: Any, *, lists: bool = False) -> Values:
    if not isinstance(written, dict):
        raise Problem("must hold keys, each with its value or list of values")
    found: dict[str, Any] = {}
    wrong: list[tuple[KeyPath, str]] = []
    for key, value in written.items():
        # `training.seed` is the argument `seed`, unless config.yaml has a key of that name.
        meant = key if _is_config(argument_name(key)) else argument_name(key)
        message = _problem(key, value)
        if message is None and meant in found:
            message = "is there twice, once with training. in front"
        if message is None and lists and not (isinstance(value, list) and value):
            message = "must be a list with at least one value, such as [1e-5, 3e-5]"
        if message is not None:
            wrong.append(((key,), message))
        found[meant] = tuple(value) if lists and isinstance(value, list) else value
    if wrong:
        raise Problem(below=wrong)
    return tuple(found.items())


def _axes(written: Any) -> Axes:
    return _values(written, lists=True)


def _zip(written: Any) -> Axes:
    axes = _axes(written)
    if len({len(values) for _, values in axes}) > 1:
        counts = ", ".join(f"{key} has {len(values)}" for key, values in axes)
        raise Problem(f"must have lists of one length: {counts}")
    return axes


class Sweep(Section):
    """The varied parameters, and how they are passed to the script.

    Attributes:
        grid: every combination of these.
        zip_: combined by position: the first values, the second ones, and so on; all of one length.
        list_: complete points.
        include: points that are added at the end.
        exclude: removes points that match all values of an entry.
        throttle: maximum number of running tasks of an array; None: no limit.
        pass_: how arguments are passed to the script: `--key value`, environment variables, or a
            JSON file.
        booleans: in arguments: `--flag true` and `--flag false` (values), or `--flag` and nothing
            (flags).
        option: for `file`: the option for the file's name, without dashes.
    """

    grid: Annotated[Axes, _axes] = ()
    zip_: Annotated[Axes, _zip] = ()
    list_: tuple[Annotated[Values, _values], ...] = ()
    include: tuple[Annotated[Values, _values], ...] = ()
    exclude: tuple[Annotated[Values, _values], ...] = ()
    throttle: Annotated[int, whole(1, 10**9 - 1)] | None = None
    pass_: PointForm = "arguments"
    booleans: Literal["values", "flags"] = "values"
    option: Annotated[Text, matching(_OPTION, "an option's name without dashes")] | None = None

    @property
    def axes(self) -> dict[str, list[str]]:
        """The keys that each part varies."""
        return {
            "grid": [key for key, _ in self.grid],
            "zip": [key for key, _ in self.zip_],
            "list": list(dict.fromkeys(key for values in self.list_ for key, _ in values)),
        }

    @property
    def keys(self) -> tuple[str, ...]:
        """All varied keys, in the order of the points' own keys."""
        keys = [key for names in self.axes.values() for key in names]
        keys += [key for values in self.include for key, _ in values]
        return tuple(dict.fromkeys(keys))

    @property
    def config_keys(self) -> frozenset[str]:
        """The varied keys that are keys of config.yaml; all others are arguments of the script."""
        return frozenset(key for key in self.keys if _is_config(key))

    def problems(self) -> Iterator[tuple[KeyPath, str]]:
        """Yield contradictions between the parts."""
        if not any((self.grid, self.zip_, self.list_, self.include)):
            yield (), "has no combinations: it needs grid, zip, list or include"
        seen: dict[str, str] = {}
        for axis, keys in self.axes.items():
            for key in keys:
                if seen.setdefault(key, axis) != axis:
                    path = (axis,) if axis == "list" else (axis, key)
                    yield path, f"has {key}, which {seen[key]} varies already"
        if self.pass_ == "environment":
            for key in set(self.keys) - self.config_keys:
                message = variable_problem(argument_name(key))
                if message is not None:
                    yield (), f"has pass: environment, and {key} {message}"


def _sweep_or_file(value: Any) -> Any:
    if isinstance(value, str):
        return as_text(value)
    return {"list": value} if isinstance(value, list) else value


#: The type of `Config.sweep`: a checked sweep, or the name of a sweep file (`load_sweep`).
SweepField = Annotated[Sweep | str | None, _sweep_or_file]


def load_sweep(path: Path, title: str, *, again: str) -> Sweep:
    """Load the sweep file at `path`, YAML or JSON.

    `title` is its name in messages, `again` the command that errors suggest.

    Raises:
        UsageError: it cannot be read, or all of its problems.
    """
    text = yaml12.read_text(path, title, missing="name a file that exists with --sweep")
    return sweep_of_text(text, title, again=again)


def sweep_of_text(text: str, title: str, *, again: str) -> Sweep:
    """Return the sweep in `text`; `title` is the file's name.

    Raises:
        UsageError: all of its problems.
    """
    plain = _PAIR.sub(lambda pair: str(json.loads(f'"{pair[0]}"')), text)
    value, places = yaml12.compose(plain, title)
    is_list = isinstance(value, list)
    try:
        return Sweep.read({"list": value} if is_list else value)
    except Problem as error:
        found = error.found
    prefix = ("list",) if is_list else ()
    origins = {(*prefix, *path): place for path, place in places.items()}
    layer = layers.Layer("file", title, {}, origins)
    lines = layers.lines([(layer, path or ("sweep",), message) for path, message in found])
    hint = f"edit {title}, then run: {again}"
    raise UsageError(yaml12.problems_in(len(lines), title), details=tuple(lines), hint=hint)


# -- points ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One point: its index in the complete sweep, counted from 0, and its values."""

    index: int
    values: Values


def canonical(value: Any) -> str:
    """Return a normalized text, equal for equivalent values: `1e-5` and `0.00001`, quoted or not; 1
    and 1.0 differ.
    """
    plain = yaml12.Plain(value) if isinstance(value, str) else value
    return json.dumps(yaml12.to_json_value(plain), sort_keys=True)


def canonical_point(values: Values) -> frozenset[tuple[str, str]]:
    """Return a value that is equal for equivalent points, regardless of the order of their keys."""
    return frozenset((key, canonical(value)) for key, value in values)


def shown(value: Any) -> str:
    """Format a value for tables and messages: as written, lists and mappings as JSON."""
    if value is None:
        return "null"
    return (
        str(value)
        if isinstance(value, str)
        else json.dumps(yaml12.to_json_value(value), ensure_ascii=False)
    )


def spoken(values: Values) -> str:
    """Return `learning_rate=1e-5 seed=3`, for messages."""
    return " ".join(f"{key}={shown(value)}" for key, value in values) or "(no values)"


#: Upper limit to catch mistakes: the product of a few lists grows fast.
MAX_POINTS = 100_000
#: Maximum number of duplicate points in a message.
_SHOWN = 20


def expand(sweep: Sweep) -> list[SweepPoint]:
    """Return the points of `sweep`.

    Raises:
        UsageError: too many points, none, a duplicate, or an `exclude` that matches nothing.
    """
    axes: list[list[Values]] = [[((key, value),) for value in values] for key, values in sweep.grid]
    if sweep.zip_:
        names = [key for key, _ in sweep.zip_]
        together = zip(*(values for _, values in sweep.zip_), strict=True)
        axes.append([tuple(zip(names, row, strict=True)) for row in together])
    if sweep.list_:
        axes.append(list(sweep.list_))
    count = len(sweep.include) + (math.prod(map(len, axes)) if axes else 0)
    if count > MAX_POINTS:
        raise UsageError(
            f"the sweep has {count} combinations, and the limit is {MAX_POINTS}",
            hint="shorten the lists under grid, or write the combinations that you need under list",
        )
    rows = itertools.product(*axes) if axes else ()
    crossed = [tuple(itertools.chain.from_iterable(parts)) for parts in rows]
    kept = [*_without(crossed, sweep.exclude), *sweep.include]
    if not kept:
        what = "the sweep has no combinations: exclude removes all of them"
        raise UsageError(what, hint="shorten exclude")
    first: dict[frozenset[tuple[str, str]], int] = {}
    twice = []
    for index, values in enumerate(kept):
        known = first.setdefault(canonical_point(values), index)
        if known != index:
            twice.append(
                f"combination {index} is the same as combination {known}: {spoken(values)}"
            )
    if twice:
        what = f"the sweep has {text.count(len(twice), 'combination')} twice"
        raise UsageError(what, details=tuple(twice[:_SHOWN]), hint="keep one of each")
    return [SweepPoint(index, values) for index, values in enumerate(kept)]


def _without(points: list[Values], exclude: tuple[Values, ...]) -> list[Values]:
    rules = [canonical_point(values) for values in exclude]
    keys = {key for values in exclude for key, _ in values}
    used: set[int] = set()
    kept = []
    for point in points:
        relevant = canonical_point(tuple((key, value) for key, value in point if key in keys))
        matching = {number for number, rule in enumerate(rules) if rule <= relevant}
        used |= matching
        if not matching:
            kept.append(point)
    idle = [number for number in range(len(rules)) if number not in used]
    if idle:
        raise UsageError(
            "an item of exclude matches no combination",
            details=tuple(f"exclude: item {each + 1}: {spoken(exclude[each])}" for each in idle),
            hint="write its values as hpctrain submit --dry-run shows them, or remove the item",
        )
    return kept


#: Each group is its own script and submission.
MAX_GROUPS = 200


@dataclass(frozen=True, slots=True)
class Group:
    """Points that share a script.

    Attributes:
        overrides: the keys of config.yaml that these points set, such as `("resources.nodes",
            "2")`.
        points: in order; indices refer to the complete sweep.
    """

    overrides: Values
    points: tuple[SweepPoint, ...]

    @property
    def indices(self) -> list[int]:
        """The indices of its points."""
        return [point.index for point in self.points]


def groups(sweep: Sweep, points: Sequence[SweepPoint]) -> list[Group]:
    """Group `points` by their overrides, in the order of their first points.

    Raises:
        UsageError: more than `MAX_GROUPS`.
    """
    config_keys = sweep.config_keys
    if not config_keys:
        return [Group((), tuple(points))] if points else []
    found: dict[frozenset[tuple[str, str]], tuple[Values, list[SweepPoint]]] = {}
    for point in points:
        overrides = tuple(
            (key, value) for key, value in point.values if key in config_keys and value is not None
        )
        found.setdefault(canonical_point(overrides), (overrides, []))[1].append(point)
    if len(found) > MAX_GROUPS:
        raise UsageError(
            f"the sweep would need {len(found)} scripts, and {MAX_GROUPS} is the most",
            hint="vary arguments of the training instead of keys of config.yaml",
        )
    return [Group(overrides, tuple(members)) for overrides, members in found.values()]


#: Slurm's default (man slurm.conf: MaxArraySize).
DEFAULT_MAX_ARRAY_SIZE = 1001


@dataclass(frozen=True, slots=True)
class ArrayPart:
    """One array job.

    Attributes:
        offset: added to SLURM_ARRAY_TASK_ID.
        spec: the value of `--array`, such as `0,3,7-9%4`.
        count: number of tasks.
    """

    offset: int
    spec: str
    count: int


def arrays(
    indices: Sequence[int], max_array_size: int, throttle: int | None = None
) -> list[ArrayPart]:
    """Return the smallest number of arrays that run the points `indices`; the first has offset 0 if
    possible.

    Args:
        indices: of points, in any order.
        max_array_size: MaxArraySize of the site.
        throttle: maximum number of running tasks, for each array.
    """
    parts: list[ArrayPart] = []
    waiting = sorted(set(indices))
    while waiting:
        offset = 0 if waiting[0] < max_array_size else waiting[0]
        count = bisect_left(waiting, offset + max_array_size)
        spec = compress((index - offset for index in waiting[:count]), limit=throttle)
        parts.append(ArrayPart(offset, spec, count))
        waiting = waiting[count:]
    return parts


def selected(text: str, count: int) -> tuple[list[int], int | None]:
    """Return the points that `--array 0,3,7-9%2` selects out of `count`, sorted, and the throttle,
    if any.

    Raises:
        UsageError: invalid syntax, or a point that does not exist.
    """
    hint = f"the combinations are 0 to {count - 1}, such as --array 0,3,7-9%2"
    try:
        found = parse(text)
    except ValueError as error:
        raise UsageError(f"--array {text}: {error}", hint=hint) from error
    if missing := [index for index in found.indices if index >= count]:
        what = f"--array {text}: there is no combination {compress(missing)}"
        raise UsageError(what, hint=hint)
    return list(found.indices), found.limit


#: Argument of `export` for a point without variables: a bare `export` would print all of them to
#: the log.
_NOTHING = "HPCTRAIN_POINT"
#: A number in JSON (RFC 8259), which is written unchanged: 1e-5 stays 1e-5.
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?\Z")


@dataclass(frozen=True, slots=True)
class PointTable:
    """The table as text, and its file name with a digest: equal sweeps share a file, and a queued
    job keeps its own.
    """

    text: str
    name: str


def swept_arguments(sweep: Sweep) -> frozenset[str]:
    """Return the training arguments that are in the table, and not in the script; empty unless
    `pass: arguments`.
    """
    if sweep.pass_ != "arguments":
        return frozenset()
    config_keys = sweep.config_keys
    return frozenset(argument_name(key) for key in sweep.keys if key not in config_keys)


def table(
    sweep: Sweep,
    points: Sequence[SweepPoint],
    *,
    training: Mapping[str, Any] = MappingProxyType({}),
    home: str | None = None,
) -> PointTable:
    """Return the table of ALL points of a sweep, including those that are not run.

    Args:
        sweep: that the points are from.
        points: from 0, without gaps.
        training: the config's own arguments: the default for points without a value for a swept
            argument.
        home: replaces a leading `~` in words and JSON, as in config.yaml; the shell does not,
            because words are quoted.

    Raises:
        UsageError: a value cannot be on a command line.
    """
    config_keys = sweep.config_keys
    names = {key: argument_name(key) for key in sweep.keys if key not in config_keys}
    swept = swept_arguments(sweep)
    fallback = {name: value for name, value in training.items() if name in swept}
    lines = []
    for point in points:
        values = [(key, _at_home(value, sweep, home)) for key, value in point.values]
        given = {names[key]: value for key, value in values if key in names}
        for name, value in fallback.items():
            given.setdefault(name, _at_home(value, sweep, home))
        try:
            lines.append(f"{json_text(dict(values))}\t{_words(sweep, given)}\n")
        except ValueError as error:
            raise UsageError(
                f"combination {point.index}: {error}", hint="change its values in the sweep"
            ) from error
    text = "".join(lines)
    return PointTable(text, f"points-{short_digest(text)}.tsv")


def _words(sweep: Sweep, values: Mapping[str, Any]) -> str:
    words: list[str] = []
    if sweep.pass_ == "file":
        return ""
    if sweep.pass_ == "environment":
        words = [
            f"{name}={shell.quote(word(value))}"
            for name, value in values.items()
            if value is not None
        ]
        return " ".join(words) or _NOTHING
    for name, value in values.items():
        flag = isinstance(value, yaml12.Plain) and value.lower() in ("true", "false")
        if sweep.booleans == "flags" and flag:
            words += [f"--{name}"] if value.lower() == "true" else []
        else:
            words += map(shell.quote, argument_words([(name, value)]))
    return " ".join(words)


def _at_home(value: Any, sweep: Sweep, home: str | None) -> Any:
    """Replace a leading `~` by the home directory in each word or value."""
    if isinstance(value, list) and sweep.pass_ != "environment":  # there, a list is one word
        return [_at_home(item, sweep, home) if isinstance(item, str) else item for item in value]
    if home is not None and isinstance(value, str) and (value == "~" or value.startswith("~/")):
        return home + value[1:]
    return value


def json_text(value: Any) -> str:
    """Return a value as JSON in ASCII, on one line."""
    if isinstance(value, yaml12.Plain) and _JSON_NUMBER.match(value):
        return str(value)
    if isinstance(value, dict):
        items = (f"{json.dumps(key)}: {json_text(item)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, list):
        return "[" + ", ".join(json_text(item) for item in value) + "]"
    return json.dumps(yaml12.to_json_value(value))
