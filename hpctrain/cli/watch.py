"""`hpctrain watch`: what a run does now, as it goes on."""

from __future__ import annotations

import gc
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from hpctrain.cli.runs_filter import runs_dir_option
from hpctrain.cli.watch_look import Looked
from hpctrain.cli.watch_poll import Poll, expanded
from hpctrain.cli.watch_said import Said, as_json_line, line
from hpctrain.cli.watch_target import Target
from hpctrain.cli.watch_view import Watched, view
from hpctrain.report.live_paint import Line
from hpctrain.scheduler.parse import states

#: Seconds between two looks where nothing says otherwise, and the least.
_INTERVAL_S, _LEAST_S = 2.0, 1.0
#: Seconds to wait for Slurm's answer before the files are shown without it.
_PATIENCE_S = 2.0


@click.command()
@click.argument("words", nargs=-1, metavar="[RUN|JOB]...")
@click.option("--interval", type=click.FloatRange(_LEAST_S), default=_INTERVAL_S, show_default=True, metavar="SECONDS",
              help="Time between two looks at the files. Slurm is asked every 15 to 60 s.")  # fmt: skip
@click.option("--once", is_flag=True, help="Show what is known now, and end.")
@click.option("--exit-status", is_flag=True, help="Exit with the job's own exit code; of several, the worst.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each change, a line each.")
@click.option("--full-screen", is_flag=True, help="Draw on a screen of its own, which is gone at the end.")
@runs_dir_option
def command(
    *, words: tuple[str, ...], interval: float, once: bool, exit_status: bool, as_json: bool, full_screen: bool, runs_dir: Path
) -> int:
    """Show what a run does, live: progress, loss, memory of every GPU, warnings.

    Also its speed, the utilisation of every GPU, and whether it will finish in its time.

    A word is a run, the tag of a sweep, a job's id or its name; without one, the newest that runs is shown, else that waits, else the
    newest. Piped, it prints one line for each change. Ctrl-C leaves the job alone.
    """
    from hpctrain.cli import watch_target

    session = Session.of(watch_target.find(words, runs_dir), runs_dir)
    gc.enable()
    try:
        if as_json or (not once and not _can_draw()):
            _lines(session, interval, as_json=as_json, once=once)
        elif once:
            session.look()
            _print_once(session)
        else:
            _live(session, interval, own_screen=full_screen)
    except KeyboardInterrupt:
        _detached(session)
        return 130
    return session.code if exit_status else 0


@dataclass(slots=True)
class Session:
    """What is watched: runs and jobs, with one poll for all of them."""

    watched: list[Watched] = field(default_factory=list)
    poll: Poll | None = None

    @classmethod
    def of(cls, targets: Sequence[Target], runs_dir: Path) -> Session:
        """Return a session for these; an array that is no run of hpctrain's has a row for each task."""
        poll = Poll(time.monotonic)
        found: list[Watched] = []
        for target in targets:
            jobs = [None] if target.job_id is None else list(expanded(target.job_id) or [target.job_id])
            for job in jobs:
                looked = Looked(runs_dir, target.run_id, jobs=() if job is None else (job,))
                found.append(Watched(looked, poll))
        return cls(found, poll)

    def look(self, patience: float | None = None) -> None:
        """Look at the files, and ask the schedulers if it is time to; wait so long for Slurm's answer, or as long as it takes."""
        if self.poll is None:
            return
        for each in self.watched:
            before = (each.attempt, each.looked.jobs)
            each.looked.look(each.job)
            if (each.attempt, each.looked.jobs) != before and before[1]:
                self.poll.soon()
        self.poll.ask([job for each in self.watched for job in each.jobs], patience=patience)

    @property
    def ended(self) -> bool:
        """Whether all have ended."""
        return all(each.ended for each in self.watched)

    @property
    def code(self) -> int:
        """The worst exit code."""
        return max((each.code for each in self.watched if each.ended), default=0)

    def frame(self, width: int, height: int, *, plain: bool, foot: bool = True) -> list[Line]:
        """Return the lines of a frame."""
        from hpctrain.report import live, live_many

        now = time.time()
        views = [view(each, now) for each in self.watched]
        height = max(2, height)
        if len(views) == 1:
            lines = live.frame(views[0], width, height - foot, plain=plain)
        else:
            names = [each.looked.run.tag for each in self.watched if each.looked.run is not None]
            title = names[0] if names and len(set(names)) == 1 else f"{len(views)} runs"
            lines = live_many.frame(views, title, width, height - foot, plain=plain)
        return [*lines, [("Ctrl-C leaves the job alone", "dim")]] if foot else lines


