"""Runs the rules on a script: text to findings, and to the text with the safe repairs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from hpctrain.checks.script import rules as _rules  # noqa: F401 - importing them registers them
from hpctrain.checks.script.facts import LintFacts
from hpctrain.checks.script.rule import RULES, Edit, LintRule, RuleHit
from hpctrain.checks.script.rules.directives import placeholder_lines
from hpctrain.finding import LEVELS, Finding
from hpctrain.util import secrets

#: Maximum hits per rule and file: thousands are an error of the program that wrote the script.
MAX_HITS = 100
_EVIDENCE = 100
_IGNORE = re.compile(r"^([^\n#]*)#[ \t]*hpctrain:[ \t]*ignore=([\w,-]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Repair:
    """The text after the safe repairs, and the ids of the rules that changed it."""

    text: str
    ids: tuple[str, ...]


def lint(text: str, file: str, slurm: str | None = None) -> list[Finding]:
    """Return the problems of the script `text`, by severity, then by line.

    Never raises, for any text.

    Args:
        text: of the script, with unchanged line endings.
        file: its name in findings.
        slurm: the version of Slurm that will run it; None: unknown.
    """
    hits = sorted(_hits(text, file, slurm), key=lambda item: (item[1].start, item[0].id))
    return sorted(
        [_finding(rule, hit, text, file) for rule, hit in hits],
        key=lambda one: LEVELS.index(one.level),
    )


def fix(text: str, file: str, ids: frozenset[str] | None = None) -> Repair:
    """Return `text` with all safe repairs; idempotent.

    Args:
        text: of the script.
        file: its name.
        ids: the rules that may change it; None for all.
    """
    done: set[str] = set()
    for _ in range(4):
        hits = [(rule.id, hit) for rule, hit in _hits(text, file) if ids is None or rule.id in ids]
        done |= {id_ for id_, hit in hits if hit.edits}
        edits = {edit for _, hit in hits for edit in hit.edits}
        if not edits:
            break
        text = _edited(text, edits)
    return Repair(text, tuple(sorted(done)))


def _edited(text: str, edits: set[Edit]) -> str:
    """Return `text` with `edits`; of two overlapping ones, the second waits for the next pass."""
    pieces: list[str] = []
    position = 0
    for start, end, new in sorted(edits):
        if start >= position:
            pieces += [text[position:start], new]
            position = end
    return "".join([*pieces, text[position:]])


def _hits(text: str, file: str, slurm: str | None = None) -> Iterator[tuple[LintRule, RuleHit]]:
    facts = LintFacts(text, file, slurm)
    ignored, templates = _ignored(facts), placeholder_lines(facts)
    # Text after a syntax error may be misread.
    errors = (start for start, _, effect in facts.batch.problems if effect != "stops")
    unread = max(min(errors, default=len(text)), facts.block.ends)
    for rule in RULES.values():
        concerned = not facts.slurm or rule.since <= facts.slurm < rule.until
        hits = list(islice(rule.check(facts), 1 if rule.once else None)) if concerned else []
        unique = {hit.start: hit for hit in reversed(hits)}  # the same place may be found twice
        for hit in [*reversed(unique.values())][:MAX_HITS]:
            line = facts.line(hit.start)
            checked = line not in templates or rule.id == "template"
            if checked and hit.start <= unread and (line, rule.id) not in ignored:
                yield rule, hit
    for command in facts.named("sbatch"):
        for heredoc in command.heredocs if len(command.words) == 1 else ():
            # With expansions, the script is not the text that is here.
            if "#SBATCH" in heredoc.text and not heredoc.parts:
                for rule, hit in _hits(heredoc.text, file, slurm):
                    yield rule, replace(hit, start=hit.start + heredoc.start, edits=())


def _finding(rule: LintRule, hit: RuleHit, text: str, file: str) -> Finding:
    begin = text.rfind("\n", 0, hit.start) + 1
    evidence = _clean(text[begin : begin + 4 * _EVIDENCE].partition("\n")[0]).strip()
    return Finding(
        id=rule.id,
        level=hit.level or rule.level,
        what=_clean(hit.what),
        evidence=evidence if len(evidence) <= _EVIDENCE else evidence[: _EVIDENCE - 1] + "…",
        reason=hit.reason or rule.reason,
        fix=_clean(hit.fix),
        file=file,
        line=text.count("\n", 0, hit.start) + 1,
        column=hit.start - begin + 1,
    )


def _clean(text: str) -> str:
    return "".join(
        character if character.isprintable() else " " if character in "\t\n\r" else "?"
        for character in secrets.redacted(text)
    )


def _ignored(facts: LintFacts) -> set[tuple[int, str]]:
    """Return lines with the ids suppressed by a comment on the line, or alone on the line above."""
    found: set[tuple[int, str]] = set()
    for match in _IGNORE.finditer(facts.text) if "hpctrain:" in facts.text else ():
        line = facts.line(match.start())
        lines = (line,) if match[1].strip() else (line, line + 1)
        found |= {(each, id_) for each in lines for id_ in match[2].split(",")}
    return found
