"""What a sweep is, checked, and what a point of it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from hpctrain.yaml12 import Plain, to_json_value

#: Keys and values in the order in which they were written. A value is `Plain`, `str`, None, or a list or mapping of these.
Values = tuple[tuple[str, Any], ...]
#: Keys, each with the values that it takes in turn.
Axes = tuple[tuple[str, tuple[Any, ...]], ...]
Passed = Literal["arguments", "environment", "file"]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Where the values of one key of a random sweep come from.

    Attributes:
        kind: `uniform` and `log_uniform` (real numbers), `integer` (both bounds included) or `choice`.
        values: the two bounds, as they were written; of `choice`, the values to choose from.
    """

    kind: Literal["uniform", "log_uniform", "integer", "choice"]
    values: tuple[Any, ...]

    @property
    def size(self) -> int | None:
        """How many different values there are; None for real numbers."""
        if self.kind == "choice":
            return len(self.values)
        return int(self.values[1]) - int(self.values[0]) + 1 if self.kind == "integer" else None


@dataclass(frozen=True, slots=True)
class Random:
    """`count` different draws; equal seeds give equal draws on every machine."""

    count: int
    seed: int
    values: tuple[tuple[str, Distribution], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What varies, and how it reaches the script.

    Attributes:
        grid: every combination of these.
        zipped: these go together, the first values, the second ones, and so on; all of one length.
        listed: whole points.
        random: drawn points.
        include: points that are added at the end.
        exclude: points that match all values of one of these are dropped.
        throttle: how many tasks of an array run at a time; None: no limit.
        passed: how a point's arguments reach the script: `--key value`, environment variables, or a JSON file.
        booleans: of arguments: `--flag true` and `--flag false` (values), or `--flag` and nothing (flags).
        option: of `file`: the option that takes the file's name, without dashes.
        config_keys: those of the keys that are keys of config.yaml; all others are arguments of the training script.
    """

    grid: Axes = ()
    zipped: Axes = ()
    listed: tuple[Values, ...] = ()
    random: Random | None = None
    include: tuple[Values, ...] = ()
    exclude: tuple[Values, ...] = ()
    throttle: int | None = None
    passed: Passed = "arguments"
    booleans: Literal["values", "flags"] = "values"
    option: str | None = None
    config_keys: frozenset[str] = frozenset()

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys that vary, in the order of the points' own keys."""
        return tuple(dict.fromkeys(self._keys()))

    def _keys(self) -> Iterator[str]:
        for axes in (self.grid, self.zipped):
            yield from (key for key, _ in axes)
        yield from (key for values in self.listed for key, _ in values)
        yield from (key for key, _ in (self.random.values if self.random is not None else ()))
        yield from (key for values in self.include for key, _ in values)


@dataclass(frozen=True, slots=True)
class Point:
    """One point: its index in the whole sweep, counted from 0, and its values."""

    index: int
    values: Values

    def get(self, key: str) -> Any:
        """Return the value of `key`; None where the point has none."""
        return next((value for name, value in self.values if name == key), None)


def argument_name(key: str) -> str:
    """Return the argument that `key` is: `training.script` is how a sweep says `script` where it does not mean config.yaml's."""
    return key.removeprefix("training.")


def canonical(value: Any) -> str | None:
    """Return a text that is equal for values that mean the same: `1e-5` and `0.00001`, quoted or not; 1 and 1.0 are two."""
    if value is None:
        return None
    if isinstance(value, str):
        read = to_json_value(Plain(value))
        return read if isinstance(read, str) else repr(read)
    return json.dumps(to_json_value(value), sort_keys=True)


def canonical_point(values: Values) -> frozenset[tuple[str, str | None]]:
    """Return what is equal for points that mean the same, whatever the order of their keys."""
    return frozenset((key, canonical(value)) for key, value in values)


def shown(value: Any) -> str:
    """Return a value as tables and messages show it: as it was written, lists and mappings as JSON."""
    if value is None:
        return "null"
    return str(value) if isinstance(value, str) else json.dumps(to_json_value(value), ensure_ascii=False)


def spoken(values: Values) -> str:
    """Return `learning_rate=1e-5 seed=3`, for messages."""
    return " ".join(f"{key}={shown(value)}" for key, value in values) or "(no values)"
