"""The implementation of `hpctrain render`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from hpctrain.cli.output import say
from hpctrain.errors import UsageError
from hpctrain.terminal import for_files
from hpctrain.util import shell

if TYPE_CHECKING:
    from hpctrain.jobs.request import Request


def run(asked: Request, *, explain: bool, force: bool) -> None:
    """Write the scripts, or explain the first one."""
    if explain:
        _explain(asked)
        return
    from hpctrain.jobs import script_files, scripts
    from hpctrain.jobs.request import suggested

    made = scripts.scripts_of(asked)
    first = made.scripts[0]
    if asked.to == "-":
        script_files.write_tables(made.tables)
        script_files.ensure_library(first.text)
        click.echo(first.text, nl=False, file=for_files(sys.stdout))
        return
    notes = script_files.write(made, force=force)
    for script in made.scripts:
        click.echo(str(script.path))
    for note in [*notes, *scripts.what_runs(made)]:
        say(note)
    path = shell.quote(first.path)
    if len(made.scripts) > 1:
        local = suggested(asked, "submit", "--local", "--wait")
        say(f"next: {suggested(asked, 'submit')}  # without Slurm: {local}")
    else:
        say(
            f"next: hpctrain submit {path}  # or: sbatch {path}; without Slurm: hpctrain submit --local"
            f" --wait {path}"
        )


def _explain(asked: Request) -> None:
    from hpctrain.checks.script import lint
    from hpctrain.cli.actions.lint import show_explained
    from hpctrain.jobs.request import suggested
    from hpctrain.jobs.scripts import scripts_of

    if asked.to is not None:
        raise UsageError(
            f"--explain writes no file, so --to {asked.to} has no meaning",
            fix=suggested(asked, "render", "--explain", without=["--to"]),
        )
    made = scripts_of(asked)
    first = made.scripts[0]
    show_explained(first.text, lint(first.text, str(first.path)))
    say(first.spec.layout)
    if len(made.scripts) > 1:
        say(f"note: this is the first of {len(made.scripts)} scripts")
    say(f"nothing was written; next: {suggested(asked, 'render')}")
