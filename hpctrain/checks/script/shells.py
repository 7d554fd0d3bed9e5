"""The shells of a script: values of their variables, if the text determines them, and the texts
that one shell passes to another (`bash -c '…'`, a heredoc as input of bash).

An inner text is read again with the offsets of the outer one; the outer shell's expansions stay
marked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from hpctrain.checks.script.calls import CONTAINERS, WRAPPERS, srun_position
from hpctrain.checks.script.model import (
    Argv,
    Assignment,
    Place,
    Shell,
    ShellWord,
    SimpleCommand,
    WordPiece,
)
from hpctrain.checks.script.reader import SourceText, read_shell

SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh"})
_MAX_DEPTH = 3
_MAX_NESTING = 6
_FACTOR = re.compile(r"\s*\$?\{?([A-Za-z_]\w*|\d{1,9})\}?\s*", re.ASCII)
_SHELL_SHEBANG = re.compile(r"#!\s*\S*?(?:env\s+)?(?:bash|sh|zsh|dash|ksh)\b")
#: Builtins that assign to the names in their arguments.
_ASSIGNING = frozenset({"read", "mapfile", "readarray", "getopts", "unset", "printf", "for"})


@dataclass(frozen=True, slots=True)
class _KnownVariable:
    """The value of a variable: one word, or an array's words; `command` assigned it."""

    parts: list[WordPiece]
    array: list[ShellWord] | None
    command: SimpleCommand


class Variables:
    """The variables of one shell, on top of its parent's: those assigned once, unconditionally,
    before anything else can change them.
    """

    def __init__(
        self, shell: Shell, numbers: dict[str, int], outer: Variables | None = None
    ) -> None:
        self._outer, self._numbers = outer, numbers
        self._known: dict[str, _KnownVariable | None] = {}
        #: Remaining length of substituted text; nested variables can grow exponentially.
        self._budget: list[int] = outer._budget if outer is not None else [2**18]
        for command in shell.commands:
            if not command.words or command.declares or command.words[0].text == "for":
                for assignment in command.assignments:
                    self._assign(command, assignment)
            if command.words and command.words[0].text in _ASSIGNING:
                self._known |= dict.fromkeys(word.text for word in command.words[1:])

    def _assign(self, command: SimpleCommand, assignment: Assignment) -> None:
        name, array = assignment.name, assignment.array
        earlier = self._known.get(name)
        known = _KnownVariable(list(assignment.word.parts), array, command)
        sure = not command.conditional and command.scope.kind == "file"
        if assignment.append and earlier and (earlier.array is None) == (array is None):
            joined = None if array is None else (earlier.array or []) + array
            known = _KnownVariable(earlier.parts + known.parts, joined, command)
        elif assignment.append or name in self._known:
            sure = False
        self._known[name] = known if sure else None

    def _lookup(self, name: str) -> _KnownVariable | None:
        if name in self._known or self._outer is None:
            return self._known.get(name)
        return self._outer._lookup(name)

    def flatten(self, parts: Iterable[WordPiece], nesting: int = 0) -> list[WordPiece]:
        """Return `parts` with known variables replaced by their values."""
        flat: list[WordPiece] = []
        for part in parts:
            known = self._lookup(part.text) if part.kind == "var" and not part.operand else None
            too_much = nesting >= _MAX_NESTING or self._budget[0] <= 0
            if known is None or known.array is not None or too_much:
                flat.append(part)
                continue
            self._budget[0] -= sum(len(inner.text) for inner in known.parts) + 1
            flat += self.flatten(_placed(known.parts, known.command), nesting + 1)
        return flat

    def argv(self, command: SimpleCommand) -> Argv:
        """Return the words that `command` receives, as far as the text determines them."""
        argv = Argv()
        for word in command.words:
            self._expand(word, argv, 0)
        return argv

    def _expand(self, word: ShellWord, argv: Argv, nesting: int) -> None:
        self._budget[0] -= nesting
        if word.is_literal or self._budget[0] <= 0:
            argv.words.append(word)
            return
        whole = word.whole_variable
        known = self._lookup(whole.text) if whole is not None else None
        if whole and known and known.array is not None and nesting < _MAX_NESTING:
            for item in known.array if whole.operand else []:
                parts = tuple(_placed(item.parts, known.command))
                self._expand(replace(item, parts=parts), argv, nesting + 1)
            return
        flat = self.flatten(word.parts)
        if whole is not None and not whole.quoted:
            words = _split(flat)
            # An unquoted variable with an unknown value may be any number of words.
            wholes = [one.whole_variable for one in words]
            known_words = bool(words) and all(one is None or one.quoted for one in wholes)
            argv.complete = argv.complete and known_words
            argv.words += words
            return
        if whole is not None and (whole.operand or whole.text == "@"):
            argv.complete = False
        argv.words.append(ShellWord.of(flat, word.start, word.end))

    def number(self, word: ShellWord | None) -> int | None:
        """Return the integer value of `word`, if known."""
        text = "".join(map(self._digits, self.flatten(word.parts))) if word is not None else ""
        return int(text) if re.fullmatch(r"\d{1,9}", text, re.ASCII) else None

    def _digits(self, part: WordPiece) -> str:
        if part.kind == "arith":
            return self._product(part.text)
        if part.kind == "var" and not part.operand:
            return str(self._numbers.get(part.text))
        return part.text if part.kind == "text" else "?"

    def _product(self, text: str) -> str:
        """Return the value of a product of names and numbers, the usual arithmetic in scripts."""
        factors = [_FACTOR.fullmatch(factor) for factor in text.split("*", 9)]
        digits = [self._factor(match[1]) if match is not None else "?" for match in factors]
        return str(math.prod(map(int, digits))) if all(map(str.isdecimal, digits)) else "?"

    def _factor(self, name: str) -> str:
        if name.isdecimal():
            return name
        parts = self.flatten([WordPiece("var", name, 0, 0)])
        # The value of a variable may be a product too, of the variable itself.
        return "".join("?" if one.kind == "arith" else self._digits(one) for one in parts)


