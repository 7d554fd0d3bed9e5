"""How commands print: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from typing import Any

import click

#: Columns if the output is not a terminal.
WIDTH = 80


def say(line: str) -> None:
    """Print a line to stderr."""
    click.echo(line, err=True)


def print_json(**values: Any) -> None:
    """Print one JSON object to stdout; NaN and infinities become null, as JSON has none."""
    click.echo(json.dumps({"schema": 1, **_finite(values)}))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def has_colour() -> bool:
    """Whether stdout is a terminal that supports colors."""
    is_dumb = os.environ.get("TERM") == "dumb" or bool(os.environ.get("NO_COLOR"))
    return sys.stdout.isatty() and not is_dumb


def columns(widest: int = 100) -> int:
    """Return the width of the terminal, at most `widest`; WIDTH if stdout is not a terminal."""
    if not sys.stdout.isatty():
        return WIDTH
    return max(40, min(widest, shutil.get_terminal_size().columns))
