"""A recursive-descent parser of shell text: simple commands with their words, and the place of each
expansion.

It accepts what bash accepts, tolerantly: syntax errors become problems in the result, never
exceptions. Nothing is run. Reading ends if the text is nested deeper than Python's stack.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from hpctrain.checks.script.model import (
    Assignment,
    Effect,
    Element,
    Place,
    Scope,
    Shell,
    ShellWord,
    SimpleCommand,
    WordPiece,
)

_BLANK = re.compile(r"(?:[ \t]|\\\n)*+")
#: Plain text of a word, with extended patterns such as `?(a|b)`.
_CHUNK = re.compile(r"""(?:[^ \t\n'"$`\\|&;<>()]|(?<=[?*+@!])\([^()\n'"$`]*\))++""")
_SINGLE = re.compile("'([^']*+)('?)")
_ANSI = re.compile(r"\$'((?:[^'\\]|\\.)*+)('?)", re.DOTALL)
_IN_DOUBLE = re.compile(r'[^"$`\\]++')
_IN_BODY = re.compile(r"[^$`\\]++")
_IN_PARAMETER = re.compile(r"""[^}'"$`\\]++""")
_IN_QUOTED_PARAMETER = re.compile(r"""[^}"$`\\]++""")
_IN_ARITHMETIC = re.compile(r"""[^()'"$`\\]++""")
_NAME = re.compile(r"\$([A-Za-z_]\w*|[0-9@*#?$!-])", re.ASCII)
_PARAMETER = re.compile(r"\$\{([#!]?)([A-Za-z_]\w*|[0-9]+|[@*#?$!-])?", re.ASCII)
_BACKTICK = re.compile(r"`((?:[^`\\]|\\.)*+)(`?)", re.DOTALL)
_ARITHMETIC_NAME = re.compile(r"(?<![\w$#{])[A-Za-z_]\w*", re.ASCII)
_REDIRECT = re.compile(
    r"(?:[0-9]+|\{[A-Za-z_]\w*\})?(&>>|&>|<<<|<<-|<<|<>|<&|>>|>&|>\||<(?!\()|>(?!\())", re.ASCII
)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]\n]*\])?(\+?)=", re.ASCII)
_FUNCTION = re.compile(
    r"""(?:function[ \t]++([^ \t\n;&|()<>]++)(?:[ \t]*+\([ \t]*+\))?"""
    r"""|([^ \t\n;&|()<>'"$`\\=?*+@!]++)[ \t]*+\([ \t]*+\))"""
)
_OPERATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|&(?!>)|[;|\n]")
_KEYWORD = re.compile(
    r"\)|(?:if|then|elif|else|fi|while|until|for|select|do|done|case|esac|time(?:[ \t]+-p)?|coproc"
    r"|\{|\}|!|\[\[)(?=[ \t\n;&|()<>]|\\\n|\Z)"
)
#: Kind of scope and its end, by the keyword that opens it.
_COMPOUNDS = {
    "if": ("if", "fi"),
    "{": ("{", "}"),
    "case": ("case", "esac"),
    **dict.fromkeys(("while", "until", "for", "select"), ("loop", "done")),
}
_CLOSERS = {")": "(", **{end: kind for kind, end in _COMPOUNDS.values()}}
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
_HOLES = re.compile("([\U000f0000-\U000ffffd])")


class SourceText:
    """A text for the reader: the file, or an inner shell's text after the outer shell's expansions,
    with the offset in the file for each character.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.offsets: Sequence[int] = range(len(text) + 1)
        self.holes: dict[str, WordPiece] = {}

    @classmethod
    def of_pieces(cls, pieces: Iterable[WordPiece], place: Place) -> SourceText:
        """Return the text that a shell at `place` passes to another one as `pieces`."""
        source, offsets = cls(""), [0]
        for piece in pieces:
            # A script may contain the characters that represent holes.
            text = _HOLES.sub("\ufffd", piece.text)
            if piece.kind != "text":
                text = chr(_HOLE + len(source.holes) % 0xFFFD)
                source.holes[text] = replace(piece, place=piece.place or place)
            source.text += text
            offsets.pop()  # the end of the piece before
            offsets += range(piece.start, piece.start + len(text) + 1)
        source.offsets = offsets
        return source

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the offsets in the file of the range from `start` to `end`."""
        begin = self.offsets[start]
        return begin, max(self.offsets[max(end - 1, start)] + 1, begin)

    def shown(self, start: int, end: int) -> str:
        """Return a range with the expansions instead of the characters that represent them."""
        text = self.text[start:end]
        return _HOLES.sub(lambda match: self.holes[match[0]].raw, text) if self.holes else text


