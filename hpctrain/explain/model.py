"""What an explanation is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Certainty = Literal["certain", "likely"]
Stage = Literal["submit", "pending", "start", "env", "launch", "rdzv", "comm", "run", "end"]
STAGES: tuple[Stage, ...] = ("submit", "pending", "start", "env", "launch", "rdzv", "comm", "run", "end")
Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a diagnosis rests on.

    Attributes:
        file: as LogFile.name; `sacct`, `squeue`, `samples` or `config` for what is no line of a file.
        line: counted from 1; None for what is no line of a file.
        text: the line, cleaned, 300 characters at most.
    """

    file: str
    line: int | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One value of the job config that a fix changes; `hpctrain resubmit --apply-fix` does it.

    Attributes:
        key: as in config.yaml, with dots: `resources.mem`, `training.per_device_train_batch_size`, `environment.env.NAME`.
        old: what the job had, None where nobody had set it; `new`: None removes it.
    """

    key: str
    old: Scalar
    new: Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """What to do.

    Attributes:
        text: sentences and commands to type, in the user's own numbers where they are known.
        changes: what can be done to the config by itself; empty where a person has to do something.
    """

    text: str
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One cause.

    Attributes:
        id: of the rule; docs/diagnoses/ID.md says more (`hpctrain docs ID` prints it).
        cause: what happened, in the job's own names and numbers; one or two sentences.
        evidence: the first is the one that says most.
        rank, node: where it began, None where that is not known, or where it is all of them.
        since: when it began, `2026-11-22T04:10:00` in the clock of the log, or None.
        attempt: the attempt it ended, or None.
    """

    id: str
    stage: Stage
    certainty: Certainty
    cause: str
    fix: Fix
    evidence: tuple[Evidence, ...]
    rank: int | None = None
    node: str | None = None
    since: str | None = None
    attempt: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Consequence:
    """What followed from a cause, and is no reason to do anything: `count` lines of rule `id`, the first of them as evidence."""

    id: str
    what: str
    count: int
    evidence: Evidence
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBlock:
    """The earliest error of the earliest failing rank, cleaned: shown where no rule matches."""

    file: str
    line: int
    rank: int | None
    node: str | None
    since: str | None
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The answer: empty `diagnoses` and no `unexplained` where all is well.

    Attributes:
        diagnoses: the one that ended the job first.
        unexplained: what is there where the job failed and no rule says why.
        history: one line on each earlier attempt: how it ended, and at which step.
        failed: whether the job did not end well, as far as is known; it may be running.
        ended: how it ended, in the scheduler's words, or None.
    """

    diagnoses: tuple[Diagnosis, ...] = ()
    consequences: tuple[Consequence, ...] = ()
    unexplained: ErrorBlock | None = None
    history: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    failed: bool = False
    ended: str | None = None
