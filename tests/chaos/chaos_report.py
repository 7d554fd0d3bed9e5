"""What a campaign found, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faults import Fault


@dataclass(frozen=True, slots=True)
class Verdict:
    """One fault, and what became of the run.

    Attributes:
        fault: its name.
        what: what was done.
        attempts: how often the job started.
        humans: how often somebody had to submit it again.
        lost: steps that were done twice.
        allowed: how many may be.
        seconds: from the submission to the end.
        weights_equal: whether the final weights are those of the uninterrupted run, bit for bit.
        left: processes, cgroups, locks and temporary files that stayed.
        wrong: what is not as it must be; empty: passed.
        notes: what else happened.
    """

    fault: str
    what: str
    attempts: int
    humans: int
    lost: int
    allowed: int
    seconds: float
    weights_equal: bool
    left: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def judged(fault: Fault, humans: int, attempts: int, lost: int, *, equal: bool) -> list[str]:
    """Return what is not as the fault's row says."""
    wrong = []
    if not equal:
        wrong.append("the final weights are not those of the uninterrupted run")
    if lost > fault.lost:
        wrong.append(f"{lost} steps lost, {fault.lost} allowed")
    if humans != fault.human:
        wrong.append(f"submitted again by hand {humans} times, {fault.human} expected")
    if attempts < fault.restarts:
        wrong.append(f"started {attempts} times: the fault did not interrupt it")
    return wrong


def write(directory: Path, verdicts: list[Verdict], skipped: list[str], seconds: float) -> None:
    """Write report.json."""
    value = {
        "schema": 1,
        "seconds": round(seconds, 1),
        "skipped": skipped,
        "faults": [asdict(verdict) for verdict in verdicts],
    }
    (directory / "report.json").write_text(json.dumps(value, indent=1) + "\n")
