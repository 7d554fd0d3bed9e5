"""Reading a batch script as both schedulers do, so that what one refuses the other refuses in the same words."""

from __future__ import annotations

from pathlib import Path

from hpctrain.errors import UsageError
from hpctrain.scheduler.parse import directives
from hpctrain.scheduler.parse.directives import Directive


def read(script: Path) -> tuple[str, list[Directive]]:
    """Return the text of `script` and its directives.

    Raises:
        UsageError: it is no batch script: no `#!` line, DOS line ends, an unclosed quote, a word that is no option.
        OSError: it cannot be read.
    """
    # newline="": Slurm refuses DOS line ends, and Python would hide them.
    with script.open(encoding="utf-8", errors="surrogateescape", newline="") as stream:
        text = stream.read()
    try:
        return text, directives.read(text)
    except ValueError as error:
        raise UsageError(f"{script} is not a batch script", details=(str(error),), fix="hpctrain render") from error
