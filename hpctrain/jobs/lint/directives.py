"""`#SBATCH` lines with the place of each word, read tolerantly: what sbatch would refuse becomes a flaw, not an exception."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field

from hpctrain.jobs.lint import options
from hpctrain.scheduler.parse.directives import _BLANKS, MAGIC, SHORT_FLAGS, SHORT_WITH_VALUE

#: Nobody writes that many; the rest is not read.
_MAX_LINES = 2000
_BLOCK = re.compile(r"(?:[ \t\v\f\r\n]++|#[^\n]*+)*+")
_DIRECTIVE = re.compile(rf"^{MAGIC}[^\n]*+", re.MULTILINE)


@dataclass(slots=True)
class Token:
    """One word of a directive line, quotes removed; offsets count from the start of the file."""

    text: str
    start: int
    end: int
    quoted: bool = False
    cut_by_hash: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a directive: sbatch's own long name, what was written, its value (None for a flag) and its place."""

    name: str
    written: str
    value: str | None
    start: int
    end: int
    line: int


@dataclass(frozen=True, slots=True)
class Flaw:
    """What sbatch would refuse, or read differently than it looks; `kind` is the id of a finding."""

    kind: str
    start: int
    text: str
    hint: str = ""


@dataclass(slots=True)
class Block:
    """The directives of a script.

    Attributes:
        options: in order, those of all components of a heterogeneous job.
        ends: offset of the first command.
        hetjobs: offsets of the lines that separate components.
    """

    options: list[Option] = field(default_factory=list)
    flaws: list[Flaw] = field(default_factory=list)
    ends: int = 0
    hetjobs: list[int] = field(default_factory=list)
    lines: int = 0
    component_starts: list[int] = field(default_factory=lambda: [0])


def read(text: str) -> Block:
    """Return the directives of `text` as sbatch reads them: from column 0, up to the first line that is neither blank nor comment."""
    block = Block()
    found = _BLOCK.match(text)
    block.ends = found.end() if found else 0
    position, number = 0, 1
    for match in itertools.islice(_DIRECTIVE.finditer(text, 0, block.ends), _MAX_LINES):
        number += text.count("\n", position, match.start())
        position = match.start()
        block.lines += 1
        _line(block, match[0].rstrip("\r"), position, number)
    return block


def _line(block: Block, line: str, offset: int, number: int) -> None:
    tokens, unmatched = tokenize(line, len(MAGIC), offset)
    if unmatched:
        block.flaws.append(Flaw("directive-quote", offset, line, unmatched))
        return
    if line.endswith("\\"):
        block.flaws.append(Flaw("directive-continued", offset + len(line) - 1, line))
    for token in tokens:
        if token.cut_by_hash:
            block.flaws.append(Flaw("directive-hash", token.start, token.text))
    if tokens and tokens[0].text in ("hetjob", "packjob"):
        block.hetjobs.append(offset)
        block.component_starts.append(len(block.options))
        tokens = tokens[1:]
    _options(block, [token for token in tokens if token.text], number)


def tokenize(line: str, begin: int, offset: int) -> tuple[list[Token], str]:
    """Split `line` from `begin` on as sbatch does; also return the quote that is not closed, if any."""
    tokens: list[Token] = []
    token: Token | None = None
    quoting, escaped = "", False
    for index in range(begin, len(line)):
        character = line[index]
        if character in _BLANKS and not quoting:
            token, escaped = None, False
            continue
        if character == "#" and not quoting and not escaped:
            if token is not None:
                token.cut_by_hash = True
            break
        if token is None:
            token = Token("", offset + index, offset + index)
            tokens.append(token)
        token.end = offset + index + 1
        if character == "\\" and not escaped:
            escaped = True
        elif not escaped and character in (quoting or "\"'"):
            quoting, token.quoted = "" if quoting else character, True
        else:
            token.text, escaped = token.text + character, False
    return tokens, quoting


def _options(block: Block, tokens: list[Token], number: int) -> None:
    rest = list(tokens)
    while rest:
        token = rest.pop(0)
        if token.text.startswith("--"):
            _long(block, token, rest, number)
        elif token.text.startswith("-") and len(token.text) > 1:
            _short(block, token, rest, number)
        elif token.text not in ("=",) or not block.options:
            block.flaws.append(Flaw("not-an-option", token.start, token.text))


def _long(block: Block, token: Token, rest: list[Token], number: int) -> None:
    written, equals, value = token.text[2:].partition("=")
    name = long_name(written)
    if name is None:
        block.flaws.append(Flaw("unknown-option", token.start, written))
        if not equals and rest and not rest[0].text.startswith("-"):
            rest.pop(0)
        return
    end = token.end
    if not equals and name in options.SBATCH_WITH_VALUE:
        if not rest:
            block.flaws.append(Flaw("option-without-value", token.start, f"--{written}"))
            return
        argument = rest.pop(0)
        value, equals, end = argument.text, "=", argument.end
    if value == "=":  # `--nodes = 2`
        block.flaws.append(Flaw("blank-around-equals", token.start, f"--{written}", rest.pop(0).text if rest else ""))
        return
    if equals and name in options.SBATCH_FLAGS:
        block.flaws.append(Flaw("flag-with-value", token.start, f"--{written}={value}", f"--{written}"))
    block.options.append(Option(name, f"--{written}", value if equals else None, token.start, end, number))


def _short(block: Block, token: Token, rest: list[Token], number: int) -> None:
    letters = token.text[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        if letter in SHORT_WITH_VALUE:
            end = token.end
            if not letters:
                if not rest:
                    block.flaws.append(Flaw("option-without-value", token.start, f"-{letter}"))
                    return
                argument = rest.pop(0)
                letters, end = argument.text, argument.end
            if letters.startswith("="):
                block.flaws.append(Flaw("short-option-equals", token.start, f"-{letter}{letters}", f"-{letter} {letters[1:]}"))
            block.options.append(Option(SHORT_WITH_VALUE[letter], f"-{letter}", letters, token.start, end, number))
            return
        if letter not in SHORT_FLAGS and letter not in "hV":
            block.flaws.append(Flaw("unknown-option", token.start, token.text[1:], "short"))
            if rest and not rest[0].text.startswith("-"):
                rest.pop(0)
            return
        block.options.append(Option(SHORT_FLAGS.get(letter, letter), f"-{letter}", None, token.start, token.end, number))


def long_name(written: str) -> str | None:
    """Return sbatch's name for `written`, which may be a unique beginning of it, as getopt_long allows; None for no option of sbatch."""
    if written in options.SBATCH:
        return options.ALIASES.get(written, written)
    matches = {options.ALIASES.get(name, name) for name in options.SBATCH if name.startswith(written)} if len(written) > 1 else set()
    return matches.pop() if len(matches) == 1 else None
