"""Which runs a report is of, and where it goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpctrain.cli import runs, runs_trials
from hpctrain.errors import UsageError
from hpctrain.runs import launch, layout, select
from hpctrain.runs.store import Run

NAME = "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What was asked for.

    Attributes:
        runs: that are meant; in the order of their points.
        title: what several of them are called.
        study: whose trials they are, or None.
        default: where the page goes.
        not_begun: of a sweep, ids of points that have left nothing yet.
    """

    runs_dir: Path
    runs: tuple[Run, ...]
    title: str
    study: str | None
    default: Path
    not_begun: tuple[str, ...] = ()


def choose(words: Sequence[str], runs_dir: Path) -> Chosen:
    """Return what the words stand for: runs, tags, globs, studies; without words the newest run.

    Raises:
        UsageError: words that stand for nothing, or there is no run.
    """
    listing = runs.all_runs(runs_dir)
    if listing is None:
        raise runs.no_runs(runs_dir)
    if not listing.runs:
        raise UsageError(f"there are no runs in {runs_dir}", fix="hpctrain submit")
    study = None
    if words:
        ids, study = _resolved(words, listing.runs, runs_dir)
    else:
        ids = {max(listing.runs, key=lambda run: (run.since or 0.0, run.id)).id}
    found = sorted((run for run in listing.runs if run.id in ids), key=lambda run: (run.tag, run.index is None, run.index or 0, run.id))
    if not found:
        raise UsageError(f"no run is called like {' '.join(words)}", fix="hpctrain runs list --all")
    if len(found) == 1:
        default = runs_dir / found[0].id / NAME
    else:
        tags = {run.tag for run in found}
        default = runs_dir / (f"{next(iter(tags))}.{NAME}" if len(tags) == 1 else f"{study}.{NAME}" if study else NAME)
    title = words[0] if len(words) == 1 else f"{len(found)} runs"
    absent = _not_begun(words[0], {run.id for run in found}, runs_dir) if len(words) == 1 and study is None else ()
    return Chosen(runs_dir=runs_dir, runs=tuple(found), title=title, study=study, default=default, not_begun=absent)


def _not_begun(word: str, there: set[str], runs_dir: Path) -> tuple[str, ...]:
    """Return the points of a sweep that are not there, by the record of its launch."""
    whole = launch.load(runs_dir, word)
    return tuple(run for run in whole.run_ids if run not in there) if whole is not None and whole.kind == "sweep" else ()


def _resolved(words: Sequence[str], present: Sequence[Run], runs_dir: Path) -> tuple[set[str], str | None]:
    """Return the ids that words stand for, and the study, where one word is the name of one."""
    known = {run.id for run in present} | {run.tag for run in present}
    studies = {word for word in words if word not in known and layout.NAME.match(word) and (runs_dir / ".studies" / word).is_dir()}
    ids = select.resolve([word for word in words if word not in studies], present) if set(words) - studies else set()
    if studies:
        of_run = {run.id: (runs_trials.trial_of(runs_dir, run.id) or {}).get("study") for run in present}
        ids |= {run for run, study in of_run.items() if study in studies}
    return ids, next(iter(studies)) if len(studies) == 1 and len(words) == 1 else None