def read_shell(source: SourceText, shell: Shell) -> Shell:
    """Read a text into `shell`, in linear time. Never raises."""
    reader = _ShellReader(source, shell)
    try:
        reader.commands("")
    except RecursionError:
        reader.expect(False, reader.pos, "commands are nested too deeply; the rest was not read")
    return shell


class _ShellReader:
    def __init__(self, source: SourceText, shell: Shell) -> None:
        self.source, self.text, self.end = source, source.text, len(source.text)
        self.shell, self.pos = shell, 0
        self.scope = Scope("file", None, 0)
        #: Heredocs whose bodies follow: with the line after the body, and whether it is quoted.
        self._heredocs: list[tuple[ShellWord, re.Pattern[str], bool]] = []

    def expect(self, found: object, start: int, what: str, effect: Effect = "misleads") -> None:
        """Note a problem unless `found`."""
        if not found:
            self.shell.problems.append((start, what, effect))

    # ---- lists of commands -----------------------------------------------------------------------

    def commands(self, closer: str) -> bool:
        """Read commands up to `closer`, a keyword or operator, and past it, or to the end if it is
        empty; return whether it was found. What closes an outer list ends this one too.
        """
        found = None
        while found is None:
            found = self._list(closer)
        return found

    def _list(self, closer: str) -> bool | None:
        """Read commands up to a separator; at the end of all, return whether `closer` was found."""
        elements: list[Element] = []
        joined, conditional = "", False
        self._blanks()
        while self.pos < self.end:
            operator = _OPERATOR.match(self.text, self.pos)
            keyword = self._keyword()
            if operator is not None:
                self._operator(operator[0], elements)
                if operator[0] in ("|", "|&", "&&", "||"):
                    joined = operator[0]
                    conditional = conditional or joined in ("&&", "||")
                elif operator[0] != "\n" or not joined:  # else the list continues in this line
                    return True if closer == ";;" and operator[0][:2] in (";;", ";&") else None
            elif keyword in _CLOSERS:
                found = self._closed(keyword, closer)
                if found is not None:
                    return found
            elif keyword in frozenset({"then", "else", "elif", "do"}):
                self.pos += len(keyword)
                return None
            elif (element := self._element(keyword)) is not None:
                element.conditional = conditional
                if elements and joined in ("|", "|&"):
                    element.pipe_prev, elements[-1].pipe_next = elements[-1], element
                elements.append(element)
                joined = ""
            self._blanks()
        return not closer

    def _operator(self, operator: str, elements: list[Element]) -> None:
        self.pos += len(operator)
        for element in elements:
            element.background = operator == "&"
        for last in elements[-1:]:
            last.after = last.after or operator
        if operator == "\n":
            self._heredoc_bodies()

    def _closed(self, keyword: str, closer: str) -> bool | None:
        """Return whether `keyword` is `closer`; None if it closes nothing."""
        kind, outer = _CLOSERS[keyword], self.scope.inside(_CLOSERS[keyword], "$(")
        if keyword != closer and outer is not None and (outer.kind == kind or keyword == ")"):
            return False
        if keyword == ")":
            self.expect(closer == ")", self.pos, "a closing parenthesis without an opening one")
        self.pos += len(keyword)
        return True if keyword == closer else None

    def _keyword(self) -> str:
        match = _KEYWORD.match(self.text, self.pos)
        return match[0] if match is not None else ""

    def _element(self, keyword: str) -> Element | None:
        start = self.pos
        self.pos += len(keyword)
        function = _FUNCTION.match(self.text, start)
        command = SimpleCommand(start, self.scope, self.shell)
        if keyword in _COMPOUNDS:
            return self._compound(start, *_COMPOUNDS[keyword], keyword)
        if keyword == "[[":
            command.words = [self._plain("[[", start), *self._words("]]")]
            self._redirects(command)
        elif keyword:  # such as `!`
            return None
        elif self.text[start] == "#":
            self._comment()
            return None
        elif self.text.startswith("((", start):
            parts: list[WordPiece] = []
            self._arithmetic(parts, "((")
            command.words = [ShellWord.of(parts, *self.source.span(start, self.pos))]
        elif self.text[start] == "(":
            self.pos += 1
            return self._compound(start, "(", ")")
        elif function is not None:
            return self._function(function)
        else:
            self._simple(command)
            if self.pos == start:
                self.pos += 1  # a character that cannot start a command
                return None
        return self._finish(command)

    def _function(self, match: re.Match[str]) -> Scope:
        start = self.source.offsets[self.pos]
        scope = Scope("function", self.scope, start, match[1] or match[2])
        self.scope = scope
        self.pos = match.end()
        self._blanks(newlines=True)
        if self.pos < self.end and _OPERATOR.match(self.text, self.pos) is None:
            self._element(self._keyword())
        self.scope = scope.parent or scope
        return scope

    def _compound(self, start: int, kind: str, closer: str, name: str = "") -> Scope:
        scope = Scope(kind, self.scope, self.source.offsets[start], name)
        self.scope = scope
        if name in ("for", "select"):  # their words are a command too
            self.pos = start
            self._finish(self._simple(SimpleCommand(start, scope, self.shell)))
        found = self._case(start) if kind == "case" else self.commands(closer)
        self.expect(found or self.pos < self.end, start, f"{_SHOWN[kind]} is not closed")
        self.scope = scope.parent or scope
        self._redirects(SimpleCommand(start, scope, self.shell))
        return scope

    def _case(self, start: int) -> bool:
        words = [word for word in self._words("in") if word.text != "in"]
        self._finish(SimpleCommand(start, self.scope, self.shell, words=words))
        more = True
        while more and self.pos < self.end:
            self._blanks(newlines=True)
            if self._keyword() == "esac":
                self.pos += len("esac")
                return True
            self.pos += self.text.startswith("(", self.pos)
            self._words(")")
            more = self.commands(";;") or self._keyword() == "esac"
        return False

    # ---- simple commands -------------------------------------------------------------------------

    def _simple(self, command: SimpleCommand) -> SimpleCommand:
        self._blanks()
        while self.pos < self.end and not self.text.startswith("#", self.pos):
            if not self._assignment(command) and not self._redirect(command):
                word = self._word()
                if word is None:
                    break
                command.words.append(word)
            self._blanks()
        return command

    def _finish(self, command: SimpleCommand) -> SimpleCommand:
        end = command.start + len(self.text[command.start : self.pos].rstrip(" \t"))
        command.start, command.end = self.source.span(command.start, end)
        self.shell.commands.append(command)
        return command

    def _assignment(self, command: SimpleCommand) -> bool:
        match = _ASSIGNMENT.match(self.text, self.pos)
        if match is None or (command.words and not command.declares):
            return False
        start, self.pos = self.pos, match.end()
        array, word = None, self._plain("", self.pos)
        if self.text.startswith("(", self.pos):
            self.pos += 1
            array = self._words(")")
        else:
            word = self._word() or word
        span = self.source.span(start, self.pos)
        command.assignments.append(Assignment(match[1], word, bool(match[2]), array, span[0]))
        if command.words:
            name = WordPiece("text", match[0], *self.source.span(start, match.end()))
            command.words.append(ShellWord.of((name, *word.parts), *span))
        return True

    def _redirects(self, command: SimpleCommand) -> None:
        self._blanks()
        while self.pos < self.end and self._redirect(command):
            self._blanks()

    def _redirect(self, command: SimpleCommand) -> bool:
        match = _REDIRECT.match(self.text, self.pos)
        if match is None:
            return False
        self.pos = match.end()
        self._blanks()
        start = self.pos
        target = None if self.text.startswith("#", start) else self._word()
        self.expect(target, start, f"no file follows {match[1]}", "stops")
        target = target or self._plain("", start)
        if match[1] in ("<<", "<<-"):
            tabs = r"\t*" if match[1] == "<<-" else ""
            end = re.compile(rf"^{tabs}{re.escape(target.text)}$", re.MULTILINE)
            command.heredocs.append(ShellWord("", match.start(), 0))
            quoted = self.text[start : self.pos] != target.text
            self._heredocs.append((command.heredocs[-1], end, quoted))
        else:
            command.redirects.append((match[1], target))
        return True

    def _heredoc_bodies(self) -> None:
        waiting, self._heredocs = self._heredocs, []
        for heredoc, last_line, quoted in waiting:
            found = last_line.search(self.text, self.pos, self.end)
            end, after = found.span() if found is not None else (self.end, self.end)
            self.expect(found, heredoc.start, "a heredoc is not closed", "warns")
            heredoc.text = self.text[self.pos : end]
            heredoc.start, heredoc.end = self.source.offsets[self.pos], self.source.offsets[end]
            if not quoted and ("$" in heredoc.text or "`" in heredoc.text):
                parts: list[WordPiece] = []
                length, self.end = self.end, end
                known = len(self.shell.problems)
                self._expanded_until(parts, _IN_BODY, "")
                # bash parses a body's expansions only when it executes it, and then continues.
                del self.shell.problems[known:]
                self.end = length
                heredoc.parts = parts
            self.pos = min(after + 1, self.end)

    # ---- words -----------------------------------------------------------------------------------

    def _blanks(self, *, newlines: bool = False) -> None:
        """Skip blanks and line continuations; with `newlines` also comments and newlines, where a
        word may follow them.
        """
        while True:
            blank = _BLANK.match(self.text, self.pos)
            self.pos = blank.end() if blank else self.pos
            if not newlines or self.pos >= self.end:
                return
            if self.text[self.pos] == "#":
                self._comment()
            elif self.text[self.pos] == "\n":
                self.pos += 1
                self._heredoc_bodies()
            else:
                return

    def _comment(self) -> None:
        end = self.text.find("\n", self.pos)
        end = len(self.text) if end < 0 else end
        if self.text[self.pos + 1 : end][:7].lstrip()[:2].lower() in ("sb", "sl"):
            self.shell.comments.append(self.pos)
        self.pos = end

    def _words(self, closer: str) -> list[ShellWord]:
        """Read words, over several lines, up to `closer` and past it."""
        start, words, last = self.pos, [], ""
        while self.pos < self.end and last != closer:
            self._blanks(newlines=True)
            word = self._word()
            if word is None:
                self.pos += 1
                last = self.text[self.pos - 1 : self.pos]
            else:
                words.append(word)
                last = word.text
        self.expect(last == closer, start, _UNCLOSED[closer])
        return words

    def _word(self) -> ShellWord | None:
        start = self.pos
        parts: list[WordPiece] = []
        while self.pos < self.end:
            begin, chunk = self.pos, _CHUNK.match(self.text, self.pos)
            if chunk is not None:
                self._text(parts, *chunk.span())
            elif self.text[begin] in "'\"$`\\" or self.text.startswith(("<(", ">("), begin):
                self._quote_or_expansion(parts, quoted=False)
            else:
                break
        if self.pos == start:
            return None
        return ShellWord.of(parts, *self.source.span(start, self.pos))

    def _plain(self, text: str, start: int) -> ShellWord:
        span = self.source.span(start, self.pos)
        return ShellWord(text, *span, (WordPiece("text", text, *span),))

    def _text(self, parts: list[WordPiece], start: int, end: int) -> None:
        """Add the characters of a range, without quotes, and continue at its end."""
        text, self.pos = self.text[start:end], end
        for piece in _HOLES.split(text) if self.source.holes else [text]:
            if self.source.holes and _HOLES.match(piece):
                parts.append(self.source.holes[piece])
            elif piece or not text:
                parts.append(WordPiece("text", piece, *self.source.span(start, start + len(piece))))
            start += len(piece)

    def _add_expansion(
        self,
        parts: list[WordPiece],
        kind: Literal["var", "arith", "command"],
        text: str,
        start: int,
        *,
        quoted: bool,
    ) -> WordPiece:
        raw = self.source.shown(start, self.pos)
        piece = WordPiece(kind, text, *self.source.span(start, self.pos), quoted, raw)
        parts.append(piece)
        return piece

    def _quote_or_expansion(self, parts: list[WordPiece], *, quoted: bool) -> None:
        start, two = self.pos, self.text[self.pos : self.pos + 2]
        if two[0] == "'":
            self._verbatim(parts, _SINGLE)
        elif two == "$'" and not quoted:
            self._verbatim(parts, _ANSI)
        elif two[0] == '"' or (two == '$"' and not quoted):
            self.pos += two.index('"') + 1
            closed = self._expanded_until(parts, _IN_DOUBLE, '"')
            self.expect(closed, start, "a double quote is not closed")
        elif two[0] == "\\":
            self.pos = min(start + 2, self.end)
            if two != "\\\n":
                self._text(parts, start + len(two) - 1, start + len(two))
        elif two[0] == "`":
            self._backtick(parts, quoted=quoted)
        else:
            self._dollar(parts, quoted=quoted)

    def _dollar(self, parts: list[WordPiece], *, quoted: bool) -> None:
        start, name = self.pos, _NAME.match(self.text, self.pos)
        if name is not None:
            self.pos = name.end()
            self._add_expansion(parts, "var", name[1], start, quoted=quoted)
        elif self.text.startswith("${", start):
            self._parameter(parts, quoted=quoted)
        elif self.text.startswith("$((", start):
            self._arithmetic(parts, "$((", quoted=quoted)
        elif self.text.startswith("(", start + 1):
            self.pos += 2
            self.expect(self._nested(")", start), start, "$( is not closed")
            inside = self.text[start + 2 : self.pos - 1]
            self._add_expansion(parts, "command", inside, start, quoted=quoted)
        else:
            self._text(parts, start, start + 1)

    def _verbatim(self, parts: list[WordPiece], pattern: re.Pattern[str]) -> None:
        quoted = pattern.match(self.text, self.pos)
        assert quoted is not None  # noqa: S101 - the caller saw the quote
        self.expect(quoted[2], self.pos, "a quote '…' is not closed")
        self._text(parts, *quoted.span(1))
        self.pos = quoted.end()

    def _expanded_until(
        self, parts: list[WordPiece], chunk: re.Pattern[str], closer: str, *, quoted: bool = True
    ) -> bool:
        """Read text with expansions up to `closer` and past it, or to the end if `closer` is empty;
        return whether it was found.
        """
        before = len(parts)
        while self.pos < self.end:
            match = chunk.match(self.text, self.pos, self.end)
            two = self.text[self.pos : self.pos + 2]
            if match is not None:
                self._text(parts, *match.span())
            elif two[0] == closer:
                if len(parts) == before:
                    self._text(parts, self.pos, self.pos)
                self.pos += 1
                return True
            elif two[0] == "\\" and closer != "}" and two[1:] not in ("$", "`", "\\", "\n", closer):
                # It escapes nothing else in double quotes.
                self._text(parts, self.pos, self.pos + 1)
            else:
                self._quote_or_expansion(parts, quoted=quoted)
        return not closer

    def _parameter(self, parts: list[WordPiece], *, quoted: bool) -> None:
        start, head = self.pos, _PARAMETER.match(self.text, self.pos)
        assert head is not None  # noqa: S101 - the caller saw `${`
        self.pos = head.end()
        nested: list[WordPiece] = []
        chunk = _IN_QUOTED_PARAMETER if quoted else _IN_PARAMETER
        closed = self._expanded_until(nested, chunk, "}", quoted=quoted)
        self.expect(closed, start, "${ is not closed")
        operand = self.text[head.end() : self.pos - closed]
        # Only a plain name is its text: ${#X} and ${!X} are not the value of X.
        name, operand = ("", (head[2] or "") + operand) if head[1] else (head[2] or "", operand)
        piece = self._add_expansion(parts, "var", name, start, quoted=quoted)
        piece.operand, piece.nested = operand, _expansions(nested)

    def _arithmetic(self, parts: list[WordPiece], opening: str, *, quoted: bool = False) -> None:
        start = self.pos
        self.pos += len(opening)
        begin = self.pos
        nested = self._brackets(start, 2)
        inside = self.text[begin : self.pos - 2]
        piece = self._add_expansion(parts, "arith", inside, start, quoted=quoted)
        named = () if "$(" in inside or "`" in inside else _ARITHMETIC_NAME.finditer(inside)
        names = [
            WordPiece("var", name[0], *self.source.span(begin + name.start(), begin + name.end()))
            for name in named
        ]
        piece.nested = [*names, *nested]

    def _brackets(self, start: int, level: int) -> list[WordPiece]:
        """Read past the brackets that close the `level` open ones; return the expansions inside."""
        nested: list[WordPiece] = []
        while self.pos < self.end and level:
            match = _IN_ARITHMETIC.match(self.text, self.pos)
            if match is not None:
                self._text(nested, *match.span())
            elif self.text[self.pos] in "()":
                level += 1 if self.text[self.pos] == "(" else -1
                self.pos += 1
            else:
                self._quote_or_expansion(nested, quoted=False)
        self.expect(level == 0, start, "(( is not closed")
        return _expansions(nested)

    def _nested(self, closer: str, start: int) -> bool:
        outer = self.scope
        self.scope = Scope("$(", outer, self.source.offsets[start])
        closed = self.commands(closer)
        self.scope = outer
        return closed

    def _backtick(self, parts: list[WordPiece], *, quoted: bool) -> None:
        start = self.pos
        inside = _BACKTICK.match(self.text, start, self.end)
        assert inside is not None  # noqa: S101 - the caller saw the backtick
        self.pos = start + 1
        # Commands are read only up to the closing backtick: the rest is hidden meanwhile.
        length, self.end = self.end, inside.end(1)
        self._nested("", start)
        self.end = length
        self.expect(inside[2], start, "a backtick is not closed")
        self.pos = inside.end()
        self._add_expansion(parts, "command", inside[1], start, quoted=quoted)


def _expansions(parts: list[WordPiece]) -> list[WordPiece]:
    return [part for part in parts if part.kind != "text"]
