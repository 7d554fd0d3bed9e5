"""Commands: lists, pipelines, compound commands, functions, assignments, redirections and heredocs.

Compound commands live on a linked list of scopes instead of the call stack; only substitutions nest, and those to a bounded depth.
"""

from __future__ import annotations

import re

from hpctrain.jobs.lint.reader.boring import BoringLines
from hpctrain.jobs.lint.reader.model import DECLARING, Assignment, Command, Part, Reading, Scope, Shell, Word
from hpctrain.jobs.lint.reader.redirects import BLANK, RedirectReader
from hpctrain.jobs.lint.reader.shapes import Shapes

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]\n]*\])?(\+?)=", re.ASCII)
#: Of one command: who has more of them writes data, and plain words behind these are not kept.
MAX_WORDS = 2000
_MORE_WORDS = re.compile(r"""(?:(?:[ \t]|\\\n)++[^ \t\n'"$`\\|&;<>()#]++(?=[ \t\n\\]))++""")
_FUNCTION = re.compile(r"[ \t]*+\([ \t]*+\)")
_KEYWORD = re.compile(
    r"(?:if|then|elif|else|fi|while|until|for|select|do|done|case|esac|function|time|coproc|\{|\}|!|\[\[)(?=[ \t\n;&|()<>]|\\\n|\Z)"
)
_WORDLIKE = re.compile(r"[^ \t\n;&|()<>]++")
_OPENERS = {"if": "if", "while": "loop", "until": "loop", "{": "{"}
_CLOSERS = {"fi": "if", "done": "loop", "esac": "case", "}": "{"}


def read(text: str, shell: Shell, boring: BoringLines | None = None) -> Reading:
    """Return what `text` says. Never raises; the time is linear in its length."""
    reading = Reading(text, shell)
    reader = CommandReader(reading, boring)
    while not reader.commands_until(""):  # a stray `)` ends a list too early: go on behind it
        pass
    for scope in reader.scope.chain():
        if scope.kind not in ("file", "function"):
            reader.problem(scope.start, f"{_SHOWN.get(scope.kind, scope.kind)} is not closed")
    reading.skipped = reader._shapes.skipped
    return reading


#: Compound commands within each other, and heredocs of one line.
MAX_SCOPES = 1000
_SHOWN = {"loop": "a loop (do … done)", "if": "if … fi", "case": "case … esac", "(": "a parenthesis", "{": "a brace"}


