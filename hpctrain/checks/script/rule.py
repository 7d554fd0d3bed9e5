"""The type of lint rules, and the table of all rules.

To add one: a function in a module of `rules/`, decorated with `@rule`; a wrong and a right example
in docs/findings.md; a wrong case in tests/corpus/lint/wrong.cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hpctrain.checks.script.facts import LintFacts
from hpctrain.finding import Level

#: Replace the characters from a start to an end of the file with a text.
Edit = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class RuleHit:
    """A hit of a rule at the offset `start`; level and reason default to the rule's."""

    start: int
    what: str
    fix: str
    level: Level | None = None
    reason: str | None = None
    edits: Sequence[Edit] = ()


Hits = Iterable[RuleHit]
Check = Callable[[LintFacts], Hits]


@dataclass(frozen=True, slots=True)
class LintRule:
    """One rule.

    Attributes:
        level: default level of its findings.
        reason: why it matters, in one sentence.
        source: the reference.
        since, until: the Slurm versions that it applies to, `until` excluded; None: no bound.
        once: only its first hit counts.
    """

    id: str
    level: Level
    reason: str
    source: str
    check: Check
    since: str | None = None
    until: str | None = None
    once: bool = False


#: All rules by id.
RULES: dict[str, LintRule] = {}


def rule(
    id_: str,
    level: Level,
    reason: str,
    source: str,
    *,
    since: str | None = None,
    until: str | None = None,
    once: bool = False,
) -> Callable[[Check], Check]:
    """Register a function as a rule; the arguments are those of `LintRule`."""

    def register(check: Check) -> Check:
        RULES[id_] = LintRule(id_, level, reason, source, check, since, until, once)
        return check

    return register
