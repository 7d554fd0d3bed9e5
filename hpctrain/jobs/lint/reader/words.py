"""Words: quotes, escapes and expansions, nested to a bounded depth.

Beyond the bound a nested text is skipped by counting its brackets, so that time stays linear and the stack small.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from hpctrain.jobs.lint.reader.model import Command, Part, Problem, Reading, Scope, Word

MAX_DEPTH = 24

_PLAIN = re.compile(r"""[^ \t\n'"$`\\|&;<>()]++(?=[ \t\n|&;<>()]|\Z)""")
_CHUNK = re.compile(r"""[^ \t\n'"$`\\|&;<>()]++""")
_ANSI = re.compile(r"\$'(?:[^'\\]|\\.)*+'", re.DOTALL)
_IN_DOUBLE = re.compile(r'[^"$`\\]++')
IN_BODY = re.compile(r"[^$`\\]++")
_IN_PARAMETER = re.compile(r"""[^}'"$`\\]++""")
_IN_QUOTED_PARAMETER = re.compile(r"""[^}"$`\\]++""")
_IN_ARITHMETIC = re.compile(r"""[^()'"$`\\]++""")
_OPENING = re.compile(r"\(++")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]", re.ASCII)
_PARAMETER = re.compile(r"\$\{([#!]?)([A-Za-z_]\w*|[0-9]+|[@*#?$!-])?", re.ASCII)
_SIMPLE_DOUBLE = re.compile(r'"([^"$`\\]*+)"')
#: Of one word, pieces beyond these are not kept apart.
MAX_PARTS = 2000
_MORE_PIECES = re.compile(r"""(?:[^ \t\n'"$`\\|&;<>()]++|'[^']*+'|"[^"$`\\]*+"|\\.)++""", re.DOTALL)
_MORE_IN_DOUBLE = re.compile(r'(?:[^"$`\\]++|\\.)++', re.DOTALL)
_BRACKETS = {"(": re.compile(r"[()]"), "{": re.compile(r"[{}]")}
_BACKTICK = re.compile(r"(?:[^`\\]|\\.)*+", re.DOTALL)
_ARITHMETIC_NAME = re.compile(r"(?<![\w$#{])[A-Za-z_]\w*", re.ASCII)


