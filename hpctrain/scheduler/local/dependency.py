"""`--dependency` of local jobs: which jobs are waited for, and what their states say.

Source: sbatch(1), --dependency, and Slurm 22.05: what is met is forgotten, what can never be met stays and is called
DependencyNeverSatisfied, and the job waits until somebody cancels it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hpctrain.scheduler.parse import states
from hpctrain.scheduler.parse.records import JobRecord

Verdict = Literal["met", "unmet", "never"]
#: Slurm's words for a job that refers to jobs that are not there, or in no known way.
PROBLEM = "Job dependency problem"
_KINDS = {"after", "afterany", "afterok", "afternotok"}
_JOB = re.compile(r"([0-9]{1,18}(?:_[0-9]{1,9})?)(?:\+([0-9]{1,6}))?\Z")


@dataclass(frozen=True, slots=True)
class Condition:
    """One job that is waited for; `singleton` waits for all of the same name. `minutes` after its start (`after:ID+minutes`)."""

    kind: str
    job_id: str = ""
    minutes: int = 0

    def __str__(self) -> str:
        """Return the condition as Slurm writes it."""
        return self.kind + (f":{self.job_id}" if self.job_id else "") + (f"+{self.minutes}" if self.minutes else "")


@dataclass(frozen=True, slots=True)
class Dependency:
    """Conditions that must all be met, or one of which must (`any_of`)."""

    conditions: tuple[Condition, ...]
    any_of: bool = False


def parse(text: str) -> Dependency:
    """Return what `text` waits for.

    Raises:
        ValueError: in Slurm's words, with what is wrong.
    """
    if "," in text and "?" in text:
        raise ValueError(f"{PROBLEM}: {text!r} mixes `,` (all of them) and `?` (one of them)")
    found: list[Condition] = []
    for word in re.split(r"[,?]", text):
        kind, colon, jobs = word.partition(":")
        if kind == "singleton" and not colon:
            found.append(Condition("singleton"))
            continue
        if kind not in _KINDS:
            raise ValueError(f"{PROBLEM}: {kind!r} is none of {', '.join(sorted(_KINDS))} and singleton")
        for job in jobs.split(":"):
            match = _JOB.match(job)
            if match is None or (match[2] and kind != "after"):
                raise ValueError(f"{PROBLEM}: {job!r} is no job id")
            found.append(Condition(kind, match[1], int(match[2] or 0)))
    return Dependency(tuple(found), "?" in text)


def judge(
    dependency: Dependency,
    look: Callable[[str], JobRecord | None],
    same_name: Callable[[], Sequence[JobRecord]],
    *,
    has_started: Callable[[str], bool],
    now: float,
) -> tuple[Verdict, str, Dependency]:
    """Return whether to go on waiting, the rest as `scontrol show job` shows it, and that rest.

    Args:
        dependency: what is waited for.
        look: returns the record of a job, or None for one that is no longer known.
        same_name: returns the jobs of the same name before this one that have not ended.
        has_started: whether a job, with every task where it is an array, has started.
        now: seconds since the epoch.
    """
    open_ones: list[tuple[Condition, Verdict]] = []
    for condition in dependency.conditions:
        verdict = _one(condition, look, same_name, has_started, now)
        if verdict == "met" and dependency.any_of:
            return "met", "", replace(dependency, conditions=())
        if verdict != "met":
            open_ones.append((condition, verdict))
    words = {"unmet": "unfulfilled", "never": "failed"}
    shown = ("?" if dependency.any_of else ",").join(f"{condition}({words[verdict]})" for condition, verdict in open_ones)
    rest = replace(dependency, conditions=tuple(condition for condition, _ in open_ones))
    if not open_ones:
        return "met", "", rest
    verdicts = [verdict for _, verdict in open_ones]
    hopeless = all(verdict == "never" for verdict in verdicts) if dependency.any_of else "never" in verdicts
    return "never" if hopeless else "unmet", shown, rest


def _one(
    condition: Condition,
    look: Callable[[str], JobRecord | None],
    same_name: Callable[[], Sequence[JobRecord]],
    has_started: Callable[[str], bool],
    now: float,
) -> Verdict:
    if condition.kind == "singleton":
        return "unmet" if same_name() else "met"
    record = look(condition.job_id)
    if record is None:  # it was there at submission, and is forgotten: how it ended nobody knows
        return "never" if condition.kind in ("afterok", "afternotok") else "met"
    if condition.kind == "after":
        if not record.is_final and not has_started(condition.job_id):
            return "unmet"
        since = now - time.mktime(time.strptime(record.start, "%Y-%m-%dT%H:%M:%S")) if record.start else None
        return "met" if since is None or since >= 60 * condition.minutes else "unmet"
    if not record.is_final:
        return "unmet"
    good = record.state in states.COMPLETED
    return "met" if condition.kind == "afterany" or good == (condition.kind == "afterok") else "never"
