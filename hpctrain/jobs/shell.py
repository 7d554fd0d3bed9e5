"""Quoting for bash: every value of a user becomes one word, on one line, that bash reads back unchanged."""

from __future__ import annotations

import re
import shlex

_TOKEN = re.compile(
    r"""\$'(?P<ansi>(?:[^'\\]|\\.)*)' | '(?P<single>[^']*)' | "(?P<double>[^"]*)" | (?P<bare>[^\s'"$\\`]+)""",
    re.VERBOSE,
)
#: What stands for a byte that is no UTF-8 (PEP 383), and surrogates that stand for nothing.
_RAW_BYTE = re.compile("[\udc80-\udcff]")
_NO_TEXT = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", "'": "\\'"}


def quote(value: object) -> str:
    r"""Return `value` as one bash word: bare where it is safe, single-quoted, or `$'…'` where it holds control characters.

    A line break never stays one: it would end a comment, and make the script unreadable. Bytes that are no UTF-8 (a file name of
    another age; Python carries them as surrogates) become `\xff`, so that a script is always UTF-8 text.

    Raises:
        ValueError: a NUL, which no argv can carry, or half of a surrogate pair, which is no text.
    """
    text = str(value)
    if "\0" in text:
        raise ValueError(f"{text!r} holds a NUL character, which no command line can carry")
    if _NO_TEXT.search(text):
        raise ValueError(f"{text!r} holds half of a surrogate pair, which is no character")
    if not any(_is_control(character) for character in text):
        return shlex.quote(text)
    return "$'" + "".join(_escape(character) for character in text) + "'"


def join(words: list[str] | tuple[str, ...]) -> str:
    """Return `words` as one line of bash."""
    return " ".join(quote(word) for word in words)


def split(line: str) -> list[str]:
    """Return the words of what `join` wrote.

    Reads bare words, single and double quotes and `$'…'`; `shlex.split` does not know the last.

    Raises:
        ValueError: a quote is not closed, or the line holds what `join` never writes.
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


def _text_of(token: re.Match[str]) -> str:
    if token["ansi"] is not None:
        raw = re.sub(r"\\x([0-9a-f]{2})|\\(.)", _unescape, token["ansi"])
        return raw.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    return next(text for text in (token["single"], token["double"], token["bare"]) if text is not None)


def _unescape(match: re.Match[str]) -> str:
    if match[1] is None:
        return {"n": "\n", "r": "\r", "t": "\t"}.get(match[2], match[2])
    code = int(match[1], 16)
    # A byte of a longer character travels as a surrogate until the whole word is decoded.
    return chr(code) if code < 128 else chr(0xDC00 + code)


def _is_control(character: str) -> bool:
    # U+0085, U+2028 and U+2029 end no line in bash, but they do in editors and in Python's splitlines.
    return ord(character) < 32 or 127 <= ord(character) < 160 or character in "\u2028\u2029" or _RAW_BYTE.match(character) is not None


def _escape(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    if not _is_control(character):
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 128 else "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
