"""A place where a rule's signature was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hpctrain.explain.model import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """See the module.

    Attributes:
        rule: the rule's id.
        evidence: where.
        order: (order of the file, number of the line): what came first in a file.
        at: seconds since the epoch, where the line, or one nearby, says a time; logs of one job may not agree on the time zone.
        rank, node: as the file, the launcher's label or the line itself says.
        attempt: that wrote the line.
        groups: the named groups of the signature, and values of facts.
        count: how many lines of this rule were found in this file, all ranks together.
    """

    rule: str
    evidence: Evidence
    order: tuple[int, int] = (0, 0)
    at: float | None = None
    rank: int | None = None
    node: str | None = None
    attempt: str | None = None
    groups: Mapping[str, str] = field(default_factory=dict)
    count: int = 1
