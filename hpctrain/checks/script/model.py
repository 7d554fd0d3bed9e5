"""The reader's model of shell text.

Offsets count characters of the whole file, from 0, also inside nested texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

#: Where a command runs: in the batch shell, in each srun task, or unknown.
Place = Literal["batch", "task", "unknown"]
#: What bash does at a syntax error: it stops, it stops and what follows may be misread here, or it
#: only warns.
Effect = Literal["stops", "misleads", "warns"]
#: Commands that assign in their arguments.
DECLARING = frozenset({"export", "declare", "local", "readonly", "typeset"})


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
    def whole_variable(self) -> WordPiece | None:
        """The expansion `$X`, `${X}` or `${X[@]}` if the word consists of only that."""
        first = self.parts[0] if len(self.parts) == 1 else None
        if first is not None and first.kind == "var" and first.operand in ("", "[@]", "[*]"):
            return first
        return None

    @property
    def holds_more(self) -> bool:
        """Whether it is an expansion that may become any number of words."""
        first = self.parts[0] if len(self.parts) == 1 else None
        if first is None or first.kind == "text":
            return False
        return not first.quoted or first.text in ("@", "*") or first.operand in ("[@]", "[*]")

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


@dataclass(slots=True, eq=False)
class Redirect:
    """`>file`, `2>&1`, `<<<word`; heredocs are in `SimpleCommand.heredocs`."""

    operator: str
    target: ShellWord


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
        functions: names of the functions that it defines.
        comments: offsets of comments that begin like a directive.
        problems: offset, description and effect of syntax errors.
    """

    place: Place
    via: SimpleCommand | None = None
    depth: int = 0
    commands: list[SimpleCommand] = field(default_factory=list)
    functions: set[str] = field(default_factory=set)
    comments: list[int] = field(default_factory=list)
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
    """

    start: int
    scope: Scope
    shell: Shell
    end: int = 0
    words: list[ShellWord] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
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
        """Whether no variable may become more words."""
        return not any(word.holds_more and word.whole_variable for word in self.argv)

    @property
    def step(self) -> OptionCall | None:
        """The srun call in it, or the one that started its shell."""
        command: SimpleCommand | None = self
        while command is not None and command.call is None:
            command = command.shell.via
        return command.call if command is not None else None

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
        for redirect in self.redirects:
            yield redirect.target

    def expansions(self) -> Iterator[WordPiece]:
        """Yield all expansions in its words and unquoted heredocs."""
        for word in (*self.all_words(), *self.heredocs):
            yield from word.expansions()
