"""The table of `hpctrain ps`: full where it is piped; on a terminal as wide as that, with the columns that matter least left out."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

import click

from hpctrain.cli.ps_rows import Row
from hpctrain.cli.runs_table import loss as loss_words
from hpctrain.cli.runs_table import printable
from hpctrain.memory.sample import Sample
from hpctrain.scheduler.parse import array, duration, states

_COLOURS = {"COMPLETED": "green", "RUNNING": "cyan", "PENDING": "yellow", states.UNKNOWN: "yellow"}
#: Running tasks of one array that have a line each; of more of them one line stands for all.
_TASKS_SHOWN = 8
_SMALLEST_NAME = 8


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a terminal: what it is worth, the least first to go; `right` where numbers stand below one another."""

    head: str
    worth: int
    right: bool = False


_COLUMNS = (
    Column("JOB", 100), Column("RUN", 80), Column("STATE", 90), Column("TIME", 70, right=True), Column("STEP", 60, right=True),
    Column("LOSS", 50, right=True), Column("ETA", 45, right=True), Column("MEMORY", 40, right=True), Column("TOK/S", 30, right=True),
    Column("NODES", 20, right=True), Column("ON", 10),
)  # fmt: skip


def folded(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the tasks of one array that came to the same end in one of them, and those that run where they are many."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        number, _, task = row.record.job_id.partition("_")
        same = (number, row.record.state, row.record.exit_code, row.why) if task.isdigit() else (row.record.job_id,)
        groups.setdefault(same, []).append(row)
    return [row for same in groups.values() for row in (_folded(same) if _folds(same) else same)]


def _folds(same: Sequence[Row]) -> bool:
    return len(same) > (1 if same[0].record.is_final else _TASKS_SHOWN)


def _folded(same: Sequence[Row]) -> list[Row]:
    """Return one row for several tasks: the time of the one that took the longest, and no run of its own."""
    number = same[0].record.job_id.partition("_")[0]
    indices = [int(row.record.job_id.partition("_")[2]) for row in same]
    longest = max(same, key=lambda row: row.record.elapsed_s or 0)
    return [replace(longest, job_id=f"{number}_[{array.compress(indices)}]", run=_common(same), progress=None)]


def _common(same: Sequence[Row]) -> str | None:
    """Return what the runs of tasks have in common: the tag of their launch."""
    names = {row.run.rpartition("_")[0] for row in same if row.run is not None}
    return names.pop() if len(names) == 1 else None


def lines(rows: Sequence[Row]) -> list[str]:
    """Return the lines of the table."""
    if not sys.stdout.isatty():
        return _piped(rows)
    return _shown(rows, shutil.get_terminal_size().columns, colour=not os.environ.get("NO_COLOR"))


def _piped(rows: Sequence[Row]) -> list[str]:
    """Return all there is, a line for each job: nothing cut, nothing rounded away that a script may want."""
    head = ("JOB", "NAME", "STATE", "ON", "NODES", "ELAPSED", "LIMIT", "RUN", "STEP", "LOSS", "TOK/S", "ETA", "MEMORY", "WHY")
    cells = [
        (
            row.job_id, printable(row.record.name or "-"), row.record.state, row.record.scheduler, _dash(row.record.nodes),
            _clock(row.record.elapsed_s), _clock(row.record.time_limit_s), row.run or "-", _step(row), _loss(row), _tokens(row),
            _clock(_eta(row)), _memory(row), printable(row.why),
        )
        for row in rows
    ]  # fmt: skip
    widths = [max(len(each[column]) for each in (head, *cells)) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(each, widths, strict=True)).rstrip() for each in (head, *cells)]


