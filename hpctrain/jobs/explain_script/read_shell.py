"""Which line of a script belongs to which statement, and what its words are.

Reads bash well enough to explain it, and never fails: what it cannot make out becomes one long word. Nothing is expanded.
Programs within the program (`srun bash -c '…'`) are read too, because their variables are expanded elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_BLANKS = re.compile(r"(?:[ \t\r\f\v]|\\\n)+")
_REDIRECTION = re.compile(r"\d*(?:<<<|<<-?|&>>|&>|>>|<&|>&|<>|>\||<(?!\()|>(?!\())")
_OPERATOR = re.compile(r"&&|\|\||;;&|;;|;&|\|&|[;|&()]")
_PLAIN = re.compile(r"[^\s;&|<>()'\"`\\$]+")
_ARRAY_NAME = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=\Z")
#: What can open or close something inside double quotes, `$(…)`, `${…}` and backquotes.
_MARK = re.compile(r"\\[\s\S]|\$\(|\$\{|[\"'`(){}]|(?<=\s)#[^\n]*")
_SHELL = re.compile(r"(?:.*/)?(?:ba|da|k|z)?sh\Z")
_DASH_C = re.compile(r"-[A-Za-z]*c\Z")
_STARTS_TASKS = {"srun", "mpirun", "mpiexec"}


@dataclass(frozen=True, slots=True)
class Word:
    """One word as it is written, quotes and all, with its first and last line; what an array or `bash -c` holds is read further."""

    text: str
    line: int
    last: int
    elements: tuple[Word, ...] = ()
    program: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command and the operator behind it: `;`, `&&`, `||`, `|`, `&`, `(`, `)`, or nothing."""

    words: tuple[Word, ...]
    operator: str = ""
    line: int = 0
    redirections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Heredoc:
    """Text for a command: lines `first` to `last`, the closing word's included; `quoted` is taken as it stands."""

    first: int
    last: int
    quoted: bool


@dataclass(frozen=True, slots=True)
class Statement:
    """What stands from one line's beginning to a line's end, or a comment.

    Attributes:
        place: `batch`: the shell of the script, on the first node; `task`: every task of a step that srun starts.
        early: it stands in double quotes, so the outer shell expands its variables.
        closed: whether its quotes and brackets are.
    """

    first: int
    last: int
    text: str
    commands: tuple[Command, ...] = ()
    comment: bool = False
    heredocs: tuple[Heredoc, ...] = ()
    place: str = "batch"
    early: bool = False
    closed: bool = True


@dataclass(slots=True)
class _Open:
    """The statement that is being read."""

    start: int
    line: int
    commands: list[Command] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    redirections: list[str] = field(default_factory=list)
    waiting: list[tuple[str, bool, bool]] = field(default_factory=list)  # heredocs: word, quoted, tabs stripped

    def end_command(self, operator: str, line: int) -> None:
        if self.words or operator or self.redirections:
            first = self.words[0].line if self.words else line
            self.commands.append(Command(tuple(self.words), operator, first, tuple(self.redirections)))
        self.words, self.redirections = [], []


def read(text: str, *, line: int = 1, place: str = "batch", early: bool = False, depth: int = 0) -> tuple[Statement, ...]:
    """Return the statements and comments of `text` in order; `line` is the number of its first line."""
    return tuple(_Reader(text, line, place, early, depth).statements())


