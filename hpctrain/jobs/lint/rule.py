"""What the table of rules says about one rule."""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.jobs.finding import Level


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table.

    Attributes:
        level: of its findings, where nothing in the text makes them milder or worse.
        title: what it is about, in a few words.
        reason: why it matters, in one sentence.
        source: where that is known from.
        since, until: the versions of Slurm that it concerns (`until` is the first that it does not concern); None for all of them.
        fixes: whether `--fix` can rewrite it, where the text allows it.
    """

    id: str
    level: Level
    title: str
    reason: str
    source: str
    since: str | None = None
    until: str | None = None
    fixes: bool = False

    @property
    def versions(self) -> str:
        """The versions that it concerns, in words."""
        if self.since and self.until:
            return f"Slurm {self.since} up to, without, {self.until}"
        if self.since:
            return f"Slurm {self.since} and later"
        return f"Slurm before {self.until}" if self.until else "every version of Slurm"
