"""A comparison in words: its table, in characters, and what to type next. PURE."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain.jobs import typed
from hpctrain.report import ran_with, scale, secrets
from hpctrain.report.failures import names as listed
from hpctrain.report.next_time import spoken

if TYPE_CHECKING:
    from hpctrain.report.compare import Comparison, Row, Scalar

WIDTH = 80
_SHOWN = 30


def next_words(found: Comparison, runs_dir: Path) -> tuple[str, ...]:
    """Return commands that go on with the best run."""
    best = found.best
    if best is None:
        return ()
    name = shlex.quote(best.run.id)
    where = "" if str(runs_dir) == "runs" else f" --runs-dir {shlex.quote(str(runs_dir))}"
    words = [f"hpctrain tune best {shlex.quote(found.study)} --to best.yaml"] if found.study else []
    again = None if found.study else _point_again(found, best, runs_dir)
    if again is not None:
        words.append(again)
    elif not found.study and found.keys:
        given = " ".join(f"--{key.rpartition('.')[2]} {shlex.quote(cell(best.values[key]))}" for key in found.keys if key in best.values)
        words.append(f"hpctrain submit -- {given}")
    return (*words, f"hpctrain report {name}{where}")


def _point_again(found: Comparison, best: Row, runs_dir: Path) -> str | None:
    """Return what submits the best point again where the config has the sweep: words behind `--` may not be what a sweep varies."""
    written = ran_with.read(best.run, runs_dir).origins.get("sweep", "")
    place = re.fullmatch(r"(.+):\d+:\d+", written)
    if place is None or best.run.index is None or any(row.run.tag != best.run.tag for row in found.rows):
        return None
    config = "" if place[1] == "config.yaml" else f" --config {shlex.quote(place[1])}"
    return f"hpctrain submit{config} --array {best.run.index}"


def cell(value: Scalar) -> str:
    """Return a value as it is written in a config."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    return secrets.shown(value) if value is not None else "null"


def head(found: Comparison) -> tuple[str, ...]:
    """Return the head of the table."""
    return ("run", "state", found.metric or "metric", "best", "steps", "took", *found.keys)


def cells(row: Row, found: Comparison) -> tuple[str, ...]:
    """Return what the table says of a run."""
    return (
        row.run.id, row.state, scale.number(row.metric, 5), scale.number(row.best, 5), "-" if row.steps is None else str(row.steps),
        spoken(row.seconds) if row.seconds or row.state in ("completed", "failed") else "-",
        *(cell(row.values[key]) if key in row.values else "-" for key in found.keys),
    )  # fmt: skip


def summary(found: Comparison) -> str:
    """Return what there is, in one sentence."""
    count: dict[str, int] = {}
    for row in found.rows:
        count[row.state] = count.get(row.state, 0) + 1
    states = ", ".join(f"{number} {state}" for state, number in sorted(count.items(), key=lambda each: -each[1]))
    order = f"; ordered by {found.metric}, {'higher' if found.higher else 'lower'} is better" if found.metric else ""
    absent = f"; {len(found.not_begun)} more have not begun: {listed(found.not_begun, 3)}" if found.not_begun else ""
    return f"{len(found.rows)} runs: {states}{absent}{order}"


def best_words(found: Comparison) -> str | None:
    """Return which run is the best, and with what."""
    best = found.best
    if best is None:
        return None
    given = " ".join(f"{key}={cell(best.values[key])}" for key in found.keys if key in best.values)
    so_far = "" if best.state == "completed" else f", which is {best.state}"
    return f"best: {best.run.id}{so_far}: {found.metric} {scale.number(best.metric, 5)}" + (f" with {given}" if given else "")


def printable(text: str) -> str:
    """Return a text in which nothing is an order to a terminal."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape", "surrogatepass").decode() for sign in text)


_GLUE = "\ue000"


def fix_lines(text: str, indent: str, width: int = WIDTH) -> list[str]:
    """Return the lines of a fix, wrapped but for what is to be typed: a command that is broken in two cannot be pasted.

    A line that is a command stays one, however long; a command among words stands on one line.
    """
    out = []
    for number, line in enumerate(printable(each) for each in text.split("\n")):
        shown = f"fix: {line}" if number == 0 else line
        if typed.is_command(line):
            out += [f"{indent}fix:"] * (number == 0) + [f"{indent}  {line}"]
            continue
        glued = " ".join(unit.replace(" ", _GLUE) if whole else unit for unit, whole in typed.units(shown, inside=True))
        wrapped = textwrap.wrap(
            glued, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        out += [part.replace(_GLUE, " ") for part in wrapped]
    return out


def table(rows: Sequence[Sequence[str]], width: int = WIDTH) -> list[str]:
    """Return the lines of a table whose first row is its head; of one that is too wide, each row on lines of its own."""
    shown = [[printable(text) for text in row] for row in rows]
    widths = [max(len(row[column]) for row in shown) for column in range(len(shown[0]))]
    if sum(widths) + 2 * (len(widths) - 1) <= width:
        first = [text.upper() for text in shown[0]]
        return ["  ".join(text.ljust(size) for text, size in zip(row, widths, strict=True)).rstrip() for row in (first, *shown[1:])]
    found = []
    for row in shown[1:]:
        words = [row[0], *(f"{name}={text}" for name, text in zip(shown[0][1:], row[1:], strict=True) if text != "-")]
        found += textwrap.wrap("  ".join(words), width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return found


def _narrowed(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return a table that fits: without what is said least, and with the long names of parameters cut; unchanged where that is no help."""
    long = [f"{name[:13]}~" if len(name) > 14 else name for name in rows[0]]
    for dropped, names in (((), rows[0]), ((), long), ((3, 5), long), ((3, 4, 5), long)):
        kept = [tuple(cell for at, cell in enumerate(row) if at not in dropped) for row in (tuple(names), *rows[1:])]
        if sum(max(len(printable(row[at])) for row in kept) + 2 for at in range(len(kept[0]))) - 2 <= WIDTH:
            return kept
    return list(rows)


def _failures(found: Comparison) -> list[str]:
    """Return the failed runs by their diagnosis, each with the one to look at and what mends it."""
    out = ["", "failed, by diagnosis"] if found.failures else []
    for each in found.failures:
        how = f" ({each.certainty})" if each.certainty else ""
        out += textwrap.wrap(
            f"{len(each.runs):4} {each.id or 'no known cause'}{how}: {printable(each.cause)}", WIDTH, subsequent_indent=" " * 5
        )
        out += textwrap.wrap(listed(each.runs), WIDTH, initial_indent=" " * 5, subsequent_indent=" " * 5)
        out += fix_lines(each.fix, " " * 5) if each.fix else []
        out.append(f"     look: hpctrain explain {shlex.quote(each.first)}")
    return out


def lines(found: Comparison) -> list[str]:
    """Return the comparison in characters, 80 columns wide where its words allow that."""
    said = best_words(found)
    out = [
        printable(found.title),
        *textwrap.wrap(summary(found), WIDTH),
        *(textwrap.wrap(printable(said), WIDTH, subsequent_indent="  ") if said else []),
        "",
    ]
    rows = [cells(row, found) for row in found.rows[:_SHOWN]]
    out += table(_narrowed([head(found), *rows]))
    if len(found.rows) > _SHOWN:
        out.append(f"and {len(found.rows) - _SHOWN} more: hpctrain report --json")
    out += _failures(found)
    return out + (["", *(f"next: {word}" for word in found.next)] if found.next else [])
