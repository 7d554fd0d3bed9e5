"""What one probe comes to: a level, a sentence, and the findings behind a bad one. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpctrain.jobs.finding import Finding

Word = Literal["ok", "warning", "error", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One line of the report.

    Attributes:
        probe: its name, one or two words.
        sentence: what is so; one line, no full stop.
        findings: what is wrong; empty where all is well, or nothing is known.
        unknown: the probe could not find out.
    """

    probe: str
    sentence: str
    findings: tuple[Finding, ...] = ()
    unknown: bool = False

    @property
    def word(self) -> Word:
        """`error` or `warning` with the worst finding, else `unknown` or `ok`; a note is no reason to worry."""
        levels = {finding.level for finding in self.findings}
        if "error" in levels:
            return "error"
        if "warning" in levels:
            return "warning"
        return "unknown" if self.unknown else "ok"

    def to_json(self) -> dict[str, object]:
        """Return the verdict as it stands in --json."""
        return {
            "probe": self.probe,
            "result": self.word,
            "sentence": self.sentence,
            "findings": [finding.to_json() for finding in self.findings],
        }
