"""Reading a batch script as both schedulers do, so that what one refuses the other refuses in the same words."""

from __future__ import annotations

from pathlib import Path

from hpctrain.errors import UsageError
from hpctrain.jobs import shell
from hpctrain.scheduler.parse import directives
from hpctrain.scheduler.parse.directives import Directive


def read(script: Path) -> tuple[str, list[Directive]]:
    """Return the text of `script` and its directives.

    Raises:
        UsageError: it is no batch script: no `#!` line, DOS line ends, an unclosed quote, a word that is no option.
        OSError: it cannot be read.
    """
    content = text(script)
    return content, parse(content, script)


def text(script: Path) -> str:
    """Return the text of `script`, whatever it is.

    Raises:
        OSError: it cannot be read.
    """
    # newline="": Slurm refuses DOS line ends, and Python would hide them.
    with script.open(encoding="utf-8", errors="surrogateescape", newline="") as stream:
        return stream.read()


def parse(content: str, script: Path) -> list[Directive]:
    """Return the directives in the text of a batch script that messages call `script`.

    Raises:
        UsageError: as `read`.
    """
    try:
        return directives.read(content)
    except ValueError as error:
        raise UsageError(f"{script} is not a batch script", details=(str(error),), fix=_fix(script)) from error


def _fix(script: Path) -> str:
    name = shell.quote(script)
    return f"hpctrain lint {name}, then: sbatch {name}; for a script of hpctrain's own: hpctrain render"
