"""Validate keys and values that a user wrote.

A class declares the type of each key:

    class Restart(Section):
        mode: Literal["auto", "off"] = "auto"
        max: Annotated[int, whole(0, 1000)] = 10

A checker in `Annotated` gets the value as written and returns the parsed value, or raises
`Problem`; several run in order. Sections, tuples, dicts, `bool` and `Literal` are checked by their
type.

Not pydantic: importing it and building its validators takes longer than all the rest of `hpctrain
render`.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from functools import cache
from types import MappingProxyType
from typing import (
    Annotated,
    Any,
    Literal,
    Self,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from hpctrain.util.text import is_number, listed

KeyPath = tuple[str, ...]
T = TypeVar("T")
MISSING = "is missing"
#: The default of a mapping.
NO_KEYS: Any = MappingProxyType({})
#: Sections whose keys users choose: messages name the section.
_NAMED_BY_USERS = frozenset({"sbatch", "training", "env", "secrets", "profiles"})


class Problem(ValueError):  # noqa: N818 - the text of an error, raised by its checker
    """A problem with a value, worded to complete "KEY …": "must be a whole number, not 'two'".

    Attributes:
        found: every problem: the path below the value, and the text.
    """

    def __init__(self, message: str = "", *, below: Iterable[tuple[KeyPath, str]] = ()) -> None:
        self.found = list(below) or [((), message)]
        super().__init__("; ".join(words for _, words in self.found))


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Section:
    """A fixed set of keys with their values. A trailing `_` of a field's name is not in its key
    (`from_`).
    """

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(
            getattr(self, name) == getattr(other, name) for name in self.fields()
        )

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    @cache
    def fields(cls) -> dict[str, Any]:
        """Return field name → type."""
        return get_type_hints(cls, include_extras=True)

    @classmethod
    def read(cls, written: Any, unknown: Callable[[KeyPath], str] | None = None) -> Self:
        """Parse a section from `written`; `unknown` returns the message for an unknown key.

        Raises:
            Problem: all problems at once.
        """
        reader = _Reader(unknown or (lambda path: unknown_key(path, known_keys(cls))))
        section: Self = reader.value(written, cls, ())
        if reader.found:
            raise Problem(below=reader.found)
        return section

    def problems(self) -> Iterator[tuple[KeyPath, str]]:
        """Yield problems between values that are each valid."""
        yield from ()

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values, which are not checked."""
        return type(self)(**{**vars(self), **changes})

    def to_data(self, *, defaults: bool = True) -> dict[str, Any]:
        """Return JSON data, with or without the defaults."""
        names = self.fields() if defaults else vars(self)
        return {name.rstrip("_"): _data(getattr(self, name), defaults) for name in names}


