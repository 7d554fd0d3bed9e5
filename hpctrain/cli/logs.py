"""`hpctrain logs`: the logs of a job as one, whole or as they grow."""

from __future__ import annotations

import gc
import re
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from hpctrain.errors import HpctrainError, UsageError

if TYPE_CHECKING:
    from hpctrain.cli.logs_chosen import Chosen
    from hpctrain.cli.logs_show import Followed, View

_LOOK_S = 0.3
_AGO = re.compile(r"([0-9]{1,9})([smhd])\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@click.command()
@click.argument("words", nargs=-1, metavar="[JOB | RUN | FILES...]")
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the job has ended. Ctrl-C leaves the job alone.")
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Only what this rank wrote.")
@click.option("--node", metavar="X", help="Only what was written on this node.")
@click.option("--err", is_flag=True, help="Only the error log.")
@click.option("-n", "--lines", "last", type=click.IntRange(min=0), metavar="LINES", help="Only so many lines from the end.")
@click.option("--since", metavar="TIME", help="Only from then on: 10m, 2h, 04:10, 2026-11-22T04:10.")
@click.option("--all", "every_job", is_flag=True, help="All jobs of the run, the oldest first.")
@click.option("--raw", is_flag=True, help="The output as it is, byte for byte; with --err, the error log.")
def command(words: tuple[str, ...], following: bool, raw: bool, every_job: bool, **wanted: Any) -> int:
    """Show the logs of a job as one; -f follows them.

    JOB is an id or a job's name; of a RUN, its newest job; without either, the newest job. FILES are logs of any job, and folders of
    them. Of an array, the task that started last: 123_4 names one.

    Output and errors, restarts and past rotations come in order, without progress bars and colours. What many ranks say is one line,
    with the ranks and a count.

    \b
    hpctrain logs -f
    hpctrain logs sft --rank 3
    hpctrain logs slurm-123.out old_logs/
    """  # noqa: D301 - \b is click's word for lines that stay as they are
    from hpctrain.cli import logs_chosen
    from hpctrain.cli.logs_show import View

    gc.enable()
    since = _moment(wanted.pop("since"))
    view = View(since=since, **wanted)
    chosen = logs_chosen.choose(words, every_job=every_job, to_come=following)
    for note in chosen.notes:
        click.echo(note, err=True)
    if chosen.earlier:
        click.echo(
            f"earlier: job{'s' * (len(chosen.earlier) > 1)} {', '.join(chosen.earlier[-5:])} of this run; all of it: --all", err=True
        )
    if raw:
        return _raw(chosen, view, following)
    if following and (chosen.record is None or not chosen.record.is_final):
        return _follow(chosen, view)
    return _whole(chosen, view)


def _whole(chosen: Chosen, view: View) -> int:
    from hpctrain.cli import logs_show

    shown = logs_show.whole(chosen, view, _write)
    record = chosen.record
    if not any(file.path.exists() for file in chosen.files):
        click.echo("there is no such file yet; it appears when the job starts", err=True)
    elif not shown and (view.rank is not None or view.node is not None):
        _say_who_is_known(chosen, view)
    elif record is not None and record.is_final and record.state != "COMPLETED":
        click.echo(f"next: hpctrain explain {record.job_id}", err=True)
    return 0


def _say_who_is_known(chosen: Chosen, view: View) -> None:
    """Say why there is nothing, where a rank or a node was asked for."""
    from hpctrain.cli.logs_show import numbers, placed

    own = [file for file in (*chosen.ranks, *chosen.files) if file.rank is not None]
    ranks = {file.rank for file in own if file.rank is not None}
    what = f"rank {view.rank}" if view.rank is not None else f"node {view.node}"
    click.echo(f"no line says that it is of {what}", err=True)
    if ranks:
        nodes = sorted({file.node for file in map(placed, own) if file.node})
        click.echo(f"there are ranks {numbers(ranks)}{' on ' + ', '.join(nodes[:8]) if nodes else ''}", err=True)
    else:
        click.echo("the launcher puts no ranks in front of lines: docs/logs.md says how it does", err=True)


def _follow(chosen: Chosen, view: View) -> int:
    from hpctrain.cli import follow, logs_show

    followed = logs_show.Followed(chosen, view, _write, lambda line: click.echo(line, err=True))
    try:
        if chosen.record is None or chosen.scheduler is None:
            while True:
                followed.copy()
                time.sleep(_LOOK_S)
        ended = follow.until_the_end(chosen.scheduler, chosen.record.job_id, [followed], lambda line: click.echo(line, err=True))
        _drain(followed)
    except KeyboardInterrupt:
        followed.finish()
        if chosen.record is not None:
            job = chosen.record.job_id
            click.echo(f"\njob {job} keeps running; to stop it: hpctrain cancel {job}", err=True)
        return 130
    if ended is not None:
        click.echo(follow.describe(ended), err=True)
        if ended.state != "COMPLETED":
            click.echo(f"next: hpctrain explain {ended.job_id}", err=True)
    return 0


def _drain(followed: Followed) -> None:
    """Go on for a moment after the end: what other nodes wrote last comes late over NFS."""
    for _ in range(3):
        followed.copy()
        time.sleep(_LOOK_S)
    followed.finish()


def _raw(chosen: Chosen, view: View, following: bool) -> int:
    """Write the bytes of the output, or of the error log."""
    from hpctrain.cli import follow
    from hpctrain.logs import read

    if view.node is not None or view.since is not None:
        raise UsageError("--raw shows files as they are, and --node and --since choose lines", fix="leave --raw out")
    files = [file for file in chosen.files if (file.stream == "err") == view.err] or list(chosen.files[:1] if view.err else chosen.files)
    if view.rank is not None:
        files = [file for file in (*chosen.ranks, *chosen.files) if file.rank == view.rank]
        if not files:
            raise HpctrainError(f"there is no file of rank {view.rank} alone", fix=f"leave --raw out: hpctrain logs --rank {view.rank}")
    sys.stdout.flush()
    if following and chosen.record is not None and chosen.scheduler is not None and not chosen.record.is_final:
        tails = [follow.Tail(file.path, sys.stdout) for file in files]
        try:
            ended = follow.until_the_end(chosen.scheduler, chosen.record.job_id, tails, lambda line: click.echo(line, err=True))
        except KeyboardInterrupt:
            click.echo(f"\njob {chosen.record.job_id} keeps running", err=True)
            return 130
        if ended is not None:
            click.echo(follow.describe(ended), err=True)
        return 0
    for file in files:
        start = read.tail(file, view.last)[0] if view.last is not None else 0
        for piece in read.blocks(file, start=start):
            sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
    return 0


def _write(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    if encoding.lower() not in ("utf-8", "utf8"):  # a terminal that knows no bars and ticks
        text = text.encode(encoding, "replace").decode(encoding)
    sys.stdout.write(text)


def _moment(text: str | None) -> float | None:
    """Return seconds since the epoch of `10m` ago, a clock time of today (or yesterday, where that is to come), or a date.

    Raises:
        UsageError: it is none of these.
    """
    from datetime import datetime, timedelta

    if text is None:
        return None
    if match := _AGO.match(text):
        return time.time() - int(match[1]) * _SECONDS[match[2]]
    now = datetime.now().astimezone()
    try:
        if re.match(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?\Z", text):
            hour, minute, second = ([*map(int, text.split(":")), 0])[:3]
            moment = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
            return (moment if moment <= now else moment - timedelta(days=1)).timestamp()
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise UsageError(f"--since {text!r} is no time", fix="hpctrain logs --since 10m, or --since 2026-11-22T04:10") from error
