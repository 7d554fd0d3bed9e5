"""How commands print: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import click

from hpctrain.finding import LEVELS, Finding
from hpctrain.terminal import style
from hpctrain.util import text

#: Columns if the output is not a terminal.
WIDTH = 80


def say(line: str) -> None:
    """Print a line to stderr."""
    click.echo(line, err=True)


def print_json(**values: Any) -> None:
    """Print one JSON object to stdout; NaN and infinities become null, as JSON has none."""
    click.echo(json.dumps({"schema": 1, **_finite(values)}))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def has_colour() -> bool:
    """Whether stdout is a terminal that supports colors."""
    is_dumb = os.environ.get("TERM") == "dumb" or bool(os.environ.get("NO_COLOR"))
    return sys.stdout.isatty() and not is_dumb


def columns(widest: int = 100) -> int:
    """Return the width of the terminal, at most `widest`; WIDTH if stdout is not a terminal."""
    if not sys.stdout.isatty():
        return WIDTH
    return max(40, min(widest, shutil.get_terminal_size().columns))


def show_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int] = (),
    colours: Sequence[str | None] = (),
    err: bool = False,
) -> None:
    """Print a table. On a terminal, the rows are colored; the last cell of a row that is too long,
    often a sentence, is below it, and what is still too long is cut.

    Args:
        head: the headings.
        rows: the cells; control characters are escaped.
        right: indices of right-aligned columns.
        colours: of the rows.
        err: whether to print to stderr.
    """
    cells = [head, *([text.printable(cell) for cell in row] for row in rows)]
    lines = text.table(cells, right=right)
    if (sys.stderr if err else sys.stdout).isatty():
        width = shutil.get_terminal_size().columns
        narrow = text.table([row[:-1] for row in cells], right=right)
        for at, row in enumerate(cells):
            first, below = lines[at], []
            if text.width(first) > width:
                first = narrow[at]
                below = text.wrap(row[-1], max(20, width), indent="  ")
            if text.width(first) > width:
                first = f"{first[: width - 1]}…"
            if has_colour():
                colour = colours[at - 1] if 0 < at <= len(colours) else None
                first = style(first, fg=colour, bold=at == 0)
            lines[at] = "\n".join([first, *below])
    click.echo("\n".join(lines), err=err)


# -- findings ---------------------------------------------------------------------------------------

COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


def block(finding: Finding, width: int = WIDTH, *, place: bool = False) -> list[str]:
    """Return a finding as lines: its title, with its place in a file, and below it the evidence,
    the reason and the fix. The fix is not wrapped, so that a command in it can be copied.
    """
    where = f"{finding.file}:{finding.line}:{finding.column}: " if place else ""
    title = f"{finding.level} {finding.id}: {finding.what}"
    return [
        *text.wrap(f"{where}{title}", width, hanging="  "),
        *text.wrap(f"  seen: {finding.evidence}", width, hanging=" " * 8),
        *text.wrap(f"  why:  {finding.reason}", width, hanging=" " * 8),
        f"  fix:  {finding.fix}",
    ]


def coloured_block(finding: Finding, width: int = WIDTH, *, place: bool = False) -> list[str]:
    """Return `block` with the first line in the color of its level, on a terminal."""
    first, *rest = block(finding, width, place=place)
    return [style(first, fg=COLOURS[finding.level]) if has_colour() else first, *rest]


def show_findings(findings: Iterable[Finding], *, place: bool = False) -> None:
    """Print findings as blocks, with colors on a terminal."""
    for finding in findings:
        click.echo("\n".join([*coloured_block(finding, place=place), ""]), color=has_colour())


def finding_line(finding: Finding) -> str:
    """Return a finding as `warning gpus-unused: …; fix: …`."""
    return f"{finding.level} {finding.id}: {finding.what}; fix: {finding.fix}"


def counts(findings: Sequence[Finding]) -> str:
    """Return `2 errors, 1 warning`; without findings, `nothing found`."""
    numbers = {level: sum(finding.level == level for finding in findings) for level in LEVELS}
    shown = [text.count(number, level) for level, number in numbers.items() if number]
    return ", ".join(shown) or "nothing found"