def _can_draw() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


def _plain() -> bool:
    from hpctrain.report import charts

    return not charts.encodable(sys.stdout.encoding, os.environ.get("TERM", ""))


def _print_once(session: Session) -> None:
    from hpctrain.report.live_paint import text

    size = shutil.get_terminal_size((100, 50))
    width, height = (size.columns - 1, max(20, size.lines - 1)) if sys.stdout.isatty() else (size.columns, 1000)
    for each in session.frame(width, height, plain=_plain(), foot=False):
        click.echo(text(each).rstrip())


# -- one line for each change ------------------------------------------------------------------------------------------


def _lines(session: Session, interval: float, *, as_json: bool, once: bool) -> None:
    said = [Said() for _ in session.watched]
    patience = None  # the first line is of what Slurm says
    while True:
        session.look(patience)
        patience = _PATIENCE_S
        now = time.time()
        for each, told in zip(session.watched, said, strict=True):
            shown = view(each, now)
            for change in told.changes(each, shown, now):
                click.echo(as_json_line(change, each, now) if as_json else line(change, shown.title, now))
        if once or session.ended:
            break
        time.sleep(interval)
    if not as_json:
        for each in session.watched[:1] if session.ended else ():
            for step in view(each, time.time()).next:
                click.echo(f"next: {step}", err=True)


# -- live --------------------------------------------------------------------------------------------------------------


def _live(session: Session, interval: float, *, own_screen: bool) -> None:
    from hpctrain.report.live_paint import Painter

    painter = Painter(colour=not os.environ.get("NO_COLOR"))
    plain = _plain()
    with _quiet_terminal(), _wakes_on_resize() as wait:
        if own_screen:
            _write("\x1b[?1049h\x1b[H")
        try:
            while True:
                session.look(_PATIENCE_S)
                size = _terminal_size()
                ended = session.ended
                _write(
                    painter.frame(session.frame(size.columns - 1, size.lines - 1, plain=plain, foot=not ended), size.columns, size.lines)
                )
                if ended:
                    break
                wait(interval)
        finally:
            _write(painter.end())
            if own_screen:
                _write("\x1b[?1049l")
    if own_screen:
        _print_once(session)


def _write(text: str) -> None:
    if text:
        sys.stdout.write(text)
        sys.stdout.flush()


class _quiet_terminal:  # noqa: N801 - read as a function
    """What is typed is not shown meanwhile: it would stand in the frame."""

    def __enter__(self) -> None:
        import termios

        self._before: list[object] | None = None
        try:
            before = termios.tcgetattr(sys.stdin.fileno())
            self._before = list(before)
            before[3] &= ~termios.ECHO
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)
        except (termios.error, OSError, ValueError):
            self._before = None

    def __exit__(self, *_: object) -> None:
        import termios

        if self._before is not None:
            try:
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._before)  # type: ignore[arg-type]
            except (termios.error, OSError, ValueError):
                pass


def _terminal_size() -> os.terminal_size:
    """Return the size that the terminal has now; COLUMNS and LINES, where a shell exports them, are those of the past."""
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        return shutil.get_terminal_size()
    return size if size.columns > 0 and size.lines > 0 else shutil.get_terminal_size()


class _wakes_on_resize:  # noqa: N801 - as above
    """Gives a function that waits so many seconds, or until the terminal has another size."""

    def __enter__(self) -> Callable[[float], None]:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
        return lambda seconds: (signal.sigtimedwait([signal.SIGWINCH], seconds), None)[1]

    def __exit__(self, *_: object) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGWINCH])


def _detached(session: Session) -> None:
    """Say that the jobs go on, and how to end them."""
    jobs = [job for each in session.watched if not each.ended and (job := each.job) is not None]
    if not jobs:
        click.echo("\nnothing of it runs", err=True)
        return
    arrays = list(dict.fromkeys(job.partition("_")[0] for job in jobs)) if len(jobs) > 3 else jobs
    what = f"job {jobs[0]} keeps running" if len(jobs) == 1 else f"{len(jobs)} jobs keep running"
    if len(jobs) == 1 and (record := session.watched[0].current) is not None and record.state in states.WAITING:
        what = f"job {jobs[0]} stays in the queue"
    click.echo(f"\n{what}; to stop {'it' if len(jobs) == 1 else 'them'}: hpctrain cancel {shlex.join(arrays)}", err=True)
