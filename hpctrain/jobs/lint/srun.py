"""An srun call in a list of words: its options, and where its command begins."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hpctrain.jobs.lint import options
from hpctrain.jobs.lint.reader.model import Word

#: Programs that run the rest of their line; srun, or a launcher, may stand behind them.
WRAPPERS = frozenset({
    "exec", "nohup", "time", "command", "env", "timeout", "nice", "ionice", "stdbuf", "numactl", "taskset", "unbuffer",
})  # fmt: skip
_MAX_PREFIX = 8


@dataclass(slots=True)
class Srun:
    """One srun call.

    Attributes:
        at: the word `srun`.
        given: long option name to its value, as a Word; None for a flag.
        command: index in argv of the program that it starts; the length of argv where there is none.
    """

    at: Word
    given: dict[str, Word | None] = field(default_factory=dict)
    words: dict[str, Word] = field(default_factory=dict)
    command: int = 0


def position(argv: list[Word]) -> int | None:
    """Return the index of `srun` when `argv` is an srun call, behind wrappers and assignments too."""
    if not argv:
        return None
    if argv[0].text == "srun":
        return 0
    if argv[0].text.rpartition("/")[2] not in WRAPPERS and not argv[0].text.endswith("/srun"):
        return None
    for index, word in enumerate(argv[:_MAX_PREFIX]):
        if word.text == "srun" or word.text.endswith("/srun"):
            return index
    return None


def parse(argv: list[Word]) -> Srun | None:
    """Return the srun call in `argv`, or None."""
    start = position(argv)
    if start is None:
        return None
    call = Srun(argv[start])
    index = start + 1
    while index < len(argv):
        text = argv[index].text
        if text == "--":
            index += 1
            break
        if not text.startswith("-") or len(text) == 1:
            break
        index = (_long if text.startswith("--") else _short)(call, argv, index)
    call.command = index
    return call


def _long(call: Srun, argv: list[Word], index: int) -> int:
    word = argv[index]
    name, equals, _ = word.text[2:].partition("=")
    name = options.ALIASES.get(name, name)
    call.words[name] = word
    if equals:
        call.given[name] = behind(word, len(word.text) - len(word.text.partition("=")[2]))
        return index + 1
    if name in options.SRUN_WITH_VALUE and index + 1 < len(argv):
        call.given[name] = argv[index + 1]
        return index + 2
    call.given[name] = None
    return index + 1


def _short(call: Srun, argv: list[Word], index: int) -> int:
    word = argv[index]
    for offset, letter in enumerate(word.text[1:], start=1):
        if letter in options.SRUN_SHORT_WITH_VALUE:
            name = options.SRUN_SHORT_WITH_VALUE[letter]
            call.words[name] = word
            if offset + 1 < len(word.text):
                call.given[name] = behind(word, offset + 1)
                return index + 1
            call.given[name] = argv[index + 1] if index + 1 < len(argv) else None
            return index + 2
        if letter in options.SRUN_SHORT_OPTIONAL:
            name = options.SRUN_SHORT_OPTIONAL[letter]
            call.words[name] = word
            call.given[name] = behind(word, offset + 1) if offset + 1 < len(word.text) else None
            return index + 1
        name = options.SRUN_SHORT_FLAGS.get(letter, letter)
        call.words[name], call.given[name] = word, None
    return index + 1


def behind(word: Word, offset: int) -> Word:
    """Return what stands in `word` from the character `offset` of its first, literal, part on."""
    if not word.parts:
        return Word(word.text[offset:], word.start + offset, word.end)
    rest = list(word.parts)
    first = rest[0]
    left = offset
    while rest and rest[0].kind == "text" and left >= len(rest[0].text):
        left -= len(rest[0].text)
        rest.pop(0)
    if rest and rest[0].kind == "text" and left:
        rest[0] = replace(rest[0], text=rest[0].text[left:], start=rest[0].start + left)
    start = rest[0].start if rest else first.end
    return Word(word.text[offset:], start, word.end, tuple(rest))
