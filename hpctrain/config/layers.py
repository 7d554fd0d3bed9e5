"""The layers of a job config, highest precedence first: option, HPCTRAIN_* variable, ./config.yaml,
user config, the cluster's profile, default.

Files and the environment are passed in as values; `resolve` only computes. All errors are reported
at once, each with its layer and the place in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.config import arguments as training_arguments
from hpctrain.config.fields import ALIASES, BY_PATH, FIELDS, RIVALS, SYNONYMS
from hpctrain.errors import UsageError
from hpctrain.util import yaml12
from hpctrain.util.schema import KeyPath, Problem, known_keys, nearest, sentence, unknown_key

if TYPE_CHECKING:
    from hpctrain.config.schema import Config

#: Sections with keys of the user's choice, which are valid without a value.
_FREE_FORM = (
    ("training",),
    ("sbatch",),
    ("environment", "secrets"),
    ("sweep",),
    ("stages",),
    ("tune", "space"),
)


@dataclass(frozen=True, slots=True)
class Layer:
    """One source of values.

    Attributes:
        kind: `option`, `environment`, `file` or `profile`.
        title: its name in messages: a file name, `the options`, `the environment`, a cluster
            profile.
        data: nested like config.yaml.
        origins: path → where the value was written, as text.
    """

    kind: str
    title: str
    data: Mapping[str, Any]
    origins: Mapping[KeyPath, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """A validated config, and where each of its values was written (`config.yaml:12:3`, `--nodes`);
    values without an origin are defaults.
    """

    config: Config
    origins: Mapping[KeyPath, str]


def from_document(document: yaml12.YamlDocument, title: str) -> Layer:
    """Return the layer of a config file."""
    return Layer("file", title, document.data, document.places)


def from_environment(environment: Mapping[str, str]) -> Layer:
    """Return the layer of the HPCTRAIN_* variables that name a key; empty ones count as not set."""
    data: dict[str, Any] = {}
    origins: dict[KeyPath, str] = {}
    for entry in FIELDS:
        for variable in entry.variables:
            value = environment.get(variable, "")
            if value:
                put(data, entry.path, yaml12.Plain(value))
                origins[entry.path] = variable
    return Layer("environment", "the environment", data, origins)


def from_options(options: Mapping[KeyPath, str], sbatch: Sequence[str]) -> Layer:
    """Return the layer of the command line; `sbatch` holds the `key=value` words of --sbatch."""
    data: dict[str, Any] = {}
    origins: dict[KeyPath, str] = {}
    for path, value in options.items():
        put(data, path, yaml12.Plain(value))
        origins[path] = BY_PATH[path].option
    for word in sbatch:
        key, equals, value = word.partition("=")
        name = key.removeprefix("--")
        put(data, ("sbatch", name), yaml12.Plain(value) if equals else None)
        origins["sbatch",] = origins["sbatch", name] = "--sbatch"
    return Layer("option", "the options", data, origins)


def written(layers: Sequence[Layer], path: KeyPath) -> Any:
    """Return the value at `path` in the highest layer that has one, unchecked and as written; None
    if none does.
    """
    spellings = [path, *(alias for alias, meant in ALIASES.items() if meant == path)]
    for layer in layers:
        for names in spellings:
            value: Any = layer.data
            for name in names:
                value = value.get(name) if isinstance(value, dict) else None
            if value is not None:
                return value
    return None


def resolve(layers: Sequence[Layer], *, again: str = "hpctrain render") -> ResolvedConfig:
    """Validate and merge `layers`, highest precedence first; `again` is the command that errors
    suggest.

    Raises:
        UsageError: every problem of every layer at once.
    """
    from hpctrain.config.schema import Config

    merged = _Merged()
    for layer in reversed(layers):
        merged.lay(layer)
    problems = merged.problems
    try:
        config = Config.read(merged.data, _unknown_key)
    except Problem as error:
        problems = problems + [merged.blamed(path, message) for path, message in error.found]
    if problems:
        raise _usage_error(problems, again)
    sections = {path[:end] for path in merged.origins for end in range(1, len(path))}
    return ResolvedConfig(
        config,
        {path: origin.where for path, origin in merged.origins.items() if path not in sections},
    )


def put(data: dict[str, Any], path: KeyPath, value: Any) -> None:
    """Set a value at a path, creating the sections around it."""
    for part in path[:-1]:
        data = data.setdefault(part, {})
    data[path[-1]] = value


@dataclass(frozen=True, slots=True)
class _Origin:
    layer: Layer
    where: str


class _Merged:
    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self.origins: dict[KeyPath, _Origin] = {}
        self.problems: list[tuple[Layer | None, str]] = []

    def lay(self, layer: Layer) -> None:
        self._section(self.data, layer.data, (), layer)

    def blamed(self, path: KeyPath, message: str) -> tuple[Layer | None, str]:
        """Return the layer that caused a problem at `path`, and the message."""
        origin = nearest(self.origins, path)
        if origin is None:
            return None, f"config: {sentence(path, message)}"
        layer, where = origin.layer, origin.where
        if layer.kind == "file":
            where = place(layer, path)
        if layer.kind == "option" and path in BY_PATH:
            return layer, f"{where} {message}"
        return layer, f"{where}: {sentence(path, message)}"

    def _section(
        self, target: dict[str, Any], source: Mapping[str, Any], prefix: KeyPath, layer: Layer
    ) -> None:
        free_form = any(prefix[: len(section)] == section for section in _FREE_FORM)
        for written, value in source.items():
            path = ALIASES.get((*prefix, written), (*prefix, written))
            key, where = path[-1], place(layer, (*prefix, written))
            if key != written and key in source:
                self.problems.append((layer, f"{where}: {written} and {key} are the same key"))
            elif isinstance(value, dict) and not free_form:
                self.origins[path] = _Origin(layer, where)
                if not isinstance(target.get(key), dict):
                    target[key] = {}
                self._section(target[key], value, path, layer)
            elif (
                value is not None or free_form
            ):  # `partition:` without a value keeps the lower layer's value
                self.origins[path] = _Origin(layer, where)
                target[key] = value
                self._drop_rivals(target, path, layer)

    def _drop_rivals(self, target: dict[str, Any], path: KeyPath, layer: Layer) -> None:
        """Let `--mem-per-cpu` on the command line replace `mem:` of a lower layer; within one
        layer, they are mutually exclusive.
        """
        for group, reason in RIVALS.items():
            for rival in group - {path} if path in group else ():
                if rival not in self.origins:
                    continue
                if self.origins[rival].layer is layer:
                    where = self.origins[path].where
                    self.problems.append(
                        (
                            layer,
                            f"{where}: {path[-1]} and {rival[-1]} are mutually exclusive: {reason}",
                        )
                    )
                else:
                    del target[rival[-1]], self.origins[rival]


def place(layer: Layer, path: KeyPath) -> str:
    """Return where `path`, or the nearest section around it, was written."""
    return nearest(layer.origins, path) or layer.title


def lines(found: Iterable[tuple[Layer, KeyPath, str]]) -> list[str]:
    """Return the problems, each with its place, sorted by line."""
    return sorted(
        (f"{place(layer, path)}: {sentence(path, message)}" for layer, path, message in found),
        key=yaml12.position,
    )


def _unknown_key(path: KeyPath) -> str:
    from hpctrain.config.schema import Config

    training = [name for task in ("sft", "classify") for name in training_arguments.known(task)]
    # A word that is both a key and an argument belongs to the key's section.
    sections = {("training",): training} | known_keys(Config)
    return unknown_key(path, sections, ALIASES | SYNONYMS)


def _usage_error(found: Sequence[tuple[Layer | None, str]], again: str) -> UsageError:
    problems = sorted(found, key=lambda entry: yaml12.position(entry[1]))
    titles = list(dict.fromkeys(layer.title for layer, _ in problems if layer is not None)) or [
        "the config"
    ]
    files = [layer.title for layer, _ in problems if layer is not None and layer.kind == "file"]
    return UsageError(
        yaml12.problems_in(len(problems), " and ".join(titles)),
        details=tuple(line for _, line in problems),
        fix=None if files else f"{again} --help",
        hint=f"edit {files[0]}, then run: {again}" if files else None,
    )


def gather(
    *,
    options: Mapping[KeyPath, str],
    sbatch: Sequence[str],
    config: str | None,
    directory: Path,
    environment: Mapping[str, str],
) -> list[Layer]:
    """Return the layers of a job config, highest precedence first.

    Args:
        options: of the command line, by path.
        sbatch: the `key=value` words of --sbatch.
        config: the file of --config; without it ./config.yaml, if it exists.
        directory: the current directory of the command.
        environment: for HPCTRAIN_*, XDG_CONFIG_HOME and HOME.

    Raises:
        UsageError: a file cannot be read or is not YAML.
    """
    found = [from_options(options, sbatch), from_environment(environment)]
    if config is not None:
        found.append(from_file(directory / config, config))
    elif (directory / "config.yaml").exists():
        found.append(from_file(directory / "config.yaml", "config.yaml"))
    user = user_config(environment)
    if user is not None and user.exists():
        found.append(from_file(user, str(user)))
    return found


def user_config(environment: Mapping[str, str]) -> Path | None:
    """Return the path of the user's config, which applies to every project."""
    base = environment.get("XDG_CONFIG_HOME") or (
        f"{environment['HOME']}/.config" if environment.get("HOME") else None
    )
    return Path(base) / "hpctrain" / "config.yaml" if base else None


def from_file(path: Path, title: str) -> Layer:
    """Return the layer of a config file, `title` in messages.

    Raises:
        UsageError: it cannot be read, or is not YAML.
    """
    text = yaml12.read_text(path, title, missing="name a file that exists with --config")
    return from_document(yaml12.load(text, title), title)
