"""A report as text, for ssh: 80 columns, no escape sequences. PURE."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table as Drawing
from rich.text import Text

from hpctrain.report.characters import Line, curve
from hpctrain.report.charts import Chart
from hpctrain.report.document import (
    Block,
    Document,
    Figure,
    Paragraph,
    ReportProblem,
    Table,
    Verbatim,
)
from hpctrain.util import typed
from hpctrain.util.text import printable

WIDTH = 80
_HEIGHT = 9
_CODE_LINES, _TABLE_ROWS = 12, 30
_EVIDENCE = 2
_BLANK: Line = ("", "")


def report(document: Document) -> list[Line]:
    """Return the lines of a report."""
    state = f": {document.state}" if document.state else ""
    out: list[Line] = [(document.title + state, "bold")]
    for each in (*document.lead, document.note or ""):
        out += _wrapped(each.replace(" · ", ", "))
    if document.tiles:
        tiles = [
            (name, f"{value} ({more})" if more else value) for name, value, more in document.tiles
        ]
        out += [_BLANK, *_pairs(tiles)]
    for section in document.sections:
        lines = [line for block in section.blocks for line in _block(block)]
        if lines:
            out += [_BLANK, (section.title, "bold"), *(lines[1:] if lines[0] == _BLANK else lines)]
    out += [_BLANK, *_lines(f"next: {command}" for command in document.next)] * bool(document.next)
    return [(printable(words), style) for words, style in out]


def _block(block: Block) -> list[Line]:
    match block:
        case Figure(page=True) | Table(page=True):
            return []
        case Figure():
            return _figure(block.drawn)
        case Table() if block.head:
            return [_BLANK, *_table(block)]
        case Table():
            return _pairs(block.rows)
        case Verbatim():
            return _lines(f"  {line}" for line in block.lines[-_CODE_LINES:])
        case ReportProblem():
            return _problem(block)
        case Paragraph(heading=True):
            return [_BLANK, (block.text, "bold")]
        case Paragraph():
            return _wrapped(block.text)


def _lines(lines: Iterable[str], style: str = "") -> list[Line]:
    return [(line, style) for line in lines]


def _wrapped(
    words: str, indent: str = "", hanging: str | None = None, style: str = ""
) -> list[Line]:
    found = textwrap.wrap(
        printable(words),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_on_hyphens=False,
    )
    return _lines(found, style)


def _pairs(rows: Iterable[Sequence[str]]) -> list[Line]:
    return [
        line
        for name, value in rows
        for line in _wrapped(value or "-", f"{printable(name):17} ", " " * 18)
    ]


def _table(table: Table) -> list[Line]:
    """Format a table; cells are wrapped if it is too wide, and only the first of many rows are
    shown.
    """
    drawing = Drawing(box=None, pad_edge=False)
    for at, name in enumerate(table.head):
        drawing.add_column(
            name.upper(), justify="right" if at in table.numeric else "left", overflow="fold"
        )
    for row in table.rows[:_TABLE_ROWS]:
        drawing.add_row(*(Text(printable(cell), overflow="fold") for cell in row))
    screen = Console(width=WIDTH, color_system=None, file=io.StringIO())
    with screen.capture() as captured:
        screen.print(drawing)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    if (left := len(table.rows) - _TABLE_ROWS) > 0:
        lines.append(f"and {left} more: hpctrain report --json")
    return [(lines[0], "bold"), *_lines(lines[1:])]


def _problem(problem: ReportProblem) -> list[Line]:
    out = _wrapped(problem.cause, style="bold")
    out += _wrapped(problem.about.replace(" · ", ", "), "  ")
    for number, line in enumerate(problem.fix.split("\n") if problem.fix else ()):
        label = "    fix: " if number == 0 else "      "
        out += _lines(typed.filled(label, printable(line), WIDTH, hang=6))
    out += _lines([f"    look: {problem.look}"] if problem.look else [])
    for place, line in problem.evidence[:_EVIDENCE]:
        out += _wrapped(f"{place}: {line}", "    ")
    return out


def _figure(chart: Chart) -> list[Line]:
    """Draw the first series of a chart in characters."""
    line = chart.series[0]
    points = [(x, y) for x, y in zip(line.x, line.y, strict=True) if y is not None]
    if sum(math.isfinite(y) for _, y in points) < 2:
        return []
    unit = f", {chart.unit}" if chart.unit else ""
    which = f" ({line.name})" if len(chart.series) > 1 else ""
    lines = curve(points, WIDTH, _HEIGHT, x_name=chart.x_name.partition(" ")[0])
    title = f"{chart.title}{unit}, over {chart.x_name}{which}"
    return [_BLANK, *_wrapped(title), *_lines(lines, "cyan")]
