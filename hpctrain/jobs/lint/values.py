"""What a variable stands for, where the text says so beyond doubt: assigned once, unconditionally, before anything else can change it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hpctrain.jobs.lint.reader.model import Assignment, Command, Part, Word

_NAMES = re.compile(r"[A-Za-z_]\w*|\d+|[*+/%()-]", re.ASCII)
_MAX_NESTING = 6
_MAX_PARTS = 400
#: Builtins that assign to the names in their arguments.
_READING = frozenset({"read", "mapfile", "readarray", "getopts", "unset", "printf", "for"})


@dataclass(slots=True)
class _Known:
    """The value of a variable: one word, or the words of an array; `command` assigned it."""

    parts: list[Part]
    array: list[Word] | None
    command: Command
    assignment: Assignment


@dataclass(slots=True)
class Argv:
    """The words of a command after its variables were put in. `complete` is False where some words cannot be known."""

    words: list[Word] = field(default_factory=list)
    complete: bool = True


class Values:
    """The variables of one shell text, over those of the shell that started it."""

    def __init__(self, commands: Iterable[Command], outer: Values | None = None, numbers: dict[str, int] | None = None) -> None:
        self._outer = outer
        self._numbers = numbers or {}
        self._known: dict[str, _Known | None] = {}
        self._budget: list[int] = outer._budget if outer is not None else [2**18]
        for command in commands:
            self._read(command)

    def _read(self, command: Command) -> None:
        temporary = bool(command.words) and command.words[0].text not in ("export", "declare", "local", "readonly", "typeset", "for")
        if not temporary:
            for assignment in command.assignments:
                self._assign(command, assignment)
        if command.words and command.words[0].text in _READING:
            for word in command.words[1:]:
                self._known[word.text] = None

    def _assign(self, command: Command, assignment: Assignment) -> None:
        sure = not command.conditional and command.scope.kind == "file"
        earlier = self._known.get(assignment.name)
        if not sure or (assignment.name in self._known and not (assignment.append and earlier)):
            self._known[assignment.name] = None
            return
        parts = list(assignment.word.parts) or [_text(assignment.word)]
        known = _Known(parts, assignment.array, command, assignment)
        if assignment.append:
            if earlier is None or (earlier.array is None) != (assignment.array is None):
                self._known[assignment.name] = None
                return
            known = _Known(earlier.parts + parts, None if known.array is None else (earlier.array or []) + known.array, command, assignment)
        self._known[assignment.name] = known

    def assignment(self, name: str) -> tuple[Assignment, Command] | None:
        """Return where `name` gets the value that it has for sure."""
        known = self._lookup(name)
        return (known.assignment, known.command) if known else None

    def _lookup(self, name: str) -> _Known | None:
        if name in self._known or self._outer is None:
            return self._known.get(name)
        return self._outer._lookup(name)

    def flatten(self, parts: Iterable[Part], nesting: int = 0) -> list[Part]:
        """Return `parts` with known variables replaced by what they stand for."""
        flat: list[Part] = []
        for part in parts:
            known = self._lookup(part.text) if part.kind == "var" and not part.operand else None
            if known is None or known.array is not None or nesting >= _MAX_NESTING or len(flat) > _MAX_PARTS or self._budget[0] <= 0:
                flat.append(part)
                continue
            self._budget[0] -= sum(len(inner.text) for inner in known.parts) + 1
            place = known.command.shell.place
            inner = [replace(item, place=item.place or place) for item in known.parts]
            flat += self.flatten(inner, nesting + 1)
        return flat

    def argv(self, command: Command) -> Argv:
        """Return the words of `command` as it will get them, as far as the text says."""
        argv = Argv()
        for word in command.words:
            self._expand(word, argv, 0)
        return argv

    def _expand(self, word: Word, argv: Argv, nesting: int) -> None:
        if not word.parts or word.is_literal or len(argv.words) > _MAX_PARTS:
            argv.words.append(word)
            return
        whole = word.whole_variable
        known = self._lookup(whole.text) if whole is not None else None
        if whole is not None and known is not None and known.array is not None and nesting < _MAX_NESTING:
            if whole.operand:
                for item in known.array:
                    self._expand(_placed(item, known.command), argv, nesting + 1)
            return
        flat = self.flatten(word.parts)
        if whole is not None and not whole.quote:
            words = _split(flat)
            argv.complete = argv.complete and bool(words) and not any(_opaque(item) for item in words)
            argv.words += words
            return
        if whole is not None and (whole.operand or whole.text == "@"):
            argv.complete = False
        argv.words.append(_join(flat, word))

    def number(self, word: Word | None) -> int | None:
        """Return the whole number that `word` is, where that is known."""
        if word is None:
            return None
        if word.is_literal:
            return int(word.text) if word.text.isdecimal() and len(word.text) < 10 else None
        flat = self.flatten(word.parts)
        if len(flat) == 1 and flat[0].kind == "arith":
            return self._arithmetic(flat[0].text)
        texts = [part.text if part.kind == "text" else str(self._numbers.get(part.text, "?")) for part in flat if not part.operand]
        text = "".join(texts) if len(texts) == len(flat) else "?"
        return int(text) if text.isdecimal() and len(text) < 10 else None

    def _arithmetic(self, text: str) -> int | None:
        """Return the value of a product of names and numbers, which is what scripts compute."""
        found = _NAMES.findall(text)
        if any(item in "+-/%()" for item in found) or "{#" in text or ":" in text:
            return None
        product = 1
        for item in found:
            if item == "*":
                continue
            value = int(item) if item.isdecimal() and len(item) < 10 else self._name_number(item)
            if value is None:
                return None
            product *= value
        return product if found and len(found) < 12 else None

    def _name_number(self, name: str) -> int | None:
        if name in self._numbers:
            return self._numbers[name]
        known = self._lookup(name)
        if known is None or known.array is not None or any(part.kind == "arith" for part in known.parts):
            return None
        return self.number(Word("", 0, 0, tuple(known.parts)))


def _text(word: Word) -> Part:
    return Part("text", word.text, "", word.start, word.end)


def _placed(word: Word, command: Command) -> Word:
    place = command.shell.place
    return Word(word.text, word.start, word.end, tuple(replace(part, place=part.place or place) for part in word.parts))


def _opaque(word: Word) -> bool:
    """Whether `word` is an unquoted variable that nobody knows, and so any number of words."""
    whole = word.whole_variable
    return whole is not None and not whole.quote


def _join(parts: list[Part], word: Word) -> Word:
    shown = "".join(part.text if part.kind == "text" else f"${part.text}" for part in parts)
    return Word(shown, word.start, word.end, tuple(parts))


def _split(parts: list[Part]) -> list[Word]:
    """Split the value of an unquoted variable into words, as the shell does; quotes in it stay characters."""
    words: list[list[Part]] = []
    glue = False
    for part in parts:
        if part.kind != "text":
            words, glue = _append(words, part, glue), True
            continue
        for match in re.finditer(r"\s+|\S+", part.text):
            if match[0].isspace():
                glue = False
                continue
            start = part.start + match.start()
            words, glue = _append(words, replace(part, text=match[0], start=start, end=start + len(match[0])), glue), True
    return [_join(items, Word("", items[0].start, items[-1].end)) for items in words]


def _append(words: list[list[Part]], part: Part, glue: bool) -> list[list[Part]]:
    if glue and words:
        words[-1].append(part)
    else:
        words.append([part])
    return words