def _shown(rows: Sequence[Row], width: int, *, colour: bool) -> list[str]:
    """Return the lines for a terminal: why a job waits stands behind its row where there is room, else below it."""
    cells = [_cells(row) for row in rows]
    heads = {column.head: column for column in _COLUMNS}
    kept = [column.head for column in _COLUMNS if column.head in ("JOB", "RUN", "STATE") or any(row[column.head] != "-" for row in cells)]
    widths = {head: max(len(head), *(columns(row[head]) for row in cells)) for head in kept}

    def total() -> int:
        return sum(widths[head] for head in kept) + 2 * (len(kept) - 1)

    while total() > width:
        if "RUN" in kept and widths["RUN"] > _SMALLEST_NAME:
            widths["RUN"] = max(_SMALLEST_NAME, widths["RUN"] - (total() - width))
        elif len(kept) == 1:
            break
        else:
            kept.remove(min(kept, key=lambda head: heads[head].worth))
    found = [_styled(_line({head: head for head in kept}, kept, widths, heads), bold=colour)]
    for row, cell in zip(rows, cells, strict=True):
        line, why = _line(cell, kept, widths, heads), printable(row.why)
        beside = bool(why) and columns(line) + 2 + len(why) <= width
        found.append(_coloured(line, row.record.state, colour=colour) + (f"  {why}" if beside else ""))
        if why and not beside:
            found += textwrap.wrap(why, max(20, width), initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return found


def _cells(row: Row) -> dict[str, str]:
    record = row.record
    limit = "" if record.time_limit_s is None else f"/{short(record.time_limit_s)}"
    elapsed = "-" if not record.elapsed_s and not limit else f"{short(record.elapsed_s or 0)}{limit}"
    eta = _eta(row)
    return {
        "JOB": row.job_id, "RUN": printable(row.run or record.name or "-"), "STATE": record.state, "TIME": elapsed, "STEP": _step(row),
        "LOSS": _loss(row), "ETA": "-" if eta is None else short(eta), "MEMORY": _memory(row), "TOK/S": _tokens(row),
        "NODES": _dash(record.nodes), "ON": record.scheduler,
    }  # fmt: skip


def _line(cells: dict[str, str], kept: Sequence[str], widths: dict[str, int], heads: dict[str, Column]) -> str:
    words = []
    for head in kept:
        cell = middle(cells[head], widths[head]) if head == "RUN" else cells[head]
        gap = " " * (widths[head] - columns(cell))
        words.append(gap + cell if heads[head].right else cell + gap)
    return "  ".join(words).rstrip()


def middle(text: str, width: int) -> str:
    """Return `text`, with its middle taken out where it is too long: what tells runs apart stands at both ends of their names."""
    if columns(text) <= width:
        return text
    left = (width - 1) // 2
    head, tail = _cut(text, left), _cut(text[::-1], width - 1 - left)[::-1]
    return f"{head}…{tail}"


def _cut(text: str, width: int) -> str:
    """Return the beginning of a text that fits so many columns."""
    room = width
    for at, sign in enumerate(text):
        room -= columns(sign)
        if room < 0:
            return text[:at]
    return text


def columns(text: str) -> int:
    """Return how many columns of a terminal a text takes: a Chinese or Japanese sign takes two."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)


def _coloured(line: str, state: str, *, colour: bool) -> str:
    hue = _COLOURS.get(state, "red" if state in states.FAILED else "")
    return line.replace(f" {state}", f" {click.style(state, fg=hue)}", 1) if colour and hue else line


def _styled(line: str, *, bold: bool) -> str:
    return click.style(line, bold=True) if bold else line


def short(seconds: float) -> str:
    """Return a time in two units at most: `45s`, `12m30`, `1h02`, `2d03h`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}"
    if whole < duration.DAY:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}"
    return f"{whole // duration.DAY}d{whole % duration.DAY // 3600:02d}h"


def _clock(seconds: float | None) -> str:
    return "-" if seconds is None else duration.format(int(seconds))


def _eta(row: Row) -> float | None:
    """Return the seconds that the training still needs, of one that runs; counted down since it last said so."""
    progress = row.progress
    if progress is None or progress.eta_s is None or row.record.is_final:
        return None
    since = time.time() - progress.at if progress.at is not None and row.record.state == "RUNNING" else 0.0
    return max(0.0, progress.eta_s - max(0.0, since))


def _step(row: Row) -> str:
    if row.progress is None or row.progress.step is None:
        return "-"
    return f"{row.progress.step}/{row.progress.max_steps}" if row.progress.max_steps else str(row.progress.step)


def _loss(row: Row) -> str:
    return loss_words(row.progress.loss if row.progress is not None else None)


def _tokens(row: Row) -> str:
    rate = row.progress.tokens_per_s if row.progress is not None else None
    if rate is None:
        return "-"
    return f"{rate:.0f}" if rate < 10_000 else f"{rate / 1000:.0f}k" if rate < 10_000_000 else f"{rate / 1e6:.0f}M"


def _memory(row: Row) -> str:
    """Return the memory of the worst rank: of its GPU, else of its cgroup, else of its node: `61/80G r3`."""
    worst = row.progress.worst if row.progress is not None else None
    if worst is None:
        return "-"
    used, total = _used(worst)
    return "-" if used is None or total is None else f"{used / 1024:.0f}/{total / 1024:.0f}G r{worst.rank}"


def _used(worst: Sample) -> tuple[int | None, int | None]:
    for used, total in ((worst.gpu_used_mib, worst.gpu_total_mib), (worst.cgroup_used_mib, worst.cgroup_limit_mib)):
        if used is not None and total:
            return used, total
    return worst.node_used_mib, worst.node_total_mib


def _dash(value: object) -> str:
    return "-" if value is None else str(value)
