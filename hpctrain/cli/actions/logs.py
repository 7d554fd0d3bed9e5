"""`hpctrain logs`."""

from __future__ import annotations

import gc
import re
import sys
import time
from datetime import datetime
from typing import Any

import click

from hpctrain.cli import follow
from hpctrain.cli.options import complete_runs
from hpctrain.cli.output import say
from hpctrain.errors import UsageError
from hpctrain.jobs import job_logs, schedulers
from hpctrain.logs import files
from hpctrain.logs.view import FollowedLogs, LogSelection, LogView, whole
from hpctrain.runs import store
from hpctrain.slurm.notations import array as arrays

_LOOK_S = 0.3
#: Extra reads at the end: over NFS, the last output of other nodes arrives late.
_LATE_LOOKS = 3
_AGO = re.compile(r"([0-9]{1,9})([smhd])\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@click.command("logs")
@click.argument("words", nargs=-1, metavar="[JOB | RUN | FILES...]", shell_complete=complete_runs)
@click.option(
    "-f",
    "--follow",
    "following",
    is_flag=True,
    help="Follow until the job ends. Ctrl-C does not stop the job.",
)
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Only output of this rank.")
@click.option("--node", metavar="X", help="Only output of this node.")
@click.option("--err", is_flag=True, help="Only the error log.")
@click.option(
    "-n",
    "--lines",
    "last",
    type=click.IntRange(min=0),
    metavar="LINES",
    help="Only the last N lines.",
)
@click.option(
    "--since", metavar="TIME", help="Only lines since then, e.g. 10m, 2h, 2026-11-22T04:10."
)
@click.option("--all", "every_job", is_flag=True, help="All jobs of the run, the oldest first.")
def command(words: tuple[str, ...], *, following: bool, every_job: bool, **wanted: Any) -> int:
    """Show the merged logs of all ranks.

    JOB is an id or a job's name; of a RUN, its newest job; without either, the newest job. FILES
    are logs of any job, and directories of them. Of an array, the task that started last; 123_4 is
    one task.

    Output and errors, and restarts, come in order, without progress bars and colours.
    The same line of many ranks is printed once, with the ranks and a count.

    \b
    hpctrain logs -f
    hpctrain logs sft --rank 3
    hpctrain logs slurm-123.out old_logs/
    """  # noqa: D301 - \b keeps click from wrapping
    gc.enable()
    view = LogView(since=_moment(wanted.pop("since")), **wanted)
    chosen = job_logs.select(words, every_job=every_job, to_come=following)
    record = chosen.record
    for note in chosen.notes:
        say(note)
    if record is not None and chosen.output is not None:
        say(f"{files.shown(chosen.output)}: {follow.describe(record)}")
    if chosen.earlier:
        plural = "s" if len(chosen.earlier) > 1 else ""
        say(f"earlier: job{plural} {', '.join(chosen.earlier[-5:])} of this run; all of it: --all")
    run_dir = chosen.run_dir
    run = store.read_run(run_dir.parent, run_dir.name) if run_dir is not None else None
    last = run.last if run is not None else None
    is_over = last is not None and last.outcome in ("completed", "failed")
    if record is not None:
        is_over = record.is_final
    if following and not is_over:
        return _follow(chosen, view)
    _print(chosen, view)
    return 0


def _print(chosen: LogSelection, view: LogView) -> None:
    is_shown, record = whole(chosen, view, _write), chosen.record
    if not any(file.path.exists() for file in chosen.files):
        say("the file does not exist yet; it appears when the job starts")
    elif not is_shown and (view.rank is not None or view.node is not None):
        what = f"rank {view.rank}" if view.rank is not None else f"node {view.node}"
        ranks = {file.rank for file in (*chosen.ranks, *chosen.files) if file.rank is not None}
        say(f"no line is from {what}; known ranks: {arrays.compress(ranks) or 'none'}")
    elif record is not None and record.is_final and record.state != "COMPLETED":
        say(f"next: hpctrain explain {record.job_id}")


def _follow(chosen: LogSelection, view: LogView) -> int:
    followed, record = FollowedLogs(chosen, view, _write, say), chosen.record
    try:
        if record is None:
            while True:
                followed.copy()
                time.sleep(_LOOK_S)
        ended = follow.until_the_end(
            schedulers.owner(record.job_id), record.job_id, [followed.copy], say
        )
        for _ in range(_LATE_LOOKS):
            followed.copy()
            time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        followed.finish()
        return 130 if record is None else follow.left_running([record.job_id])
    followed.finish()
    if ended is not None:
        say(follow.describe(ended))
        if ended.state != "COMPLETED":
            say(f"next: hpctrain explain {ended.job_id}")
    return 0


def _write(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    if encoding.lower() not in ("utf-8", "utf8"):  # cannot show bars and ticks
        text = text.encode(encoding, "replace").decode(encoding)
    sys.stdout.write(text)


def _moment(text: str | None) -> float | None:
    if text is None:
        return None
    if match := _AGO.match(text):
        return time.time() - int(match[1]) * _SECONDS[match[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise UsageError(
            f"--since {text!r} is not a time", hint="use --since 10m, or --since 2026-11-22T04:10"
        ) from error
