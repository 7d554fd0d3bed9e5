"""What the search of the logs found: places where a rule's signature stands, errors that may be none of any rule, and who failed first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hpctrain.explain.model import Evidence

Done = Literal["complete", "zero"] | None
#: What ends a program whatever it has logged before.
DEADLY = re.compile(
    r"Segmentation fault(?! (?!at\b|in\b)\w)|core dumped|terminate called|Bus error|Illegal instruction|panic:|FATAL|Execution halted"
    r"|Fortran runtime error:|forrtl: severe|^ERROR: LoadError: |^Exception in thread \"main\"|^thread '[^']*' panicked at"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A place where a rule's signature was found.

    Attributes:
        rule: the rule's id.
        evidence: where.
        order: (order of the file, number of the line): what came first in a file.
        at: seconds since the epoch, where the line, or one nearby, says a time; logs of one job may not agree on the time zone.
        rank, node: as the file, the launcher's label or the line itself says.
        attempt: that wrote the line.
        groups: the named groups of the signature, and values of facts.
        count: how many lines of this rule were found in this file, of this rank.
        part, parts: the start of the job that wrote the line, and the last one, where a requeued job goes on in the same file; from 0.
        steps_after: lines of progress that stand behind it in the same file, some tens at most.
        done_after: what closes a program that did what it was to do stands behind it: "complete" of a training's own, or "zero", an exit
            status that a script wrote, which may be that of another command.
        lines_after: lines of any kind, all of them; bytes_after: likewise, 0 where nobody has counted.
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
    part: int = 0
    parts: int = 0
    steps_after: int = 0
    done_after: Done = None
    lines_after: int = 0
    bytes_after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """An error as a program shows it, whether a rule knows it or not: a traceback, or the lines around an error word.

    Attributes:
        lines: cleaned, without labels.
        error: of `lines`, the one that says what is wrong.
        traceback: of Python, the exception included.
    """

    file: str
    line: int
    lines: tuple[str, ...]
    error: str
    traceback: bool = False
    order: tuple[int, int] = (0, 0)
    at: float | None = None
    rank: int | None = None
    node: str | None = None
    attempt: str | None = None
    part: int = 0
    parts: int = 0
    steps_after: int = 0
    done_after: Done = None
    bytes_after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFailed:
    """The process that failed first, as torch's elastic agent of one node saw it."""

    rank: int | None
    node: str | None = None
    at: float | None = None
    exit_code: int | None = None
    attempt: str | None = None
    part: int = 0
    parts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """What was found in all files of a job.

    Attributes:
        status: the exit code that the job script itself wrote last, `hpctrain: job 123 ended with exit code 1`.
        size: bytes that were read.
    """

    hits: tuple[Hit, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    first_failed: tuple[FirstFailed, ...] = ()
    status: int | None = None
    size: int = 0
