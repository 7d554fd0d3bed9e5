"""Queries about commands that several rules share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from hpctrain.checks.script.calls import CONTAINERS, PROGRAMS, WRAPPERS
from hpctrain.checks.script.facts import LintFacts
from hpctrain.checks.script.model import Shell, SimpleCommand
from hpctrain.checks.script.shells import SHELLS

#: Programs that do a job's work instead of preparing it.
_WORKERS = frozenset({"srun", "python", "mpirun", "mpiexec", "ibrun", "uv", "poetry", "pixi"})
_STARTERS = _WORKERS | set(PROGRAMS) | CONTAINERS
_VERSION = re.compile(r"(?<=python)[\d.]+\Z")
_LAUNCH_VARIABLES = ("$SRUN", "${SRUN", "$LAUNCH", "${LAUNCH")
_HARMLESS = frozenset(
    [
        "hostname",
        "netstat",
        "echo",
        "date",
        "nvidia-smi",
        "rocm-smi",
        "mkdir",
        "rm",
        "cp",
        "ls",
        "env",
        "true",
        "lscpu",
        "free",
        "uname",
    ]
)
DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
TALKERS = frozenset({"echo", "printf", "logger"})
TESTS = frozenset({"[", "[[", "test", "case"})
_LETTERS = {"errexit": "e", "nounset": "u"}


def works(command: SimpleCommand) -> bool:
    """Whether `command` starts the job's work: srun, a launcher, python or a container, also after
    time and similar.
    """
    if not command.words:
        return False
    words = command.words[: 6 if command.name in WRAPPERS else 1]
    names = {_VERSION.sub("", word.program) for word in words}
    return bool(names & _STARTERS) or command.words[0].text.startswith(_LAUNCH_VARIABLES)


def is_ours(facts: LintFacts) -> bool:
    """Whether hpctrain rendered the script, from a profile of the site."""
    return "\n# made by hpctrain " in facts.text[: facts.block.ends]


def harmless(facts: LintFacts, command: SimpleCommand) -> bool:
    """Whether the srun call `command` starts a program that only prints information."""
    return facts.started_by(command, facts.call_of[command]) in _HARMLESS


def in_another_branch(facts: LintFacts, one: SimpleCommand, other: SimpleCommand) -> bool:
    """Whether two commands are in different branches of an `if` or `case`: only one runs."""
    both = one.scope.inside("if", "case")
    if both is None or both is not other.scope.inside("if", "case"):
        return False
    between = facts.text[one.start : other.start]
    return re.search(r"(?m)(?:^|;)\s*(?:else|elif)\b|;;", between) is not None


def option_on(facts: LintFacts, name: str, shell: Shell, before: int) -> bool:
    """Whether `set -o NAME` is in effect in `shell` at offset `before`, judging by text order."""
    start = facts.shell_flags.split()
    if shell.via is not None:
        words = shell.via.words
        at = next((at for at, word in enumerate(words) if word.program in SHELLS), len(words))
        start = [word.text for word in words[at + 1 :]]
    on = bool(_switched(start, name))
    for command in facts.named("set"):
        if command.shell is shell and command.start < before:
            switched = _switched([word.text for word in command.words[1:]], name)
            on = on if switched is None else switched
    return on


def _switched(words: Sequence[str], name: str) -> bool | None:
    """Return whether the options of `set`, or of bash, switch `name` on or off; None if they do not
    contain it.
    """
    switched = None
    for word, following in pairwise([*words, ""]):
        if not re.match(r"[-+]\w", word):
            continue
        if _LETTERS.get(name, "/") in word or ("o" in word and following == name):
            switched = word[0] == "-"
    return switched
