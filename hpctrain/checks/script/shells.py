"""The shells of a script: values of their variables, if the text determines them, and the texts
that one shell passes to another (`bash -c '…'`, a heredoc as input of bash).

An inner text is read again with the offsets of the outer one; the outer shell's expansions stay
marked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from hpctrain.checks.script.calls import CONTAINERS, WRAPPERS, srun_call
from hpctrain.checks.script.model import (
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
_FACTOR = re.compile(r"\s*\$?\{?([A-Za-z_]\w*|\d{1,9})\}?\s*", re.ASCII)
_SHELL_SHEBANG = re.compile(r"#!\s*\S*?(?:env\s+)?(?:bash|sh|zsh|dash|ksh)\b")
#: Builtins that assign to the names in their arguments.
_ASSIGNING = frozenset({"read", "mapfile", "readarray", "getopts", "unset", "printf", "for"})


class Variables:
    """The variables of one shell, on top of its parent's: those assigned once, unconditionally,
    before anything else can change them.
    """

    def __init__(
        self, shell: Shell, numbers: dict[str, int], outer: Variables | None = None
    ) -> None:
        self._outer, self._numbers = outer, numbers
        #: Assignments with substituted values; None for a variable of unknown value.
        self._known: dict[str, Assignment | None] = {}
        #: Remaining length of substituted text; nested variables can grow exponentially.
        self._budget: list[int] = outer._budget if outer is not None else [2**18]
        for command in shell.commands:
            if not command.words or command.declares or command.words[0].text == "for":
                for assignment in command.assignments:
                    self._assign(command, assignment)
            if command.words and command.words[0].text in _ASSIGNING:
                self._known |= dict.fromkeys(word.text for word in command.words[1:])

    def _assign(self, command: SimpleCommand, assignment: Assignment) -> None:
        name, earlier = assignment.name, self._known.get(assignment.name)
        parts = _placed(self.flatten(assignment.word.parts), command)
        array = None if assignment.array is None else self.expanded(assignment.array)
        array = array and [replace(word, parts=_placed(word.parts, command)) for word in array]
        sure = not command.conditional and command.scope.kind == "file"
        if assignment.append and earlier and (earlier.array is None) == (array is None):
            parts = [*earlier.word.parts, *parts]
            array = None if array is None else [*(earlier.array or ()), *array]
        elif assignment.append or name in self._known:
            sure = False
        word = ShellWord.of(parts, 0, 0)
        self._known[name] = replace(assignment, word=word, array=array) if sure else None

    def _lookup(self, name: str) -> Assignment | None:
        if name in self._known or self._outer is None:
            return self._known.get(name)
        return self._outer._lookup(name)

    def flatten(self, parts: Iterable[WordPiece]) -> list[WordPiece]:
        """Return `parts` with known variables replaced by their values."""
        flat: list[WordPiece] = []
        for part in parts:
            known = self._lookup(part.text) if part.kind == "var" and not part.operand else None
            if known is None or known.array is not None or self._budget[0] <= 0:
                flat.append(part)
            else:
                self._budget[0] -= len(known.word.text) + len(known.word.parts)
                flat += known.word.parts
        return flat

    def expanded(self, words: Iterable[ShellWord]) -> list[ShellWord]:
        """Return the words that a command receives, as far as the text determines them."""
        found: list[ShellWord] = []
        for word in words:
            whole = word.whole_variable
            known = self._lookup(whole.text) if whole is not None else None
            if whole is not None and known is not None and known.array is not None:
                self._budget[0] -= len(known.array)
                found += known.array if whole.operand and self._budget[0] > 0 else []
            elif whole is not None and not whole.quoted:
                found += _split(self.flatten(word.parts))
            else:
                found.append(ShellWord.of(self.flatten(word.parts), word.start, word.end))
        return found

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
        product = 1
        for factor in text.split("*", 9):
            match = _FACTOR.fullmatch(factor)
            name = match[1] if match is not None else ""
            parts = self.flatten([WordPiece("var", name, 0, 0)])
            # The value of a variable may be a product too, of the variable itself.
            digits = "".join("?" if one.kind == "arith" else self._digits(one) for one in parts)
            digits = name if name.isdecimal() else digits
            if not digits.isdecimal():
                return "?"
            product *= int(digits)
        return str(product)


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


def read_shells(batch: Shell, numbers: dict[str, int]) -> dict[Shell, Variables]:
    """Read the texts that the shell of a script passes to others, and these to others; substitute
    the variables in the commands of all. Return their variables.
    """
    known: dict[Shell, Variables] = {}
    steps: dict[str, SimpleCommand] = {}
    waiting = [batch]
    for shell in waiting:  # grows during the loop
        outer = known[shell.via.shell] if shell.via is not None else None
        known[shell] = Variables(shell, numbers, outer)
        for command in shell.commands:
            command.argv = known[shell].expanded(command.words)
            command.call = srun_call(command)
            if command.call is not None and shell is batch:
                steps |= {word.program: command for word in command.words}
        for command in shell.commands if shell.depth < _MAX_DEPTH else ():
            inner = _shell_of(command, known[shell], steps)
            if inner is not None:
                waiting.append(inner)
    return known


def _shell_of(
    command: SimpleCommand, variables: Variables, steps: dict[str, SimpleCommand]
) -> Shell | None:
    """Return the shell that reads a text in `command`."""
    argv = command.argv
    at = next((at for at, word in enumerate(argv) if word.program in SHELLS), len(argv))
    script, stdin = _script_of(argv[at + 1 :]) if argv[at:] else (None, False)
    pieces, via = variables.flatten(script.parts) if script is not None else [], command
    if script is None:
        heredoc = command.heredocs[-1] if command.heredocs else None
        written = command if stdin else _step_of_written(command, steps)
        if heredoc is None or written is None:
            return None
        body = WordPiece("text", heredoc.text, heredoc.start, heredoc.end)
        pieces, via = list(heredoc.parts) or [body], written
    place: Place = "task"
    if via.call is None:
        known = via.argv[0].program in SHELLS | WRAPPERS | CONTAINERS
        place = via.shell.place if known else "unknown"
    shell = Shell(place, via, via.shell.depth + 1)
    return read_shell(SourceText.of_pieces(pieces, via.shell.place), shell)


def _step_of_written(
    command: SimpleCommand, steps: dict[str, SimpleCommand]
) -> SimpleCommand | None:
    """Return the srun call that runs the script written by `cat > FILE <<EOF`."""
    names = {one.target.program for one in command.redirects if one.operator == ">"}
    shell = command.heredocs and _SHELL_SHEBANG.match(command.heredocs[-1].text)
    if command.name != "cat" or not (shell or any(name.endswith(".sh") for name in names)):
        return None
    return next((steps[name] for name in names if name in steps), None)


def _script_of(words: list[ShellWord]) -> tuple[ShellWord | None, bool]:
    """Return the text after `-c` in a shell's arguments, and whether the shell reads stdin."""
    wants_text = False
    while words and words[0].text[:1] in ("-", "+"):
        flags = words[0].text
        takes = 0 if flags.startswith("--") else flags.lower().count("o")  # each takes an argument
        wants_text = wants_text or bool(re.match(r"-\w*c", flags))
        words = words[1 + takes :]
    return (words[0], False) if wants_text and words else (None, not words)
