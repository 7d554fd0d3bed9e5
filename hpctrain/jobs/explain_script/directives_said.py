"""`#SBATCH` lines, and lines that only look like one."""

from __future__ import annotations

import re

from hpctrain.jobs.explain_script import readings
from hpctrain.jobs.explain_script.directive_rows import DIRECTIVES, SYNONYMS
from hpctrain.jobs.explain_script.facts import Facts
from hpctrain.jobs.explain_script.rows import ASKED
from hpctrain.jobs.explain_script.said import Here, Part, Said, fill
from hpctrain.scheduler.parse import directives
from hpctrain.scheduler.parse.directives import Directive

_LOOKS_LIKE_ONE = re.compile(r"\s*#+\s*SBATCH\b", re.IGNORECASE)
_MAGIC = len(directives.MAGIC)
_SOURCE = "sbatch(1)"


def is_directive(text: str) -> bool:
    """Return whether sbatch takes the line for options, if it stands before the first command."""
    return text.startswith(directives.MAGIC)


def looks_like_one(text: str) -> bool:
    """Return whether a person may take the line for one."""
    return _LOOKS_LIKE_ONE.match(text) is not None


def read(text: str, number: int) -> tuple[list[Directive], str | None]:
    """Return the options of a line, and what sbatch would say against it."""
    try:
        found = directives.read(f"#!/bin/sh\n{text}")
    except ValueError as error:
        return [], re.sub(r"^line \d+: ", "", str(error))
    return [Directive(SYNONYMS.get(option.name, option.name), option.value, number) for option in found], None


def say(text: str, number: int, facts: Facts) -> Said:
    """Return what is said of a `#SBATCH` line."""
    if facts.first_command is not None and number > facts.first_command:
        why = f"too late: sbatch stops reading options at the first command (line {facts.first_command}), so this is a comment."
        return Said(why, _SOURCE, ASKED)
    options, against = read(text, number)
    if against is not None:
        return Said(f"sbatch refuses this line: {against}.", _SOURCE, ASKED)
    if not options:
        return Said("asks for nothing.", _SOURCE, ASKED)
    each = [_say_option(option, facts) for option in options]
    if len(each) == 1:
        return each[0]
    parts = [Part(number, _written(option), said.why, said.source, said.known) for option, said in zip(options, each, strict=True)]
    return Said("several options:", _SOURCE, each[0].section, tuple(parts))


def say_no_directive(text: str) -> Said:
    """Return what is said of a line that only looks like one."""
    if re.match(r"##+\s*SBATCH", text):
        why = "switched off: with a second # it is a comment."
    elif text[:1] != "#":
        why = "a comment, and no option: sbatch wants #SBATCH at the very beginning of the line."
    else:
        why = "a comment, and no option: sbatch wants exactly #SBATCH, in capitals, with no blank behind the #."
    return Said(why, _SOURCE, ASKED)


def _say_option(option: Directive, facts: Facts) -> Said:
    row = DIRECTIVES.get(option.name)
    if row is None:
        why = f"hpctrain has no words for --{option.name}. It may be an option of a plugin of this site; see: sbatch --help"
        return Said(why, None, ASKED, known=False)
    last = facts.last_line.get(option.name, option.line)
    if last != option.line:
        return Said(f"does not count: line {last} says --{option.name} again, and the last one wins.", _SOURCE, row.section)
    it = readings.read(row.reading, option.value, facts)
    why = fill(row, Here(facts), it=it, value=option.value or "")
    expanded = "$" in (option.value or "") and option.name not in ("comment", "wrap", "extra")
    if expanded:
        why += " sbatch expands no variables: it takes the dollar sign as it stands."
    return Said(why, row.source, row.section)


def _written(option: Directive) -> str:
    return f"--{option.name}" if option.value is None else f"--{option.name}={option.value}"
