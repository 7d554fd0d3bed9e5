"""`hpctrain runs export` and `import`: runs as one file, to take to another machine."""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from hpctrain.cli import checkpoints_chosen, runs_table
from hpctrain.cli.runs_filter import filter_options, runs_dir_option
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.runs import archive, unpack
from hpctrain.runs.select import Filter

F = TypeVar("F", bound=Callable[..., Any])
_OLD_S = 86_400


def output_options(function: F) -> F:
    """Add `-o FILE` and `--force`, which arrive as `output` and `force`."""
    force = click.option("--force", is_flag=True, help="Replace FILE if it exists.")
    output = click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        required=True,
        metavar="FILE",
        help="A tar archive; compressed if it ends in .gz or .tgz.",
    )
    return output(force(function))


@contextlib.contextmanager
def tidy_end() -> Iterator[None]:
    """While this lasts, SIGTERM and SIGHUP end the program as Ctrl-C does: what is half-written is removed."""
    signals = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    # Of a program started with nohup, SIGHUP stays ignored.
    before = {number: signal.signal(number, _end) for number in signals if signal.getsignal(number) is signal.SIG_DFL}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _: object) -> None:
    sys.exit(128 + number)


@click.command("export")
@filter_options
@output_options
@runs_dir_option
@click.option("--with-code/--without-code", default=True, show_default=True, help="Take the snapshot of the code along.")
@click.option("--incomplete", is_flag=True, help="Take checkpoints along as they are, complete or not.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def export_command(*, chosen: Filter, output: Path, force: bool, runs_dir: Path, with_code: bool, incomplete: bool, as_json: bool) -> int:
    """Write runs into one file.

    It holds their checkpoints, too, and the digests of all that is in it. Links, and saves that were not finished, stay behind.
    """
    if chosen.is_bare:
        raise UsageError("which runs?", fix=f"hpctrain runs export RUN -o {shlex.quote(str(output))}, or '*' for all")
    meant = checkpoints_chosen.choose_runs(chosen, runs_dir)
    if not meant:
        raise HpctrainError("no runs like that", fix="hpctrain runs list")
    folders = [runs_dir / run.id for run in meant]
    progress = checkpoints_chosen.Progress("written")
    with tidy_end():
        done = archive.export_runs(folders, output, code=with_code, incomplete=incomplete, replace=force, progress=progress)
    what = done.runs[0] if len(done.runs) == 1 else f"{len(done.runs)} runs"
    say_exported(done, what=what, verb="runs", as_json=as_json)
    return 0


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--as", "as_", metavar="NEWID", help="The run's new id, where the file holds one run.")
@runs_dir_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def import_command(file: Path, as_: str | None, runs_dir: Path, as_json: bool) -> int:
    """Take runs from an exported file.

    Nothing of it is to be seen before all of it is verified.
    """
    progress = import_progress(file)
    for left in unpack.left_from_earlier(runs_dir):
        if time.time() - left.stat().st_mtime > _OLD_S:
            click.echo(f"note: an import that was killed left {left}; rm -r {shlex.quote(str(left))}", err=True)
    done = unpack.import_runs(file, runs_dir, as_=as_, progress=progress)
    if as_json:
        ids = [path.name for path in done.paths]
        click.echo(json.dumps({"schema": 1, "runs": ids, "files": done.files, "bytes": done.bytes}))
        return 0
    for path in done.paths:
        click.echo(path.name)
    click.echo(f"{done.files} files, {runs_table.size(done.bytes)}, each as it was exported", err=True)
    click.echo(f"next: hpctrain runs show {shlex.quote(done.paths[0].name)}", err=True)
    return 0


def import_progress(file: Path) -> checkpoints_chosen.Progress:
    """Return lines of progress for an archive.

    Raises:
        UsageError: there is no such file.
        ArchiveError: it is damaged, or no archive of hpctrain.
    """
    if not file.is_file():
        raise UsageError(f"there is no file {str(file)!r}", fix=f"ls -l {shlex.quote(str(file.parent))}")
    return checkpoints_chosen.Progress("unpacked", sum(unpack.read_head(file).files.values()))


def say_exported(done: archive.Exported, *, what: str, verb: str, as_json: bool) -> None:
    """Say what an export wrote: the file on stdout, the rest on stderr."""
    if as_json:
        value = {"path": str(done.path.absolute()), "runs": list(done.runs), "files": done.files, "bytes": done.bytes}
        click.echo(json.dumps({"schema": 1, **value, "left_out": list(done.left_out)}))
        return
    for name in done.left_out[:10]:
        click.echo(f"note: not in it: {runs_table.printable(name)}", err=True)
    if len(done.left_out) > 10:
        click.echo(f"note: and {len(done.left_out) - 10} more", err=True)
    click.echo(str(done.path))
    click.echo(f"{what}: {done.files} files, {runs_table.size(done.bytes)}", err=True)
    click.echo(f"next, on the other machine: hpctrain {verb} import {shlex.quote(done.path.name)}", err=True)
