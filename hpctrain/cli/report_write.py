"""Where a report's page is written: whole or not at all, and never over a file that is none of ours."""

from __future__ import annotations

import locale
import os
import re
import shlex
import socket
import sys
from pathlib import Path

import click

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.report.page import MARK
from hpctrain.runs import files


def write(text: str, to: str | None, default: Path, *, what: str, force: bool) -> None:
    """Write the page, say where it is, and what to type next; `what` is the run, or the sweep.

    Raises:
        UsageError: there is a file that is no report, or a directory.
        HpctrainError: the file system refuses.
    """
    if to == "-":
        click.echo(text, nl=False)
        return
    path = Path(to) if to is not None else default
    if path.is_dir():
        raise UsageError(f"{path} is a directory", fix=f"hpctrain report --to {shlex.quote(str(path / 'report.html'))}")
    if not force and _is_other(path):
        raise UsageError(f"{path} is there, and is no report of hpctrain", fix="--to OTHER_FILE, or --force to replace it")
    try:
        files.write_text(path, text)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", what)[:80]
        elsewhere = f"hpctrain report {shlex.quote(what)} --to ~/report-{name}.html"
        fix = elsewhere if to is None else f"ls -ld {shlex.quote(str(path.parent))}"
        raise HpctrainError(f"cannot write {path}: {reason}", fix=fix) from error
    click.echo(str(path))
    there = os.path.abspath(path)  # noqa: PTH100 - `..` away, and links as they are called
    click.echo(f"next, on your own machine: scp {_host()}:{shlex.quote(there)} .", err=True)


def _is_other(path: Path) -> bool:
    """Whether a file is there that no report of ours wrote."""
    try:
        if not path.exists() and not path.is_symlink():
            return False
        if not path.is_file():
            return True
        with path.open("rb") as stream:
            head = stream.read(2048)
    except OSError:
        return True
    return b'<meta name="generator" content="' + MARK.encode() + b'">' not in head


def _host() -> str:
    return shlex.quote(os.environ.get("HOSTNAME") or socket.gethostname())


def has_unicode() -> bool:
    """Whether standard output shows characters beyond ASCII."""
    from hpctrain.report import charts

    return charts.encodable(sys.stdout.encoding or locale.getpreferredencoding(), os.environ.get("TERM", ""))
