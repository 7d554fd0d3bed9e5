"""The implementation of `hpctrain sync`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from hpctrain import terminal
from hpctrain.cli.output import print_json, say
from hpctrain.errors import UsageError
from hpctrain.remote import rsync
from hpctrain.remote import sync as service
from hpctrain.remote.connection import Connection, require_programs
from hpctrain.remote.rsync import RsyncOutcome, printable
from hpctrain.remote.sync import SyncRequest
from hpctrain.util import shell, text

_SHOWN = 20
_SHOWN_NOTES = 5
_LARGE_BYTES = 100_000_000
_WORTH_SAYING_BYTES = 1_000_000


def run(
    target: str | None,
    *,
    dry_run: bool,
    yes: bool,
    delete: bool,
    adopt: bool,
    port: int | None,
    ssh_config: str | None,
    as_json: bool,
) -> int:
    """Show what would be sent, ask, send it, and return the exit code."""
    project = Path.cwd()
    request = service.request(
        project,
        target,
        port=port,
        ssh_config=ssh_config,
        delete=delete,
        adopt=adopt,
        ask=sys.stdin.isatty(),
    )
    if not (yes or dry_run or sys.stdin.isatty()):
        what = "stdin is not a terminal, so hpctrain cannot ask before files are sent"
        raise UsageError(what, fix=request.command("--yes"))
    require_programs()
    last = "" if target else " (the last destination of this directory)"
    say(f"{project} to {request.target}{last}")
    with Connection(request.target, request.ssh) as connection:
        far = service.look(request, connection, say)
        rehearsed = service.rehearse(request, connection, far)
        for line in _preview(rehearsed):
            click.echo(printable(line), err=not dry_run or as_json)
        done = rehearsed
        if not dry_run:
            deleted = f" and delete {len(done.deleted):,} there" if done.deleted else ""
            question = f"send {_amount(done)} to {request.target}{deleted}?"
            if done.changes and not yes and not click.confirm(question, err=True):
                say("nothing was sent")
                return 0
            service.prepare(request, connection, far)
        if not dry_run and rehearsed.changes:
            progress = _Progress()
            try:
                if service.send(request, connection, far, progress.read_line):
                    say(
                        "note: some files were removed while they were sent; the next sync sends the rest"
                    )
            except KeyboardInterrupt:
                progress.close()
                say(
                    "interrupted; complete files stay, and this continues where it stopped:"
                    f" {request.command()}"
                )
                return 130
            finally:
                progress.close()
            done = progress.outcome
    _report(request, done, rehearsed, dry_run=dry_run, as_json=as_json)
    return 0


def _report(
    request: SyncRequest,
    done: RsyncOutcome,
    rehearsed: RsyncOutcome,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    target, wire = request.target, done.totals.get("wire", 0) if done.changes else 0
    if as_json:
        print_json(
            destination=str(target),
            dry_run=dry_run,
            sent=len(done.sent),
            bytes=done.sent_bytes,
            wire_bytes=None if dry_run else wire,
            created=sum(change.kind == "created" for change in done.sent),
            changed=sum(change.kind == "changed" for change in done.sent),
            deleted=done.deleted,
            gone_here=rehearsed.gone,
            secrets_left_out=rehearsed.secrets,
            total_files=rehearsed.total_files,
            total_bytes=rehearsed.totals.get("size", 0),
        )
    elif not done.changes:
        click.echo(f"nothing to send: {target} is up to date")
    else:
        sent, deleted = ("would send", "would delete") if dry_run else ("sent", "deleted")
        also = f", {deleted} {len(done.deleted):,} there" if done.deleted else ""
        is_worth = not dry_run and done.sent_bytes > _WORTH_SAYING_BYTES
        is_less = is_worth and wire < 0.9 * done.sent_bytes
        network = f" ({text.size(wire)} over the network)" if is_less else ""
        click.echo(f"{sent} {_amount(done)}{network} to {target}{also}")
    if dry_run:
        options = ["--delete"] * request.delete + ["--adopt"] * request.adopt
        say(f"next: {request.command(*options)}")
    else:
        # Two steps: a command after `ssh HOST` runs in a shell without a profile, usually without
        # hpctrain on PATH.
        login = shell.join([*request.ssh.short_words(), target.ssh_login])
        path = target.far_path if target.path.startswith("-") else target.path
        say(f"next: {login}, then there: cd {shell.quote(path)} && hpctrain check")


class _Progress:
    """Shows the transfer: rsync's own progress line on a terminal, else a line for each change."""

    def __init__(self) -> None:
        self.outcome = RsyncOutcome()
        self._rewrites = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def read_line(self, line: str) -> None:
        """Process a line of rsync's stdout."""
        change = self.outcome.read_line(line)
        if self._rewrites:
            self._draw(line.strip() if rsync.is_progress(line) else "")
        elif change is not None:
            word = "deleted" if change.kind == "deleted" else "sent"
            say(printable(f"{word} {change.path}"))

    def close(self) -> None:
        """Clear the progress line."""
        if self._rewrites:
            self._draw("", end="\r")

    def _draw(self, line: str, *, end: str = "") -> None:
        columns = shutil.get_terminal_size().columns - 1
        screen = terminal.raw(sys.stderr)  # unescaped, to return to the start of the line
        screen.write(f"\r{line[:columns]:{columns}}{end}")
        screen.flush()


def _amount(outcome: RsyncOutcome) -> str:
    return f"{text.count(len(outcome.sent), 'file')}, {text.size(outcome.sent_bytes)}"


def _preview(outcome: RsyncOutcome) -> list[str]:
    total = text.size(outcome.totals.get("size", 0))
    lines = [f"the project: {text.count(outcome.total_files, 'file')}, {total}"]
    if outcome.sent_bytes > _LARGE_BYTES:
        largest = (f"{name} {text.size(size)}" for name, size in rsync.largest(outcome.sent))
        lines.append(f"largest: {', '.join(largest)}")
    secrets = outcome.secrets
    others = [path for path in outcome.left_out if path not in set(secrets)]
    if others:
        lines.append(f"left out: {_some(others)}")
    if secrets:
        lines.append(f"left out, because their names look like those of secrets: {_some(secrets)}")
    for word, kind in (("new", "created"), ("changed", "changed"), ("deleted", "deleted")):
        found = [change for change in outcome.changes if change.kind == kind]
        found = [each for each in found if kind == "deleted" or not each.is_directory]
        if kind == "deleted" and found:
            lines.append(f"to be deleted there: {len(found)}")
        elif found:
            size = text.size(sum(change.size_bytes for change in found))
            lines.append(f"{word}: {text.count(len(found), 'file')}, {size}")
        lines += [f"  {change.path}" for change in found[:_SHOWN]]
        lines += [f"  and {len(found) - _SHOWN:,} more"] if len(found) > _SHOWN else []
    if outcome.gone:
        are = "is" if len(outcome.gone) == 1 else "are"
        lines.append(
            f"{text.count(len(outcome.gone), 'file')} there {are} gone here:"
            f" {_some(outcome.gone, count=3)}; hpctrain sync --delete"
        )
    notes = outcome.notes
    lines += [f"note: rsync said: {note}" for note in notes[:_SHOWN_NOTES]]
    more = len(notes) - _SHOWN_NOTES
    return [*lines, f"note: and {more} more of that"] if more > 0 else lines


def _some(names: list[str], *, count: int = 6) -> str:
    shown = ", ".join(names[:count])
    return shown + (f" and {len(names) - count:,} more" if len(names) > count else "")
