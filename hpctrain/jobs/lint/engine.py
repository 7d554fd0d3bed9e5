"""From the text of a script to findings, and to the text with the safe repairs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hpctrain.jobs import secrets_in_text
from hpctrain.jobs.finding import Finding
from hpctrain.jobs.lint.facts import Facts
from hpctrain.jobs.lint.rules import environment, launchers, lines, logs, ranks, rendezvous, resources, shell, signals, steps
from hpctrain.jobs.lint.rules.common import Edit, Hit
from hpctrain.jobs.lint.table import RULES

_TOPICS = (lines, resources, logs, ranks, launchers, rendezvous, steps, shell, signals, environment)
#: Of one rule in one file: what is wrong in ten thousand lines is wrong in the program that wrote them.
MAX_HITS = 100
_EVIDENCE = 100
_IGNORE = re.compile(r"^([^\n#]*)#[ \t]*hpctrain:[ \t]*ignore=([\w,-]+)", re.MULTILINE)
_PASSES = 4


@dataclass(frozen=True, slots=True)
class Fixed:
    """The text after the safe repairs, and the ids of the rules that changed it."""

    text: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Examined:
    """What is wrong in a script, and how many blocks of it were not read because many before them are like them."""

    findings: list[Finding]
    skipped: int


def lint(text: str, file: str) -> list[Finding]:
    """Return what is wrong in the script `text`, in the order of its lines. Never raises, whatever the text.

    Args:
        text: of the script, with the line ends that it has.
        file: its name, as findings shall show it.
    """
    return examine(text, file).findings


def examine(text: str, file: str) -> Examined:
    """Return what `lint` returns, and what was left out of a large script. Never raises, whatever the text.

    Args:
        text: of the script, with the line ends that it has.
        file: its name, as findings shall show it.
    """
    facts = Facts(text, file)
    ignored = _ignored(text)
    findings: list[Finding] = []
    position = line = 0
    for hit in sorted(_hits(facts), key=lambda item: (item.start, item.id)):
        start = min(hit.start, len(text))
        line += text.count("\n", position, start)
        position = start
        if hit.id not in ignored.get(line + 1, ()):
            findings.append(_finding(hit, text, file, line + 1))
    return Examined(findings, facts.reading.skipped)


def fix(text: str, file: str, ids: frozenset[str] | None = None) -> Fixed:
    """Return `text` with every safe repair; doing it again changes nothing.

    Args:
        text: of the script.
        file: its name.
        ids: the rules that may change it; None for all.
    """
    done: list[str] = []
    for _ in range(_PASSES):
        facts = Facts(text, file)
        ignored = _ignored(text)
        hits = [hit for hit in _hits(facts) if hit.edits and (ids is None or hit.id in ids)]
        hits = [hit for hit in hits if not ignored or hit.id not in ignored.get(text.count("\n", 0, hit.start) + 1, ())]
        if not hits:
            break
        text = _apply(text, [edit for hit in hits for edit in hit.edits])
        done += [hit.id for hit in hits]
    return Fixed(text, tuple(dict.fromkeys(done)))


def _apply(text: str, edits: list[Edit]) -> str:
    """Return `text` with `edits`; of two that overlap the first in the text is taken, and the other waits for the next pass."""
    pieces: list[str] = []
    position = 0
    for edit in sorted(set(edits), key=lambda item: (item.start, item.end)):
        if edit.start >= position:
            pieces += [text[position : edit.start], edit.text]
            position = edit.end
    return "".join([*pieces, text[position:]])


def _hits(facts: Facts) -> Iterator[Hit]:
    counts: dict[str, int] = {}
    seen: set[tuple[str, int]] = set()
    for topic in _TOPICS:
        for rule in topic.RULES:
            for hit in rule(facts):
                if (hit.id, hit.start) in seen:  # one place, found in two ways
                    continue
                seen.add((hit.id, hit.start))
                counts[hit.id] = counts.get(hit.id, 0) + 1
                if counts[hit.id] > MAX_HITS:
                    break
                yield hit


def _finding(hit: Hit, text: str, file: str, line: int) -> Finding:
    rule = RULES[hit.id]
    begin = text.rfind("\n", 0, hit.start) + 1
    return Finding(
        id=hit.id, level=hit.level or rule.level, what=_clean(hit.what), evidence=_line(text, begin), reason=hit.reason or rule.reason,
        fix=_clean(hit.fix.replace("FILE", file) if "FILE" in hit.fix and hit.id in ("dos-line-ends", "unreadable-shell") else hit.fix),
        file=file, line=line, column=hit.start - begin + 1,
    )  # fmt: skip


def _line(text: str, begin: int) -> str:
    """Return the line, cut, without control characters, and without the secrets in it."""
    end = text.find("\n", begin)
    line = text[begin : min(len(text) if end < 0 else end, begin + 4 * _EVIDENCE)]
    line = _clean(line).strip()
    return line if len(line) <= _EVIDENCE else line[: _EVIDENCE - 1] + "…"


def _clean(text: str) -> str:
    text = secrets_in_text.redacted(text)
    return "".join(character if character.isprintable() else " " if character in "\t\n\r" else "?" for character in text)


def _ignored(text: str) -> dict[int, set[str]]:
    """Return line number → ids that a comment on it, or alone on the line above it, asks to leave out."""
    found: dict[int, set[str]] = {}
    if "hpctrain:" not in text:
        return found
    position = line = 0
    for match in _IGNORE.finditer(text):
        line += text.count("\n", position, match.start())
        position = match.start()
        target = line + 2 if not match[1].strip() else line + 1
        found.setdefault(target, set()).update(match[2].split(","))
        if target == line + 2:
            found.setdefault(line + 1, set()).update(match[2].split(","))
    return found
