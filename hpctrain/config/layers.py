"""The layers of a job config, the strongest first: option, HPCTRAIN_* variable, ./config.yaml, user config, default.

Files and the environment are handed in as values; `resolve` only computes. Every error is found in one pass, and each names the
layer, and the place in it, that the value came from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpctrain.config.fields import ALIASES, BY_PATH, FIELDS, RIVALS, SYNONYMS, Field
from hpctrain.errors import UsageError
from hpctrain.yaml12 import Document, Plain, problems_in

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from hpctrain.config.schema import Config

KeyPath = tuple[str, ...]
#: Sections whose keys are the user's own, and mean something with no value too.
_FREE_FORM = (("training",), ("sbatch",), ("environment", "secrets"), ("sweep",), ("stages",), ("tune", "space"))


@dataclass(frozen=True, slots=True)
class Layer:
    """One source of values.

    Attributes:
        kind: `option`, `environment`, `file` or `profile`.
        title: how messages call it: a file name, `the options`, `the environment`, a cluster profile.
        data: nested like config.yaml.
        origins: for each path, the words that tell where it was written.
    """

    kind: str
    title: str
    data: Mapping[str, Any]
    origins: Mapping[KeyPath, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resolved:
    """A validated config, and where each of its values was written (`config.yaml:12:3`, `--nodes`); what is not there is a default."""

    config: Config
    origins: Mapping[KeyPath, str]

    def origin(self, *path: str) -> str:
        """Return where the value at `path` was written."""
        return self.origins.get(path, "default")


def from_document(document: Document, title: str) -> Layer:
    """Return the layer of a config file."""
    origins = {tuple(str(part) for part in path): str(place) for path, place in document.places.items()}
    return Layer("file", title, document.data, origins)


def from_environment(environment: Mapping[str, str]) -> Layer:
    """Return the layer of the HPCTRAIN_* variables that name a key; empty ones count as not set."""
    data: dict[str, Any] = {}
    origins: dict[KeyPath, str] = {}
    for entry in FIELDS:
        for variable in entry.variables:
            value = environment.get(variable, "")
            if value:
                _put(data, entry.path, Plain(value))
                origins[entry.path] = variable
    return Layer("environment", "the environment", data, origins)


def from_options(options: Mapping[KeyPath, str], sbatch: Sequence[str]) -> Layer:
    """Return the layer of the command line; `sbatch` holds the `key=value` words of --sbatch."""
    data: dict[str, Any] = {}
    origins: dict[KeyPath, str] = {}
    for path, value in options.items():
        _put(data, path, Plain(value))
        origins[path] = BY_PATH[path].option
    for word in sbatch:
        key, equals, value = word.partition("=")
        name = key.removeprefix("--")
        _put(data, ("sbatch", name), Plain(value) if equals else None)
        origins["sbatch",] = origins["sbatch", name] = "--sbatch"
    return Layer("option", "the options", data, origins)


def written(layers: Sequence[Layer], path: KeyPath) -> Any:
    """Return what the strongest of `layers` says at `path`, as it was written and unchecked; None where none does."""
    for layer in layers:
        value: Any = layer.data
        for names in _spellings(path):
            value = layer.data
            for name in names:
                value = value.get(name) if isinstance(value, dict) else None
            if value is not None:
                return value
    return None


def _spellings(path: KeyPath) -> list[KeyPath]:
    return [path, *(alias for alias, meant in ALIASES.items() if meant == path)]


def resolve(layers: Sequence[Layer], *, again: str = "hpctrain render") -> Resolved:
    """Return the validated config of `layers`, the strongest first; `again` is the command that an error tells to type.

    Raises:
        UsageError: every problem of every layer at once.
    """
    from pydantic import ValidationError

    from hpctrain.config.schema import Config

    merged = _Merged()
    for layer in reversed(layers):
        merged.lay(layer)
    problems = merged.problems
    try:
        config = Config.model_validate(merged.data)
    except ValidationError as error:
        problems = problems + [line for details in error.errors() for line in _problems(details, merged)]
    if problems:
        raise _usage_error(problems, again)
    sections = {path[:end] for path in merged.origins for end in range(1, len(path))}
    return Resolved(config, {path: origin.where for path, origin in merged.origins.items() if path not in sections})


def _put(data: dict[str, Any], path: KeyPath, value: Any) -> None:
    for part in path[:-1]:
        data = data.setdefault(part, {})
    data[path[-1]] = value


@dataclass(frozen=True, slots=True)
class _Origin:
    layer: Layer
    where: str


class _Merged:
    """The layers, laid over one another from the weakest to the strongest, and the origin of what is on top."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self.origins: dict[KeyPath, _Origin] = {}
        self.problems: list[tuple[Layer | None, str]] = []

    def lay(self, layer: Layer) -> None:
        self._section(self.data, layer.data, (), layer)

    def origin(self, path: KeyPath) -> _Origin | None:
        """Return where `path`, or the nearest section around it, was written."""
        return next((self.origins[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.origins), None)

    def _section(self, target: dict[str, Any], source: Mapping[str, Any], prefix: KeyPath, layer: Layer) -> None:
        free_form = any(prefix[: len(section)] == section for section in _FREE_FORM)
        for written, value in source.items():
            path = ALIASES.get((*prefix, written), (*prefix, written))
            key, where = path[-1], _where(layer, (*prefix, written))
            if key != written and key in source:
                self.problems.append((layer, f"{where}: {written} and {key} are the same key"))
            elif isinstance(value, dict) and not free_form:
                self.origins[path] = _Origin(layer, where)
                if not isinstance(target.get(key), dict):
                    target[key] = {}
                self._section(target[key], value, path, layer)
            elif value is not None or free_form:  # `partition:` with nothing behind it leaves the weaker layer's value
                self.origins[path] = _Origin(layer, where)
                target[key] = value
                self._drop_rivals(target, path, layer)

    def _drop_rivals(self, target: dict[str, Any], path: KeyPath, layer: Layer) -> None:
        """Let `--mem-per-cpu` on the command line replace `mem:` of a weaker layer; within one layer, the two contradict each other."""
        for group, reason in RIVALS.items():
            for rival in group - {path} if path in group else ():
                if rival not in self.origins:
                    continue
                if self.origins[rival].layer is layer:
                    where = self.origins[path].where
                    self.problems.append((layer, f"{where}: {path[-1]} and {rival[-1]} exclude each other: {reason}"))
                else:
                    del target[rival[-1]], self.origins[rival]


def _where(layer: Layer, path: KeyPath) -> str:
    while path and path not in layer.origins:
        path = path[:-1]
    return layer.origins.get(path, layer.title)


def _problems(details: ErrorDetails, merged: _Merged) -> list[tuple[Layer | None, str]]:
    path = tuple(str(part) for part in details["loc"])
    context = details.get("ctx", {})
    keys: Mapping[str, str] = context.get("keys", {})
    paths: Mapping[str, KeyPath] = context.get("paths", {})
    if keys:  # the free-form sections are validated whole, and tell of several keys at once
        return [_problem((*path, key), message, merged, at=(*path, *paths.get(key, (key,)))) for key, message in keys.items()]
    return [_problem(path, _unknown_key(path) if details["type"] == "extra_forbidden" else details["msg"], merged)]


def _problem(path: KeyPath, message: str, merged: _Merged, *, at: KeyPath | None = None) -> tuple[Layer | None, str]:
    """Return the layer to blame, and the sentence; `at` is the exact path, where `path` is only what messages call it."""
    origin = merged.origin(at or path)
    layer, where = (origin.layer, origin.where) if origin is not None else (None, "config")
    if layer is not None and at is not None and layer.kind == "file":
        where = _where(layer, at)
    if message.startswith("unknown key"):
        return layer, f"{where}: {message}"
    if layer is not None and layer.kind == "option" and path in BY_PATH:
        return layer, f"{where} {message}"
    return layer, f"{where}: {_spoken(path)} {message}"


def _spoken(path: KeyPath) -> str:
    """Return how messages call a path: `nodes`, `'mail-type' in sbatch`, `modules: item 2`."""
    if not path:
        return "config"
    if path[-1].isdecimal() and len(path) > 1:
        return f"{path[-2]}: item {int(path[-1]) + 1}"
    section = path[:-1]
    named = section and (section[0] in ("sbatch", "training") or section[-1] in ("env", "secrets", "profiles"))
    return f"{path[-1]!r} in {section[-1]}" if named else path[-1]


def _unknown_key(path: KeyPath) -> str:
    """Return the sentence on an unknown key, with the nearest known one: here, else in another section."""
    import difflib

    sections = _known_keys()
    here, word = sections.get(path[:-1], {}), path[-1]
    others = {
        written: (key, ".".join(section) or "the top level")
        for section, keys in sections.items() if keys is not here
        for written, key in keys.items()
    }  # fmt: skip
    what = f"unknown key {word!r}" + (f" in {'.'.join(path[:-1])}" if path[:-1] else "")
    if word in others and others[word][0] == word:
        return f"{what}; it belongs in {_place(others[word][1], word)}"
    if word not in others and not path[:-1] and _of_training(word):
        return f"{what}; it belongs in training, indented below it"
    for close in difflib.get_close_matches(word, here, n=1, cutoff=0.6):
        return f"{what}; did you mean {here[close]!r}?"
    for close in difflib.get_close_matches(word, others, n=1, cutoff=0.75):
        return f"{what}; did you mean {others[close][0]!r}, in {others[close][1]}?"
    return f"{what}; known are {', '.join(sorted(set(here.values())))}"


def _place(section: str, word: str) -> str:
    """Return the section that a key belongs in, and how it is written there: the likeliest mistake is the indentation."""
    if section == "the top level":
        return f"{section}, not indented"
    both = f"training or {section}" if _of_training(word) else section
    return f"{both}, indented below it"


def _of_training(word: str) -> bool:
    """Whether a shipped training has an option of that name."""
    from hpctrain.jobs.check import known_arguments

    return any(word in known_arguments.known(task) for task in ("sft", "classify"))


def _known_keys() -> dict[KeyPath, dict[str, str]]:
    """Return for each section the words that people write, and the key that each stands for."""
    from hpctrain.config import environment, schema, tune
    from hpctrain.fieldtypes import Section

    models: dict[KeyPath, type[Section]] = {
        (): schema.Config, ("resources",): schema.Resources, ("environment",): environment.Environment,
        ("environment", "container"): environment.Container, ("launch",): environment.Launch, ("restart",): schema.Restart,
        ("tune",): tune.Tune, ("tune", "pruner"): tune.PrunerSection,
    }  # fmt: skip
    known: dict[KeyPath, dict[str, str]] = {section: {name: name for name in model.model_fields} for section, model in models.items()}
    for alias, path in (ALIASES | SYNONYMS).items():
        known[path[:-1]][alias[-1]] = path[-1]
    return known


def _usage_error(found: Sequence[tuple[Layer | None, str]], again: str) -> UsageError:
    problems = sorted(found, key=lambda entry: _line_number(entry[1]))
    titles = list(dict.fromkeys(layer.title for layer, _ in problems if layer is not None)) or ["the config"]
    lines = tuple(line for _, line in problems)
    files = [layer.title for layer, _ in problems if layer is not None and layer.kind == "file"]
    if files:
        fix = f"edit {files[0]}, then run: {again}"
    else:
        examples = [f"{entry.option} {entry.example}" for entry in FIELDS if any(_blames(line, entry) for line in lines)]
        fix = " ".join([again, *examples]) if examples else f"{again} --help"
    return UsageError(problems_in(len(problems), " and ".join(titles)), details=lines, fix=fix)


def _line_number(problem: str) -> int:
    """Return the line that a problem of a file is in, so that a person can mend it from top to bottom; 0 for all others."""
    place = re.match(r"[^:]*:([0-9]+):[0-9]+: ", problem)
    return int(place[1]) if place is not None else 0


def _blames(line: str, entry: Field) -> bool:
    return line.startswith((f"{entry.option} ", f"{entry.option}:", *(f"{variable}:" for variable in entry.variables)))
