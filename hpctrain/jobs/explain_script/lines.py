"""A script, line by line: what each line is, under which heading it stands, and why it is there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from hpctrain.jobs.explain_script import directives_said, facts, read_shell, statements, variable_rows
from hpctrain.jobs.explain_script.command_rows import CLOSERS
from hpctrain.jobs.explain_script.read_shell import Statement
from hpctrain.jobs.explain_script.rows import ASKED, END, ENVIRONMENT, HEADER, LAUNCH, NODE
from hpctrain.jobs.explain_script.said import Here, Part, Said, say, upper_first
from hpctrain.jobs.explain_script.statement_rows import COMMENTS
from hpctrain.scheduler.parse.directives import Directive

Kind = Literal["blank", "shebang", "directive", "comment", "command", "continued", "text"]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a script.

    Attributes:
        number: counted from 1.
        text: as it stands, without its line end.
        kind: `continued` belongs to the statement of a line above: an option, a closing word; `text` is what a command reads.
        section: the heading under which it is shown.
        why: why it is there; None for blank lines, for remarks, and where `parts` say all.
        source: the manual that says so.
        parts: words of the line with their own reasons.
        known: False where hpctrain has no words for it, and says so.
    """

    number: int
    text: str
    kind: Kind
    section: str
    why: str | None = None
    source: str | None = None
    parts: tuple[Part, ...] = ()
    known: bool = True

    @property
    def is_explained(self) -> bool:
        """Whether a reader learns why it is there; remarks explain themselves."""
        return (
            self.known
            and all(part.known for part in self.parts)
            and (self.why is not None or bool(self.parts) or self.kind in ("blank", "comment"))
        )

    def to_json(self) -> dict[str, object]:
        """Return the line as it stands in --json; keys are only ever added."""
        why = self.why or "; ".join(f"{part.what}: {part.why}" for part in self.parts) or None
        return {
            "line": self.number, "text": self.text, "section": self.section, "why": why, "source": self.source, "kind": self.kind,
            "known": self.known,
            "parts": [{"what": part.what, "why": part.why, "source": part.source, "known": part.known} for part in self.parts],
        }  # fmt: skip


def explain(text: str) -> list[Line]:
    """Return the lines of `text`, each with why it is there; their texts, joined by line breaks, are `text`."""
    return _Layout(text).lines()


