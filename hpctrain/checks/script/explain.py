"""`lint --explain`: the purpose of directives, of options of srun and the launchers, and of the
lines that hpctrain writes. Pure; never raises.

General shell code is not explained: guesses about it are wrong too often.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import accumulate

from hpctrain.checks.script import explanations
from hpctrain.checks.script.explanations import (
    ASKED,
    END,
    ENVIRONMENT,
    HEADER,
    LAUNCH,
    LOGS,
    NODE,
    Sentence,
)
from hpctrain.checks.script.facts import LintFacts
from hpctrain.checks.script.model import OptionCall, SimpleCommand
from hpctrain.checks.script.rule import is_ours
from hpctrain.slurm.notations import signals, units
from hpctrain.slurm.notations.directives import Directive
from hpctrain.util import text as words

_SRUN = (
    "starts a job step: the command after the options runs in every task, on every node. Without"
    " srun it runs once, on the first node."
)
_LAUNCHER = "starts the training's processes on this node and tells each its rank."
_UNKNOWN = (
    "hpctrain has no description of --{}. It may be an option of a plugin of this site; see:"
    " sbatch --help"
)
#: Program to its purpose, its manual, and its options.
_PROGRAMS = {
    "srun": (_SRUN, "srun(1)", {**explanations.DIRECTIVES, **explanations.SRUN}),
    "torchrun": (_LAUNCHER, "torchrun --help", explanations.TORCHRUN),
    "accelerate": (_LAUNCHER, "accelerate launch --help", explanations.ACCELERATE),
}
_LETTERS = {"m": "module", "t": "tee", "r": "redirects"}
_OWN_LINES = [(re.compile(pattern), said) for pattern, said in explanations.OWN_LINES]
_VARIABLE = re.compile(r"(?:export )?([A-Z]\w*)\+?=(\S*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class WordMeaning:
    """The purpose of an option, or of the line if `what` is empty; `known` is False if hpctrain has
    no text for it.
    """

    what: str
    why: str
    source: str | None = None
    known: bool = True

    @property
    def shown(self) -> str:
        """The text for people."""
        if self.what:
            return f"{self.what}: {self.why}"
        programs = ("srun", "sbatch", "hpctrain")
        return self.why if self.why.startswith(programs) else self.why[:1].upper() + self.why[1:]


@dataclass(slots=True)
class ScriptLine:
    """One line of a script.

    Attributes:
        number: counted from 1.
        text: unchanged, without its newline.
        kind: blank, shebang, directive, comment, command or text (of a heredoc).
        section: its heading.
        notes: what is said of it.
    """

    number: int
    text: str
    kind: str
    section: str = ""
    notes: list[WordMeaning] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """Return the line for --json; keys are never removed."""
        return {
            "line": self.number,
            "text": self.text,
            "section": self.section,
            "why": "; ".join(note.shown for note in self.notes) or None,
            "source": self.notes[0].source if self.notes else None,
            "kind": self.kind,
            "known": all(note.known for note in self.notes),
            "parts": [asdict(note) for note in self.notes if note.what],
        }


def explain(text: str) -> list[ScriptLine]:
    """Return the lines of `text`, with their purpose if known."""
    return _Explainer(text).explained()


class _Explainer:
    def __init__(self, text: str) -> None:
        self.facts = LintFacts(text, "script")
        texts = text.split("\n")
        self.starts = [0, *accumulate(len(line) + 1 for line in texts)][:-1]
        self.lines: list[ScriptLine] = []
        for line, start in zip(texts, self.starts, strict=True):
            kind = {"": "blank", "#": "comment"}.get(line.lstrip()[:1], "command")
            if line.startswith("#SBATCH") and start < self.facts.block.ends:
                kind = "directive"
            self.lines.append(ScriptLine(len(self.lines) + 1, line, kind))
        for command in self.facts.commands:
            for heredoc in command.heredocs:
                for one in self._between(heredoc.start, heredoc.end):
                    one.kind = "text"

    def _at(self, offset: int) -> int:
        return bisect_right(self.starts, offset) - 1

    def _between(self, start: int, end: int) -> list[ScriptLine]:
        return self.lines[self._at(start) : self._at(end) + 1]

    def explained(self) -> list[ScriptLine]:
        first = self.lines[0]
        if first.text.startswith("#!"):
            first.kind = "shebang"
            program = first.text[2:].removeprefix("/usr/bin/env").split() or ["nothing"]
            why = f"`{program[0].rpartition('/')[2]}` runs this script. Without it, sbatch refuses it."
            first.notes = [WordMeaning("", why, "sbatch(1)")]
        for option in self.facts.block.every:
            self._directive(option)
        for command in self.facts.commands:
            if command.shell.place == "task":
                self._under(command, NODE)
        for step in self.facts.steps:
            self._call(step, "srun")
        for launch in self.facts.launches:
            self._call(launch, launch.kind)
        for line in self.lines if is_ours(self.facts) else ():
            if line.kind != "text":
                self._own(line)
        self._headings()
        return self.lines

    def _directive(self, option: Directive) -> None:
        line, said = self.lines[option.line - 1], explanations.DIRECTIVES.get(option.name)
        alone = sum(one.line == option.line for one in self.facts.block.every) == 1
        what = f"--{option.name}" + (f"={option.value}" if option.value is not None else "")
        why = self._fill(said, option.value or "") if said else _UNKNOWN.format(option.name)
        source = said.source if said else None
        line.notes.append(WordMeaning("" if alone else what, why, source, known=said is not None))
        line.section = line.section or (said and said.section) or ""

    def _call(self, call: OptionCall, program: str) -> None:
        """Explain the options of a call, each on its line."""
        self._under(call.command, LAUNCH)
        if program not in _PROGRAMS:
            return
        purpose, page, table = _PROGRAMS[program]
        self.lines[self._at(call.at.start)].notes.append(WordMeaning(program, purpose, page))
        for name, word in call.words.items():
            value = call.options.get(name)
            follows = value is not None and word.end <= value.start < word.end + 400
            end = value.end if value is not None and follows else word.end
            what = " ".join(self.facts.text[word.start : end].split())
            said = table.get(_LETTERS.get(name, name.replace("_", "-")))
            why = f"hpctrain has no description of it; see: {page}"
            if said is not None:
                why = self._fill(said, value.text if value is not None else "", call.number(name))
            note = WordMeaning(what, why, said.source if said else None, known=said is not None)
            notes = self.lines[self._at(word.start)].notes
            if what.startswith("-") and note not in notes:  # else it comes from a variable
                notes.append(note)

    def _under(self, command: SimpleCommand, section: str) -> None:
        for line in self._between(command.start, command.end):
            line.section = line.section or section

    def _own(self, line: ScriptLine) -> None:
        text = line.text.strip()
        variable = _VARIABLE.match(text)
        said = explanations.OWN_VARIABLES.get(variable[1]) if variable else None
        why = self._fill(said, variable[2].strip("\"'")) if variable and said else ""
        for pattern, meaning in _OWN_LINES:
            match = pattern.match(text)
            if match is not None:
                said, why = meaning, meaning.why.format(**match.groupdict(""))
                break
        if said is not None:
            line.section = line.section if line.section == NODE else said.section or line.section
            line.notes.insert(0, WordMeaning("", why, said.source))

    def _headings(self) -> None:
        begins = {self._at(one.start) for one in self.facts.commands if not one.scope.inside("$(")}
        launches = [line.number for line in self.lines if line.section in (LAUNCH, NODE)]
        launch = max(launches, default=len(self.lines))
        section = HEADER
        for index, line in enumerate(self.lines):
            if line.kind == "directive":
                line.section = line.section or ASKED
            elif line.kind in ("command", "text") and not line.section:
                own = index in begins and section in (HEADER, ASKED, LOGS, LAUNCH, NODE)
                line.section = section if not own else END if index >= launch else ENVIRONMENT
            section = line.section or section
        for line in reversed(self.lines):  # comments get the heading of the line below
            line.section = line.section or section
            section = line.section
        first = next((at for at, line in enumerate(self.lines) if line.kind == "directive"), 1)
        for line in self.lines[:first]:
            line.section = HEADER

    def _fill(self, said: Sentence, value: str, count: int | None = None) -> str:
        known = value if count is None else str(count)
        shown = value if known == value else f"{value} (here {count})"
        it = _in_words(said.reading, known) if said.reading else ""
        nodes, gpus = self.facts.nodes, self.facts.gpus_per_node
        product = ""
        if nodes and gpus:
            product = (
                f": {words.count(nodes, 'node')} x {words.count(gpus, 'GPU')} = {nodes * gpus}"
            )
        return said.why.format(it=it, value=shown, product=product).strip()


# Values as text


def _in_words(reading: str, value: str) -> str:
    said = explanations.VALUES.get(reading, {}).get(value)
    if reading in _NOUNS and words.is_number(value):
        said = words.count(int(value), _NOUNS[reading])
    with suppress(ValueError, OverflowError):  # not valid notation
        said = _READINGS[reading](value) if reading in _READINGS else said
    return said or explanations.OTHERWISE.get(reading, "{}").format(value)


def _gpus(value: str) -> str:
    kind, _, count = value.partition("(")[0].rpartition(":")
    if not words.is_number(count):
        kind, count = count, "1"
    return words.count(int(count), "GPU") + (f" of type {kind}" if kind else "")


def _gres(value: str) -> str:
    items = (item.removeprefix("gres:") for item in value.split(","))
    return words.listed(
        _gpus(item[4:]) if item.partition(":")[0] == "gpu" else f"`{item}`" for item in items
    )


def _memory(value: str) -> str | None:
    octets = units.parse_memory(value)
    return f"{words.size(octets)} of host memory" if octets else "all host memory"


def _time_limit(value: str) -> str | None:
    seconds = units.parse_time(value)
    return f"at most {words.duration(seconds)}" if seconds else "only the partition's time limit"


def _signal(value: str) -> str | None:
    asked = signals.parse(value)
    if asked is None:
        return None
    whom = "this script's shell alone (B:)" if asked.to_batch else "every task of srun, not to bash"
    name = asked.name if asked.name.isdecimal() else f"SIG{asked.name}"
    return (
        f"sends {name} to {whom}, {words.duration(asked.seconds)} before the time limit (up to a"
        " minute earlier)"
    )


_NOUNS = {"nodes": "node", "tasks": "task", "cores": "core"}
_READINGS: dict[str, Callable[[str], str | None]] = {
    "gpus": _gpus,
    "gres": _gres,
    "memory": _memory,
    "time_limit": _time_limit,
    "signal": _signal,
}
