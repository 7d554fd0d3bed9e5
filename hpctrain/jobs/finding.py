"""What `check`, `lint` and `doctor` have to say: findings, each with its evidence, its reason and something to type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem found before the job runs.

    Attributes:
        id: lower case with dashes, unique; docs/findings/ID.md says more (`hpctrain docs ID` prints it).
        level: `error`: the job will be refused, fail, or train wrongly; `warning`: it may, or wastes what it got; `note`: good to know.
        what: the problem, with the value; one line, lower case, no full stop.
        evidence: where that is known from: a place in a file, what a program said, a profile with its source.
        reason: why it matters, in one sentence.
        fix: what to type, or to write in which line.
        file, line, column: where it stands, counted from 1, for findings in a text.
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
        """The page of the documentation."""
        return f"docs/findings/{self.id}.md"

    def to_json(self) -> dict[str, object]:
        """Return the finding as it stands in --json; keys are only ever added."""
        return {
            "id": self.id, "level": self.level, "what": self.what, "evidence": self.evidence, "reason": self.reason, "fix": self.fix,
            "docs": self.page, "file": self.file, "line": self.line, "column": self.column,
        }  # fmt: skip
