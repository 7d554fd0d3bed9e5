"""The `#SBATCH` lines as text: what sbatch reads, what it silently takes for a comment, what it refuses."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator

from hpctrain.jobs.lint import options
from hpctrain.jobs.lint.directives import Flaw, Option
from hpctrain.jobs.lint.facts import Facts
from hpctrain.jobs.lint.reader import commands as reader
from hpctrain.jobs.lint.reader.model import Shell
from hpctrain.jobs.lint.rules.common import Edit, Hit

MAX_SCRIPT = 4 * 1024**2
_EXPANSION = re.compile(r"\$[A-Za-z_{(]|`")
_LOOKS_LIKE = re.compile(r"^([ \t]*)#([ \t]*)([A-Za-z]{4,9})[ \t]*(?=[ \t]--?[A-Za-z])", re.MULTILINE)
#: Options whose values sbatch adds up (tried on 22.05); of all others the last wins.
_ADDED_UP = frozenset({"mail-type", "verbose"})
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"


def whole_file(facts: Facts) -> Iterator[Hit]:
    """Line ends, the first line, the size, and what no shell can read to its end."""
    text = facts.text
    dos = text.find("\r\n")
    if dos >= 0:
        count = text.count("\r\n")
        safe = count == text.count("\n") or not _meant(text)
        edits = [Edit(match.start(), match.start() + 1, "") for match in re.finditer("\r\n", text)] if safe else []
        yield Hit("dos-line-ends", dos, f"{count} lines end with a carriage return", "sed -i 's/\\r$//' FILE", edits=edits)
    helper = facts.file.endswith((".sh", ".bash", ".inc")) and not facts.is_batch
    if facts.shebang is None and not helper:
        mark = "a byte order mark in front of the first line" if text.startswith("\ufeff") else "the first line names no interpreter"
        yield Hit("no-shebang", 0, mark, "write as the first line: #!/bin/bash")
    if len(text) > MAX_SCRIPT:
        yield Hit("script-too-large", 0, f"the script has {len(text)} characters", "read the data from a file beside the script")
    if facts.reading.problems:
        problem = min(facts.reading.problems, key=lambda item: item.start)
        yield Hit("unreadable-shell", problem.start, problem.what, "bash -n FILE")


def _meant(text: str) -> bool:
    """Whether, of mixed line ends, a carriage return may stand inside a heredoc or quotes, where it is data."""
    if "<<" in text:
        return True
    reading = reader.read(text.replace("\r\n", " \n"), Shell("batch"))
    words = [word for command in reading.commands for word in command.all_words()]
    return bool(reading.problems) or any("\n" in text[word.start : word.end] for word in words)


def unread(facts: Facts) -> Iterator[Hit]:
    """Lines that look like directives and are comments to sbatch."""
    text = facts.text
    for offset in facts.reading.comments:
        if offset >= facts.block.ends and text.startswith("#SBATCH", offset) and text[offset - 1 : offset] in ("", "\n"):
            rest = text[offset + 7 : offset + 9]
            if rest[:1] == "-" or rest.strip().startswith("-"):
                yield Hit(
                    "directive-after-command", offset, "a directive behind the first command", "move the line above the first command"
                )
    for match in _LOOKS_LIKE.finditer(text, 0, facts.block.ends):
        yield from _comment(match)


def _comment(match: re.Match[str]) -> Iterator[Hit]:
    indent, blank, word = match.groups()
    start, magic = match.start(), f"{indent}#{blank}{word}"
    edits = [Edit(start, match.end(3), "#SBATCH")]
    fix = "write #SBATCH at the beginning of the line"
    if word == "SBATCH" and not blank and indent:
        yield Hit("directive-indented", start, "a directive that does not begin in the first column", fix, edits=edits)
    elif word == "SBATCH" and blank:
        yield Hit("directive-space", start, f"{magic.strip()!r} is a comment", "write #SBATCH, or ##SBATCH to switch the line off")
    elif word.upper() == "SBATCH" and word != "SBATCH":
        yield Hit("directive-case", start, f"{magic.strip()!r} is a comment", fix, edits=[] if blank else edits)
    elif word != "SBATCH" and not blank and _misspelt(word):
        yield Hit("directive-misspelt", start, f"{magic.strip()!r} is a comment", fix)


def _misspelt(word: str) -> bool:
    return word.isupper() and (sorted(word) == sorted("SBATCH") or difflib.SequenceMatcher(None, word, "SBATCH").ratio() > 0.82)


def flaws(facts: Facts) -> Iterator[Hit]:
    """What sbatch refuses, or cuts short, in a line that it reads."""
    for flaw in facts.block.flaws:
        maker = _FLAWS.get(flaw.kind)
        if maker is not None:
            yield from maker(facts, flaw)


def _quote(_: Facts, flaw: Flaw) -> Iterator[Hit]:
    yield Hit("directive-quote", flaw.start, f"the quote {flaw.hint} is not closed", f"close it with {flaw.hint}, or take it away")


def _continued(facts: Facts, flaw: Flaw) -> Iterator[Hit]:
    following = facts.text[flaw.start + 2 :].partition("\n")[0]
    if following.startswith("#"):
        yield Hit(
            "directive-continued", flaw.start, "a backslash at the end of a directive does nothing", "take it away",
            level="note", reason="sbatch joins no lines; here the next one is a directive of its own, so nothing is lost.",
        )  # fmt: skip
    else:
        yield Hit("directive-continued", flaw.start, "a directive is not continued by a backslash", f"write: #SBATCH {following.strip()}")


def _hash(_: Facts, flaw: Flaw) -> Iterator[Hit]:
    yield Hit("directive-hash", flaw.start, f"the value is cut at #: {flaw.text!r} is what sbatch reads", "put the value in double quotes")


def _not_an_option(_: Facts, flaw: Flaw) -> Iterator[Hit]:
    if flaw.text[:1] in _DASHES:
        yield Hit(
            "not-an-option", flaw.start, f"{flaw.text!r} begins with a typographic dash", f"write: --{flaw.text.lstrip(_DASHES + '-')}"
        )
    else:
        yield Hit("not-an-option", flaw.start, f"{flaw.text!r} is no option", "write options as --name=value, and quote values with blanks")


def _unknown(_: Facts, flaw: Flaw) -> Iterator[Hit]:
    if flaw.hint == "short":
        yield Hit("unknown-option", flaw.start, f"sbatch has no option -{flaw.text}", "sbatch --help")
        return
    name = flaw.text.lower().replace("_", "-")
    if name in options.PLUGINS:
        return
    close = [options.OTHER_NAMES[name]] if name in options.OTHER_NAMES else difflib.get_close_matches(name, options.SBATCH, n=1, cutoff=0.8)
    if close:
        yield Hit("unknown-option", flaw.start, f"sbatch has no option --{flaw.text}; did you mean --{close[0]}?", f"write: --{close[0]}")
    else:
        yield Hit(
            "site-option", flaw.start, f"--{flaw.text} is no option of sbatch itself", "sbatch --help (it lists a site's own options last)"
        )


def _no_value(_: Facts, flaw: Flaw) -> Iterator[Hit]:
    yield Hit(
        "option-without-value", flaw.start, f"{flaw.text} needs a value", f"write: {flaw.text}{'=' if flaw.text[1] == '-' else ' '}VALUE"
    )


def _with_value(_: Facts, flaw: Flaw) -> Iterator[Hit]:
    yield Hit("flag-with-value", flaw.start, f"{flaw.text.partition('=')[0]} takes no value", f"write: {flaw.hint}")


def _blank_equals(facts: Facts, flaw: Flaw) -> Iterator[Hit]:
    match = re.compile(r"(--[\w-]+)[ \t]+=[ \t]+").match(facts.text, flaw.start)
    edits = [Edit(match.start(), match.end(), f"{match[1]}=")] if match and flaw.hint else []
    yield Hit("blank-around-equals", flaw.start, f"{flaw.text} stands apart from its =", f"write: {flaw.text}={flaw.hint}", edits=edits)


def _short_equals(facts: Facts, flaw: Flaw) -> Iterator[Hit]:
    start = facts.text.find("=", flaw.start)
    yield Hit(
        "short-option-equals",
        flaw.start,
        f"{flaw.text}: the value begins with =",
        f"write: {flaw.hint}",
        edits=[Edit(start, start + 1, " ")],
    )


_FLAWS = {
    "directive-quote": _quote, "directive-continued": _continued, "directive-hash": _hash, "not-an-option": _not_an_option,
    "unknown-option": _unknown, "option-without-value": _no_value, "flag-with-value": _with_value,
    "blank-around-equals": _blank_equals, "short-option-equals": _short_equals,
}  # fmt: skip


def variables(facts: Facts) -> Iterator[Hit]:
    """Variables in directives: sbatch expands nothing."""
    for option in facts.block.options:
        if option.name in ("comment", "wrap") or not option.value or not _EXPANSION.search(option.value):
            continue
        level = "warning" if option.name == "job-name" else None
        fix = f"write the value itself, or give it to sbatch: sbatch {option.written} …"
        if option.name in ("output", "error", "input"):
            fix = "use Slurm's patterns: %u is the user, %j the job id, %x the job name; write other paths out"
        yield Hit("directive-variable", option.start, f"{option.written} holds {option.value!r}, unexpanded", fix, level=level)  # type: ignore[arg-type]


def repeated(facts: Facts) -> Iterator[Hit]:
    """The same option twice with different values; components of a heterogeneous job are apart."""
    starts = [*facts.block.component_starts, len(facts.block.options)]
    for begin, end in itertools.pairwise(starts):
        seen: dict[str, Option] = {}
        for option in facts.block.options[begin:end]:
            if option.name in _ADDED_UP:
                continue
            first = seen.get(option.name)
            if first is not None and first.value != option.value:
                yield Hit(
                    "directive-twice", option.start, f"--{option.name} is {option.value!r} here and {first.value!r} in line {first.line}",
                    f"keep one of the two lines, {first.line} or {option.line}",
                )  # fmt: skip
            seen[option.name] = option


RULES = (whole_file, unread, flaws, variables, repeated)