class CommandReader(RedirectReader):
    """Reads commands; see `read`."""

    def __init__(self, reading: Reading, boring: BoringLines | None) -> None:
        super().__init__(reading, Scope("file", None, 0))
        self._boring, self._shapes = boring, Shapes(reading.text)
        self._pipe: Command | Scope | None = None  # what stands before the `|` that was just read
        self._conditional = self._joined = False  # behind `&&` or `||`; behind an operator that goes on in the next line
        self._list: list[Command | Scope] = []  # since the last separator: what a `&` sends into the background

    def commands_until(self, closer: str) -> bool:
        """Read commands up to `closer` (`)`, a backtick, or the end of the text) and past it; whether it was there."""
        base, outer = self.scope, (self._pipe, self._list, self._conditional, self._joined)
        self._pipe, self._list, self._conditional, self._joined = None, [], False, False
        if self.pos == 0:
            self._line_start()
        closed = False
        while not closed:
            blank = BLANK.match(self.text, self.pos)
            self.pos = blank.end() if blank else self.pos
            if self.pos >= self.length:
                closed = not closer
                break
            closed = self._element(self.text[self.pos], closer, base)
        if closer:  # what was not closed inside a substitution ends with it
            self.scope = base
        self._pipe, self._list, self._conditional, self._joined = outer
        return closed

    def _element(self, character: str, closer: str, base: Scope) -> bool:
        """Read one element of a list; True when it was `closer`."""
        if self.scope.expects_pattern and character not in "\n#":
            self._pattern(base)
        elif character in "\n;&|":
            self._operator(character)
        elif character == "#":
            self.comment()
        elif character == "(":
            self._open_parenthesis()
        elif character == ")":
            return self._close_parenthesis(closer, base)
        elif character == "`" and closer == "`":
            self.pos += 1
            return True
        elif (keyword := _KEYWORD.match(self.text, self.pos)) is not None:
            self._keyword(keyword[0], base)
        else:
            self._simple()
        return False

    # Separators

    def _operator(self, character: str) -> None:
        if character == "\n":
            self.pos += 1
            self._separate("\n")
            self.bodies()
            self._line_start()
            return
        two = self.text[self.pos : self.pos + 2]
        if character == "&" and two == "&>":
            self._simple()
            return
        operator = two if two in ("&&", "||", ";;", ";&", "|&") else character
        self.pos += 3 if self.text.startswith(";;&", self.pos) else len(operator)
        if operator in (";;", ";&"):
            case = self.scope.inside("case")
            if case is not None and case is self.scope:
                case.expects_pattern = True
        self._separate(operator)
        if operator == ";" and self._boring is not None and not self.scope.expects_pattern:
            self.pos = self._boring.skip(self.pos, self.length)

    def _separate(self, operator: str) -> None:
        if operator == "\n" and self._joined:
            return  # the list goes on in the next line
        last = self._list[-1] if self._list else None
        if isinstance(last, Command) and not last.after:
            last.after = operator
        self._joined = operator in ("&&", "||", "|", "|&")
        if operator in ("|", "|&"):
            self._pipe = last
            return
        if operator == "&":
            for element in self._list:
                element.background = True
        self._pipe = None
        self._conditional = operator in ("&&", "||")
        if not self._conditional:
            self._list = []

    def _add(self, element: Command | Scope) -> None:
        self._joined = False
        if self._pipe is not None:
            element.pipe_prev, self._pipe.pipe_next = self._pipe, element
            self._pipe = None
        self._list.append(element)

    def _line_start(self) -> None:
        """Skip lines that say nothing, and lines that say what many before them said."""
        if self._boring is None or self.scope.expects_pattern or self._joined:
            return
        while True:
            start = self._boring.skip(self.pos, self.length)
            if self.depth == 0:
                start = self._shapes.line_start(start, self.scope)
            if start == self.pos:
                return
            self.pos = start

    # Compound commands

    def _push(self, kind: str, start: int, name: str = "") -> None:
        scope = Scope(kind, self.scope, start, name)
        if scope.depth > MAX_SCOPES:
            self.problem(start, f"commands are nested more than {MAX_SCOPES} deep; the rest was not read")
            self.pos = self.length
        self._add(scope)
        self.scope = scope
        self._list, self._conditional = [], False

    def _pop(self, kind: str, base: Scope) -> None:
        """Close the innermost open `kind`, and what was left open inside it."""
        found = self.scope
        while found is not base and found.kind != kind:
            if found.parent is None:
                return
            found = found.parent
        if found is base or found.parent is None:
            return
        self.scope = found.parent
        self._list = [found]
        if self.scope.kind == "function" and self.scope is not base and self.scope.parent is not None:
            self._list = [self.scope]
            self.scope = self.scope.parent
        self.redirects(None)

    def _keyword(self, keyword: str, base: Scope) -> None:
        start, self.pos = self.pos, self.pos + len(keyword)
        if keyword in _OPENERS:
            self._push(_OPENERS[keyword], start, keyword)
        elif keyword in _CLOSERS:
            self._pop(_CLOSERS[keyword], base)
        elif keyword in ("for", "select"):
            self._for(start)
        elif keyword == "case":
            self._case(start)
        elif keyword == "function":
            self._function_keyword(start)
        elif keyword == "[[":
            self.pos = start
            self._condition()
        elif keyword in ("then", "else", "elif", "do"):
            self._list, self._conditional, self._joined = [], False, False

    def _for(self, start: int) -> None:
        self._push("loop", start, "for")
        self.blanks()
        if self.text.startswith("((", self.pos):
            opening = self.pos
            self.pos += 2
            self.arithmetic_inside(opening)
        else:
            self._simple(loop_variable=True)

    def _case(self, start: int) -> None:
        self._push("case", start)
        command = Command(start, self.scope, self.reading.shell)
        self.blanks()
        while (word := self.word()) is not None and word.text != "in":
            command.words.append(word)
            self.blanks(newlines=True)
        self._finish(command)
        self.scope.expects_pattern = True
        self._list = []

    def _pattern(self, base: Scope) -> None:
        """Read `esac`, or a pattern up to its `)`."""
        if (keyword := _KEYWORD.match(self.text, self.pos)) is not None and keyword[0] == "esac":
            self.scope.expects_pattern = False
            self._keyword("esac", base)
            return
        if self.text[self.pos] == "(":
            self.pos += 1
        while self.pos < self.length:
            self.blanks(newlines=True)
            if self.pos < self.length and self.word() is None:
                self.pos += 1
                if self.text[self.pos - 1] == ")":
                    break
        self.scope.expects_pattern = False
        self._list = []

    def _open_parenthesis(self) -> None:
        if self.text.startswith("((", self.pos):
            command = Command(self.pos, self.scope, self.reading.shell)
            opening = self.pos
            self.pos += 2
            nested = self.arithmetic_inside(opening)
            text = self.text[opening : self.pos]
            command.words.append(Word(text, opening, self.pos, (Part("arith", text, "", opening, self.pos, nested=tuple(nested)),)))
            self._finish(command)
            return
        self._push("(", self.pos)
        self.pos = min(self.pos + 1, self.length)

    def _close_parenthesis(self, closer: str, base: Scope) -> bool:
        self.pos += 1
        scope = self.scope
        while scope is not base and scope.parent is not None and scope.kind != "(":
            scope = scope.parent
        if scope is not base and scope.kind == "(":
            self._pop("(", base)
            return False
        if closer != ")":
            self.problem(self.pos - 1, "a closing parenthesis without an opening one")
        return closer == ")"

    def _condition(self) -> None:
        """Read `[[ … ]]` as one command."""
        command = Command(self.pos, self.scope, self.reading.shell)
        self.pos += 2
        command.words.append(Word("[[", command.start, self.pos))
        while self.pos < self.length:
            self.blanks(newlines=True)
            word = self.word()
            if word is None:
                self.pos += 1
                continue
            command.words.append(word)
            if word.text == "]]":
                break
        else:
            self.problem(command.start, "[[ is not closed")
        self.redirects(command)
        self._finish(command)

    # Functions

    def _function_keyword(self, start: int) -> None:
        self.blanks()
        name = _WORDLIKE.match(self.text, self.pos)
        self.pos = name.end() if name else self.pos
        brackets = _FUNCTION.match(self.text, self.pos)
        self._define(name[0] if name else "", start, brackets.end() if brackets else self.pos)

    def _define(self, name: str, start: int, body: int) -> None:
        self.pos = body
        self._push("function", start, name)
        self.reading.functions.setdefault(name, []).append(self.scope)
        self.blanks(newlines=True)

    # Simple commands

    def _simple(self, *, loop_variable: bool = False) -> None:
        command = Command(self.pos, self.scope, self.reading.shell)
        while self.pos < self.length:
            if self.redirect(command) or (not loop_variable and self._assignment(command)):
                pass
            elif self._argument(command) is False:
                break
            if len(command.words) > MAX_WORDS and (more := _MORE_WORDS.match(self.text, self.pos, self.length)) is not None:
                self.pos = more.end()
            blank = BLANK.match(self.text, self.pos)
            self.pos = blank.end() if blank else self.pos
        if loop_variable and command.words:
            name = command.words[0]
            command.assignments.append(Assignment(name.text, Word("", name.start, name.end), False, [], name.start))
            command.words.insert(0, Word("for", command.start, command.start))
        if self.pos == command.start:
            self.pos += 1  # a character that begins nothing here
        elif command.words or command.assignments or command.redirects or command.heredocs:
            self._finish(command)

    def _argument(self, command: Command) -> bool:
        character = self.text[self.pos]
        if character == "#":
            return False
        if character == "(":
            brackets = _FUNCTION.match(self.text, self.pos)
            if brackets is not None and len(command.words) == 1 and not command.assignments:
                name = command.words.pop()
                self._define(name.text, name.start, brackets.end())
            return False
        word = self.word()
        if word is None:
            return False
        command.words.append(word)
        if len(command.words) == 1 and self.pos < self.length and self.text[self.pos] == "(" and not command.assignments:
            return self._argument(command)
        return True

    def _finish(self, command: Command) -> None:
        command.end = self.pos
        while command.end > command.start and self.text[command.end - 1] in " \t":
            command.end -= 1
        command.conditional = self._conditional
        self.reading.commands.append(command)
        self._add(command)

    def _assignment(self, command: Command) -> bool:
        declares = bool(command.words)
        if declares and command.words[0].text not in DECLARING:
            return False
        match = _ASSIGNMENT.match(self.text, self.pos)
        if match is None:
            return False
        start, self.pos = self.pos, match.end()
        array, word = None, Word("", self.pos, self.pos)
        if self.text.startswith("(", self.pos):
            array = self._array()
        else:
            word = self.word() or word
        exported = declares and (command.words[0].text == "export" or any(part.text == "-x" for part in command.words[1:]))
        command.assignments.append(Assignment(match[1], word, bool(match[2]), array, start, exported))
        if declares:
            parts = (Part("text", match[0], "", start, match.end()), *(word.parts or (Part("text", word.text, "", word.start, word.end),)))
            command.words.append(Word(match[0] + word.text, start, self.pos, parts if word.parts else ()))
        return True

    def _array(self) -> list[Word]:
        start = self.pos
        self.pos += 1
        words: list[Word] = []
        while self.pos < self.length:
            self.blanks(newlines=True)
            if self.text.startswith(")", self.pos):
                self.pos += 1
                return words
            word = self.word()
            if word is not None:
                words.append(word)
            else:
                self.pos += 1
        self.problem(start, "an array (… is not closed")
        return words
