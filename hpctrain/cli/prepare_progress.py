"""How far `hpctrain prepare` is: a bar on a terminal, a line every 10 s elsewhere; on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from hpctrain.errors import visible
from hpctrain.jobs.check import show
from hpctrain.preparation.stages import Progress

_EVERY_S = 10.0
_WIDTH = 80


class Lines:
    """One line now and then."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _EVERY_S

    def __call__(self, now: Progress) -> None:
        """Say how far it is, if it is time."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_S
            click.echo(text(now), err=True)

    def say(self, sentence: str) -> None:
        """Say a sentence."""
        click.echo(visible(show.wrapped(sentence, _WIDTH)), err=True)


class Bar:
    """A bar that stays on the last line of the terminal."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._tasks: dict[str, Any] = {}

    def __call__(self, now: Progress) -> None:
        """Move the bar."""
        if now.stage not in self._tasks:
            self._tasks[now.stage] = self._progress.add_task(now.stage, total=now.total, facts="")
        self._progress.update(self._tasks[now.stage], completed=now.done, total=now.total, facts=facts(now))

    def say(self, sentence: str) -> None:
        """Say a sentence above the bar."""
        self._progress.console.print(visible(show.wrapped(sentence, _WIDTH)), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def shown() -> Iterator[Lines | Bar]:
    """Give what the pipeline calls with its progress."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description:10}"),
        BarColumn(bar_width=16),
        TextColumn("{task.percentage:3.0f} %"),
        TextColumn("{task.fields[facts]}"),
    )
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bar(progress)


def text(now: Progress) -> str:
    """Return one line: `tokenising 40 %, 1,200,000 rows, 2.1 M tokens/s, 3 min to go, 4.2 GB`."""
    share = f"{100 * now.done // max(1, now.total)} %"
    return ", ".join([f"{now.stage} {share}", *([facts(now)] if facts(now) else [])])


def facts(now: Progress) -> str:
    """Return rows, speed, time to go and memory, as far as they are known."""
    found = []
    if now.rows:
        found.append(f"{now.rows:,} rows")
    if now.fresh and now.seconds > 0:
        found.append(f"{amount(now.fresh / now.seconds)} tokens/s")
        if now.fresh_done and now.total > now.done:
            found.append(f"{duration((now.total - now.done) * now.seconds / now.fresh_done)} to go")
    if now.memory_mib:
        found.append(f"{now.memory_mib / 1024:.1f} GiB")
    return ", ".join(found)


def amount(value: float) -> str:
    """Return a number with three digits: `812`, `45.1 k`, `2.13 M`, `1.20 G`."""
    for bound, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= bound:
            scaled = value / bound
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f} {name}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """Return `40 s`, `3 min`, `2 h 05 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
