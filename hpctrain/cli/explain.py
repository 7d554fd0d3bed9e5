"""`hpctrain explain`: why a job failed, from its logs, its record and its samples, and what to type."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import textwrap
from typing import Any

import click

_WIDEST = 100


@click.command()
@click.argument("words", nargs=-1, metavar="[RUN | JOBID | FILES...]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(words: tuple[str, ...], as_json: bool) -> int:
    """Say why a job failed, and what to type.

    What happened, on which rank and node, since when, and the lines that show it.

    Without a word: the newest job that did not end well. FILES are logs of any job, and folders of them; `-` reads the standard input.

    What is certain is called certain; what is only likely, likely. Where no rule knows the failure, the first error of the rank that
    failed first is shown as it is.

    \b
    hpctrain explain
    hpctrain explain 123456
    hpctrain explain slurm-123456.out
    """  # noqa: D301 - \b is click's word for lines that stay as they are
    from hpctrain.cli import explain_case
    from hpctrain.explain import render

    answer = explain_case.explained(words)
    if as_json:
        click.echo(json.dumps(render.to_json(answer.explanation)))
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        for line in render.lines(answer.explanation, width=_width(), colour=colour):
            click.echo(line, color=colour)
    _say_what_was_read(answer)
    return 0


def _say_what_was_read(answer: Any) -> None:
    read = sum(1 for file in answer.case.files if file.size)
    account = answer.case.account
    parts = [f"{read} file{'' if read == 1 else 's'}, {_size(answer.size)}"]
    parts += [f"{account.source or account.scheduler}: {account.state}"] if account is not None else []
    parts += [f"{len(answer.case.samples)} samples"] if answer.case.samples else []
    for said in (f"read for {answer.title}: {'; '.join(parts)}", *(f"note: {note}" for note in answer.notes)):
        # A terminal would break the line in the middle of a word.
        click.echo("\n  ".join(textwrap.wrap(said, _width() - 2, break_long_words=False, break_on_hyphens=False)), err=True)
    diagnoses = answer.explanation.diagnoses
    if answer.run is not None and any(diagnosis.fix.changes for diagnosis in diagnoses):
        click.echo(f"next: hpctrain resubmit {shlex.quote(answer.run)} --apply-fix", err=True)
    for diagnosis in diagnoses:
        click.echo(f"more: hpctrain docs {diagnosis.id}", err=True)


def _width() -> int:
    return min(_WIDEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 80


def _size(size: int) -> str:
    for unit, of in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= of:
            return f"{size / of:.1f} {unit}"
    return f"{size} bytes"
