"""Batch scripts, parsed once for both schedulers, so that both reject the same scripts with the
same messages.
"""

from __future__ import annotations

from pathlib import Path

from hpctrain.errors import UsageError
from hpctrain.slurm.notations import directives
from hpctrain.slurm.notations.directives import Directive
from hpctrain.util import shell, stored


def read(script: Path) -> tuple[str, list[Directive]]:
    """Return the text of `script` and its directives.

    Raises:
        UsageError: it is not a batch script: no `#!` line, DOS line endings, an unclosed quote, or
            an unknown option.
        OSError: it cannot be read.
    """
    content = text(script)
    return content, parse(content, script)


def text(script: Path) -> str:
    """Return the text of `script`, without checking it.

    Raises:
        OSError: it cannot be read.
    """
    # Line endings stay unchanged: Slurm refuses those of DOS.
    return stored.read_regular(script, pipes=True).decode("utf-8", "surrogateescape")


def parse(content: str, script: Path) -> list[Directive]:
    """Return the directives in the text of a batch script; messages refer to it as `script`.

    Raises:
        UsageError: as for `read`.
    """
    try:
        return directives.read(content)
    except ValueError as error:
        raise UsageError(
            f"{script} is not a batch script",
            details=(str(error),),
            fix=f"hpctrain lint {shell.quote(script)}",
        ) from error