class _Reader:
    def __init__(self, text: str, line: int, place: str, early: bool, depth: int) -> None:
        self.text, self.line, self.place, self.early, self.depth = text, line, place, early, depth
        self.at, self.closed, self.in_array = 0, True, False

    def statements(self) -> list[Statement]:
        found: list[Statement] = []
        while self.at < len(self.text):
            self._skip_blanks()
            if self.at >= len(self.text):
                break
            if self.text[self.at] == "\n":
                self._advance(self.at + 1)
            elif self.text[self.at] == "#":
                start = self.at
                self._advance(self._end_of_line())
                found.append(Statement(self.line, self.line, self.text[start : self.at], comment=True, place=self.place))
            else:
                found.append(self._statement())
        return found

    def _statement(self) -> Statement:
        opened = _Open(self.at, self.line)
        self.closed = True
        while self.at < len(self.text):
            self._skip_blanks()
            character = self.text[self.at : self.at + 1]
            if character in ("", "\n"):
                break
            if character == "#":
                self._advance(self._end_of_line())
            else:
                self._token(opened)
        opened.end_command("", self.line)
        last, end = self.line, self.at
        heredocs = self._heredocs(opened.waiting) if opened.waiting else ()
        return Statement(
            opened.line, heredocs[-1].last if heredocs else last, self.text[opened.start : end], tuple(opened.commands),
            heredocs=heredocs, place=self.place, early=self.early, closed=self.closed,
        )  # fmt: skip

    def _token(self, opened: _Open) -> None:
        redirection = _REDIRECTION.match(self.text, self.at)
        operator = _OPERATOR.match(self.text, self.at)
        if self.text.startswith("((", self.at) and not opened.words:
            start, line = self.at, self.line
            self._advance(self._past(self.at + 1, ")"))
            opened.words.append(Word(self.text[start : self.at], line, self.line))
        elif redirection is not None:
            self._advance(redirection.end())
            self._skip_blanks()
            target = self._word(opened).text if self.text[self.at : self.at + 1] not in ("", "\n", ";", "|", "&", "(", ")") else ""
            opened.redirections.append(redirection[0] + target)
            if redirection[0].endswith(("<<", "<<-")) and not redirection[0].endswith("<<<"):
                bare = re.sub(r"[\"'\\]", "", target)
                opened.waiting.append((bare, bare != target, redirection[0].endswith("-")))
        elif operator is not None:
            self._advance(operator.end())
            opened.end_command(operator[0], self.line)
        else:
            opened.words.append(self._word(opened))

    def _word(self, opened: _Open) -> Word:
        start, line = self.at, self.line
        elements: tuple[Word, ...] = ()
        program: tuple[Statement, ...] = ()
        while self.at < len(self.text):
            character = self.text[self.at]
            pair = self.text[self.at : self.at + 2]
            plain = _PLAIN.match(self.text, self.at)
            if plain is not None:
                self._advance(plain.end())
            elif character == "\\":
                if pair == "\\\n":
                    break
                self._advance(min(self.at + 2, len(self.text)))
            elif self.at == start and character in "'\"" and self._is_program(opened.words):
                program = self._program(opened.words)
            elif character == "'" or pair == "$'":
                self._quoted(ansi=pair == "$'")
            elif character in '"`':
                self._advance(self._past(self.at + 1, character))
            elif pair in ("$(", "<(", ">("):
                self._advance(self._past(self.at + 2, ")"))
            elif pair == "${":
                self._advance(self._past(self.at + 2, "}"))
            elif character == "(" and not self.in_array and _ARRAY_NAME.match(self.text[start : self.at]):
                elements = self._array()
            elif character == "$" or self.at == start:
                self._advance(self.at + 1)  # a lone dollar, or a character that nothing above knows: never stand still
            else:
                break
        return Word(self.text[start : self.at], line, self.line, elements, program)

    def _array(self) -> tuple[Word, ...]:
        self._advance(self.at + 1)
        self.in_array = True
        found = self._elements()
        self.in_array = False
        return tuple(found)

    def _elements(self) -> list[Word]:
        found: list[Word] = []
        inner = _Open(self.at, self.line)
        while self.at < len(self.text):
            self._skip_blanks()
            character = self.text[self.at : self.at + 1]
            if character == ")":
                self._advance(self.at + 1)
                return found
            if character == "#":
                self._advance(self._end_of_line())
            elif character in ("\n", ";", "|", "&", "<", ">", "("):
                self._advance(self.at + 1)
            elif character:
                found.append(self._word(inner))
        self.closed = False
        return found

    def _is_program(self, words: list[Word]) -> bool:
        return (
            self.depth < 3
            and len(words) > 1
            and _DASH_C.match(words[-1].text) is not None
            and any(_SHELL.match(word.text) for word in words[:-1])
        )

    def _program(self, words: list[Word]) -> tuple[Statement, ...]:
        """Read what stands in quotes behind `bash -c`; an apostrophe leaves single quotes, and returns to them."""
        mark, start, line = self.text[self.at], self.at + 1, self.line
        end = self._past(start, '"') if mark == '"' else self._past_apostrophe(start)
        closed = end > start and self.text[end - 1] == mark
        left = mark == "'" and self.text.startswith("'\\'", end - 3)  # it ends in an apostrophe of its own
        inner = self.text[start : end - 1 if closed and not left else end]
        # `\$` stays: it is what the outer shell does not expand.
        inner = inner.replace('\\"', '"') if mark == '"' else inner.replace("'\\''", "'").replace("'\\'", "'")
        place = "task" if any(word.text.rpartition("/")[2] in _STARTS_TASKS for word in words) else self.place
        self._advance(end)
        self.closed &= closed
        return read(inner, line=line, place=place, early=mark == '"', depth=self.depth + 1)

    def _past_apostrophe(self, start: int) -> int:
        end = self.text.find("'", start)
        while end >= 0 and self.text.startswith("\\'", end + 1):
            if not self.text.startswith("'", end + 3):
                return end + 3
            end = self.text.find("'", end + 4)
        return len(self.text) if end < 0 else end + 1

    def _quoted(self, *, ansi: bool) -> None:
        match = re.compile(r"\$'(?:[^'\\]|\\[\s\S])*+'" if ansi else r"'[^']*'").match(self.text, self.at)
        self.closed &= match is not None
        self._advance(len(self.text) if match is None else match.end())

    def _past(self, at: int, closer: str) -> int:
        """Return the place behind what closes the bracket or quote that was opened before `at`; the text's end where nothing does."""
        stack = [closer]
        while stack:
            match = _MARK.search(self.text, at)
            if match is None:
                self.closed = False
                return len(self.text)
            mark, at = match[0], match.end()
            if mark == stack[-1]:
                stack.pop()
            elif mark in ("$(", "${"):
                stack.append(")" if mark == "$(" else "}")
            elif (stack[-1] == '"' and mark != "`") or stack[-1] == "`":
                at = match.start() + 1 if mark[0] == "#" else at
            elif mark[0] in '"`':
                stack.append(mark)
            elif mark == "(":
                stack.append(")")
            elif mark == "'" and '"' not in stack:
                end = self.text.find("'", at)
                at = len(self.text) if end < 0 else end + 1
            elif mark[0] == "#" and stack[-1] == "}":
                at = match.start() + 1
        return at

    def _heredocs(self, waiting: list[tuple[str, bool, bool]]) -> tuple[Heredoc, ...]:
        found: list[Heredoc] = []
        for word, quoted, tabs in waiting:
            if self.at < len(self.text):
                self._advance(self.at + 1)
            first = self.line
            while self.at < len(self.text):
                end = self._end_of_line()
                here = self.text[self.at : end]
                self._advance(end)
                if (here.lstrip("\t") if tabs else here) == word:
                    break
                if end >= len(self.text):
                    self.closed = False
                    break
                self._advance(end + 1)
            found.append(Heredoc(first, self.line, quoted))
        return tuple(found)

    def _skip_blanks(self) -> None:
        blanks = _BLANKS.match(self.text, self.at)
        if blanks is not None:
            self._advance(blanks.end())

    def _end_of_line(self) -> int:
        end = self.text.find("\n", self.at)
        return len(self.text) if end < 0 else end

    def _advance(self, to: int) -> None:
        self.line += self.text.count("\n", self.at, to)
        self.at = to
