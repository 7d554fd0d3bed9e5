"""The implementation of `hpctrain ps`."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from hpctrain.cli import follow, run_table
from hpctrain.cli.monitor import SHOWN_ENDED
from hpctrain.cli.output import has_colour, print_json, say
from hpctrain.errors import SchedulerError
from hpctrain.jobs import schedulers
from hpctrain.report import queue
from hpctrain.report.queue import PendingJob, QueueRow
from hpctrain.runs import layout
from hpctrain.runs.progress import Progress
from hpctrain.slurm.notations import states
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.terminal import style
from hpctrain.util import text
from hpctrain.util.text import printable

_COLOURS = {"good": "green", "run": "cyan", "wait": "yellow", "bad": "red"}
#: The last columns are omitted in a narrow terminal.
_COLUMNS = ("JOB", "RUN", "STATE", "TIME", "STEP", "LOSS", "ETA", "MEMORY", "TOK/S", "NODES", "ON")
_RIGHT = {"TIME", "STEP", "LOSS", "ETA", "MEMORY", "TOK/S", "NODES"}
_SMALLEST_NAME = 8


def run(jobs: tuple[str, ...], *, as_json: bool, show_all: bool) -> int:
    """List the jobs, and return the exit code."""
    records, silent = (follow.known_jobs(jobs), None) if jobs else schedulers.all_jobs()
    records = sorted(records, key=lambda record: not record.is_final)
    kept = records if show_all or jobs or as_json else _newest(records)
    rows = queue.rows_of(kept)
    in_queue = (row for row in rows if row.record.scheduler == "slurm")
    waiting = [row for row in in_queue if row.record.state in states.WAITING]
    pending = queue.pending_job(waiting[0]) if jobs and len(waiting) == 1 else None
    if as_json:
        values = {row.job_id: row.to_json() for row in rows}
        if pending is not None:
            values[waiting[0].job_id]["pending"] = asdict(pending)
        print_json(jobs=list(values.values()))
        return _silence(silent)
    if rows:
        _print(rows if show_all else queue.folded(rows))
    if len(kept) < len(records):
        say(f"and {len(records) - len(kept)} more that ended: hpctrain ps --all")
    local = any(schedulers.owner(job).name == "local" for job in jobs)
    if not local and schedulers.accounting_trouble() is not None:
        say(
            "note: sacct does not answer; of ended jobs, only those that slurmctld remembers are shown"
        )
    if not rows and silent is None:
        say("no jobs; next: hpctrain submit")
    if pending is not None:
        click.echo("\n".join(_pending_lines(pending)))
    return _silence(silent)


def _newest(records: list[JobRecord]) -> list[JobRecord]:
    numbers = {record.job_id: record.job_id.partition("_")[0] for record in records}
    ended = dict.fromkeys(numbers[record.job_id] for record in records if record.is_final)
    old = set(list(ended)[:-SHOWN_ENDED])
    return [each for each in records if not each.is_final or numbers[each.job_id] not in old]


def _silence(silent: SchedulerError | None) -> int:
    if silent is None:
        return 0
    if Path(layout.RUNS).is_dir():
        say("note: what the files of the runs here show: hpctrain runs list")
    say(schedulers.no_answer(silent).render())
    return silent.exit_code


# -- the table -------------------------------------------------------------------------------------


def _print(rows: Sequence[QueueRow]) -> None:
    if sys.stdout.isatty():
        head, *lines = _shown(rows, shutil.get_terminal_size().columns)
        click.echo("\n".join([style(head, bold=True) if has_colour() else head, *lines]))
    else:
        cells = [(*_cells(row).values(), printable(row.state.why)) for row in rows]
        click.echo("\n".join(text.table([(*_COLUMNS, "WHY"), *cells])))


def _cells(row: QueueRow) -> dict[str, str]:
    record, known = row.record, row.progress or Progress()
    limit = "" if record.time_limit_s is None else f"/{short(record.time_limit_s)}"
    steps = f"/{known.max_steps}" if known.max_steps else ""
    rate = known.tokens_per_s
    values = (
        printable(row.job_id),
        printable(row.run or record.name or "-"),
        printable(row.state.state),
        f"{short(record.elapsed_s or 0)}{limit}" if record.elapsed_s or limit else "-",
        "-" if known.step is None else f"{known.step}{steps}",
        text.number(known.loss),
        "-" if row.eta_s is None else short(row.eta_s),
        _memory(known),
        "-" if rate is None else f"{rate:.0f}" if rate < 10_000 else f"{rate / 1000:.0f}k",
        "-" if record.n_nodes is None else str(record.n_nodes),
        record.scheduler,
    )
    return dict(zip(_COLUMNS, values, strict=True))


def _memory(known: Progress) -> str:
    """Return the memory of the fullest rank: its GPU, else its cgroup, else its node: `61/80G
    r3`.
    """
    worst = known.worst
    if worst is not None:
        for used, total in (
            (worst.gpu_used_mib, worst.gpu_total_mib),
            (worst.cgroup_used_mib, worst.cgroup_limit_mib),
            (worst.node_used_mib, worst.node_total_mib),
        ):
            if used is not None and total:
                return f"{used / 1024:.0f}/{total / 1024:.0f}G r{worst.rank}"
    return "-"


def _lines(rows: Sequence[QueueRow], width: int) -> list[str]:
    """Return the lines of the table; if too wide, shorten names first, then omit columns."""
    cells = [_cells(row) for row in rows]
    heads = [
        head
        for head in _COLUMNS
        if head in ("JOB", "RUN", "STATE") or any(row[head] != "-" for row in cells)
    ]
    while True:
        right = {at for at, head in enumerate(heads) if head in _RIGHT}
        lines = text.table([heads, *([row[head] for head in heads] for row in cells)], right=right)
        over = max(map(text.width, lines)) - width
        longest = max(text.width(row["RUN"]) for row in cells)
        if over <= 0 or len(heads) == 1:
            return lines
        if longest > _SMALLEST_NAME:
            most = max(_SMALLEST_NAME, longest - over)
            cells = [row | {"RUN": _middle(row["RUN"], most)} for row in cells]
        else:
            heads.pop()


def _shown(rows: Sequence[QueueRow], width: int) -> list[str]:
    """Return the lines for a terminal; the reason why a job waits follows its row if it fits, else
    it is below.
    """
    head, *lines = _lines(rows, width)
    found = [head]
    for row, line in zip(rows, lines, strict=True):
        why, state = printable(row.state.why), row.state.state
        colour = "yellow" if state == states.UNKNOWN else _COLOURS.get(row.state.level)
        whole = f"{line}  {why}".rstrip()
        found += run_table.beside_or_below(whole, line, why, width, state, colour)
    return found


def _middle(words: str, width: int) -> str:
    """Shorten a text in the middle if it is too long: both ends of a run's name matter."""
    left = (width - 1) // 2
    return words if len(words) <= width else f"{words[:left]}…{words[left + 1 - width :]}"


def short(seconds: float) -> str:
    """Return a duration in at most two units: `45s`, `12m30`, `1h02`, `2d03h`."""
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days}d{h:02d}h"
    return f"{h}h{m:02d}" if h else f"{m}m{s:02d}" if m else f"{s}s"


# -- a pending job ---------------------------------------------------------------------------------


def _pending_lines(pending: PendingJob) -> list[str]:
    fix = [f"to change that: {pending.fix}"] if pending.fix is not None else []
    return ["", _expectation(pending), *fix]


def _expectation(pending: PendingJob) -> str:
    if pending.kind == "never":
        return "expected start: unknown"
    if pending.expected is None:
        return "expected start: Slurm has not planned it yet"
    now = time.time()
    at, left = queue.when(pending.expected, now), pending.expected - now
    return f"expected start: {at}" + (f" (in {short(left)})" if left > 60 else "")
