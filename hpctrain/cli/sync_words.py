"""What `hpctrain sync` says: the preview, the question, the progress and the result."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import Any

import click

from hpctrain.sync import changes
from hpctrain.sync.changes import Outcome
from hpctrain.sync.destination import Destination

_SHOWN = 20
_SHOWN_NOTES = 5
_LARGE_BYTES = 100_000_000
_REDRAW_S = 0.2
_WORTH_SAYING_BYTES = 1_000_000


def printable(text: str) -> str:
    """Return `text` without what a terminal would take for an order."""
    return "".join(character if character.isprintable() or 0xDC80 <= ord(character) <= 0xDCFF else "?" for character in text)


def show(outcome: Outcome, *, out: bool) -> None:
    """Show what would happen, on stdout or on stderr."""
    for line in _preview(outcome):
        click.echo(printable(line), err=not out)


def question(outcome: Outcome, target: Destination) -> str:
    """Return what a person is asked."""
    also = f" and delete {len(outcome.deleted):,} there" if outcome.deleted else ""
    return f"send {_amount(outcome)} to {target}{also}?"


def result(outcome: Outcome, target: Destination, *, dry_run: bool) -> str:
    """Return the line that says what was done."""
    if not outcome.changes:
        return f"nothing to send: {target} is up to date"
    also = f", {'would delete' if dry_run else 'deleted'} {len(outcome.deleted):,} there" if outcome.deleted else ""
    bytes_ = outcome.sent_bytes
    small = not dry_run and bytes_ > _WORTH_SAYING_BYTES and outcome.wire_bytes < 0.9 * bytes_
    wire = f" ({changes.size(outcome.wire_bytes)} over the network)" if small else ""
    return f"{'would send' if dry_run else 'sent'} {_amount(outcome)}{wire} to {target}{also}"


def as_json(done: Outcome, rehearsed: Outcome, target: Destination, *, dry_run: bool) -> dict[str, Any]:
    """Return the object of --json; sizes in bytes."""
    return {
        "schema": 1,
        "destination": str(target),
        "dry_run": dry_run,
        "sent": len(done.sent),
        "bytes": done.sent_bytes,
        "wire_bytes": None if dry_run else done.wire_bytes if done.changes else 0,
        "created": sum(not change.is_directory for change in done.of_kind("created")),
        "changed": sum(not change.is_directory for change in done.of_kind("changed")),
        "deleted": done.deleted,
        "gone_here": rehearsed.gone,
        "secrets_left_out": rehearsed.secrets,
        "total_files": rehearsed.total_files,
        "total_bytes": rehearsed.total_bytes,
    }


class Teller:
    """Says how far the transfer is: one line that is rewritten on a terminal, else one line for each change.

    Args:
        total_bytes: of the files that will be sent.
    """

    def __init__(self, total_bytes: int) -> None:
        self.outcome = Outcome()
        self._total = total_bytes
        self._rewrites = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._started = self._drawn_at = time.monotonic()
        self._drawn = 0

    def read(self, line: str) -> None:
        """Take a line of rsync's stdout."""
        change = self.outcome.read(line)
        if change is not None and not self._rewrites:
            click.echo(printable(f"{'deleted' if change.kind == 'deleted' else 'sent'} {change.path}"), err=True)
        done = changes.parse_progress(line)
        if done is not None and self._rewrites and time.monotonic() - self._drawn_at > _REDRAW_S:
            self._draw(self._line(done))

    def close(self) -> None:
        """Take the line away."""
        if self._drawn:
            self._draw("")
            click.echo("\r", nl=False, err=True)

    def _line(self, done: int) -> str:
        rate = done / max(time.monotonic() - self._started, 0.1)
        total = max(self._total, done)
        left = int((total - done) / rate) if rate else 0
        clock = f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02}" if left >= 3600 else f"{left // 60}:{left % 60:02}"
        share = 100 * done // total if total else 100
        return f"sending {share:3} %  {changes.size(done)} of {changes.size(total)}  {changes.size(int(rate))}/s  {clock} left"

    def _draw(self, text: str) -> None:
        text = text[: shutil.get_terminal_size().columns - 1]
        click.echo("\r" + text.ljust(self._drawn), nl=False, err=True)
        self._drawn, self._drawn_at = len(text), time.monotonic()


def _amount(outcome: Outcome) -> str:
    return f"{changes.files(len(outcome.sent))}, {changes.size(outcome.sent_bytes)}"


def _preview(outcome: Outcome) -> list[str]:
    lines = [f"the project: {changes.files(outcome.total_files)}, {changes.size(outcome.total_bytes)}"]
    if outcome.sent_bytes > _LARGE_BYTES:
        weights = ", ".join(f"{name} {changes.size(weight)}" for name, weight in changes.largest(outcome.sent))
        lines.append(f"most of what goes over: {weights}")
    secrets = outcome.secrets
    others = [path for path in outcome.left_out if path not in set(secrets)]
    if others:
        lines.append(f"left out: {_some(others)}")
    if secrets:
        lines.append(f"left out, because their names look like those of secrets: {_some(secrets)}")
    for word, kind in (("new", "created"), ("changed", "changed"), ("to be deleted there", "deleted")):
        found = [change for change in outcome.changes if change.kind == kind and (kind == "deleted" or not change.is_directory)]
        if found:
            size = "" if kind == "deleted" else f", {changes.size(sum(change.size_bytes for change in found))}"
            lines += [f"{word}: {changes.files(len(found)) if kind != 'deleted' else len(found)}{size}"]
            lines += [f"  {change.path}" for change in found[:_SHOWN]]
            lines += [f"  and {len(found) - _SHOWN:,} more"] if len(found) > _SHOWN else []
    if outcome.gone:
        are = "is" if len(outcome.gone) == 1 else "are"
        lines.append(f"{changes.files(len(outcome.gone))} there {are} gone here: {_some(outcome.gone, count=3)}; hpctrain sync --delete")
    if outcome.rendered:
        lines.append(f"note: paths of this machine stand in {_some(outcome.rendered, count=3)}; render again there: hpctrain render")
    if outcome.leading_out:
        lines.append(f"note: symlinks that lead out of the project go over as they are: {_some(outcome.leading_out, count=3)}")
    lines += [f"note: rsync said: {note}" for note in outcome.notes[:_SHOWN_NOTES]]
    lines += [f"note: and {len(outcome.notes) - _SHOWN_NOTES} more of that"] if len(outcome.notes) > _SHOWN_NOTES else []
    return lines


def _some(names: list[str], *, count: int = 6) -> str:
    shown = ", ".join(names[:count])
    return shown + (f" and {len(names) - count:,} more" if len(names) > count else "")
