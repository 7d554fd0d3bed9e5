"""A parser of shell text: simple commands with their words, and the place of each expansion.

It accepts what bash accepts, tolerantly: syntax errors become problems in the result, never
exceptions. Nothing is run. Compound commands are a linked list of scopes instead of a call stack;
reading ends if expansions are nested deeper than Python's stack.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from hpctrain.checks.script.model import (
    DECLARING,
    Assignment,
    Element,
    Heredoc,
    Place,
    Redirect,
    Scope,
    Shell,
    ShellWord,
    SimpleCommand,
    WordPiece,
)

#: Maximum nesting of compound commands.
MAX_SCOPES = 1000

_BLANK = re.compile(r"(?:[ \t]|\\\n)*+")
_CHUNK = re.compile(r"""[^ \t\n'"$`\\|&;<>()]++""")
_SINGLE = re.compile("'[^']*+'")
_ANSI = re.compile(r"\$'(?:[^'\\]|\\.)*+'", re.DOTALL)
_SPECIAL = "'\"$`\\"
_IN_DOUBLE = re.compile(r'[^"$`\\]++')
_IN_BODY = re.compile(r"[^$`\\]++")
_IN_PARAMETER = re.compile(r"""[^}'"$`\\]++""")
_IN_QUOTED_PARAMETER = re.compile(r"""[^}"$`\\]++""")
_IN_ARITHMETIC = re.compile(r"""[^()'"$`\\]++""")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]", re.ASCII)
_PARAMETER = re.compile(r"\$\{([#!]?)([A-Za-z_]\w*|[0-9]+|[@*#?$!-])?", re.ASCII)
_BACKTICK = re.compile(r"(?:[^`\\]|\\.)*+", re.DOTALL)
_ARITHMETIC_NAME = re.compile(r"(?<![\w$#{])[A-Za-z_]\w*", re.ASCII)
_REDIRECT = re.compile(
    r"(?:[0-9]+|\{[A-Za-z_]\w*\})?(&>>|&>|<<<|<<-|<<|<>|<&|>>|>&|>\||<(?!\()|>(?!\())", re.ASCII
)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]\n]*\])?(\+?)=", re.ASCII)
_FUNCTION = re.compile(r"[ \t]*+\([ \t]*+\)")
_WORDLIKE = re.compile(r"[^ \t\n;&|()<>]++")
_KEYWORD = re.compile(
    r"(?:if|then|elif|else|fi|while|until|for|select|do|done|case|esac|function|time(?:[ \t]+-p)?|coproc"
    r"|\{|\}|!|\[\[)(?=[ \t\n;&|()<>]|\\\n|\Z)"
)
_OPENERS = {"if": "if", "while": "loop", "until": "loop", "{": "{"}
_CLOSERS = {"fi": "if", "done": "loop", "esac": "case", "}": "{"}
_SHOWN = {
    "loop": "a loop (do … done)",
    "if": "if … fi",
    "case": "case … esac",
    "(": "a parenthesis",
    "{": "a brace",
}
_UNCLOSED = {
    ")": "a parenthesis is not closed",
    "]]": "[[ is not closed",
    "in": "case … in is not complete",
}
#: Private-use characters that represent an outer shell's expansions in an inner text.
_HOLE = 0xF0000
_MAX_HOLES = 60_000
_HOLES = re.compile("([\U000f0000-\U000ffffd])")


class SourceText:
    """A text for the reader: the file, or an inner shell's text after the outer shell's expansions,
    with the offset in the file for each character.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.holes: list[WordPiece] = []
        self._from: list[int] = []
        self._to: list[int] = []

    @classmethod
    def of_pieces(cls, pieces: Iterable[WordPiece], place: Place) -> SourceText:
        """Return the text that a shell at `place` passes to another one as `pieces`."""
        source = cls("")
        texts: list[str] = []
        length = 0
        for piece in pieces:
            source._from.append(length)
            source._to.append(piece.start)
            if piece.kind == "text":
                # A script may contain the characters that represent holes.
                texts.append(_HOLES.sub("\ufffd", piece.text))
            elif len(source.holes) < _MAX_HOLES:
                texts.append(chr(_HOLE + len(source.holes)))
                source.holes.append(replace(piece, place=piece.place or place))
            length += len(texts[-1])
        source.text = "".join(texts)
        return source

    def at(self, position: int) -> int:
        """Return the offset in the file of the character at `position`."""
        index = bisect_right(self._from, position) - 1
        return position if index < 0 else self._to[index] + position - self._from[index]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the offsets in the file of the range from `start` to `end`."""
        begin = self.at(start)
        return begin, max(self.at(max(end - 1, start)) + 1, begin)

    def hole(self, character: str) -> WordPiece:
        """Return the expansion that `character` represents."""
        return self.holes[min(ord(character) - _HOLE, len(self.holes) - 1)]

    def shown(self, text: str) -> str:
        """Return `text` with the expansions instead of the characters that represent them."""
        return _HOLES.sub(lambda match: self.hole(match[0]).raw, text) if self.holes else text


