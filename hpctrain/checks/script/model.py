"""The reader's model of shell text.

Offsets count characters of the whole file, from 0, also inside nested texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

#: Where a command runs: in the batch shell, in each srun task, or unknown.
Place = Literal["batch", "task", "unknown"]
#: What bash does at a syntax error: it stops, it stops and what follows may be misread here, or it
#: only warns.
Effect = Literal["stops", "misleads", "warns"]
#: Commands that assign in their arguments.
DECLARING = frozenset({"export", "declare", "local", "readonly", "typeset"})
#: Builtins that assign to the names in their arguments.
_ASSIGNING = frozenset({"read", "mapfile", "readarray", "getopts", "unset", "printf", "for"})


@dataclass(slots=True, eq=False)
class WordPiece:
    """A piece of a word.

    Attributes:
        kind: `text`, `var` ($X, ${X…}), `arith` ($((…))), `command` ($(…), `…`, <(…)).
        text: for a text, its characters after quote removal; for a variable, its name; else the
            content.
        quoted: whether it is an expansion in double quotes.
        raw: an expansion as written.
        operand: the part after the name inside ${…}, such as `:-4`.
        nested: expansions inside operand or arithmetic.
        place: where it is expanded, if by an outer shell instead of the one that runs the command.
    """

    kind: Literal["text", "var", "arith", "command"]
    text: str
    start: int
    end: int
    quoted: bool = False
    raw: str = ""
    operand: str = ""
    nested: Sequence[WordPiece] = ()
    place: Place | None = None

    def walk(self) -> Iterator[WordPiece]:
        """Yield this piece and its nested pieces, except those of nested commands; they are expanded
        where it is.
        """
        yield self
        for piece in self.nested:
            yield from (piece if piece.place else replace(piece, place=self.place)).walk()


@dataclass(slots=True, eq=False)
class ShellWord:
    """One word of a command; `text` is its value after quote removal, with expansions as written.

    A heredoc is one too: its text is the body, and its delimiter is quoted if it has no pieces.
    """

    text: str
    start: int
    end: int
    parts: Sequence[WordPiece] = ()

    @classmethod
    def of(cls, parts: Sequence[WordPiece], start: int, end: int) -> ShellWord:
        """Return the word that consists of `parts`."""
        shown = "".join(part.text if part.kind == "text" else part.raw for part in parts)
        return cls(shown, start, end, parts)

    @property
    def is_literal(self) -> bool:
        """Whether it contains no expansion."""
        return all(part.kind == "text" for part in self.parts)

    @property
    def program(self) -> str:
        """The name of the program without its directory."""
        return self.text.rpartition("/")[2]

    @property
    def _whole(self) -> WordPiece | None:
        whole = len(self.parts) == 1 and self.parts[0].kind != "text"
        return self.parts[0] if whole else None

    @property
    def whole_variable(self) -> WordPiece | None:
        """The expansion `$X`, `${X}` or `${X[@]}` if the word consists of only that."""
        first = self._whole
        plain = first is not None and first.kind == "var" and first.operand in ("", "[@]", "[*]")
        return first if plain else None

    @property
    def holds_more(self) -> bool:
        """Whether it is an expansion that may become any number of words."""
        first = self._whole
        several = first and (first.text in ("@", "*") or first.operand in ("[@]", "[*]"))
        return first is not None and bool(several or not first.quoted)

    def expansions(self) -> Iterator[WordPiece]:
        """Yield all expansions, including nested ones."""
        for part in self.parts:
            if part.kind != "text":
                yield from part.walk()


@dataclass(slots=True, eq=False)
class Assignment:
    """`NAME=value`, `NAME+=value` or `NAME=(…)`; `array` is None unless a list is assigned."""

    name: str
    word: ShellWord
    append: bool
    array: list[ShellWord] | None
    start: int


@dataclass(slots=True, eq=False, kw_only=True)
class Element:
    """An element of a list of commands; `after` is the operator that follows it, `conditional`: it
    follows `&&` or `||`.
    """

    after: str = ""
    conditional: bool = False
    background: bool = False
    pipe_next: Element | None = None
    pipe_prev: Element | None = None


@dataclass(slots=True, eq=False)
class Scope(Element):
    """The context of a command: the file, a compound command, a function, a substitution."""

    kind: str
    parent: Scope | None
    start: int
    name: str = ""

    def chain(self) -> Iterator[Scope]:
        """Yield this scope and the enclosing ones, up to the file's."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def inside(self, *kinds: str) -> Scope | None:
        """Return the innermost scope of one of `kinds`, this one included."""
        return next((scope for scope in self.chain() if scope.kind in kinds), None)


