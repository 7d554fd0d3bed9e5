"""How runs look on a terminal: short tables of plain text, in which nothing that a file says is an order to the terminal."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence

import click

from hpctrain.runs.states import State
from hpctrain.runs.store import Run

_COLOURS = {"completed": "green", "running": "cyan", "pending": "yellow", "failed": "red", "unknown": "yellow", "stopped": "magenta"}
HEAD = ("RUN", "STATE", "STEP", "LOSS", "SINCE", "JOB", "WHY")


def cells(run: Run, state: State, now: float) -> tuple[str, ...]:
    """Return what a table shows of a run."""
    jobs = run.job_ids
    more = f" +{len(jobs) - 1}" if len(jobs) > 1 else ""
    return (
        run.id, state.word, "-" if run.last_step is None else str(run.last_step), loss(run.last_loss), ago(run.since, now),
        printable(jobs[-1]) + more if jobs else "-", why(state),
    )  # fmt: skip


def why(state: State) -> str:
    """Return the reason of a state; nothing where it is the same word again (`failed`: Slurm's FAILED)."""
    reason = state.reason or ""
    return "" if reason.lower() == state.word else printable(reason)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, state_column: int | None = 1) -> list[str]:
    """Return the lines of a table; on a terminal coloured, and cut at its width."""
    terminal = sys.stdout.isatty()
    colour = terminal and not os.environ.get("NO_COLOR")
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    limit = shutil.get_terminal_size().columns if terminal else None
    lines = []
    for number, row in enumerate((head, *rows)):
        words = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        line = "  ".join(words).rstrip()
        if limit is not None and len(line) > limit:
            line = line[: limit - 1] + "…"
        if colour and number == 0:
            line = click.style(line, bold=True)
        elif colour and state_column is not None and row[state_column] in _COLOURS:
            line = line.replace(words[state_column], click.style(words[state_column], fg=_COLOURS[row[state_column]]), 1)
        lines.append(line)
    return lines


def printable(text: str) -> str:
    r"""Return `text` with what is no printable character shown, as \x1b."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape", "surrogatepass").decode() for sign in text)


def loss(value: float | None) -> str:
    """Return a loss, or a dash."""
    return "-" if value is None else f"{value:.4g}"


def ago(at: float | None, now: float) -> str:
    """Return how long ago something was, in its largest unit: `3 h`."""
    if at is None:
        return "-"
    seconds = max(0, int(now - at))
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length or (unit == "min" and seconds >= length):
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def when(at: float | None) -> str:
    """Return a time of the clock of this machine, or a dash."""
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def size(count: int) -> str:
    """Return bytes as people read them: `1.5 GB`, powers of 1000."""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        value /= 1000
        if value < 999.5 or unit == "PB":
            return f"{value:.3g} {unit}"
    return f"{count} B"
