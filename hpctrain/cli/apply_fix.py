"""`hpctrain resubmit --apply-fix`: what the explanation says is done to the config of the runs that failed, and said, key by key."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from hpctrain.cli import apply_fix_script, explain_case, runs_jobs
from hpctrain.cli.apply_fix_script import Changed
from hpctrain.cli.remaining import Again, Left
from hpctrain.errors import HpctrainError, UsageError
from hpctrain.explain.fixes_values import shown
from hpctrain.explain.model import Diagnosis
from hpctrain.runs import launch, layout, store
from hpctrain.runs.launch import Launch
from hpctrain.scheduler.parse import array as arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Mended:
    """A script whose config is changed, the runs that it is for, and why."""

    changed: Changed
    runs: tuple[str, ...]
    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """What is to be submitted: the scripts as they are left, and those that were made anew, each at its place in `parts`."""

    parts: tuple[Again | Mended, ...]

    @property
    def mended(self) -> tuple[Mended, ...]:
        """The scripts that were made anew."""
        return tuple(part for part in self.parts if isinstance(part, Mended))


def plan(runs: Path, left: Left) -> Fixed:
    """Return the scripts with the fixes of the first diagnosis of each run that failed; nothing is written.

    Raises:
        HpctrainError: a run has no fix that can be done by itself; what a person has to do is said.
        UsageError: the config cannot be changed so.
    """
    whole = launch.load(runs, left.tag)
    if whole is None:
        raise UsageError(f"{left.tag} was not submitted by hpctrain, so its config is not known", fix=f"hpctrain resubmit {left.tag}")
    parts: list[Again | Mended] = []
    unfixed: list[tuple[str, Diagnosis | None]] = []
    fixable: list[str] = []
    for again in left.parts:
        groups: dict[tuple[Any, ...], list[tuple[str, Diagnosis]]] = {}
        mine = _runs_of(left.tag, again)
        if again.dependencies and not _has_started(runs, mine):
            parts.append(again)  # a stage that waited for the one that failed has nothing to mend
            continue
        for run in mine:
            first = _first(runs, run)
            if first is None or not first.fix.changes:
                unfixed.append((run, first))
            else:
                groups.setdefault(first.fix.changes, []).append((run, first))
                fixable.append(run)
        parts += [_mended(whole, again, found, alone=len(groups) == 1) for found in groups.values()]
    if unfixed:
        raise _by_hand(left.tag, unfixed, fixable)
    return Fixed(parts=tuple(parts))


def _first(runs: Path, run: str) -> Diagnosis | None:
    diagnoses = explain_case.explanation(run, runs_dir=runs).explanation.diagnoses
    return diagnoses[0] if diagnoses else None


def _runs_of(tag: str, again: Again) -> list[str]:
    if again.array is None:
        return [layout.run_id(tag, stage=again.stage)]
    return [layout.run_id(tag, index=index + again.offset) for index in arrays.parse(again.array).indices]


def _has_started(runs: Path, ids: Sequence[str]) -> bool:
    found = (store.read_run(runs, run) for run in ids)
    return any(run is not None and run.attempts for run in found)


def _mended(whole: Launch, again: Again, found: Sequence[tuple[str, Diagnosis]], *, alone: bool) -> Mended:
    ids, first = [run for run, _ in found], found[0][1]
    if again.array is not None and not alone:
        numbers = [int(run.rpartition("_")[2]) - again.offset for run in ids]
        _, percent, throttle = again.array.partition("%")
        again = replace(again, array=arrays.compress(numbers) + percent + throttle)
    reason = f"hpctrain resubmit --apply-fix ({first.id})"
    changed = apply_fix_script.make(whole, again, first.fix.changes, reason=reason)
    sent = any(each.script == again.name and each.job_id is not None for each in whole.submissions)
    if not changed.changes and sent:
        raise HpctrainError(
            f"{ids[0]} failed with this fix in place: {first.id}",
            details=(first.cause, *(f"  {line}" for line in first.fix.text.splitlines())),
            fix=f"change config.yaml further, then: hpctrain submit --run-id {whole.tag}; or as it is: hpctrain resubmit {whole.tag}",
        )
    return Mended(changed=changed, runs=tuple(ids), diagnosis=first)


def _by_hand(tag: str, unfixed: Sequence[tuple[str, Diagnosis | None]], fixable: Sequence[str]) -> HpctrainError:
    """Return what is said of runs that have no fix which can be done by itself."""
    run, first = unfixed[0]
    details = [f"{run}: {first.cause if first is not None else 'no rule knows why it failed'}"]
    if first is not None:
        details += [f"  {line}" for line in first.fix.text.splitlines()]
    details += [f"{other}: {one.cause if one is not None else 'no rule knows why it failed'}" for other, one in unfixed[1:5]]
    details += [f"and {len(unfixed) - 5} more"] if len(unfixed) > 5 else []
    indices = [each.rpartition("_")[2] for each in fixable if each.startswith(f"{tag}_") and each.rpartition("_")[2].isdigit()]
    if indices:
        fix = f"hpctrain resubmit {tag} --array {arrays.compress(int(number) for number in indices)} --apply-fix, for those that have one"
    else:
        fix = f"hpctrain explain {run}; do what it says, then: hpctrain resubmit {tag}"
    return HpctrainError("there is no fix that can be done by itself", details=tuple(details), fix=fix)


def refuse_busy(runs: Path, name: str, left: Left) -> None:
    """Refuse a run that waits or runs.

    Raises:
        UsageError: it does.
    """
    known = [run for id_ in store.names(runs)[0] if (run := store.read_run(runs, id_)) is not None and name in (run.id, run.tag)]
    states = runs_jobs.survey(runs, known, every_job=True).states
    busy = [(run.id, states[run.id]) for run in known if states[run.id].live]
    if busy and not left.parts:
        first, state = busy[0]
        raise UsageError(
            f"{first} is {state.word}, in job {state.live[0]}: a fix is for runs that have ended",
            fix=f"hpctrain cancel {state.live[0]}, then the same command; or wait: hpctrain watch {first}",
        )


def agree(fixed: Fixed, *, yes: bool) -> bool:
    """Ask where a diagnosis is only likely; return whether to go on.

    Raises:
        UsageError: there is nobody to ask.
    """
    unsure = [each for each in fixed.mended if each.diagnosis.certainty == "likely"]
    if not unsure or yes:
        return True
    first = unsure[0]
    if sys.stdin.isatty():
        return click.confirm(f"{first.diagnosis.id} is likely, and not certain. Change it and submit?", err=True)
    raise UsageError(
        f"{first.diagnosis.id} is likely, and not certain, so this is not done unasked",
        details=(f"{first.runs[0]}: {first.diagnosis.cause}", *lines(fixed)), fix="the same command with --yes, if you think so too",
    )  # fmt: skip


def lines(fixed: Fixed) -> list[str]:
    """Return what is changed, and why, in lines."""
    found = []
    for each in fixed.mended:
        who = each.runs[0] if len(each.runs) == 1 else f"{each.runs[0]} and {len(each.runs) - 1} more"
        found.append(f"{who}: {each.diagnosis.id}, {each.diagnosis.certainty}")
        found += [f"  {change.key}: {shown(change.key, change.old)} -> {shown(change.key, change.new)}" for change in each.changed.changes]
        if not each.changed.changes:
            found.append("  its config says so already; nothing is changed")
    return found


def keep(runs: Path, left: Left, fixed: Fixed) -> Left:
    """Write the scripts that were made anew into the launch's record, and return what is to be submitted."""
    whole = launch.load(runs, left.tag)
    if whole is None:
        raise HpctrainError(f"the record of {left.tag} is gone", fix=f"ls {runs / layout.LAUNCHES}")
    now = time.time()
    parts = [apply_fix_script.keep(runs, whole, part.changed, at=now) if isinstance(part, Mended) else part for part in fixed.parts]
    return replace(left, parts=tuple(parts))


def to_json(tag: str, fixed: Fixed | None, jobs: Sequence[str], *, dry_run: bool) -> str:
    """Return one JSON object: what was changed, and what was submitted."""
    mended = fixed.mended if fixed is not None else ()
    said = [
        {
            "runs": list(each.runs),
            "diagnosis": each.diagnosis.id,
            "certainty": each.diagnosis.certainty,
            "changes": [{"key": change.key, "old": change.old, "new": change.new} for change in each.changed.changes],
        }
        for each in mended
    ]
    return json.dumps({"schema": 1, "run": tag, "fixes": said, "jobs": list(jobs), "dry_run": dry_run}, ensure_ascii=False)