def _data(value: Any, defaults: bool) -> Any:
    if isinstance(value, Section):
        return value.to_data(defaults=defaults)
    if isinstance(value, Mapping):
        return {key: _data(item, defaults) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_data(item, defaults) for item in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


class _Reader:
    def __init__(self, unknown: Callable[[KeyPath], str]) -> None:
        self.unknown = unknown
        self.found: list[tuple[KeyPath, str]] = []

    def value(self, written: Any, kind: Any, path: KeyPath) -> Any:
        """Return the parsed value; problems are added to `found`."""
        try:
            return self._converted(written, kind, path)
        except Problem as problem:
            self.found += [((*path, *below), message) for below, message in problem.found]
            return None

    def _converted(self, written: Any, kind: Any, path: KeyPath) -> Any:
        origin, inner = get_origin(kind), get_args(kind)
        if origin is Annotated:
            for check in inner[1:]:
                written = check(written)
            return self._converted(written, inner[0], path)
        if origin in (Union, types.UnionType):
            if written is None or (str in inner and isinstance(written, str)):
                return written
            return self._converted(written, inner[0], path)
        if origin is Literal:
            text = as_text(written)
            if text not in inner:
                raise Problem(f"must be {listed(map(repr, inner), 'or')}, not {text!r}")
            return text
        if origin is tuple and not isinstance(written, tuple):
            if not isinstance(written, list):
                raise Problem("must be a list, such as [a, b]")
            return tuple(
                self.value(item, inner[0], (*path, str(index)))
                for index, item in enumerate(written)
            )
        if origin in (dict, Mapping):
            if not isinstance(written, dict):
                raise Problem("must hold names, and keys and values for each")
            return {key: self.value(item, inner[1], (*path, key)) for key, item in written.items()}
        if isinstance(kind, type) and issubclass(kind, Section):
            return self._section(written, kind, path)
        return _truth(written) if kind is bool else written

    def _section(self, written: Any, kind: type[Section], path: KeyPath) -> Section | None:
        if not isinstance(written, dict | None):
            what = kind_of(written) if isinstance(written, list) else repr(str(written))
            raise Problem(f"must hold keys and values, not {what}")
        given, before, values = dict(written or {}), len(self.found), {}
        for name, wanted in kind.fields().items():
            key = name.rstrip("_")
            item = given.pop(key, None)
            if item is not None:  # `partition:` without a value is the same as no such key
                values[name] = self.value(item, wanted, (*path, key))
            elif not hasattr(kind, name):
                self.found.append(((*path, key), MISSING))
        self.found += [((*path, key), self.unknown((*path, key))) for key in given]
        if len(self.found) > before:
            return None
        section = kind(**values)
        self.found += [((*path, *below), message) for below, message in section.problems()]
        return section


def _truth(written: Any) -> bool:
    if isinstance(written, bool):
        return written
    if isinstance(written, str) and written.lower() in {"true", "false"}:
        return written.lower() == "true"
    raise Problem(f"must be true or false, not {kind_of(written)}")


def as_text(value: Any) -> str:
    """Return `value` as one line of text."""
    if isinstance(value, bool | dict | list) or value is None:
        raise Problem(f"must be text, not {kind_of(value)}")
    text = str(value)
    if any(ord(sign) < 32 or 127 <= ord(sign) < 160 or sign in "\u2028\u2029" for sign in text):
        raise Problem(f"must be one line without control characters, not {short(text)!r}")
    if not text.strip():
        raise Problem("must not be empty")
    return text


def each_item(hint: str, check: Callable[[str, Any], Any]) -> Callable[[Any], dict[str, Any]]:
    """Return a checker of mappings that checks each value by `check`; `hint` describes the expected
    form.
    """

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Problem(f"must hold {hint}")
        checked: dict[str, Any] = {}
        wrong: list[tuple[KeyPath, str]] = []
        for key, item in value.items():
            try:
                checked[key] = check(key, item)
            except Problem as problem:
                wrong += [((key, *below), message) for below, message in problem.found]
        if wrong:
            raise Problem(below=wrong)
        return checked

    return read


def short(text: str) -> str:
    """Truncate `text` for messages."""
    return text if len(text) <= 60 else f"{text[:60]}…"


def kind_of(value: Any) -> str:
    """Return the name of a value's type for messages."""
    return {
        "dict": "keys and values",
        "list": "a list",
        "bool": "true or false",
        "NoneType": "nothing",
    }.get(type(value).__name__, repr(value))


def nearest(known: Mapping[Any, T], path: tuple[Any, ...]) -> T | None:
    """Return the entry of `path`, or of the nearest section around it."""
    ends = range(len(path), -1, -1)
    return next((known[path[:end]] for end in ends if path[:end] in known), None)


def sentence(path: KeyPath, message: str) -> str:
    """Return the message for `path`, with its usual name: `nodes`, `'mail-type' in sbatch`,
    `modules: item 2`.
    """
    return message if message.startswith("unknown key") else f"{_called(path)} {message}"


def _called(path: KeyPath) -> str:
    if not path:
        return "config"
    *outer, last = path
    if is_number(last):
        return f"{outer[-1]}: item {int(last) + 1}" if outer else f"item {int(last) + 1}"
    if outer and is_number(outer[-1]):
        return f"{_called(tuple(outer))}: {last}"
    return f"{last!r} in {outer[-1]}" if {*outer[:1], *outer[-1:]} & _NAMED_BY_USERS else last


def known_keys(kind: type[Section], path: KeyPath = ()) -> dict[KeyPath, list[str]]:
    """Return the keys of each section; `*` represents names that users choose."""
    found = {path: [name.rstrip("_") for name in kind.fields()]}
    for name, wanted in kind.fields().items():
        inside, depth = wanted, (*path, name.rstrip("_"))
        while get_args(inside):
            of_names = get_origin(inside) in (dict, Mapping)
            if of_names or get_origin(inside) is tuple:
                depth = (*depth, "*")
            # The first argument of `X | None`, Annotated[X, …] and tuple[X, …], the last of
            # dict[str, X].
            inside = get_args(inside)[-1 if of_names else 0]
        if isinstance(inside, type) and issubclass(inside, Section):
            found |= known_keys(inside, depth)
    return found


def unknown_key(
    path: KeyPath,
    sections: Mapping[KeyPath, Sequence[str]],
    synonyms: Mapping[KeyPath, KeyPath] = MappingProxyType({}),
) -> str:
    """Return the message for an unknown key, with the nearest known one: in this section, else in
    another; `synonyms` are names that other programs use.
    """
    word, outer = path[-1], path[:-1]
    is_here = {
        section: len(section) == len(outer)
        and all(part in (name, "*") for part, name in zip(section, outer, strict=True))
        for section in sections
    }
    what = f"unknown key {word!r}" + (f" in {'.'.join(outer)}" if outer else "")
    known = [key for section, keys in sections.items() if is_here[section] for key in keys]
    own = {key: (*outer, key) for key in known}
    others = {
        key: (*section, key)
        for section, keys in sections.items()
        if not is_here[section]
        for key in keys
    }
    if word in others:
        place = ".".join(others[word][:-1])
        indented = f"{place}, indented below it" if place else "the top level, not indented"
        return f"{what}; it belongs in {indented}"
    for name, meant in synonyms.items():
        (own if is_here.get(name[:-1]) else others)[name[-1]] = meant
    for candidates, cutoff in ((own, 0.6), (others, 0.75)):
        for close in difflib.get_close_matches(word, candidates, n=1, cutoff=cutoff):
            *section, key = candidates[close]
            where = "" if candidates is own else f", in {'.'.join(section) or 'the top level'}"
            return f"{what}; did you mean {key!r}{where}?"
    return f"{what}; known are {', '.join(sorted(known))}"
