"""`hpctrain ps JOB` of a job that waits: why, when it is expected to start, and what would start sooner, asked of Slurm."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from dataclasses import asdict, dataclass
from typing import Any

from hpctrain.cli.ps_rows import Row, when
from hpctrain.cli.ps_table import short
from hpctrain.errors import SchedulerError
from hpctrain.scheduler import ledger, pending_reasons, slurm_sooner
from hpctrain.scheduler.start_sooner import Change

#: What is sooner by less is none: Slurm plans in steps of some minutes.
_WORTH_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What is known of a job that waits.

    Attributes:
        expected: seconds since the epoch when it is expected to start.
        planned: whether that is Slurm's plan for the job itself; else what it says of such a job that is submitted now.
        asked: questions that were asked.
        refused: changes that Slurm would not take.
        sooner: the changes that would start sooner, the soonest first.
        problem: why nothing could be asked.
    """

    row: Row
    reason: pending_reasons.Reason
    now: float
    expected: float | None = None
    planned: bool = True
    asked: int = 0
    refused: tuple[Change, ...] = ()
    sooner: tuple[Change, ...] = ()
    problem: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        at = self.expected
        gained = [None if at is None or each.start is None else int(at - each.start) for each in self.sooner]
        return {
            "reason": self.row.record.reason, "words": self.row.why, "kind": self.reason.kind, "fix": self.fix, "expected": at,
            "planned": self.planned and at is not None, "asked": self.asked, "problem": self.problem,
            "sooner": [{**asdict(each), "sooner_s": gain} for each, gain in zip(self.sooner, gained, strict=True)],
            "refused": [asdict(each) for each in self.refused],
        }  # fmt: skip

    @property
    def fix(self) -> str | None:
        """What to type; None where waiting is all."""
        return None if self.reason.fix is None else self.reason.fix.replace("{job}", self.row.job_id.partition("_[")[0])


def look(row: Row) -> Waiting:
    """Return what is known of a job that waits; asks Slurm some questions where the answers can help."""
    reason, now = pending_reasons.explain(row.record.reason), time.time()
    known = Waiting(row=row, reason=reason, now=now, expected=row.place.expected)
    if reason.kind in ("later", "person") or row.record.reason in ("DependencyNeverSatisfied", "DeadLine"):
        return known
    progress = row.progress
    needs = int(progress.eta_s) if progress is not None and progress.eta_s is not None else None
    ours = ledger.by_job_id(row.job_id.partition("_")[0]) is not None
    try:
        said = slurm_sooner.look(row.record, expected=row.place.expected, needs_s=needs, ours=ours)
    except SchedulerError as error:
        return Waiting(row=row, reason=reason, now=now, expected=row.place.expected, problem=error.what)
    # What cannot start as it stands is planned by nobody, and --test-only does not look at all limits.
    expected = None if reason.kind == "never" else row.place.expected if row.place.expected is not None else said.as_it_is
    sooner = [each for each in said.changes if each.start is not None and (expected is None or each.start < expected - _WORTH_S)]
    return Waiting(
        row=row, reason=reason, now=now, expected=expected, planned=row.place.expected is not None, asked=said.asked,
        refused=tuple(each for each in said.changes if each.refused is not None),
        sooner=tuple(sorted(sooner, key=lambda each: (each.start or 0.0, len(each.options)))), problem=said.problem,
    )  # fmt: skip


def lines(waiting: Waiting) -> list[str]:
    """Return what is said of a job that waits, below its row."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 80
    found = ["", _expectation(waiting)]
    if waiting.fix is not None:
        found.append(f"to change that: {waiting.fix}")
    if waiting.problem is not None:
        found.append(f"what would start sooner is unknown: {waiting.problem}")
    if waiting.asked:
        count = f"{waiting.asked} question{'' if waiting.asked == 1 else 's'} with sbatch --test-only; nothing was submitted"
        found += ["", *_table(waiting, count)]
        if waiting.refused:
            words = "; ".join(f"{each.words}: {each.refused}" for each in waiting.refused)
            found.append(f"Slurm would not take: {words}")
    return [piece for line in found for piece in _wrapped(line, width)]


def _wrapped(line: str, width: int) -> list[str]:
    """Return a line as several where it is too long; what is to be typed is not broken within a word."""
    if len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _expectation(waiting: Waiting) -> str:
    if waiting.reason.kind == "never":
        return "expected start: none, as it stands"
    if waiting.expected is None:
        return "expected start: Slurm has not planned it yet"
    left = waiting.expected - waiting.now
    at = f"expected start: {when(waiting.expected, waiting.now)}" + (f" (in {short(left)})" if left > 60 else "")
    return at if waiting.planned else f"{at}, as a job like it that is submitted now; Slurm has not planned this one yet"


def _table(waiting: Waiting, count: str) -> list[str]:
    if not waiting.sooner:
        return [f"nothing that was tried would start sooner ({count})"]
    found = [f"would start sooner ({count}):"]
    for each in waiting.sooner:
        start = each.start or 0.0
        gain = "" if waiting.expected is None else f", {short(waiting.expected - start)} sooner"
        found += [f"  {each.words}: {when(start, waiting.now)}{gain}", f"    {each.command}"]
    found.append("asked while this job stays in the queue, so a change may do a little better than that")
    return found
