"""Findings as lines of text, for a terminal or a log."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from hpctrain.jobs import typed
from hpctrain.jobs.finding import LEVELS, Finding


def block(finding: Finding, width: int = 80) -> str:
    """Return a finding as a block: what, and below it the evidence, the reason and the fix."""
    lines = _wrapped(f"{finding.level} {finding.id}: ", finding.what, width, hang=2)
    for label, text in (("seen:", finding.evidence), ("why:", finding.reason)):
        lines += _wrapped(f"  {label:<5} ", text, width, hang=8)
    return "\n".join([*lines, *typed.filled("  fix:  ", finding.fix, width, hang=8)])


def _wrapped(label: str, text: str, width: int, *, hang: int) -> list[str]:
    # What is typed is never broken inside a word: it can be copied.
    return textwrap.wrap(
        label + text, width, subsequent_indent=" " * hang, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )


def wrapped(text: str, width: int) -> str:
    """Return a long line broken at blanks, further lines indented by two."""
    return "\n".join(_wrapped("", text, width, hang=2))


def line(finding: Finding) -> str:
    """Return a finding as one line: `warning gpus-unused: …; fix: …`."""
    return f"{finding.level} {finding.id}: {finding.what}; fix: {finding.fix}"


def wrapped_line(finding: Finding, width: int) -> str:
    """Return `line` for a terminal: broken at blanks, and what is typed so that it can be copied."""
    *first, last = _wrapped(f"{finding.level} {finding.id}: ", f"{finding.what}; fix:", width, hang=2)
    return "\n".join([*first, *typed.filled(f"{last} ", finding.fix, width, hang=2)])


def counts(findings: Sequence[Finding]) -> str:
    """Return `2 errors, 1 warning`; without findings, `nothing found`."""
    parts = []
    for level in LEVELS:
        number = sum(finding.level == level for finding in findings)
        if number:
            parts.append(f"{number} {level}{'' if number == 1 else 's'}")
    return ", ".join(parts) or "nothing found"