def _placed(parts: Iterable[WordPiece], command: SimpleCommand) -> list[WordPiece]:
    return [replace(part, place=part.place or command.shell.place) for part in parts]


def _split(parts: list[WordPiece]) -> list[ShellWord]:
    """Split the value of an unquoted variable into words as the shell does, with literal quotes."""
    words: list[list[WordPiece]] = [[]]
    for part in parts:
        if part.kind != "text":
            words[-1].append(part)
            continue
        for match in re.finditer(r"\s+|\S+", part.text):
            start, end = part.start + match.start(), part.start + match.end()
            if match[0].isspace():
                words.append([])
            else:
                words[-1].append(replace(part, text=match[0], start=start, end=end))
    return [ShellWord.of(pieces, pieces[0].start, pieces[-1].end) for pieces in words if pieces]


class Shells:
    """The shell of a script, and the shells that it starts."""

    def __init__(self, batch: Shell, numbers: dict[str, int]) -> None:
        self._numbers = numbers
        self.variables = {batch: Variables(batch, numbers)}
        self.all = [batch]
        self._argv: dict[SimpleCommand, Argv] = {}
        for shell in self.all:  # grows during the loop
            for command in shell.commands if shell.depth < _MAX_DEPTH else ():
                self._inspect(command)

    def argv(self, command: SimpleCommand) -> Argv:
        """Return the words of `command` with known variables substituted."""
        if command not in self._argv:
            self._argv[command] = self.variables[command.shell].argv(command)
        return self._argv[command]

    def _inspect(self, command: SimpleCommand) -> None:
        argv = self.argv(command).words
        at = next((at for at, word in enumerate(argv) if word.program in SHELLS), len(argv))
        script, stdin = _script_of(argv[at + 1 :]) if argv[at:] else (None, False)
        heredoc = command.heredocs[-1] if command.heredocs else None
        via = command if stdin else self._step_of_written(command)
        if script is not None:
            self._read(self.variables[command.shell].flatten(script.parts), command)
        elif heredoc is not None and via is not None:
            body = WordPiece("text", heredoc.text, heredoc.start, heredoc.end)
            self._read(list(heredoc.parts) or [body], via)

    def _step_of_written(self, command: SimpleCommand) -> SimpleCommand | None:
        """Return the srun call that runs the script written by `cat > FILE <<EOF`."""
        names = {one.target.program for one in command.redirects if one.operator == ">"}
        shell = command.heredocs and _SHELL_SHEBANG.match(command.heredocs[-1].text)
        if command.name != "cat" or not (shell or any(name.endswith(".sh") for name in names)):
            return None
        return next((self._steps[name] for name in names if name in self._steps), None)

    @cached_property
    def _steps(self) -> dict[str, SimpleCommand]:
        calls = [
            command
            for command in self.all[0].commands
            if srun_position(self.argv(command).words) is not None
        ]
        return {word.program: command for command in calls for word in command.words}

    def _read(self, pieces: list[WordPiece], via: SimpleCommand) -> None:
        argv = self.argv(via).words
        place: Place = (
            via.shell.place if argv[0].program in SHELLS | WRAPPERS | CONTAINERS else "unknown"
        )
        place = place if srun_position(argv) is None else "task"
        shell = Shell(place, via, via.shell.depth + 1)
        read_shell(SourceText.of_pieces(pieces, via.shell.place), shell)
        self.variables[shell] = Variables(shell, self._numbers, self.variables[via.shell])
        self.all.append(shell)


def _script_of(words: list[ShellWord]) -> tuple[ShellWord | None, bool]:
    """Return the text after `-c` in a shell's arguments, and whether the shell reads stdin."""
    wants_text = False
    while words and words[0].text[:1] in ("-", "+"):
        flags = words[0].text
        takes = 0 if flags.startswith("--") else flags.lower().count("o")  # each takes an argument
        wants_text = wants_text or bool(re.match(r"-\w*c", flags))
        words = words[1 + takes :]
    return (words[0], False) if wants_text and words else (None, not words)