class _Layout:
    """Puts what is said of statements on their lines."""

    def __init__(self, text: str) -> None:
        self.texts = text.split("\n")
        self.statements = read_shell.read(text)
        self.facts = facts.gather(self._directives(), self.statements)
        self.found: dict[int, Line] = {}
        self.blocks: list[tuple[str, int]] = []
        self.seen: set[str] = set()
        self.section, self.launched = HEADER, False

    def lines(self) -> list[Line]:
        for statement in self.statements:
            self._place(statement)
        self._head()
        return self._with_gaps()

    def _directives(self) -> list[Directive]:
        first = next((statement.first for statement in self.statements if not statement.comment), len(self.texts) + 1)
        found: list[Directive] = []
        for number, text in enumerate(self.texts[: first - 1], start=1):
            if directives_said.is_directive(text):
                found += directives_said.read(text, number)[0]
        return found

    def _place(self, statement: Statement) -> None:
        if statement.comment:
            self._comment(statement)
            return
        closed = self._closing(statement)
        said = closed or statements.explain(statement, self.facts)
        self.section = self._section(statement, said)
        self._open(statement)
        said = said.with_parts(self._slurm_variables(statement))
        # In the order of the lines: what begins, the programs within, and what stands behind them.
        self._put(statement.first, said, "continued" if closed and closed.why.startswith(("ends", "otherwise", "the end")) else "command")
        inner = [within for command in statement.commands for word in command.words for within in word.program]
        if inner:
            outside, self.section = self.section, NODE if inner[0].place == "task" else self.section
            for within in inner:
                self._place(within)
            self.section = outside
        self.launched |= any(word.text == "srun" for command in statement.commands for word in command.words[:3])
        self._rest(statement, said)

    def _comment(self, statement: Statement) -> None:
        number = statement.first
        text = self.texts[number - 1]
        row = statements.row_of_comment(statement.text, COMMENTS)
        if number in self.found:
            return
        if number == 1 and text.startswith("#!"):
            self.found[1] = Line(1, text, "shebang", HEADER, *_shebang(text))
        elif statement.place == "batch" and directives_said.is_directive(text):
            self._put(number, directives_said.say(text, number, self.facts), "directive")
        elif statement.place == "batch" and directives_said.looks_like_one(text):
            self._put(number, directives_said.say_no_directive(text), "comment")
        elif row is not None:
            said = say(row, Here(self.facts))
            self.found[number] = Line(number, text, "comment", said.section or "", upper_first(said.why), said.source)
        else:
            self.found[number] = Line(number, text, "comment", HEADER if self.section == HEADER else "")

    def _section(self, statement: Statement, said: Said) -> str:
        if statement.place == "task":
            return self.section
        if said.section is not None and not (self.blocks and said.section == ENVIRONMENT):
            return said.section
        if self.blocks:
            return self.section
        # What has no heading of its own begins the environment, or follows the launch.
        return {HEADER: ENVIRONMENT, ASKED: ENVIRONMENT, LAUNCH: END if self.launched else LAUNCH}.get(self.section, self.section)

    def _put(self, number: int, said: Said, kind: Kind) -> None:
        here = tuple(part for part in said.parts if part.line == number)
        before = self.found.get(number)
        if before is not None:
            # A second statement on the line: a program in quotes that begins where srun stands.
            own = Part(number, "in the quotes", said.why, said.source, said.known)
            self.found[number] = replace(before, parts=(*before.parts, own, *here))
            return
        if kind == "directive":
            self.section = said.section or self.section
        section = said.section if kind in ("directive", "comment") and said.section else self.section
        self.found[number] = Line(number, self.texts[number - 1], kind, section, upper_first(said.why), said.source, here, said.known)

    def _rest(self, statement: Statement, said: Said) -> None:
        """Put the further lines of a statement: options, texts, the end of a program in quotes."""
        parts: dict[int, list[Part]] = {}
        for part in said.parts:
            parts.setdefault(part.line, []).append(part)
        for number in range(statement.first + 1, statement.last + 1):
            here = tuple(parts.get(number, ()))
            before = self.found.get(number)
            if before is not None:
                self.found[number] = replace(before, parts=(*before.parts, *here))
                continue
            why, source = self._of_a_text(statement, number)
            if why is None and not here and self.texts[number - 1].strip():
                why = f"belongs to line {statement.first}."
            kind: Kind = "text" if why and source else "continued" if self.texts[number - 1].strip() else "blank"
            self.found[number] = Line(number, self.texts[number - 1], kind, self.section, why and upper_first(why), source, here)

    def _of_a_text(self, statement: Statement, number: int) -> tuple[str | None, str | None]:
        for heredoc in statement.heredocs:
            if heredoc.first <= number < heredoc.last:
                how = "it stays as it stands" if heredoc.quoted else "its $… are expanded by this shell, now"
                return f"text for the command of line {statement.first}; {how}.", "bash(1)"
            if number == heredoc.last:
                return "the end of that text.", "bash(1)"
        return None, None

    def _closing(self, statement: Statement) -> Said | None:
        """Return what is said of a line that closes what was opened above, and take that off the pile."""
        first = next((command.words[0].text for command in statement.commands if command.words), ")")
        if first == "else":
            return Said("otherwise:", "bash(1)")
        if self.blocks and self.blocks[-1][0] == "case" and first not in CLOSERS:
            if first in (";;", ";&", ";;&") or all(not command.words for command in statement.commands):
                return Said("the end of this pattern.", "bash(1)")
            if any(command.operator == ")" for command in statement.commands) and "(" not in statement.text.partition(")")[0]:
                return Said(f"a pattern of the `case` of line {self.blocks[-1][1]}; what follows runs if it fits.", "bash(1)")
        if first not in CLOSERS or not self.blocks or self.blocks[-1][0] not in CLOSERS[first]:
            return Said(f"ends something above: `{first}`.", "bash(1)") if first in CLOSERS else None
        word, line = self.blocks[-1]
        what = {"function": "function", "{": "group"}.get(word, f"`{word}`")
        return Said(f"ends the {what} of line {line}.", "bash(1)")

    def _open(self, statement: Statement) -> None:
        """Follow what the words of the statement open and close."""
        if statements.begins_function(statement):
            self.blocks.append(("function", statement.first))
        for command in statement.commands:
            for word in statements.leading_words(command):
                if word in CLOSERS:
                    if self.blocks and self.blocks[-1][0] in CLOSERS[word]:
                        self.blocks.pop()
                elif word in ("if", "for", "while", "until", "select", "case"):
                    self.blocks.append((word, statement.first))
                elif word == "{" and not (self.blocks and self.blocks[-1] == ("function", statement.first)):
                    self.blocks.append(("{", statement.first))

    def _slurm_variables(self, statement: Statement) -> list[Part]:
        """Say what Slurm's variables are where each is first used."""
        parts = []
        for name, line in statements.slurm_variables(statement).items():
            if name in variable_rows.SLURM and name not in self.seen:
                self.seen.add(name)
                number = self.facts.value_of(name)
                here = "" if number is None else f"; here {number}"
                parts.append(Part(line, f"${name}", f"{variable_rows.SLURM[name]}{here}.", "sbatch(1)"))
        return parts

    def _head(self) -> None:
        """Say what is wrong with the whole of it, at its first line."""
        first, against = self.texts[0], []
        if any(self.texts) and not first.startswith("#!"):
            against.append("sbatch refuses a script whose first line does not begin with #! and name the shell, such as #!/bin/bash.")
        if any(text.endswith("\r") for text in self.texts[:-1]):
            against.append("lines end as in DOS (\\r\\n), and sbatch refuses such a script; dos2unix mends it.")
        if against:
            before = self.found.get(1) or Line(1, first, "comment" if first.strip() else "blank", HEADER)
            parts = tuple(Part(1, "the file", why, "sbatch(1)") for why in against)
            self.found[1] = replace(before, parts=(*before.parts, *parts))

    def _with_gaps(self) -> list[Line]:
        """Return all lines; blank ones and remarks stand under the heading of what follows them."""
        section, lines = "", []
        for number in range(len(self.texts), 0, -1):
            line = self.found.get(number) or Line(number, self.texts[number - 1], "blank", "")
            section = line.section or section
            lines.append(replace(line, section=line.section or section or self.section))
        return lines[::-1]


def _shebang(text: str) -> tuple[str, str]:
    words = text[2:].split()
    shell = words[0].rpartition("/")[2] if words else "nothing"
    if shell == "env" and len(words) > 1:
        shell = words[-1]
    login = " -l: as a login shell, which reads the site's start-up files; some need that for `module`." if "-l" in words[1:] else ""
    return f"`{shell}` runs this script. Without this first line, sbatch refuses it.{login}", "sbatch(1)"
