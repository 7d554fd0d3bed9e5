"""JSON Lines, and JSON files with one list of rows, of which only the row at hand is in memory."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import IO, Any, Final

from hpctrain.errors import HpctrainError
from hpctrain.preparation.rows import Dropped, Row
from hpctrain.preparation.sources_lines import MAX_LINE, NOT_UTF8, TOO_LONG, lines
from hpctrain.preparation.sources_open import open_bytes, said_where
from hpctrain.preparation.sources_types import Piece

_DECODER: Final = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")
_CHUNK = 1 << 20


def read_lines(piece: Piece) -> Iterator[Row | Dropped]:
    """Yield the rows of JSON Lines; blank lines are no rows."""
    name = piece.source.path
    for number, line in lines(piece):
        if line is None:
            yield Dropped(TOO_LONG, f"{name}:{number}")
        elif line and not line.isspace():
            yield parsed(line, f"{name}:{number}")


def parsed(line: bytes, where: str) -> Row | Dropped:
    """Return the row that a line holds."""
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return Dropped(NOT_UTF8, where, f"byte 0x{line[error.start]:02x} at {error.start}")
    except (ValueError, RecursionError) as error:
        return Dropped("not JSON", where, str(error))
    return _row(value, where)


def _row(value: Any, where: str) -> Row | Dropped:
    if isinstance(value, dict):
        return Row(value, where)
    if isinstance(value, str):
        return Row({"text": value}, where)
    return Dropped("a row is not an object", where, type(value).__name__)


def read_array(piece: Piece) -> Iterator[Row | Dropped]:
    """Yield the rows of a JSON file: of its array, of the one array of objects in its object, or the object as the only row.

    Raises:
        HpctrainError: the file is not JSON from some place on, ends early, or has several lists.
    """
    source = piece.source
    with said_where(source.path, source.compression), open_bytes(source.path, source.compression) as file:
        yield from _Reader(file, str(source.path)).rows()


class _Reader:
    """Reads values off the front of a stream; what was read is forgotten."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        self._name = name
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("strict")
        self._text = ""
        self._at = 0
        self._line = 1
        self._ended = False

    def rows(self) -> Iterator[Row | Dropped]:
        first = self._peek()
        if first == "[":
            yield from self._array()
        elif first == "{":
            yield from self._object()
        else:
            raise self._wrong("it begins neither with [ nor with {")
        if self._peek():
            raise self._wrong("something follows after the end")

    def _array(self) -> Iterator[Row | Dropped]:
        self._take("[")
        if self._peek() == "]":
            self._take("]")
            return
        while True:
            self._peek()
            where = f"{self._name}:{self._line}"
            yield _row(self._value(), where)
            if self._peek() != ",":
                break
            self._take(",")
        self._take("]")

    def _object(self) -> Iterator[Row | Dropped]:
        """Yield the rows of the one list of objects in an object; without one, the object is the row."""
        where = f"{self._name}:{self._line}"
        self._take("{")
        listed: str | None = None
        values: dict[str, Any] = {}
        while self._peek() != "}":
            key = self._value()
            if not isinstance(key, str):
                raise self._wrong("a name is not a string")
            self._take(":")
            if self._peek() == "[" and key not in _IN_A_ROW and self._holds_objects():
                if listed is not None:
                    raise self._several(listed, key)
                listed = key
                yield from self._array()
            else:
                values[key] = self._value()
            if self._peek() != ",":
                break
            self._take(",")
        self._take("}")
        if listed is None:
            yield Row(values, where)

    def _holds_objects(self) -> bool:
        """Say whether the array that begins here begins with an object."""
        at = self._at + 1
        while True:
            found = _SPACE.match(self._text, at)
            at = found.end() if found else at
            if at < len(self._text) or not self._more():
                return self._text[at : at + 1] == "{"
            at = self._at + 1

    # -- the stream ----------------------------------------------------------------------------------------------------

    def _more(self) -> bool:
        """Read on; the text before the place at hand is let go."""
        if self._ended:
            return False
        chunk = self._file.read(max(_CHUNK, len(self._text) - self._at))  # twice as much each time, for a long value
        self._ended = not chunk
        try:
            more = self._decode.decode(chunk, self._ended)
        except UnicodeDecodeError as error:
            raise HpctrainError(
                f"{self._name} is not UTF-8: byte 0x{error.object[error.start]:02x} after line {self._line}",
                fix=f"iconv -f ISO-8859-1 -t UTF-8 {self._name} > utf8.json",
            ) from error
        self._text = self._text[self._at :] + more
        self._at = 0
        return True

    def _peek(self) -> str:
        """Return the next character that is no white space; an empty string at the end."""
        while True:
            found = _SPACE.match(self._text, self._at)
            end = found.end() if found else self._at
            self._line += self._text.count("\n", self._at, end)
            self._at = end
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _take(self, character: str) -> None:
        if self._peek() != character:
            raise self._wrong(f"expected {character}")
        self._at += 1

    def _value(self) -> Any:
        """Return the next value, reading on until it is whole."""
        self._peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError as error:
                raise self._wrong("it is nested too deep") from error
            except ValueError as error:
                if len(self._text) - self._at > MAX_LINE:
                    raise self._wrong(f"a value has more than {MAX_LINE >> 20} MiB, or is not JSON: {error}") from error
                if not self._more():
                    raise self._wrong(str(error)) from error
                continue
            # A number at the end of what was read may go on in what was not.
            if end == len(self._text) and not isinstance(value, (str, dict, list)) and self._more():
                continue
            self._line += self._text.count("\n", self._at, end)
            self._at = end
            return value

    def _wrong(self, why: str) -> HpctrainError:
        return HpctrainError(
            f"{self._name}:{self._line}: not JSON from here on",
            details=(f"json said: {why}",),
            fix=f"python -m json.tool {self._name} > /dev/null, which says where; or give JSON Lines",
        )

    def _several(self, one: str, other: str) -> HpctrainError:
        return HpctrainError(
            f"{self._name} has several lists of rows: {one}, {other}", fix=f"take one out: jq -c '.{one}[]' {self._name} > {one}.jsonl"
        )


#: Lists of objects that are values of one row, and not the rows.
_IN_A_ROW = frozenset({"messages", "conversations", "conversation", "tools", "prompt", "completion", "chat", "chosen", "rejected"})
