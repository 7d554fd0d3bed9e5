r"""Safe terminal output: text, and the styles of this module.

All other control characters are escaped, as \x1b: job names, reasons, records and logs may contain
control sequences written by others. `Border` wraps stdout and stderr, so that no command has to
escape anything.
"""

from __future__ import annotations

import io
import os
import re
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

#: Marks our styles; random, so that text from others cannot contain it.
_OURS = str(int.from_bytes(os.urandom(7), "big"))
#: Control characters (ECMA-48: C0 and C1 but tab and newline, C1 as single bytes too), changes of
#: the writing direction, and surrogates without a byte.
_ORDER = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udc9f\udd00-\udfff]"
_CONTROL = re.compile(_ORDER)
_STYLE_OR_CONTROL = re.compile(f"\x1b\\[([0-9;]*);{_OURS}m|{_ORDER}")
_COLOURS = {
    name: 30 + code
    for code, name in enumerate(
        ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
    )
}


#: Prefixes of the lines that `--quiet` omits.
_NOTES = ("note: ", "notice: ", "next: ", "more: ")


def visible(text: str) -> str:
    r"""Escape control characters except tabs and newlines: \x1b."""
    return _CONTROL.sub(_written_out, text)


def sgr(*codes: int) -> str:
    """Return the sequence that selects a style (ECMA-48, SGR), marked as ours."""
    return f"\x1b[{';'.join(map(str, codes))};{_OURS}m"


def style(text: str, *, fg: str | None = None, bold: bool = False) -> str:
    """Return `text` in a style."""
    codes = ([_COLOURS[fg]] if fg else []) + [1] * bold
    return f"{sgr(*codes)}{text}{sgr(0)}" if codes else text


def console(**options: Any) -> Console:
    """Return rich's console on stdout, for text without foreign control characters.

    NO_COLOR removes all styles.
    """
    from rich.console import Console

    stream = raw(sys.stdout)
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")  # for terminals that are not UTF-8
    colours: Any = None if os.environ.get("NO_COLOR") else "auto"
    return Console(file=stream, color_system=colours, highlight=False, **options)


class Border:
    """A text stream that escapes control characters, except our styles.

    Attributes:
        raw: the wrapped stream, for drawing on the screen and copying bytes.
    """

    def __init__(self, raw: TextIO, *, quiet: bool = False) -> None:
        self.raw = raw
        self._quiet = quiet

    def write(self, text: str) -> int:
        """Write a text; a quiet stream omits notes and suggested commands."""
        if self._quiet and text.startswith(_NOTES):
            return len(text)
        shown = _STYLE_OR_CONTROL.sub(_ours_or_written_out, text)
        try:
            self.raw.write(shown)
        except UnicodeEncodeError:  # the terminal is not UTF-8
            encoding = self.raw.encoding
            self.raw.write(shown.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def raw(stream: Any) -> Any:
    """Return the wrapped stream, which escapes nothing."""
    return stream.raw if isinstance(stream, Border) else stream


def for_files(stream: Any) -> Any:
    """Return the stream for the content of a file: unescaped, unless it is a terminal."""
    return stream if stream.isatty() else raw(stream)


def _ours_or_written_out(found: re.Match[str]) -> str:
    return f"\x1b[{found[1]}m" if found.lastindex else _written_out(found)


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    code = code - 0xDC00 if 0xDC80 <= code <= 0xDC9F else code
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