def read_shell(source: SourceText, shell: Shell) -> Shell:
    """Read a text into `shell`, in linear time. Never raises."""
    reader = _ShellReader(source, shell)
    try:
        reader.commands_until("")
    except RecursionError:
        reader.problem(reader.pos, "expansions are nested too deeply; the rest was not read")
        return shell
    for scope in reader.scope.chain():
        if scope.kind not in ("file", "function"):
            reader.problem(scope.start, f"{_SHOWN.get(scope.kind, scope.kind)} is not closed")
    return shell


def _expansions(parts: list[WordPiece]) -> tuple[WordPiece, ...]:
    return tuple(part for part in parts if part.kind != "text")


@dataclass(slots=True)
class _ListState:
    """What the elements of a list of commands know of each other.

    Attributes:
        elements: since the last separator; `&` puts them in the background.
        pipe: the element before the `|` that was just read.
        conditional: after `&&` or `||`.
        joined: after an operator that continues in the next line.
    """

    elements: list[Element] = field(default_factory=list)
    pipe: Element | None = None
    conditional: bool = False
    joined: bool = False


class _ShellReader:
    def __init__(self, source: SourceText, shell: Shell) -> None:
        self.source, self.text, self.length = source, source.text, len(source.text)
        self.shell, self.pos = shell, 0
        self.scope = Scope("file", None, 0)
        self._list = _ListState()
        #: Heredocs whose bodies follow: with the line after the body, and whether it is quoted.
        self._heredocs: list[tuple[Heredoc, re.Pattern[str], bool]] = []

    def problem(self, start: int, what: str, *, fatal: bool = True) -> None:
        self.shell.problems.append((start, what, fatal))

    def _expansion(
        self,
        kind: Literal["var", "arith", "command"],
        text: str,
        quote: str,
        start: int,
        end: int | None = None,
    ) -> WordPiece:
        end = self.pos if end is None else end
        raw = self.source.shown(self.text[start:end])
        return WordPiece(kind, text, quote, *self.source.span(start, end), raw)

    def _blanks(self, *, newlines: bool = False) -> None:
        """Skip blanks and line continuations; with `newlines` also comments and newlines, where a
        word may follow them.
        """
        while True:
            blank = _BLANK.match(self.text, self.pos)
            self.pos = blank.end() if blank else self.pos
            if not newlines or self.pos >= self.length:
                return
            if self.text[self.pos] == "#" and self.text[self.pos - 1] in " \t\n":
                self._comment()
            elif self.text[self.pos] == "\n":
                self._newline()
            else:
                return

    def _comment(self) -> None:
        end = self.text.find("\n", self.pos)
        end = len(self.text) if end < 0 else end
        if self.text[self.pos + 1 : end][:7].lstrip()[:2].lower() in ("sb", "sl"):
            self.shell.comments.append(self.pos)
        self.pos = end

    # ---- words -----------------------------------------------------------------------------------

    def _word(self) -> ShellWord | None:
        start = self.pos
        parts: list[WordPiece] = []
        while self.pos < self.length and self._word_piece(parts):
            pass
        if self.pos == start:
            return None
        return ShellWord.of(parts, *self.source.span(start, self.pos))

    def _plain(self, text: str, start: int) -> ShellWord:
        span = self.source.span(start, self.pos)
        return ShellWord(text, *span, (WordPiece("text", text, "", *span),))

    def _word_piece(self, parts: list[WordPiece]) -> bool:
        start, chunk = self.pos, _CHUNK.match(self.text, self.pos)
        if chunk is not None:
            self.pos = chunk.end()
            if chunk[0][-1] in "?*+@!" and self.text.startswith("(", self.pos):
                self.pos += 1
                self._brackets(start, 1)
            self._text(parts, self.text[start : self.pos], start)
        elif self.text.startswith(("<(", ">("), start):
            self._substitution(parts, "")
        elif self.text[start] in _SPECIAL:
            self._special(parts, "")
        return self.pos > start

    def _special(self, parts: list[WordPiece], quote: str) -> None:
        start, character = self.pos, self.text[self.pos]
        if character == "'":
            self._verbatim(parts, _SINGLE, "'")
        elif character == '"':
            self._double(parts)
        elif character == "$":
            self._dollar(parts, quote)
        elif character == "`":
            self._backtick(parts, quote)
        else:
            escaped = self.text[start + 1 : start + 2]
            if escaped != "\n":
                self._text(parts, escaped or "\\", start + len(escaped))
            self.pos = min(start + 2, self.length)

    def _text(self, parts: list[WordPiece], text: str, start: int) -> None:
        self.pos = start + len(text)
        for piece in _HOLES.split(text) if self.source.holes else [text]:
            if self.source.holes and _HOLES.match(piece):
                parts.append(self.source.hole(piece))
            elif piece or not text:
                span = self.source.span(start, start + len(piece))
                parts.append(WordPiece("text", piece, "", *span))
            start += len(piece)

    def _verbatim(self, parts: list[WordPiece], quoted: re.Pattern[str], opener: str) -> None:
        start, begin = self.pos, self.pos + len(opener)
        match = quoted.match(self.text, start)
        if match is None:
            self.problem(start, f"a quote {opener}…' is not closed")
        end = match.end() - 1 if match else self.length
        self._text(parts, self.text[begin:end], begin)
        self.pos = min(end + 1, self.length)

    def _double(self, parts: list[WordPiece]) -> None:
        start = self.pos
        self.pos += 1
        if not self._expanded_until(parts, _IN_DOUBLE, '"'):
            self.problem(start, "a double quote is not closed")

    def _expanded_until(
        self, parts: list[WordPiece], chunk: re.Pattern[str], closer: str, quote: str = '"'
    ) -> bool:
        """Read text with expansions up to `closer` and past it, or to the end if `closer` is empty;
        return whether it was found.
        """
        before = len(parts)
        while self.pos < self.length:
            match = chunk.match(self.text, self.pos, self.length)
            character = self.text[self.pos]
            if match is not None:
                self._text(parts, match[0], self.pos)
            elif character == closer:
                if len(parts) == before:
                    self._text(parts, "", self.pos)
                self.pos += 1
                return True
            elif (
                character == "\\"
                and closer != "}"
                and self.text[self.pos + 1 : self.pos + 2] not in ("$", "`", "\\", "\n", closer)
            ):
                self._text(parts, "\\", self.pos)  # it escapes nothing else in double quotes
            else:
                self._special(parts, quote)
        return not closer

    def _dollar(self, parts: list[WordPiece], quote: str) -> None:
        start = self.pos
        following = self.text[start + 1 : start + 2]
        name = _NAME.match(self.text, start + 1)
        if name is not None:
            self.pos = name.end()
            parts.append(self._expansion("var", name[0], quote, start))
        elif following == "{":
            self._parameter(parts, quote)
        elif self.text.startswith("((", start + 1):
            self._arithmetic(parts, quote)
        elif following == "(":
            self._substitution(parts, quote)
        elif following == "'" and not quote:
            self._verbatim(parts, _ANSI, "$'")
        elif following == '"' and not quote:
            self.pos += 1
            self._double(parts)
        else:
            self._text(parts, "$", start)

    def _parameter(self, parts: list[WordPiece], quote: str) -> None:
        start = self.pos
        head = _PARAMETER.match(self.text, start)
        assert head is not None  # noqa: S101 - the caller saw `${`
        self.pos = head.end()
        nested: list[WordPiece] = []
        chunk = _IN_QUOTED_PARAMETER if quote else _IN_PARAMETER
        closed = self._expanded_until(nested, chunk, "}", quote)
        if not closed:
            self.problem(start, "${ is not closed")
        operand = self.text[head.end() : self.pos - 1 if closed else self.pos]
        # Only a plain name is its text: ${#X} and ${!X} are not the value of X.
        name, operand = ("", (head[2] or "") + operand) if head[1] else (head[2] or "", operand)
        piece = self._expansion("var", name, quote, start)
        piece.operand, piece.nested = operand, _expansions(nested)
        parts.append(piece)

    def _arithmetic(self, parts: list[WordPiece], quote: str, opening: str = "$((") -> None:
        start, begin = self.pos, self.pos + len(opening)
        self.pos = begin
        nested = self._brackets(start, 2)
        inside = self.text[begin : self.pos - 2]
        if not nested and inside.isspace():
            return
        names = () if "$(" in inside or "`" in inside else _ARITHMETIC_NAME.finditer(inside)
        spans = ((begin + name.start(), begin + name.end()) for name in names)
        read = [self._expansion("var", self.text[a:b], quote, a, b) for a, b in spans]
        piece = self._expansion("arith", inside, quote, start)
        piece.nested = (*read, *nested)
        parts.append(piece)

    def _brackets(self, start: int, level: int) -> tuple[WordPiece, ...]:
        """Read past the brackets that close the `level` open ones; return the expansions inside."""
        nested: list[WordPiece] = []
        while self.pos < self.length and level:
            match = _IN_ARITHMETIC.match(self.text, self.pos)
            if match is not None:
                self._text(nested, match[0], self.pos)
            elif self.text[self.pos] in "()":
                level += 1 if self.text[self.pos] == "(" else -1
                self.pos += 1
            else:
                self._special(nested, "")
        if level:
            self.problem(start, "(( is not closed")
        return _expansions(nested)

    def _substitution(self, parts: list[WordPiece], quote: str) -> None:
        start = self.pos
        self.pos += 2
        commands, closed = self._nested(")", start)
        if not closed:
            self.problem(start, "$( is not closed")
        piece = self._expansion("command", self.text[start + 2 : self.pos - 1], quote, start)
        piece.commands = commands
        parts.append(piece)

    def _nested(self, closer: str, start: int) -> tuple[tuple[SimpleCommand, ...], bool]:
        outer, first = self.scope, len(self.shell.commands)
        self.scope = Scope("$(", outer, self.source.at(start), depth=outer.depth + 1)
        closed = self.commands_until(closer)
        self.scope = outer
        return tuple(self.shell.commands[first:]), closed

    def _backtick(self, parts: list[WordPiece], quote: str) -> None:
        start = self.pos
        commands: tuple[SimpleCommand, ...] = ()
        end = _BACKTICK.match(self.text, start + 1)
        assert end is not None  # noqa: S101 - it matches at least the empty string
        self.pos = start + 1
        if "\\" not in end[0]:
            # Commands are read only up to the closing backtick: the rest is hidden meanwhile.
            length, self.length = self.length, end.end()
            commands, _ = self._nested("", start)
            self.length = length
        if end.end() >= self.length:
            self.problem(start, "a backtick is not closed")
        self.pos = min(end.end() + 1, self.length)
        piece = self._expansion("command", end[0], quote, start)
        piece.commands = commands
        parts.append(piece)

    # ---- redirections ----------------------------------------------------------------------------

    def _redirect(self, command: SimpleCommand | None) -> bool:
        match = _REDIRECT.match(self.text, self.pos)
        if match is None:
            return False
        self.pos = match.end()
        self._blanks()
        start = self.pos
        target = None if self.text.startswith("#", start) else self._word()
        if target is None:
            self.problem(start, f"no file follows {match[1]}")
            target = self._plain("", start)
        if match[1] in ("<<", "<<-"):
            heredoc = Heredoc(match.start())
            tabs = r"\t*" if match[1] == "<<-" else ""
            end = re.compile(rf"^{tabs}{re.escape(target.text)}$", re.MULTILINE)
            quoted = self.text[start : self.pos] != target.text
            self._heredocs.append((heredoc, end, quoted))
            if command is not None:
                command.heredocs.append(heredoc)
        elif command is not None:
            command.redirects.append(Redirect(match[1], target))
        return True

    def _redirects(self, command: SimpleCommand | None) -> None:
        self._blanks()
        while self.pos < self.length and self._redirect(command):
            self._blanks()

    def _newline(self) -> None:
        self.pos += 1
        waiting, self._heredocs = self._heredocs, []
        for heredoc, last_line, quoted in waiting:
            self._body(heredoc, last_line, quoted=quoted)

    def _body(self, heredoc: Heredoc, last_line: re.Pattern[str], *, quoted: bool) -> None:
        found = last_line.search(self.text, self.pos, self.length)
        end, after = found.span() if found is not None else (self.length, self.length)
        if found is None:
            self.problem(heredoc.start, "a heredoc is not closed", fatal=False)
        heredoc.text = self.text[self.pos : end]
        heredoc.start, heredoc.end = self.source.at(self.pos), self.source.at(end)
        if not quoted and ("$" in heredoc.text or "`" in heredoc.text):
            parts: list[WordPiece] = []
            length, self.length = self.length, end
            known = len(self.shell.problems)
            self._expanded_until(parts, _IN_BODY, "")
            # bash parses a body's expansions only when it executes it, and then continues.
            del self.shell.problems[known:]
            self.length = length
            heredoc.parts = tuple(parts)
        self.pos = min(after + 1, self.length)

    # ---- lists of commands -----------------------------------------------------------------------

    def commands_until(self, closer: str) -> bool:
        """Read commands up to `closer`, a parenthesis, and past it, or to the end if `closer` is
        empty; return whether it was found.
        """
        outer, self._list = self._list, _ListState()
        closed = False
        self._blanks()
        while not closed and self.pos < self.length:
            closed = self._element(self.text[self.pos], closer)
            if not closed:
                self._blanks()
        self._list = outer
        return closed

    def _element(self, character: str, closer: str) -> bool:
        if self.scope.expects_pattern and character not in "\n#":
            self._pattern()
        elif character == "\n":
            self._separate("\n")
            self._newline()
        elif character in ";&|" and not self.text.startswith("&>", self.pos):
            self._operator(character)
        elif character == "#":
            self._comment()
        elif character == "(":
            self._open_parenthesis()
        elif character == ")":
            return self._close_parenthesis(closer)
        elif (keyword := _KEYWORD.match(self.text, self.pos)) is not None:
            self._keyword(keyword[0])
        else:
            self._simple()
        return False

    def _operator(self, character: str) -> None:
        two = self.text[self.pos : self.pos + 2]
        operator = two if two in ("&&", "||", ";;", ";&", "|&") else character
        self.pos += 3 if self.text.startswith(";;&", self.pos) else len(operator)
        if operator in (";;", ";&") and self.scope.kind == "case":
            self.scope.expects_pattern = True
        self._separate(operator)

    def _separate(self, operator: str) -> None:
        state = self._list
        if operator == "\n" and state.joined:
            return  # the list continues in the next line
        last = state.elements[-1] if state.elements else None
        if isinstance(last, SimpleCommand) and not last.after:
            last.after = operator
        if operator == "&":
            for element in state.elements:
                element.background = True
        if operator in ("|", "|&"):
            state.pipe, state.joined = last, True
        elif operator in ("&&", "||"):
            state.pipe, state.conditional, state.joined = None, True, True
        else:
            self._list = _ListState()

    def _add(self, element: Element) -> None:
        state = self._list
        if state.pipe is not None:
            element.pipe_prev, state.pipe.pipe_next = state.pipe, element
        state.pipe, state.joined = None, False
        state.elements.append(element)

    # ---- compound commands -----------------------------------------------------------------------

    def _push(self, kind: str, start: int, name: str = "") -> None:
        scope = Scope(kind, self.scope, self.source.at(start), name, self.scope.depth + 1)
        if scope.depth > MAX_SCOPES:
            what = f"commands are nested more than {MAX_SCOPES} deep; the rest was not read"
            self.problem(start, what)
            self.pos = self.length
        self._add(scope)
        self.scope, self._list = scope, _ListState()

    def _pop(self, kind: str) -> bool:
        """Close the innermost open `kind`, and unclosed scopes inside it; False if there is none."""
        found = self.scope.inside(kind, "$(")
        if found is None or found.kind != kind or found.parent is None:
            return False
        if found.parent.kind == "function" and found.parent.parent is not None:
            found = found.parent
        self.scope, self._list = found.parent or found, _ListState([found])
        self._redirects(None)
        return True

    def _keyword(self, keyword: str) -> None:
        start, self.pos = self.pos, self.pos + len(keyword)
        readers = {
            "for": self._for,
            "select": self._for,
            "case": self._case,
            "function": self._function_keyword,
            "[[": self._condition,
        }
        if keyword in readers:
            readers[keyword](start)
        elif keyword in _OPENERS:
            self._push(_OPENERS[keyword], start, keyword)
        elif keyword in _CLOSERS:
            self._pop(_CLOSERS[keyword])
        elif keyword in ("then", "else", "elif", "do"):
            self._list = _ListState()

    def _for(self, start: int) -> None:
        self._push("loop", start, "for")
        self._blanks()
        if self.text.startswith("((", self.pos):
            opening = self.pos
            self.pos += 2
            self._brackets(opening, 2)
        else:
            self._simple(loop_variable=True)

    def _case(self, start: int) -> None:
        self._push("case", start)
        words = [word for word in self._words("in") if word.text != "in"]
        self._finish(SimpleCommand(start, self.scope, self.shell, words=words))
        self.scope.expects_pattern = True
        self._list = _ListState()

    def _pattern(self) -> None:
        self.scope.expects_pattern = False
        if (keyword := _KEYWORD.match(self.text, self.pos)) is not None and keyword[0] == "esac":
            self._keyword("esac")
            return
        self.pos += self.text[self.pos] == "("
        self._words(")")
        self._list = _ListState()

    def _words(self, closer: str) -> list[ShellWord]:
        """Read words, over several lines, up to `closer` and past it."""
        start, words = self.pos, []
        while self.pos < self.length:
            self._blanks(newlines=True)
            word = self._word()
            if word is not None:
                words.append(word)
            else:
                self.pos += 1
            last = word.text if word is not None else self.text[self.pos - 1 : self.pos]
            if last == closer:
                return words
        self.problem(start, _UNCLOSED[closer])
        return words

    def _open_parenthesis(self) -> None:
        start = self.pos
        if not self.text.startswith("((", start):
            self._push("(", start)
            self.pos = min(self.pos + 1, self.length)
            return
        parts: list[WordPiece] = []
        self._arithmetic(parts, "", "((")
        word = ShellWord.of(parts, *self.source.span(start, self.pos))
        self._finish(SimpleCommand(start, self.scope, self.shell, words=[word]))

    def _close_parenthesis(self, closer: str) -> bool:
        self.pos += 1
        if self._pop("("):
            return False
        if closer != ")":
            self.problem(self.pos - 1, "a closing parenthesis without an opening one")
        return closer == ")"

    def _condition(self, start: int) -> None:
        command = SimpleCommand(start, self.scope, self.shell)
        command.words = [self._plain("[[", start), *self._words("]]")]
        self._redirects(command)
        self._finish(command)

    def _function_keyword(self, start: int) -> None:
        self._blanks()
        name = _WORDLIKE.match(self.text, self.pos)
        self.pos = name.end() if name else self.pos
        brackets = _FUNCTION.match(self.text, self.pos)
        self._define(name[0] if name else "", start, brackets.end() if brackets else self.pos)

    def _define(self, name: str, start: int, body: int) -> None:
        self.pos = body
        self._push("function", start, name)
        self.shell.functions.add(name)
        self._blanks(newlines=True)

    # ---- simple commands -------------------------------------------------------------------------

    def _simple(self, *, loop_variable: bool = False) -> None:
        start = self.pos
        command = SimpleCommand(start, self.scope, self.shell)
        while self.pos < self.length:
            assigns = not loop_variable and self._assignment(command)
            if not assigns and not self._redirect(command) and not self._argument(command, start):
                break
            self._blanks()
        if loop_variable and command.words:
            name = command.words[0]
            nothing = ShellWord("", name.start, name.end)
            command.assignments.append(Assignment(name.text, nothing, False, [], name.start))
            at = self.source.at(start)
            command.words.insert(0, ShellWord("for", at, at))
        if self.pos == start:
            self.pos += 1  # a character that cannot start a command
        elif command.words or command.assignments or command.redirects or command.heredocs:
            self._finish(command)

    def _argument(self, command: SimpleCommand, start: int) -> bool:
        character = self.text[self.pos]
        if character == "#":
            return False
        if character == "(":
            brackets = _FUNCTION.match(self.text, self.pos)
            if brackets is not None and len(command.words) == 1 and not command.assignments:
                self._define(command.words.pop().text, start, brackets.end())
            return False
        word = self._word()
        if word is not None:
            command.words.append(word)
        return word is not None

    def _finish(self, command: SimpleCommand) -> None:
        end = command.start + len(self.text[command.start : self.pos].rstrip(" \t"))
        command.start, command.end = self.source.span(command.start, end)
        command.conditional = self._list.conditional
        self.shell.commands.append(command)
        self._add(command)

    def _assignment(self, command: SimpleCommand) -> bool:
        declares = bool(command.words)
        match = _ASSIGNMENT.match(self.text, self.pos)
        if match is None or (declares and command.words[0].text not in DECLARING):
            return False
        start, self.pos = self.pos, match.end()
        array, word = None, self._plain("", self.pos)
        if self.text.startswith("(", self.pos):
            self.pos += 1
            array = self._words(")")
        else:
            word = self._word() or word
        at = self.source.at(start)
        command.assignments.append(Assignment(match[1], word, bool(match[2]), array, at))
        if declares:
            name = WordPiece("text", match[0], "", *self.source.span(start, match.end()))
            span = self.source.span(start, self.pos)
            command.words.append(ShellWord.of((name, *word.parts), *span))
        return True
