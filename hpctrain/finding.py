"""The findings of `check`, `lint` and `doctor`, each with evidence, reason and fix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem found before the job runs.

    Attributes:
        id: lower case with dashes, unique; docs/findings.md has a section on it (`hpctrain explain
            ID` prints it).
        level: `error`: the job will be refused, fail, or train wrongly; `warning`: it may fail or
            waste resources; `note`: information only.
        what: the problem, with the value; one line, lower case, no full stop.
        evidence: how it was found: a place in a file, output of a program, a profile with its
            source.
        reason: why it matters, in one sentence.
        fix: a command, or a line to write.
        file, line, column: its place in a text, counted from 1.
    """

    id: str
    level: Level
    what: str
    evidence: str
    reason: str
    fix: str
    file: str | None = None
    line: int | None = None
    column: int | None = None

    @property
    def page(self) -> str:
        """Its section in the documentation."""
        return f"docs/findings.md#{self.id}"

    def to_json(self) -> dict[str, object]:
        """Return the finding as in --json; keys are only ever added, never removed."""
        return {
            "id": self.id,
            "level": self.level,
            "what": self.what,
            "evidence": self.evidence,
            "reason": self.reason,
            "fix": self.fix,
            "docs": self.page,
            "file": self.file,
            "line": self.line,
            "column": self.column,
        }
