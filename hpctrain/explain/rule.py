"""A failure rule: one cause, how it shows, and what to do. Data, read by `load`; rules/README.md has the form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hpctrain.explain.model import Certainty, Stage

Kind = Literal["cause", "symptom", "consequence"]
AREAS = ("submission", "queue", "environment", "launch", "communication", "memory", "data", "numbers", "hardware", "storage", "time", "end")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What the scheduler's record has to say. Empty fields say nothing."""

    state: tuple[str, ...] = ()
    exit_code: tuple[str, ...] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """See rules/README.md."""

    id: str
    stage: Stage
    area: str
    kind: Kind
    certainty: Certainty
    cause: str
    remedy: str
    source: str
    lines: tuple[str, ...] = ()
    literals: tuple[str, ...] = ()
    but_not: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    record: Record | None = None
    all: bool = False
    fact: str | None = None
    masks: tuple[str, ...] = ()
    fix: str | None = None
    versions: str | None = None


def load(texts: Mapping[str, str]) -> tuple[Rule, ...]:
    """Return the rules in `texts` (file name → YAML), in the order of the files' names.

    Raises:
        ValueError: a rule is not as rules/README.md says: all problems, each with its file and id.
    """
    raise NotImplementedError
