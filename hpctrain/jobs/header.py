"""The header of a rendered script: its sources, and its render command. PURE, fast to import."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpctrain.config.spec import short_digest
from hpctrain.util import shell

_MADE = re.compile(
    r"^# made by hpctrain \S+ from template .+, text (?P<seal>[0-9a-f]{12})$",
    re.MULTILINE,
)
_AGAIN = re.compile(r"^# make it again: (?P<command>.+)$", re.MULTILINE)
#: The template with the functions that scripts source, and the project directory that holds it.
LIBRARY, LIBRARY_DIRECTORY = "job.sh", ".hpctrain"
#: The first of `arguments` if the script contains the functions instead of sourcing them.
STANDALONE = "--standalone"
#: Placeholder for the digest in the text that the digest is computed from.
NO_SEAL = "0" * 12


@dataclass(frozen=True, slots=True)
class Made:
    """The fields of a script's header.

    Attributes:
        untouched: whether the text is still as hpctrain wrote it.
        directory: the working directory of the command.
        arguments: argv of `hpctrain render`, without --standalone.
        standalone: whether --standalone was given.
    """

    untouched: bool
    directory: str
    arguments: tuple[str, ...]
    standalone: bool = False


def read_header(script: str) -> Made | None:
    """Return the header of `script`, or None if hpctrain did not write it."""
    made, again = _MADE.search(script), _AGAIN.search(script)
    if made is None or again is None:
        return None
    unsealed = script[: made.start("seal")] + NO_SEAL + script[made.end("seal") :]
    try:
        words = shell.split(again["command"])
    except ValueError:
        return None
    if len(words) < 5 or words[0] != "cd" or words[2:5] != ["&&", "hpctrain", "render"]:
        return None
    standalone = words[5:6] == [STANDALONE]
    arguments = tuple(words[5 + standalone :])
    return Made(made["seal"] == short_digest(unsealed), words[1], arguments, standalone)