class WordReader(ABC):
    """Reads words of `text`; `hpctrain.jobs.lint.reader.commands` adds the commands."""

    def __init__(self, reading: Reading, scope: Scope) -> None:
        self.reading, self.text, self.length = reading, reading.text, len(reading.text)
        self.pos, self.depth = 0, 0
        self.scope = scope

    @abstractmethod
    def commands_until(self, closer: str) -> bool:
        """Read commands up to `closer` and past it; whether it was there."""

    def problem(self, start: int, what: str) -> None:
        """Note what bash would stumble over; the first few are enough."""
        if len(self.reading.problems) < 20:
            self.reading.problems.append(Problem(start, what))

    def word(self) -> Word | None:
        """Read one word at `pos`, or return None where none begins."""
        plain = _PLAIN.match(self.text, self.pos)
        if plain is not None:
            self.pos = plain.end()
            return Word(plain[0], plain.start(), self.pos)
        start = self.pos
        parts: list[Part] = []
        while self.pos < self.length and self._piece(parts):
            if len(parts) > MAX_PARTS and (more := _MORE_PIECES.match(self.text, self.pos, self.length)) is not None:
                self.pos = more.end()
        if self.pos == start:
            return None
        return _word(parts, start, self.pos, self.text)

    def _piece(self, parts: list[Part]) -> bool:
        """Read one piece of an unquoted word into `parts`; False at the word's end."""
        chunk = _CHUNK.match(self.text, self.pos)
        if chunk is not None:
            self._text(parts, chunk[0], "", chunk.start(), chunk.end())
            if chunk[0][-1] in "?*+@!" and self.text.startswith("(", chunk.end()):
                self._skip("(", "a pattern list", self.pos)  # ?(…): an extended pattern
            return True
        reader = _UNQUOTED.get(self.text[self.pos])
        return reader is not None and reader(self, parts)

    def _text(self, parts: list[Part], text: str, quote: str, start: int, end: int) -> None:
        parts.append(Part("text", text, quote, start, end))
        self.pos = end

    def _single(self, parts: list[Part]) -> bool:
        start = self.pos
        end = self.text.find("'", start + 1)
        if end < 0:
            self.problem(start, "a single quote is not closed")
            end = self.length
        self._text(parts, self.text[start + 1 : end], "'", start + 1, end)
        self.pos = min(end + 1, self.length)
        return True

    def _escape(self, parts: list[Part]) -> bool:
        start, escaped = self.pos, self.text[self.pos + 1 : self.pos + 2]
        self.pos = min(start + 2, self.length)
        if escaped != "\n":
            self._text(parts, escaped or "\\", "\\", self.pos - 1, self.pos)
        return True

    def _double(self, parts: list[Part]) -> bool:
        simple = _SIMPLE_DOUBLE.match(self.text, self.pos)
        if simple is not None:
            self._text(parts, simple[1], '"', simple.start(1), simple.end(1))
            self.pos = simple.end()
            return True
        start = self.pos
        self.pos += 1
        if not self.quoted_parts(parts, _IN_DOUBLE, '"'):
            self.problem(start, "a double quote is not closed")
        return True

    def quoted_parts(self, parts: list[Part], chunk: re.Pattern[str], closer: str) -> bool:
        """Read text with expansions up to `closer` and past it, or to the end where `closer` is empty; whether it was there."""
        special = '$`\\"' if closer == '"' else "$`\\"
        before = len(parts)
        while self.pos < self.length:
            match = chunk.match(self.text, self.pos)
            if match is not None:
                self._text(parts, match[0], '"', match.start(), match.end())
                continue
            if len(parts) > MAX_PARTS and (more := _MORE_IN_DOUBLE.match(self.text, self.pos, self.length)) is not None:
                self.pos = more.end()
                continue
            character = self.text[self.pos]
            if character == closer:
                if len(parts) == before:
                    self._text(parts, "", '"', self.pos, self.pos)
                self.pos += 1
                return True
            if character == "\\":
                self._escape_in_double(parts, special)
            elif character == "$":
                self._dollar(parts, '"')
            else:
                self._backtick(parts, '"')
        return not closer

    def _escape_in_double(self, parts: list[Part], special: str) -> None:
        start, escaped = self.pos, self.text[self.pos + 1 : self.pos + 2]
        if escaped == "\n":
            self.pos += 2
        elif escaped and escaped in special:
            self._text(parts, escaped, '"', start + 1, start + 2)
        else:
            self._text(parts, "\\", '"', start, start + 1)

    def _unquoted_dollar(self, parts: list[Part]) -> bool:
        return self._dollar(parts, "")

    def _dollar(self, parts: list[Part], quote: str) -> bool:
        start = self.pos
        following = self.text[start + 1 : start + 2]
        name = _NAME.match(self.text, start + 1)
        if name is not None:
            parts.append(Part("var", name[0], quote, start, name.end()))
            self.pos = name.end()
        elif following == "{":
            self._parameter(parts, quote)
        elif self.text.startswith("((", start + 1):
            self._arithmetic(parts, quote)
        elif following == "(":
            self._substitution(parts, quote, start, 2)
        elif following == "'" and not quote:
            self._ansi(parts)
        elif following == '"' and not quote:
            self.pos += 1
            self._double(parts)
        else:
            self._text(parts, "$", quote, start, start + 1)
        return True

    def _ansi(self, parts: list[Part]) -> None:
        match = _ANSI.match(self.text, self.pos)
        if match is None:
            self.problem(self.pos, "a quote $'…' is not closed")
            self._text(parts, self.text[self.pos + 2 :], "'", self.pos + 2, self.length)
        else:
            self._text(parts, match[0][2:-1], "$", match.start() + 2, match.end() - 1)
            self.pos = match.end()

    def _parameter(self, parts: list[Part], quote: str) -> None:
        start = self.pos
        head = _PARAMETER.match(self.text, start)
        assert head is not None  # noqa: S101 - the caller saw `${`
        self.pos = head.end()
        nested: list[Part] = []
        closed = self._until_brace(nested, quote)
        if not closed:
            self.problem(start, "${ is not closed")
        # A part's text is the name alone: ${#X} and ${!X} do not stand for the value of X.
        operand = self.text[head.end() : self.pos - 1 if closed else self.pos]
        name, operand = (head[2] or "", operand) if not head[1] else ("", (head[2] or "") + operand)
        parts.append(Part("var", name, quote, start, self.pos, operand, tuple(part for part in nested if part.kind != "text")))

    def _until_brace(self, nested: list[Part], quote: str) -> bool:
        if self.depth >= MAX_DEPTH:
            return self._skip_from(1, "{")
        self.depth += 1
        chunk = _IN_QUOTED_PARAMETER if quote else _IN_PARAMETER
        try:
            while self.pos < self.length:
                match = chunk.match(self.text, self.pos)
                if match is not None:
                    self.pos = match.end()
                elif self.text[self.pos] == "}":
                    self.pos += 1
                    return True
                elif self.text[self.pos] == "$":
                    self._dollar(nested, quote)
                else:
                    _UNQUOTED[self.text[self.pos]](self, nested)
        finally:
            self.depth -= 1
        return False

    def _arithmetic(self, parts: list[Part], quote: str) -> None:
        start = self.pos
        self.pos += 3
        nested = self.arithmetic_inside(start)
        inside = self.text[start + 3 : self.pos - 2]
        if nested or not inside.isspace():
            names = [Part("var", match[0], quote, start + 3 + match.start(), start + 3 + match.end()) for match in _names(inside)]
            parts.append(Part("arith", inside, quote, start, self.pos, "", (*names, *nested)))

    def arithmetic_inside(self, start: int) -> list[Part]:
        """Read past the `))` that ends what begins at `start` with `((`; return its expansions."""
        nested: list[Part] = []
        if self.depth >= MAX_DEPTH:
            if not self._skip_from(2, "("):
                self.problem(start, "(( is not closed")
            return nested
        self.depth += 1
        level = 2
        while self.pos < self.length and level:
            match = _IN_ARITHMETIC.match(self.text, self.pos)
            if match is not None:
                self.pos = match.end()
                continue
            character = self.text[self.pos]
            if character == "(":
                opening = _OPENING.match(self.text, self.pos)
                self.pos = opening.end() if opening else self.pos + 1
                level += self.pos - (opening.start() if opening else self.pos - 1)
            elif character == ")":
                level -= 1
                self.pos += 1
            else:
                _UNQUOTED[character](self, nested)
        self.depth -= 1
        if level:
            self.problem(start, "(( is not closed")
        return [part for part in nested if part.kind != "text"]

    def _substitution(self, parts: list[Part], quote: str, start: int, opening: int) -> None:
        self.pos = start + opening
        commands: list[Command] = self.reading.commands
        first = len(commands)
        if self.depth >= MAX_DEPTH:
            closed = self._skip_from(1, "(")
        else:
            self.depth += 1
            closed = self._nested(")", start)
            self.depth -= 1
        if not closed:
            self.problem(start, "$( is not closed")
        inside = self.text[start + opening : self.pos - 1]
        parts.append(Part("command", inside, quote, start, self.pos, commands=tuple(commands[first:])))

    def _nested(self, closer: str, start: int) -> bool:
        outer, self.scope = self.scope, Scope("$(", self.scope, start)
        closed = self.commands_until(closer)
        self.scope = outer
        return closed

    def _unquoted_backtick(self, parts: list[Part]) -> bool:
        self._backtick(parts, "")
        return True

    def _backtick(self, parts: list[Part], quote: str) -> None:
        start, first = self.pos, len(self.reading.commands)
        end = _BACKTICK.match(self.text, start + 1)
        assert end is not None  # noqa: S101 - it matches nothing at least
        self.pos = start + 1
        if self.depth < MAX_DEPTH and "\\" not in end[0]:
            # Commands are read only up to the closing backtick: the rest is hidden for that time.
            self.depth += 1
            length, self.length = self.length, end.end()
            self._nested("`", start)
            self.length = length
            self.depth -= 1
        if end.end() >= self.length:
            self.problem(start, "a backtick is not closed")
        self.pos = min(end.end() + 1, self.length)
        parts.append(Part("command", end[0], quote, start, self.pos, commands=tuple(self.reading.commands[first:])))

    def _process(self, parts: list[Part]) -> bool:
        """`<(…)` and `>(…)` belong to a word; any other `<` or `>` ends it."""
        if not self.text.startswith("(", self.pos + 1):
            return False
        self._substitution(parts, "", self.pos, 2)
        return True

    def _skip(self, bracket: str, what: str, start: int) -> None:
        self.pos = start + 1
        if not self._skip_from(1, bracket):
            self.problem(start, f"{what} is not closed")

    def _skip_from(self, level: int, bracket: str) -> bool:
        """Go past the bracket that closes `level` open ones, not looking at quotes; whether it was there."""
        for match in _BRACKETS[bracket].finditer(self.text, self.pos, self.length):
            level += 1 if match[0] == bracket else -1
            if level == 0:
                self.pos = match.end()
                return True
        self.pos = self.length
        return False


def _names(arithmetic: str) -> list[re.Match[str]]:
    return [] if "$(" in arithmetic or "`" in arithmetic else list(_ARITHMETIC_NAME.finditer(arithmetic))


def _word(parts: list[Part], start: int, end: int, text: str) -> Word:
    shown = [part.text if part.kind == "text" else text[part.start : part.end] for part in parts]
    return Word("".join(shown), start, end, tuple(parts))


_UNQUOTED = {
    "'": WordReader._single, '"': WordReader._double, "\\": WordReader._escape, "$": WordReader._unquoted_dollar,
    "`": WordReader._unquoted_backtick, "<": WordReader._process, ">": WordReader._process,
}  # fmt: skip
