"""`hpctrain watch`."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import time
from pathlib import Path

import click

from hpctrain.cli import follow
from hpctrain.cli.options import complete_runs, runs_dir_option
from hpctrain.cli.output import print_json, say
from hpctrain.jobs import targets
from hpctrain.report.live import Line, paint
from hpctrain.report.watching import ChangeLog, WatchedRun, WatchSession, view
from hpctrain.terminal import console
from hpctrain.training.survival import time_limit
from hpctrain.util.text import printable

#: Seconds to wait for Slurm's answer before showing only what the files contain.
_PATIENCE_S = 2.0
#: Seconds between two updates: the default, and the minimum.
_INTERVAL_S, _LEAST_S = 2.0, 1.0
_FOOT = "Ctrl-C leaves the job alone"


@click.command("watch")
@click.argument("words", nargs=-1, metavar="[RUN|JOB]...", shell_complete=complete_runs)
@click.option(
    "--interval",
    type=click.FloatRange(_LEAST_S),
    default=_INTERVAL_S,
    show_default=True,
    metavar="SECONDS",
    help="Time between two reads of the files. Slurm is queried every 30 s.",
)
@click.option("--once", is_flag=True, help="Print the current state and exit.")
@click.option(
    "--exit-status", is_flag=True, help="Exit with the job's own exit code; of several, the worst."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per change.")
@runs_dir_option
def command(
    words: tuple[str, ...],
    runs_dir: Path,
    *,
    interval: float,
    once: bool,
    exit_status: bool,
    as_json: bool,
) -> int:
    """Show live progress, loss and GPU memory.

    Also its speed, the utilization of every GPU, and whether it will finish within its time limit.

    RUN is a run, the tag of a sweep, a job's id or its name. Default: the newest run of this project.
    Piped, it prints one line for each change. Ctrl-C leaves the job alone.
    """
    meant = targets.resolve(words, runs_dir) if words else [targets.newest_target(runs_dir)]
    session = WatchSession(meant, runs_dir, _verdict)
    gc.enable()
    can_draw = sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")
    try:
        if as_json or (not once and not can_draw):
            _lines(session, interval, as_json=as_json, once=once)
        elif once:
            session.look()
            size = shutil.get_terminal_size((100, 50))
            height = max(20, size.lines - 1) if can_draw else 1000
            for line, _ in session.frame(size.columns - 1, height):
                click.echo(line.rstrip())
        else:
            _live(session, interval)
    except KeyboardInterrupt:
        running = [each.job for each in session.watched if each.job and not each.ended]
        return follow.left_running(running) if running else 130
    return session.code if exit_status else 0


def _verdict(
    watched: WatchedRun, eta: float, elapsed: float | None, now: float
) -> tuple[bool | None, str]:
    limit = watched.record.time_limit_s if watched.record is not None else None
    end = None if elapsed is None or not limit else now + limit - elapsed
    return time_limit.outlook(eta, end, now=now)


def _lines(session: WatchSession, interval: float, *, as_json: bool, once: bool) -> None:
    logs = [ChangeLog(watched) for watched in session.watched]
    patience = None  # the first line waits for Slurm
    while True:
        session.look(patience)
        patience, now = _PATIENCE_S, time.time()
        clock = time.strftime("%H:%M:%S", time.localtime(now))
        for watched, log in zip(session.watched, logs, strict=True):
            shown = view(watched, now)
            for change in log.changes(shown, now):
                if as_json:
                    print_json(at=round(now, 3), run=watched.run_id, job=watched.job, **change)
                else:
                    click.echo(f"{clock} {printable(shown.title)}: {printable(change['text'])}")
        if once or session.ended:
            break
        time.sleep(interval)
    if not as_json and session.ended:
        for step in view(session.watched[0], time.time()).next:
            say(f"next: {step}")


# -- live ------------------------------------------------------------------------------------------


def _live(session: WatchSession, interval: float) -> None:
    from rich.live import Live

    before = _terminal_size()
    shown: list[Line] = []
    screen = console(width=before.columns, height=before.lines)
    with Live(console=screen, auto_refresh=False, redirect_stdout=False) as drawing:
        while True:
            session.look(_PATIENCE_S)
            size, ended = _terminal_size(), session.ended
            if size != before:  # the terminal has rewrapped the previous frame
                screen.clear()
                screen.size = before = size
                shown = []
            foot: list[Line] = [] if ended else [(_FOOT, "dim")]
            width, height = max(20, size.columns - 1), max(2, size.lines - 1)
            frame = [*session.frame(width, height - len(foot)), *foot]
            if frame != shown:  # redrawing is visible over a slow connection
                drawing.update(paint(frame), refresh=True)
            shown = frame
            if ended:
                break
            time.sleep(interval)


def _terminal_size() -> os.terminal_size:
    """Return the terminal's current size; exported COLUMNS and LINES may be outdated."""
    size = os.get_terminal_size(sys.stdout.fileno())
    return size if size.columns > 0 and size.lines > 0 else shutil.get_terminal_size()