@dataclass(slots=True, eq=False)
class Shell:
    """A shell with the content of its text: the batch shell, or one that it starts.

    Attributes:
        via: the command that starts it.
        commands: simple commands, in the order of their ends.
        comments: offsets of comments that begin like a directive.
        problems: offset, description and effect of syntax errors.
    """

    place: Place
    via: SimpleCommand | None = None
    commands: list[SimpleCommand] = field(default_factory=list)
    comments: list[int] = field(default_factory=list)
    variables: Variables = field(init=False)
    problems: list[tuple[int, str, Effect]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class OptionCall:
    """A call of a program with options.

    Attributes:
        command: the command that contains it.
        at: the program's word.
        options: long option name without dashes to its value; None for a flag.
        words: the same names to the words that contain them.
        rest: the words after the options: the command that the program runs.
    """

    command: SimpleCommand
    at: ShellWord
    rest: list[ShellWord]
    options: dict[str, ShellWord | None] = field(default_factory=dict)
    words: dict[str, ShellWord] = field(default_factory=dict)

    @property
    def starts(self) -> str:
        """The name of the program that it runs, or an empty string."""
        return self.rest[0].program if self.rest else ""

    def has(self, *names: str) -> bool:
        """Whether one of `names` is given."""
        return any(name in self.options for name in names)

    def option(self, *names: str) -> ShellWord | None:
        """Return the value of the first of `names` that is given."""
        return next((word for name in names if (word := self.options.get(name)) is not None), None)

    def number(self, *names: str) -> int | None:
        """Return the integer value of the first of `names` that is given, if known."""
        return self.command.shell.variables.number(self.option(*names))

    def text(self, name: str) -> str | None:
        """Return the literal value of `name`; None if it is missing or not literal."""
        word = self.option(name)
        return word.text if word is not None and word.is_literal else None


@dataclass(slots=True, eq=False)
class SimpleCommand(Element):
    """A simple command.

    Attributes:
        argv: its words with known variables substituted.
        call: the srun call in it.
        place: where it runs; in a function, where that is called.
        redirects: operator and target; heredocs are separate.
    """

    start: int
    scope: Scope
    shell: Shell
    end: int = 0
    words: list[ShellWord] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    redirects: list[tuple[str, ShellWord]] = field(default_factory=list)
    heredocs: list[ShellWord] = field(default_factory=list)
    argv: list[ShellWord] = field(default_factory=list)
    call: OptionCall | None = None
    place: Place = "unknown"

    @property
    def name(self) -> str:
        """The program without its directory, or an empty string if it is not literal."""
        return self.words[0].program if self.words and self.words[0].is_literal else ""

    @property
    def declares(self) -> bool:
        """Whether it is `export` or similar, which assign in their arguments."""
        return bool(self.words) and self.words[0].text in DECLARING

    @property
    def complete(self) -> bool:
        """Whether no variable may become more words; those of Slurm are one."""
        return not any(
            word.holds_more and word.whole_variable and "SLURM_" not in word.text
            for word in self.argv
        )

    @property
    def step(self) -> OptionCall | None:
        """The srun call in it, or the one that started its shell."""
        via = self.shell.via
        return self.call if self.call is not None or via is None else via.step

    @property
    def is_background(self) -> bool:
        """Whether it, or an enclosing scope, is followed by `&`."""
        return self.background or any(scope.background for scope in self.scope.chain())

    def has(self, *arguments: str) -> bool:
        """Whether one of `arguments` is among its words."""
        return any(word.text in arguments for word in self.words[1:])

    def all_words(self) -> Iterator[ShellWord]:
        """Yield words, assigned values and redirection targets."""
        for assignment in self.assignments:
            if assignment.array is not None:
                yield from assignment.array
            elif not self.declares:
                yield assignment.word
        yield from self.words
        yield from (target for _, target in self.redirects)

    def expansions(self) -> Iterator[WordPiece]:
        """Yield all expansions in its words and unquoted heredocs."""
        for word in (*self.all_words(), *self.heredocs):
            yield from word.expansions()


class Variables:
    """The variables of one shell, on top of its parent's: those assigned once, unconditionally,
    before anything else can change them.
    """

    def __init__(
        self,
        commands: list[SimpleCommand],
        numbers: dict[str, int | None],
        outer: Variables | None = None,
    ) -> None:
        self._outer, self._numbers = outer, numbers
        #: Assignments with substituted values; None for a variable of unknown value.
        self._known: dict[str, Assignment | None] = {}
        #: Remaining length of substituted text; nested variables can grow exponentially.
        self._budget: list[int] = outer._budget if outer is not None else [2**18]
        for command in commands:
            if not command.words or command.declares:
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
        """Return the value of a piece; of arithmetic if it is a product, the usual one in scripts."""
        if part.kind == "text":
            return part.text
        if part.kind != "arith":
            return str(self._numbers.get(part.text + part.operand))
        product = 1
        for factor in part.text.split("*", 9):
            name = factor.strip(" \t${}")
            parts = self.flatten([WordPiece("var", name, 0, 0)])
            # The value of a variable may be a product too, of the variable itself.
            digits = "".join("?" if one.kind == "arith" else self._digits(one) for one in parts)
            digits = name if name.isdecimal() else digits
            if not re.fullmatch(r"\d{1,9}", digits, re.ASCII):
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
