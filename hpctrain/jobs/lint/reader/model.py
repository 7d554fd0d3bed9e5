"""What the reader makes of a shell text. Offsets count characters of the whole file, from 0, also inside nested texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

#: Where a command runs: in the batch shell, in each task that srun starts, or nobody can tell from the text.
Place = Literal["batch", "task", "unknown"]
#: Commands that assign in their arguments.
DECLARING = frozenset({"export", "declare", "local", "readonly", "typeset"})


@dataclass(slots=True, eq=False)
class Part:
    r"""A piece of a word.

    Attributes:
        kind: `text`, `var` ($X, ${X…}), `arith` ($((…))), `command` ($(…), `…`, <(…)).
        text: the characters of a text after quote removal; the name of a variable; what stands inside the others.
        quote: empty, `'`, `"`, or `\\` for one escaped character.
        operand: what follows the name inside ${…}, such as `:-4`.
        nested: parts inside operand or arithmetic.
        commands: those of a command substitution.
        place: where it is expanded, when that is not the shell that runs the command: an outer shell put its value in.
    """

    kind: Literal["text", "var", "arith", "command"]
    text: str
    quote: str
    start: int
    end: int
    operand: str = ""
    nested: tuple[Part, ...] = ()
    commands: tuple[Command, ...] = ()
    place: Place | None = None

    def walk(self) -> Iterator[Part]:
        """Yield this part and those inside it, but not those of commands inside it."""
        yield self
        for part in self.nested:
            yield from part.walk()


class Word:
    """One word of a command: `text` as bash sees it after quote removal, with expansions as they are written.

    `parts` is empty for a word without quotes and expansions, which is most of them.
    """

    __slots__ = ("end", "parts", "start", "text")

    def __init__(self, text: str, start: int, end: int, parts: tuple[Part, ...] = ()) -> None:
        self.text, self.start, self.end, self.parts = text, start, end, parts

    def __repr__(self) -> str:
        return f"Word({self.text!r})"

    @property
    def is_literal(self) -> bool:
        """Whether nothing in it is expanded."""
        return not self.parts or all(part.kind == "text" for part in self.parts)

    @property
    def whole_variable(self) -> Part | None:
        """The one expansion `$X`, `${X}` or `${X[@]}` of which the word consists."""
        if len(self.parts) == 1 and self.parts[0].kind == "var" and self.parts[0].operand in ("", "[@]", "[*]"):
            return self.parts[0]
        return None

    def expansions(self) -> Iterator[Part]:
        """Yield every part that is expanded, nested ones too."""
        for part in self.parts:
            if part.kind != "text":
                yield from part.walk()


@dataclass(slots=True, eq=False)
class Assignment:
    """`NAME=value`, `NAME+=value` or `NAME=(…)`; `array` is None where no list is assigned."""

    name: str
    word: Word
    append: bool
    array: list[Word] | None
    start: int
    exported: bool = False


@dataclass(slots=True, eq=False)
class Redirect:
    """`>file`, `2>&1`, `<<<word`; heredocs stand in `Command.heredocs`."""

    operator: str
    target: Word


@dataclass(slots=True, eq=False)
class Heredoc:
    """A heredoc: what stands between the lines, and whether its delimiter was quoted (then nothing is expanded)."""

    delimiter: str
    quoted: bool
    strip_tabs: bool
    start: int = 0
    end: int = 0
    parts: tuple[Part, ...] = ()


class Scope:
    """What a command stands in: the file, a compound command, a function, a substitution."""

    __slots__ = ("background", "depth", "expects_pattern", "kind", "name", "parent", "pipe_next", "pipe_prev", "start")

    def __init__(self, kind: str, parent: Scope | None, start: int, name: str = "") -> None:
        self.kind, self.parent, self.start, self.name = kind, parent, start, name
        self.depth: int = parent.depth + 1 if parent is not None else 0
        self.background = self.expects_pattern = False
        self.pipe_next: Command | Scope | None = None
        self.pipe_prev: Command | Scope | None = None

    def chain(self) -> Iterator[Scope]:
        """Yield this scope and those around it, the file's last."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def inside(self, *kinds: str) -> Scope | None:
        """Return the nearest scope of one of `kinds`, this one included."""
        return next((scope for scope in self.chain() if scope.kind in kinds), None)


class Shell:
    """The shell that reads a text: the batch shell, or one that it starts.

    `via` is the command that starts it; `holder` is the one in which the text stands, which is another where `cat` wrote a file.
    """

    __slots__ = ("depth", "holder", "place", "via")

    def __init__(self, place: Place, via: Command | None = None, depth: int = 0, holder: Command | None = None) -> None:
        self.place, self.via, self.depth, self.holder = place, via, depth, holder or via


class Command:
    """A simple command; `after` is the operator that ends it, `conditional` says that it stands behind `&&` or `||`."""

    __slots__ = (
        "_name",
        "after", "assignments", "background", "conditional", "end", "heredocs", "pipe_next", "pipe_prev", "redirects", "scope",
        "shell", "start", "words",
    )  # fmt: skip

    def __init__(self, start: int, scope: Scope, shell: Shell) -> None:
        self.start = self.end = start
        self.scope, self.shell = scope, shell
        self.words: list[Word] = []
        self.assignments: list[Assignment] = []
        self.redirects: list[Redirect] = []
        self.heredocs: list[Heredoc] = []
        self.background = self.conditional = False
        self.after = ""
        self._name: str | None = None
        self.pipe_next: Command | Scope | None = None
        self.pipe_prev: Command | Scope | None = None

    def __repr__(self) -> str:
        return f"Command({' '.join(word.text for word in self.words)!r})"

    @property
    def name(self) -> str:
        """The program without its directory, or an empty text where it is not literal."""
        if self._name is None:
            literal = bool(self.words) and self.words[0].is_literal
            self._name = self.words[0].text.rpartition("/")[2] if literal else ""
        return self._name

    @property
    def is_background(self) -> bool:
        """Whether it, or what it stands in, is followed by `&`."""
        return self.background or any(scope.background for scope in self.scope.chain())

    def all_words(self) -> Iterator[Word]:
        """Yield words, assigned values and targets of redirections."""
        declared = bool(self.words) and self.words[0].text in DECLARING
        for assignment in self.assignments:
            if assignment.array is not None:
                yield from assignment.array
            elif not declared:
                yield assignment.word
        yield from self.words
        for redirect in self.redirects:
            yield redirect.target

    def expansions(self) -> Iterator[Part]:
        """Yield every expansion of its words and of its unquoted heredocs."""
        for word in self.all_words():
            if word.parts:
                yield from word.expansions()
        for heredoc in self.heredocs:
            for part in heredoc.parts:
                yield from part.walk()


@dataclass(slots=True, eq=False)
class Problem:
    """Something that bash would not read to its end either."""

    start: int
    what: str


@dataclass(slots=True, eq=False)
class Reading:
    """All that was read from one text.

    Attributes:
        commands: simple commands in the order in which they end. Runs of plain lines that no rule asks about are left out.
        functions: name to the scopes of its definitions.
        comments: offsets of comments that begin like a directive.
        skipped: blocks that were not read, because many before them are like them.
    """

    text: str
    shell: Shell
    commands: list[Command] = field(default_factory=list)
    functions: dict[str, list[Scope]] = field(default_factory=dict)
    comments: list[int] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    skipped: int = 0
