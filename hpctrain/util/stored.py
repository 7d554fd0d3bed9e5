"""The only reader of files that hpctrain wrote, or finds in known places; their content is not
trusted.

A FIFO would block the reader, a device has no end, and a value may have any type: only regular
files of bounded size are read, and values are checked against the expected type.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hpctrain.util.schema import Section

T = TypeVar("T")
#: More than any record needs; a larger file is not read.
MAX_BYTES = 16_000_000
#: Where a pipe of this process has a name.
_DESCRIPTORS = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")


def open_regular(path: str | Path) -> IO[bytes]:
    """Open a file for reading.

    Raises:
        OSError: it does not exist, cannot be read, or is not a regular file.
    """
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - first, as opening a device may already do something
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(0, "it is not a regular file", str(path))
        opened = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except ValueError as error:  # a NUL in the name
        raise OSError(0, "it is not a file name", str(path)) from error
    if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):  # it was, a moment ago
        opened.close()
        raise OSError(0, "it is not a regular file", str(path))
    return opened


def read_regular(path: str | Path, limit: int = MAX_BYTES, *, pipes: bool = False) -> bytes:
    """Return the content of a regular file.

    Args:
        path: of the file; links are followed.
        limit: bytes; a larger file is not read.
        pipes: the user named it: it may be a pipe of this process, too, `<(COMMAND)`.

    Raises:
        OSError: it cannot be read, is not a regular file, or is larger.
    """
    is_pipe = pipes and str(path).startswith(_DESCRIPTORS)
    with open(path, "rb") if is_pipe else open_regular(path) as opened:  # noqa: PTH123 - waits for the writer
        is_small = os.fstat(opened.fileno()).st_size <= limit
        content = opened.read(limit + 1) if is_small else b""
    if not is_small or len(content) > limit:
        raise OSError(0, f"it is larger than {limit / 1e6:g} MB", str(path))
    return content


def read_text(path: str | Path, *, errors: str = "strict", limit: int = MAX_BYTES) -> str:
    """Return the text of a file that the user named, with newlines translated as by `open`.

    Raises:
        OSError: as `read_regular`.
        UnicodeDecodeError: it is not UTF-8, and `errors` is "strict".
    """
    text = read_regular(path, limit, pipes=True).decode("utf-8", errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def expanded(path: str | Path) -> Path:
    """Expand `~` to the home directory; unchanged if there is no such user."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - which raises


def _integer(digits: str) -> int:
    # Their uses (times, process ids, floating point) do not support larger ones.
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**63:
        raise ValueError("a number in it is too large")
    return int(digits)


#: Created once: `json.loads` with an option creates a decoder for each call.
_JSON = json.JSONDecoder(parse_int=_integer)


def value_of(content: bytes | str) -> Any:
    """Parse JSON text.

    Raises:
        ValueError: it is not valid, or nested too deep.
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8", "surrogateescape")
        return _JSON.decode(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def read_object(path: str | Path, limit: int = MAX_BYTES) -> dict[str, Any] | None:
    """Return the JSON object in a regular file; None if there is no such file, or it contains
    something else. Never raises.
    """
    try:
        value = value_of(read_regular(path, limit))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def made(kind: type[T], value: Any) -> T | None:
    """Create a dataclass from a JSON object; None if a value is missing or has another type.

    Unknown keys are ignored. Lists become tuples if the field is one, and objects dataclasses: of a
    field, in its list or in its mapping.
    """
    try:
        found: T = _converted(value, kind)
        return found
    except (TypeError, ValueError, OverflowError, RecursionError):  # a bad section, too
        return None


def _converted(value: Any, kind: Any) -> Any:
    """Return a JSON value as its type: what `fits` checks, a union, a list, a tuple, a mapping, a
    section, or a dataclass.

    Raises:
        TypeError, ValueError: it has another type.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        for each in inner:
            with suppress(TypeError, ValueError):
                return _converted(value, each)
    elif origin in (list, tuple) and isinstance(value, list | tuple):
        is_fixed = origin is tuple and inner[-1] is not Ellipsis
        kinds = inner if is_fixed else [inner[0]] * len(value)
        return origin(_converted(item, each) for item, each in zip(value, kinds, strict=True))
    elif origin in (dict, Mapping) and isinstance(value, dict):
        return {key: _converted(item, inner[1]) for key, item in value.items()}
    elif isinstance(kind, type) and issubclass(kind, Section) and isinstance(value, dict):
        return kind.read(value)
    elif isinstance(kind, type) and is_dataclass(kind) and isinstance(value, Mapping):
        wanted = _fields(kind)
        known = {name: item for name, item in value.items() if name in wanted}
        return kind(**{name: _converted(item, wanted[name]) for name, item in known.items()})
    elif fits(value, kind):
        return value
    raise TypeError(f"{value!r} is not {kind}")


def fits(value: Any, kind: Any) -> bool:
    """Whether a JSON value has a type: Any, None, bool, int, float (includes integers), str, or a
    value of a Literal.
    """
    if kind in (Any, None):
        return kind is Any or value is None
    if kind in (int, float):
        is_number = isinstance(value, int | kind) and not isinstance(value, bool)
        return is_number and math.isfinite(value)
    if get_origin(kind) is Literal:
        return any(type(value) is type(each) and value == each for each in get_args(kind))
    return isinstance(value, kind)


@cache
def _fields(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
