"""`hpctrain sync`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hpctrain.cli.options import yes_option
from hpctrain.cli.output import say
from hpctrain.errors import UsageError
from hpctrain.remote import sync
from hpctrain.util import shell, text

_SHOWN = 20


@click.command("sync")
@click.argument("target", required=False, metavar="[HOST:PATH]")
@click.option("--dry-run", is_flag=True, help="Show what would be uploaded; upload nothing.")
@yes_option
def command(target: str | None, *, dry_run: bool, yes: bool) -> int:
    """Upload the project to a cluster with rsync.

    The current directory goes into the directory PATH on HOST, without what .hpctrainignore and
    hpctrain leave out. Shows what would be sent, asks, and sends it. Nothing is deleted there.
    Without HOST:PATH, the last destination of this directory is used.

    \b
    hpctrain sync leonardo:/leonardo_work/proj_a/sft
    """  # noqa: D301 - \b keeps click from wrapping
    project = Path.cwd()
    where = sync.destination(project, target)
    if not (yes or dry_run or sys.stdin.isatty()):
        raise UsageError(
            "stdin is not a terminal, so hpctrain cannot ask before files are sent",
            fix=shell.join(("hpctrain", "sync", str(where), "--yes")),
        )
    with sync.connected(project, where) as transfer:
        files = transfer.preview()
        if not files:
            click.echo(f"nothing to send: {where} is up to date")
            return 0
        amount = f"{text.count(len(files), 'file')}, {text.size(sum(size for _, size in files))}"
        for name, size in files[:_SHOWN]:
            click.echo(text.printable(f"{name}  {text.size(size)}"), err=not dry_run)
        if len(files) > _SHOWN:
            click.echo(f"and {len(files) - _SHOWN:,} more", err=not dry_run)
        if dry_run:
            click.echo(f"would send {amount} to {where}")
            return 0
        if not (yes or click.confirm(f"send {amount} to {where}?", err=True)):
            say("nothing was sent")
            return 0
        transfer.send()
    click.echo(f"sent {amount} to {where}")
    say(f"next: ssh {where.login}, then there: cd {where.path} && hpctrain check")
    return 0
