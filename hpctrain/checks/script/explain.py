"""`lint --explain`: the purpose of directives, of options of srun and the launchers, and of the
lines that hpctrain writes. Pure; never raises.

General shell code is not explained: guesses about it are wrong too often.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import accumulate

from hpctrain.checks.script import explanations
from hpctrain.checks.script.explanations import (
    ASKED,
    END,
    ENVIRONMENT,
    HEADER,
    LAUNCH,
    NODE,
    Sentence,
)
from hpctrain.checks.script.facts import LintFacts
from hpctrain.checks.script.model import OptionCall, SimpleCommand
from hpctrain.checks.script.rules.common import is_ours
from hpctrain.slurm.notations import signals, units
from hpctrain.slurm.notations.directives import Directive
from hpctrain.util import text as words

_STEP_OPTIONS = {**explanations.DIRECTIVES, **explanations.SRUN}
_LAUNCHERS = {
    "torchrun": ("torchrun --help", explanations.TORCHRUN),
    "accelerate": ("accelerate launch --help", explanations.ACCELERATE),
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

    @property
    def known(self) -> bool:
        """Whether hpctrain has texts for all of its options."""
        return all(note.known for note in self.notes)

    def to_json(self) -> dict[str, object]:
        """Return the line for --json; keys are never removed."""
        return {
            "line": self.number,
            "text": self.text,
            "section": self.section,
            "why": "; ".join(note.shown for note in self.notes) or None,
            "source": self.notes[0].source if self.notes else None,
            "kind": self.kind,
            "known": self.known,
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
        self.lines = [
            ScriptLine(number, line, self._kind(number, line))
            for number, line in enumerate(texts, start=1)
        ]
        for heredoc in (one for command in self.facts.commands for one in command.heredocs):
            for line in self.lines[self._at(heredoc.start) : self._at(heredoc.end) + 1]:
                line.kind = "text"

    def _kind(self, number: int, line: str) -> str:
        if number == 1 and line.startswith("#!"):
            return "shebang"
        if line.startswith("#SBATCH") and self.starts[number - 1] < self.facts.block.ends:
            return "directive"
        return {"": "blank", "#": "comment"}.get(line.lstrip()[:1], "command")

    def explained(self) -> list[ScriptLine]:
        first = self.lines[0]
        if first.kind == "shebang":
            program = first.text[2:].removeprefix("/usr/bin/env").split() or ["nothing"]
            why = f"`{program[0].rpartition('/')[2]}` runs this script. Without it, sbatch refuses it."
            first.notes = [WordMeaning("", why, "sbatch(1)")]
        self._directives()
        self._calls()
        for line in self.lines if is_ours(self.facts) else ():
            if line.kind != "text":
                self._own(line)
        self._headings()
        return self.lines

    def _at(self, offset: int) -> int:
        return bisect_right(self.starts, offset) - 1

    def _directives(self) -> None:
        for option in self.facts.block.every:
            self.lines[option.line - 1].notes.append(self._directive(option))
        for line in self.lines:
            if line.kind == "directive":
                name = line.notes[0].what[2:].partition("=")[0] if line.notes else ""
                said = explanations.DIRECTIVES.get(name)
                line.section = (said and said.section) or ASKED
                if len(line.notes) == 1:
                    (only,) = line.notes
                    line.notes = [WordMeaning("", only.why, only.source, only.known)]

    def _directive(self, option: Directive) -> WordMeaning:
        what = f"--{option.name}" + (f"={option.value}" if option.value is not None else "")
        said = explanations.DIRECTIVES.get(option.name)
        if said is None:
            return WordMeaning(what, _UNKNOWN.format(option.name), known=False)
        last = self.facts.options.get(option.name, option)
        if last is not option and not self.facts.block.hetjobs:
            why = f"does not count: line {last.line} says --{option.name} again, and the last wins."
            return WordMeaning(what, why, said.source)
        return WordMeaning(what, self._fill(said, option.value or ""), said.source)

    # Options of srun and the launchers

    def _calls(self) -> None:
        for command in self.facts.commands:
            if command.shell.place == "task":
                self._under(command, NODE)
        for call in self.facts.steps:
            self._call(call.command, call, "srun", "srun(1)", _STEP_OPTIONS)
        for one in self.facts.launches:
            page, table = _LAUNCHERS.get(one.kind, ("", {}))
            if page:
                self._call(one.command, one, one.kind, page, table)
            self._under(one.command, LAUNCH)

    def _call(
        self,
        command: SimpleCommand,
        call: OptionCall,
        program: str,
        page: str,
        table: dict[str, Sentence],
    ) -> None:
        note = WordMeaning(program, _SRUN if program == "srun" else _LAUNCHER, page)
        self.lines[self._at(call.at.start)].notes.append(note)
        for name, word in call.words.items():
            value = call.options.get(name)
            follows = value is not None and word.end <= value.start < word.end + 400
            end = value.end if value is not None and follows else word.end
            what = " ".join(self.facts.text[word.start : end].split())
            said = table.get(_LETTERS.get(name, name.replace("_", "-")) if table else name)
            note = WordMeaning(what, f"hpctrain has no description of it; see: {page}", known=False)
            if said is not None:
                count = self.facts.number(value, command)
                text = value.text if value is not None else ""
                note = WordMeaning(what, self._fill(said, text, count), said.source)
            notes = self.lines[self._at(word.start)].notes
            if what.startswith("-") and note not in notes:  # else it comes from a variable
                notes.append(note)
        self._under(command, LAUNCH)

    def _under(self, command: SimpleCommand, section: str) -> None:
        for line in self.lines[self._at(command.start) : self._at(command.end) + 1]:
            line.section = line.section or section

    def _own(self, line: ScriptLine) -> None:
        text = line.text.strip()
        variable = _VARIABLE.match(text)
        own = explanations.OWN_VARIABLES.get(variable[1]) if variable else None
        for pattern, said in _OWN_LINES:
            match = pattern.match(text)
            if match is not None:
                self._say(line, said, said.why.format(**match.groupdict("")))
                return
        if variable and own:
            self._say(line, own, self._fill(own, variable[2].strip("\"'")))

    def _say(self, line: ScriptLine, said: Sentence, why: str) -> None:
        line.section = line.section if line.section == NODE else said.section or line.section
        line.notes.insert(0, WordMeaning("", why, said.source))

    def _headings(self) -> None:
        begins = {self._at(one.start) for one in self.facts.commands if not one.scope.inside("$(")}
        section = HEADER
        last = max((line.number for line in self.lines if line.section == LAUNCH), default=0)
        for index, line in enumerate(self.lines):
            if index in begins and not line.section:
                follows = _FOLLOWS.get(section, section)
                line.section = ENVIRONMENT if follows == END and index < last else follows
            elif line.kind in ("command", "text"):
                line.section = line.section or section
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
        return said.why.format(it=it, value=shown, product=_product(self.facts)).strip()


#: The heading of a command that has none of its own, by the heading above it.
_FOLLOWS = {
    HEADER: ENVIRONMENT,
    ASKED: ENVIRONMENT,
    explanations.LOGS: ENVIRONMENT,
    LAUNCH: END,
    NODE: END,
}
_SRUN = (
    "starts a job step: the command after the options runs in every task, on every node. Without"
    " srun it runs once, on the first node."
)
_LAUNCHER = "starts the training's processes on this node and tells each its rank."
_UNKNOWN = (
    "hpctrain has no description of --{}. It may be an option of a plugin of this site; see:"
    " sbatch --help"
)


# Values as text


def _in_words(reading: str, value: str) -> str:
    try:
        said = _READINGS[reading](value) if reading in _READINGS else None
    except ValueError:  # not valid notation
        said = None
    said = said or explanations.VALUES.get(reading, {}).get(value)
    return said or explanations.OTHERWISE.get(reading, "{}").format(value)


def _counted(noun: str) -> Callable[[str], str | None]:
    return lambda value: words.count(int(value), noun) if words.is_number(value) else None


def _gpus(value: str) -> str:
    value = value.partition("(")[0]
    kind, _, count = value.rpartition(":")
    if not words.is_number(count):
        kind, count = value, "1"
    of = f" of type {kind}" if kind else ""
    return words.count(int(count), "GPU") + of


def _gres(value: str) -> str:
    said = []
    for item in value.split(","):
        name, _, rest = item.removeprefix("gres:").partition(":")
        said.append(_gpus(rest) if name == "gpu" else f"`{item}`")
    return words.listed(said)


def _product(facts: LintFacts) -> str:
    nodes, gpus = facts.nodes, facts.gpus_per_node
    if not nodes or not gpus:
        return ""
    return f": {words.count(nodes, 'node')} x {words.count(gpus, 'GPU')} = {nodes * gpus}"


def _memory(value: str) -> str | None:
    octets = units.parse_memory(value)
    if octets >= 1024**6:
        return None
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
    before = words.duration(asked.seconds)
    return f"sends {name} to {whom}, {before} before the time limit (up to a minute earlier)"


_READINGS: dict[str, Callable[[str], str | None]] = {
    "nodes": _counted("node"),
    "tasks": _counted("task"),
    "cores": _counted("core"),
    "gpus": _gpus,
    "gres": _gres,
    "memory": _memory,
    "time_limit": _time_limit,
    "signal": _signal,
}
