"""`hpctrain ps`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from hpctrain.cli import follow
from hpctrain.cli.options import complete_runs, json_option
from hpctrain.cli.output import print_json, say, show_table
from hpctrain.errors import SchedulerError
from hpctrain.jobs import schedulers
from hpctrain.report import queue
from hpctrain.runs import layout
from hpctrain.runs.progress import Progress
from hpctrain.slurm.notations import states
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.util import text

#: Jobs that ended, without --all.
SHOWN_ENDED = 10
_COLOURS = {"good": "green", "run": "cyan", "wait": "yellow", "bad": "red"}
_COLUMNS = (
    *("JOB", "RUN", "STATE", "TIME", "STEP", "LOSS", "ETA"),
    *("MEMORY", "TOK/S", "NODES", "ON", "WHY"),
)
#: How many of the first columns are shown on a terminal of any width.
_ALWAYS = 3
_RIGHT = {"TIME", "STEP", "LOSS", "ETA", "MEMORY", "TOK/S", "NODES"}


@click.command("ps")
@click.argument("jobs", nargs=-1, metavar="[JOB]...", shell_complete=complete_runs)
@json_option
@click.option(
    "--all",
    "show_all",
    is_flag=True,
    help=f"All jobs of the last day, not only the last {SHOWN_ENDED} that ended; each task.",
)
def command(jobs: tuple[str, ...], as_json: bool, show_all: bool) -> int:
    """List jobs, their progress and pending reasons.

    Shows what waits or runs, at the end of the list, and what ended within the last day, each with
    how far its training is. JOB, an id, a name or a run, shows that alone; of one that waits also
    why, and when Slurm expects it to start.

    \b
    hpctrain ps
    hpctrain ps 123
    """  # noqa: D301 - \b keeps click from wrapping
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
            values[waiting[0].job_id]["pending"] = pending
        print_json(jobs=list(values.values()))
        return _silence(silent)
    if rows:
        _show(rows if show_all else queue.folded(rows))
    if len(kept) < len(records):
        say(f"and {len(records) - len(kept)} more that ended: hpctrain ps --all")
    if schedulers.accounting_trouble() is not None:
        say("note: sacct does not answer; only jobs that slurmctld remembers are shown")
    if not rows and silent is None:
        say("no jobs; next: hpctrain submit")
    if pending is not None and pending["fix"] is not None:
        click.echo(f"to change that: {pending['fix']}")
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


def _show(rows: Sequence[queue.QueueRow]) -> None:
    cells = [_cells(row) for row in rows]
    heads = list(_COLUMNS)
    if sys.stdout.isatty():
        heads = [head for head in heads if any(row[head] not in ("-", "") for row in cells)]
        heads = _fitting(heads, cells, shutil.get_terminal_size().columns)
    show_table(
        heads,
        [[row[head] for head in heads] for row in cells],
        right={at for at, head in enumerate(heads) if head in _RIGHT},
        colours=[_COLOURS.get(row.state.level) for row in rows],
    )


def _fitting(heads: list[str], cells: Sequence[dict[str, str]], width: int) -> list[str]:
    """Leave out the last columns that do not fit, but not the reason: it is shown below its row."""
    kept = [head for head in heads if head != "WHY"]
    while len(kept) > _ALWAYS:
        lines = text.table([kept, *([row[head] for head in kept] for row in cells)])
        if max(map(text.width, lines)) <= width:
            break
        kept.pop()
    return [*kept, *(head for head in heads if head == "WHY")]


def _cells(row: queue.QueueRow) -> dict[str, str]:
    record, known = row.record, row.progress or Progress()
    limit = "" if record.time_limit_s is None else f"/{text.clock(record.time_limit_s)}"
    steps = f"/{known.max_steps}" if known.max_steps else ""
    rate = known.tokens_per_s
    values = (
        row.job_id,
        row.run or record.name or "-",
        row.state.state,
        f"{text.clock(record.elapsed_s or 0)}{limit}" if record.elapsed_s or limit else "-",
        "-" if known.step is None else f"{known.step}{steps}",
        text.number(known.loss),
        "-" if row.eta_s is None else text.duration(row.eta_s),
        _memory(known),
        "-" if rate is None else f"{rate:.0f}",
        "-" if record.n_nodes is None else str(record.n_nodes),
        record.scheduler,
        row.state.why,
    )
    return dict(zip(_COLUMNS, values, strict=True))


def _memory(known: Progress) -> str:
    """Return the memory of the fullest rank: of its GPU, else of its node: `61/80G r3`."""
    worst = known.worst
    if worst is None:
        return "-"
    used, total = worst.gpu_used_mib, worst.gpu_total_mib
    if used is None or not total:
        used, total = worst.node_used_mib, worst.node_total_mib
    return f"{used / 1024:.0f}/{total / 1024:.0f}G r{worst.rank}" if used and total else "-"
