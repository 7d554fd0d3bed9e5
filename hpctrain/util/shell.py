"""Quoting for bash: every value becomes one word, on one line, that bash reads back unchanged."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

_TOKEN = re.compile(
    r"""\$'(?P<ansi>(?:[^'\\]|\\.)*)' | '(?P<single>[^']*)' | "(?P<double>[^"]*)" | (?P<bare>[^\s'"$\\`]+)""",
    re.VERBOSE,
)
#: Control characters; U+0085, U+2028 and U+2029, which do not end a line in bash, but do in editors
#: and in Python's splitlines; bytes that are not UTF-8 (PEP 383).
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\udc80-\udcff]")
#: Surrogates that represent no byte.
_NO_TEXT = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", "'": "\\'"}


def quote(value: object) -> str:
    r"""Return `value` as one bash word: unquoted if safe, single-quoted, or `$'…'` for control
    characters.

    Line breaks are always escaped: one would end a comment, and make the script unreadable. Bytes
    that are not UTF-8 (an old file name; Python represents them as surrogates) become `\xff`, so
    that a script is always UTF-8 text.

    Raises:
        ValueError: a NUL, which argv cannot contain, or a lone surrogate, which is not text.
    """
    text = str(value)
    if "\0" in text:
        raise ValueError(f"{text!r} holds a NUL character, which no command line can carry")
    if _NO_TEXT.search(text):
        raise ValueError(f"{text!r} has half of a surrogate pair, which is not a character")
    if not _CONTROL.search(text):
        return shlex.quote(text)
    return "$'" + "".join(map(_escape, text)) + "'"


def join(words: list[str] | tuple[str, ...]) -> str:
    """Return `words` as one line of bash."""
    return " ".join(quote(word) for word in words)


def split(line: str) -> list[str]:
    """Split a line that `join` wrote.

    Supports bare words, single and double quotes and `$'…'`; `shlex.split` does not support the
    last.

    Raises:
        ValueError: a quote is not closed, or the line contains something that `join` never writes.
    """
    words: list[str] = []
    word: str | None = None
    position = 0
    while position < len(line):
        if line[position] == " ":
            if word is not None:
                words.append(word)
            word, position = None, position + 1
            continue
        match = _TOKEN.match(line, position)
        if match is None:
            raise ValueError(f"cannot read {line[position:]!r}")
        word = (word or "") + _text_of(match)
        position = match.end()
    return words if word is None else [*words, word]


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """Return the options of a command line: name to its value, to several values, or to True if
    none follows.

    Dashes in names become underscores, as in HfArgumentParser, and the last of repeated options
    counts.
    """
    found: dict[str, Any] = {}
    for name, (first, *rest) in option_groups(words):
        if name is not None:
            values = [first.partition("=")[2], *rest] if "=" in first else rest
            found[name] = True if not values else values[0] if len(values) == 1 else tuple(values)
    return found


def option_groups(words: Sequence[str]) -> list[tuple[str | None, list[str]]]:
    """Split a command line before each option: its name, and the words up to the next option; what
    is before the first option has the name None.
    """
    groups: list[tuple[str | None, list[str]]] = []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            groups.append((word[2:].partition("=")[0].replace("-", "_"), [word]))
        elif groups:
            groups[-1][1].append(word)
        else:
            groups.append((None, [word]))
    return groups


def _text_of(token: re.Match[str]) -> str:
    if token["ansi"] is not None:
        raw = re.sub(r"\\x([0-9a-f]{2})|\\(.)", _unescape, token["ansi"])
        return raw.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    return next(
        text for text in (token["single"], token["double"], token["bare"]) if text is not None
    )


def _unescape(match: re.Match[str]) -> str:
    if match[1] is None:
        return {"n": "\n", "r": "\r", "t": "\t"}.get(match[2], match[2])
    code = int(match[1], 16)
    # A byte of a longer character is kept as a surrogate until the complete word is decoded.
    return chr(code) if code < 128 else chr(0xDC00 + code)


def _escape(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    if not _CONTROL.match(character):
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
