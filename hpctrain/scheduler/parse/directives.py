"""`#SBATCH` lines: how sbatch reads them, and how to write a value that it reads back unchanged.

The grammar is that of `_get_argument` and `next_line` in Slurm's src/sbatch/opt.c: directives start in column 0, in upper case, and
end at the first line that is neither blank nor a comment; quotes group, a backslash escapes the next character (inside quotes
too, but no white space outside them), an unescaped `#` outside quotes starts a comment, nothing is expanded, and a line cannot
be continued.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAGIC = "#SBATCH"
#: C's isspace, in every locale that Slurm runs in; Python's also knows U+00A0 and others, which are letters to sbatch.
_BLANKS = " \t\n\v\f\r"
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./*\[\]()&|!~^{}<>;?-]+\Z")

#: sbatch's short options that take a value, and their long names (src/sbatch/opt.c, sbatch(1)).
SHORT_WITH_VALUE = {
    "A": "account", "a": "array", "B": "extra-node-info", "b": "begin", "C": "constraint", "c": "cpus-per-task", "D": "chdir",
    "d": "dependency", "e": "error", "F": "nodefile", "G": "gpus", "i": "input", "J": "job-name", "L": "licenses", "M": "clusters",
    "m": "distribution", "N": "nodes", "n": "ntasks", "o": "output", "p": "partition", "q": "qos", "S": "core-spec", "t": "time",
    "w": "nodelist", "x": "exclude",
}  # fmt: skip
#: Short options without a value.
SHORT_FLAGS = {
    "H": "hold",
    "I": "immediate",
    "k": "no-kill",
    "O": "overcommit",
    "Q": "quiet",
    "s": "oversubscribe",
    "v": "verbose",
    "W": "wait",
}
#: Long options that never take their value from the next word.
LONG_FLAGS = {
    "contiguous", "hold", "ignore-pbs", "no-requeue", "overcommit", "parsable", "quiet", "requeue", "reboot", "spread-job", "test-only",
    "use-min-nodes", "verbose", "wait", "exclusive", "oversubscribe", "get-user-env", "no-kill", "propagate", "nice",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Directive:
    """One option of a script: its long name without dashes, its value (None for a flag), and its line, counted from 1."""

    name: str
    value: str | None
    line: int


def quote(value: str) -> str:
    """Return `value` so that sbatch reads it back unchanged from a `#SBATCH` line.

    Raises:
        ValueError: `value` holds a line break or another control character, which no quoting can carry.
    """
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise ValueError(f"{value!r} holds a control character, which a #SBATCH line cannot carry")
    if _PLAIN.match(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def split(line: str) -> list[str]:
    """Return the words of what follows `#SBATCH`, as sbatch splits them.

    Raises:
        ValueError: a quote is not closed; sbatch refuses such a script.
    """
    words: list[str] = []
    word: str | None = None  # None between two words: `""` is a word
    quoting, escaped = "", False
    for character in line:
        if character in _BLANKS and not quoting:
            words += [] if word is None else [word]
            word, escaped = None, False
        elif character == "#" and not quoting and not escaped:
            break
        elif character == "\\" and not escaped:
            word, escaped = word or "", True
        elif not escaped and character in (quoting or "\"'"):
            word, quoting = word or "", "" if quoting else character
        else:
            word, escaped = (word or "") + character, False
    if quoting:
        raise ValueError(f"unmatched {quoting} in {MAGIC}{line}")
    return words if word is None else [*words, word]


def read(script: str) -> list[Directive]:
    """Return the directives of `script` in order, long names throughout.

    Raises:
        ValueError: no `#!` line, DOS line ends, an unclosed quote, or a word that is no option.
    """
    lines = script.split("\n")
    if not lines[0].startswith("#!"):
        raise ValueError(
            "this does not look like a batch script: the first line must start with #! and name the shell, such as #!/bin/bash"
        )
    if "\r\n" in script:
        raise ValueError("batch script contains DOS line breaks (\\r\\n)")
    found: list[Directive] = []
    for number, line in enumerate(lines, start=1):
        if line.startswith(MAGIC):  # a blank behind it is not needed: `#SBATCH--nodes=2` counts
            found.extend(_options(split(line[len(MAGIC) :]), number))
        elif line.lstrip(_BLANKS)[:1] not in ("", "#"):
            break
    return found


def last_values(directives: list[Directive]) -> dict[str, str | None]:
    """Return name to value, the last one winning as in sbatch."""
    return {directive.name: directive.value for directive in directives}


def _options(words: list[str], line: int) -> list[Directive]:
    found: list[Directive] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if equals:
                found.append(Directive(name, value, line))
            elif name in LONG_FLAGS or not rest or rest[0].startswith("-"):
                found.append(Directive(name, None, line))
            else:
                found.append(Directive(name, rest.pop(0), line))
        elif word.startswith("-") and len(word) > 1:
            found.extend(_short_options(word, rest, line))
        else:
            raise ValueError(f"line {line}: {word!r} is no option; a directive is written --name=value")
    return found


def _short_options(word: str, rest: list[str], line: int) -> list[Directive]:
    """Return what a word such as `-N2`, `-N` or `-HJ` says; a value that it lacks is taken from `rest`."""
    found: list[Directive] = []
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        if letter in SHORT_WITH_VALUE:
            if not letters and not rest:
                raise ValueError(f"line {line}: option -{letter} needs a value")
            found.append(Directive(SHORT_WITH_VALUE[letter], letters or rest.pop(0), line))
            break
        if letter not in SHORT_FLAGS:
            raise ValueError(f"line {line}: unknown option -{letter}")
        found.append(Directive(SHORT_FLAGS[letter], None, line))
    return found
