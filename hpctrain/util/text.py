"""Format numbers, lists and tables for people, uniformly across the project."""

from __future__ import annotations

import math
import re
import textwrap
import time
import unicodedata
from collections.abc import Collection, Iterable, Sequence

_NUMBER = re.compile(r"[0-9]{1,18}\Z")


def is_number(text: object) -> bool:
    """Whether `text` is an integer of 1 to 18 ASCII digits.

    `str.isdigit` is true for `²`, which `int` rejects, and `int` rejects more than 4300 digits.
    """
    return isinstance(text, str) and _NUMBER.match(text) is not None


def integer(text: str) -> int | None:
    """Parse an integer; None if `text` is not one."""
    return int(text) if is_number(text) else None


def size(count: float) -> str:
    """Format bytes in binary units with three digits: `512 B`, `38.2 GiB`, `1.5 TiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 999.5:
            return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB" if abs(value) < 999.5 else f"{value:,.0f} TiB"


def number(value: float | None, digits: int = 4) -> str:
    """Format a number: `8.161`, `14,210`, `0.00056`, `2e-05`, `NaN`; a dash for None.

    Values below a ten-thousandth, or from 1e15, have an exponent.
    """
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    magnitude = abs(value)
    is_grouped = magnitude >= 10_000 or (magnitude >= 1000 and value == int(value))
    return f"{value:,.0f}" if is_grouped and magnitude < 1e15 else f"{value:.{digits}g}"


def rate(bytes_per_second: float) -> str:
    """Format a speed in the decimal units of networks and disks: `0.31 GB/s`, `85 MB/s`."""
    giga = bytes_per_second / 1e9
    return f"{giga:.3g} GB/s" if giga >= 0.1 else f"{bytes_per_second / 1e6:.2g} MB/s"


def duration(seconds: float) -> str:
    """Format a duration with two or three digits: `41 s`, `12 min`, `3.2 h`, `31 h`, `8.5 days`."""
    seconds = max(0.0, seconds)
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    if hours < 99.5:
        return f"{hours:.1f} h" if hours < 9.95 else f"{hours:.0f} h"
    return f"{hours / 24:.1f} days"


def clock(seconds: float) -> str:
    """Format a duration as hours, minutes and seconds: `0:13:16`, `24:00:00`, `100:00:00`."""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole % 3600 // 60:02}:{whole % 60:02}"


def date(at: float | None) -> str:
    """Format seconds since the epoch in local time, or a dash: `2026-11-22 04:10:00`."""
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Format a number with its noun: `1 file`, `12 files`, `1,024 GPUs`, `2 processes`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(words: Iterable[str], last: str = "and") -> str:
    """Join words as in a sentence: `a`, `a and b`, `a, b and c`."""
    *first, end = list(words) or [""]
    return f"{', '.join(first)} {last} {end}" if first else end


def printable(text: str) -> str:
    """Escape non-printable characters, such as those that control a terminal."""
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape", "surrogatepass").decode()
        for sign in text
    )


def width(text: str) -> int:
    """Return the terminal columns of a text (East Asian wide characters take two)."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1
        for sign in text
    )


def wrap(
    text: str, columns: int = 80, *, indent: str = "", hanging: str | None = None
) -> list[str]:
    """Wrap a paragraph to lines of at most `columns`; long words and paths are not broken.

    Args:
        text: one paragraph.
        columns: of the terminal, including indentation.
        indent: before the first line.
        hanging: before the others; same as `indent` if None.
    """
    return textwrap.wrap(
        text,
        columns,
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def table(
    rows: Sequence[Sequence[str]], *, right: Collection[int] = (), gap: str = "  "
) -> list[str]:
    """Format rows of equal length as lines with aligned columns, without trailing spaces.

    Args:
        rows: with the heading first, if there is one.
        right: indices of right-aligned columns.
        gap: between columns.
    """
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]

    def cell(text: str, index: int) -> str:
        blanks = " " * (widths[index] - width(text))
        return blanks + text if index in right else text + blanks

    return [gap.join(cell(text, index) for index, text in enumerate(row)).rstrip() for row in rows]
