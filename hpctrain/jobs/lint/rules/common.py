"""What all rules share: the hit, and a few questions about commands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hpctrain.jobs.finding import Level
from hpctrain.jobs.lint.facts import Facts
from hpctrain.jobs.lint.launch import CONTAINERS, PROGRAMS
from hpctrain.jobs.lint.reader.model import Assignment, Command, Part, Scope, Shell

#: Programs that do the work of a job, rather than prepare it.
_WORKERS = frozenset({"srun", "python", "python3", "mpirun", "mpiexec", "ibrun", "uv", "poetry", "pixi", *PROGRAMS, *CONTAINERS})
TALKERS = frozenset({"echo", "printf", "logger"})


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the characters from `start` to `end` of the file by `text`."""

    start: int
    end: int
    text: str


@dataclass(slots=True)
class Hit:
    """A rule that fired at the offset `start`; what is None here stands in the table of rules."""

    id: str
    start: int
    what: str
    fix: str
    level: Level | None = None
    reason: str | None = None
    edits: list[Edit] = field(default_factory=list)


def works(command: Command) -> bool:
    """Whether `command` starts the job's work: srun, a launcher, python, a container."""
    return bool(command.words) and (
        command.name in _WORKERS or command.words[0].text.startswith(("$SRUN", "${SRUN", "$LAUNCH", "${LAUNCH"))
    )


def assignments(facts: Facts) -> Iterator[tuple[Assignment, Command]]:
    """Yield every assignment of the script, those in front of a command and behind `export` included."""
    for command in facts.commands:
        for assignment in command.assignments:
            yield assignment, command


def replace_part(facts: Facts, part: Part, new: str, command: Command) -> list[Edit]:
    """Return the edit that writes `new` in place of an expansion; none where the text there is another shell's."""
    if command.shell.depth or facts.text[part.start : part.start + 1] not in ("$", *part.text[:1]):
        return []
    return [Edit(part.start, part.end, new)]


def within(command: Command, scope: Scope) -> bool:
    """Whether `command` stands in `scope`."""
    return any(outer is scope for outer in command.scope.chain())


def set_flags(command: Command) -> tuple[set[str], set[str]]:
    """Return what a `set` command switches on and off: letters and long names."""
    on: set[str] = set()
    off: set[str] = set()
    words = [word.text for word in command.words[1:]]
    while words:
        word = words.pop(0)
        if word[:1] not in ("-", "+") or word == "--":
            break
        chosen = on if word[0] == "-" else off
        for letter in word[1:]:
            if letter == "o" and words:
                chosen.add(words.pop(0))
            else:
                chosen.add({"e": "errexit", "u": "nounset"}.get(letter, letter))
    return on, off


def option_on(facts: Facts, name: str, shell: Shell, before: int) -> bool:
    """Whether `set -o NAME` is in force in `shell` at the offset `before`, as far as the order of the text says."""
    letter = {"errexit": "e", "nounset": "u"}.get(name, "")
    state = _from_invocation(facts, name, letter, shell)
    for command in facts.by_name.get("set", ()):
        if command.shell is shell and command.start < before:
            on, off = set_flags(command)
            state = (state or name in on) and name not in off
    for command in facts.by_name.get("shopt", ()):
        if command.shell is shell and command.start < before and any(word.text == name for word in command.words):
            state = any(word.text.startswith("-s") for word in command.words)
    return state


def _from_invocation(facts: Facts, name: str, letter: str, shell: Shell) -> bool:
    if shell.via is None:
        words = facts.shell_flags.split()
    else:
        words = [word.text for word in shell.via.words if not word.text.startswith("--") and " " not in word.text]
        if "c" not in "".join(word for word in words if word.startswith("-")):
            words = []
    return name in words or (
        bool(letter)
        and any(
            word.startswith("-") and letter in word and word.isascii() and word[1:].isalpha() and len(word) < 6
            for word in words
            if shell.via is None
        )
    )
