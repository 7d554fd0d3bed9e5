"""`lint --explain`: the purpose of directives, of options of srun and the launchers, and of the
lines that hpctrain writes. Pure; never raises.

General shell code is not explained: guesses about it are wrong too often.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Literal

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
from hpctrain.checks.script.model import ShellWord, SimpleCommand
from hpctrain.checks.script.rules.common import is_ours
from hpctrain.slurm.notations import signals, units
from hpctrain.slurm.notations.directives import Directive
from hpctrain.util import text as words

Kind = Literal["blank", "shebang", "directive", "comment", "command", "continued", "text"]
_LAUNCHERS = {
    "torchrun": ("torchrun --help", explanations.TORCHRUN),
    "accelerate": ("accelerate launch --help", explanations.ACCELERATE),
}
_LETTERS = {"m": "module", "t": "tee", "r": "redirects"}
_OWN_LINES = [(re.compile(pattern), said) for pattern, said in explanations.OWN_LINES]
_VARIABLE = re.compile(r"(?:export )?([A-Z]\w*)\+?=(\S*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class WordMeaning:
    """One option of a line, with its purpose; `known` is False if hpctrain has no text for it."""

    what: str
    why: str
    source: str | None = None
    known: bool = True


@dataclass(frozen=True, slots=True)
class ScriptLine:
    """One line of a script.

    Attributes:
        number: counted from 1.
        text: unchanged, without its newline.
        kind: `continued` belongs to a command of a line above; `text` is the input of a command.
        section: its heading.
        why: its purpose; None if there is no text for it, or if `parts` explain it.
        source: the manual.
        parts: options in the line.
        known: False if hpctrain has no text for it, and reports that.
    """

    number: int
    text: str
    kind: Kind
    section: str = ""
    why: str | None = None
    source: str | None = None
    parts: tuple[WordMeaning, ...] = ()
    known: bool = True

    def to_json(self) -> dict[str, object]:
        """Return the line for --json; keys are never removed."""
        return {
            "line": self.number,
            "text": self.text,
            "section": self.section,
            "why": self.why or "; ".join(f"{one.what}: {one.why}" for one in self.parts) or None,
            "source": self.source,
            "kind": self.kind,
            "known": self.known,
            "parts": [asdict(part) for part in self.parts],
        }


def explain(text: str) -> list[ScriptLine]:
    """Return the lines of `text`, with their purpose if known."""
    return _Explainer(text).lines()


class _Explainer:
    def __init__(self, text: str) -> None:
        self.facts = LintFacts(text, "script")
        self.texts = text.split("\n")
        self.starts = [0, *accumulate(len(line) + 1 for line in self.texts)][:-1]
        self.parts: dict[int, list[WordMeaning]] = {}
        self.said: dict[int, Sentence] = {}
        self.sections: dict[int, str] = {}

    def lines(self) -> list[ScriptLine]:
        self._calls()
        found = [self._line(number, kind) for number, kind in enumerate(self._kinds(), start=1)]
        return list(_with_sections(found))

    def _number(self, offset: int) -> int:
        return bisect_right(self.starts, offset)

    def _numbers(self, start: int, end: int) -> range:
        return range(self._number(start), self._number(end) + 1)

    def _kinds(self) -> list[Kind]:
        default: Kind = "continued" if self.facts.commands else "command"
        kinds: list[Kind] = [
            "blank" if not line.strip() else "comment" if line.lstrip()[0] == "#" else default
            for line in self.texts
        ]
        for index, line in enumerate(self.texts):
            if line.startswith("#SBATCH") and self.starts[index] < self.facts.block.ends:
                kinds[index] = "directive"
        if self.texts[0].startswith("#!"):
            kinds[0] = "shebang"
        for command in self.facts.commands:
            for heredoc in command.heredocs:
                for number in self._numbers(heredoc.start, heredoc.end):
                    kinds[number - 1] = "text"
        for command in self.facts.commands:
            if command.scope.inside("$(") is None:
                kinds[self._number(command.start) - 1] = "command"
        return kinds

    # Options of srun and the launchers

    def _calls(self) -> None:
        for command in self.facts.commands:
            if command.shell.place == "task":
                self._under(command, NODE)
        for command, call in self.facts.call_of.items():
            self._start(call.at, "srun", _SRUN)
            for name, word in call.words.items():
                said = explanations.SRUN.get(name) or explanations.DIRECTIVES.get(name)
                self._option(said, word, call.options.get(name), command, "srun(1)")
            self._under(command, LAUNCH)
        for one in self.facts.launches:
            page, table = _LAUNCHERS.get(one.kind, ("", {}))
            if page:
                self._start(one.at, one.kind, _LAUNCHER)
            for name, word in one.words.items() if page else ():
                said = table.get(_LETTERS.get(name, name.replace("_", "-")))
                self._option(said, word, one.options.get(name), one.command, page)
            self._under(one.command, LAUNCH)

    def _under(self, command: SimpleCommand, section: str) -> None:
        for number in self._numbers(command.start, command.end):
            self.sections.setdefault(number, section)

    def _start(self, word: ShellWord, name: str, said: Sentence) -> None:
        """Explain a program on its line; a second program on the same line becomes a part."""
        if self.said.setdefault(self._number(word.start), said) is not said:
            self._add(word, WordMeaning(name, said.why, said.source))

    def _add(self, word: ShellWord, part: WordMeaning) -> None:
        here = self.parts.setdefault(self._number(word.start), [])
        if part not in here:
            here.append(part)

    def _option(
        self,
        said: Sentence | None,
        word: ShellWord,
        value: ShellWord | None,
        command: SimpleCommand,
        page: str,
    ) -> None:
        follows = value is not None and word.end <= value.start and value.end - word.end < 400
        end = value.end if value is not None and follows else word.end
        what = " ".join(self.facts.text[word.start : end].split())
        if not what.startswith("-"):
            return  # it comes from a variable
        why, source = f"hpctrain has no description of it; see: {page}", None
        if said is not None:
            shown = value.text if value is not None else ""
            count = self.facts.number(value, command)
            if value is not None and not value.is_literal and count is not None:
                shown = f"{shown} (here {count})"
            source = said.source
            why = self._fill(said, value.text if value is not None else "", shown)
        self._add(word, WordMeaning(what, why, source, known=said is not None))

    # Lines

    def _line(self, number: int, kind: Kind) -> ScriptLine:
        text, section = self.texts[number - 1], self.sections.get(number, "")
        line = ScriptLine(number, text, kind, section, parts=tuple(self.parts.get(number, ())))
        if kind == "shebang":
            program = text[2:].removeprefix("/usr/bin/env").split() or ["nothing"]
            return _with(line, _SHEBANG, _SHEBANG.why.format(program[0].rpartition("/")[2]))
        if kind == "directive":
            return self._directive(line)
        said = self.said.get(number)
        line = _with(line, said, said.why) if said else line
        return self._own(line) if is_ours(self.facts) else line

    def _own(self, line: ScriptLine) -> ScriptLine:
        text = line.text.strip()
        if line.kind in ("blank", "text"):
            return line
        for pattern, said in _OWN_LINES:
            match = pattern.match(text)
            if match is not None:
                return _with(line, said, said.why.format(**match.groupdict("")))
        variable = _VARIABLE.match(text)
        own = explanations.OWN_VARIABLES.get(variable[1]) if variable else None
        if variable is None or own is None:
            return line
        return _with(line, own, self._fill(own, "", variable[2].strip("\"'")))

    def _directive(self, line: ScriptLine) -> ScriptLine:
        options = [option for option in self.facts.block.every if option.line == line.number]
        parts = tuple(self._directive_option(option) for option in options)
        first = explanations.DIRECTIVES.get(options[0].name) if options else None
        line = replace(line, section=(first and first.section) or ASKED, parts=parts)
        line = replace(line, known=all(part.known for part in parts))
        if len(parts) != 1:
            return line
        why = parts[0].why[:1].upper() + parts[0].why[1:]
        return replace(line, why=why, source=parts[0].source, parts=())

    def _directive_option(self, option: Directive) -> WordMeaning:
        what = f"--{option.name}" + (f"={option.value}" if option.value is not None else "")
        said = explanations.DIRECTIVES.get(option.name)
        if said is None:
            return WordMeaning(what, _NO_WORDS.format(option.name), known=False)
        last = self.facts.options.get(option.name, option)
        if last is not option and not self.facts.block.hetjobs:
            why = f"does not count: line {last.line} says --{option.name} again, and the last wins."
            return WordMeaning(what, why, said.source)
        value = option.value or ""
        return WordMeaning(what, self._fill(said, value, value), said.source)

    def _fill(self, said: Sentence, value: str, shown: str) -> str:
        it = in_words(said.reading, value, self.facts) if said.reading else ""
        return said.why.format(it=it, value=shown, product=_product(self.facts)).strip()


_SHEBANG = Sentence(
    "`{}` runs this script. Without this first line, sbatch refuses it.", section=HEADER
)
_SRUN = Sentence(
    "Starts a job step: the command after the options runs in every task, on every node. Without"
    " srun it runs once, on the first node.",
    "srun(1)",
    None,
)
_LAUNCHER = Sentence(
    "Starts the training's processes on this node and tells each its rank.",
    "torch.distributed.run documentation",
    None,
)
_NO_WORDS = (
    "hpctrain has no description of --{}. It may be an option of a plugin of this site; see:"
    " sbatch --help"
)


def _with(line: ScriptLine, said: Sentence, why: str) -> ScriptLine:
    shown = why if why.startswith(("srun", "sbatch", "hpctrain")) else why[:1].upper() + why[1:]
    section = line.section if line.section == NODE else said.section or line.section
    return replace(line, section=section, why=shown, source=said.source)


def _with_sections(lines: list[ScriptLine]) -> Iterator[ScriptLine]:
    """Assign a heading to each line; comments get that of the next line."""
    section, began, launched = HEADER, False, False
    remarks: list[ScriptLine] = []
    for line in lines:
        if line.section:
            section = line.section
        elif line.kind in ("blank", "comment") and section != HEADER:
            remarks.append(line)
            continue
        elif line.kind == "command" and not began:
            section = ENVIRONMENT
        elif line.kind == "command" and launched and section in (LAUNCH, NODE):
            section = END
        began = began or line.kind == "command"
        launched = launched or section == LAUNCH
        yield from (replace(each, section=section) for each in (*remarks, line))
        remarks = []
    yield from (replace(each, section=section) for each in remarks)


# Values as text


def in_words(reading: str, value: str, facts: LintFacts) -> str:
    """Return the value of an option as text, or verbatim if there is no text for it."""
    if reading in _READINGS:
        try:
            said = _READINGS[reading](value, facts)
        except ValueError:  # not valid notation
            said = None
    else:
        said = explanations.VALUES.get(reading, {}).get(value)
    return explanations.OTHERWISE.get(reading, "{}").format(value) if said is None else said


def _counted(noun: str) -> _Reading:
    return lambda value, _: words.count(int(value), noun) if words.is_number(value) else None


def _nodes(value: str, facts: LintFacts) -> str | None:
    low, dash, high = value.partition("-")
    if dash and words.is_number(low) and words.is_number(high):
        return f"{low} to {words.count(int(high), 'node')}, as many as are free"
    return _counted("node")(value, facts)


def _cores_of_task(value: str, facts: LintFacts) -> str | None:
    if "SLURM_CPUS_PER_TASK" not in value:
        return _counted("core")(value, facts)
    cores = facts.count("cpus-per-task")
    return f"{words.count(cores, 'core')} for each task" if cores else "the cores of a task"


def _gpus(value: str, _: LintFacts) -> str | None:
    kind, _sign, count = value.rpartition(":")
    of = f" of type {kind}" if kind else ""
    return words.count(int(count), "GPU") + of if words.is_number(count) else None


def _gres(value: str, facts: LintFacts) -> str:
    said = []
    for item in value.split(","):
        name, _, rest = item.partition("(")[0].removeprefix("gres:").partition(":")
        gpus = _gpus(rest if rest[-1:].isdecimal() else f"{rest}:1", facts)
        if name == "gpu" and gpus is not None:
            gpus = f"{gpus} on each node (per node, not in total{_product(facts)})"
        said.append(gpus if name == "gpu" and gpus else f"`{item}` on each node")
    return words.listed(said)


def _product(facts: LintFacts) -> str:
    nodes, gpus = facts.nodes, facts.gpus_per_node
    if not nodes or not gpus:
        return ""
    return f": {words.count(nodes, 'node')} x {words.count(gpus, 'GPU')} = {nodes * gpus}"


def _memory(value: str, _: LintFacts) -> str | None:
    octets = units.parse_memory(value)
    if octets >= 1024**6:
        return None
    return f"{words.size(octets)} of host memory" if octets else "all host memory"


def _time_limit(value: str, _: LintFacts) -> str | None:
    seconds = units.parse_time(value)
    return f"at most {words.duration(seconds)}" if seconds else "only the partition's time limit"


def _dependency(value: str, _: LintFacts) -> str | None:
    kind, _sign, ids = value.partition(":")
    said = None if re.search("[,?]", value) else explanations.DEPENDENCIES.get(kind)
    return said and said.format(ids.replace(":", " and "))


def _signal(value: str, _: LintFacts) -> str | None:
    asked = signals.parse(value)
    if asked is None:
        return None
    whom = "every task that srun has started, not to this script's shell"
    if asked.to_batch:
        whom = "this script's shell alone (B:)"
    name = asked.name if asked.name.isdecimal() else f"SIG{asked.name}"
    before = words.duration(asked.seconds)
    return f"sends {name} to {whom}, {before} before the time limit (up to a minute earlier)"


def _pattern(value: str, _: LintFacts) -> str:
    used = dict.fromkeys(re.findall(r"%\d*([A-Za-z])", value.replace("%%", "")))
    known = [mark for mark in used if mark in explanations.PATTERNS]
    if known:
        return f" ({', '.join(f'%{mark} is {explanations.PATTERNS[mark]}' for mark in known)})"
    return "" if used else "; with no %j, every job of this script writes to the same file"


_Reading = Callable[[str, LintFacts], str | None]
_READINGS: dict[str, _Reading] = {
    "nodes": _nodes,
    "tasks": _counted("task"),
    "cores": _counted("core"),
    "cores_of_task": _cores_of_task,
    "gpus": _gpus,
    "gres": _gres,
    "memory": _memory,
    "time_limit": _time_limit,
    "dependency": _dependency,
    "signal": _signal,
    "pattern": _pattern,
}
