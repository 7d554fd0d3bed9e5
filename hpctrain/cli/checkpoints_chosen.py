"""Which runs and which checkpoints are meant, for `hpctrain checkpoints` and for archives, and how far long reading has come."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import click

from hpctrain.cli import runs, runs_jobs, runs_table
from hpctrain.errors import UsageError
from hpctrain.runs import layout
from hpctrain.runs.saved import Saved, saved_in
from hpctrain.runs.select import Filter, one, resolve
from hpctrain.runs.states import State
from hpctrain.runs.store import Run, read_run

#: Seconds between two lines of progress.
_EVERY_S = 10.0


@dataclass(slots=True)
class Chosen:
    """What is meant.

    Attributes:
        runs: in the order of their ids.
        saved: by run id: the checkpoints that are meant.
        named: what was named one by one, as `RUN/checkpoint-40`.
    """

    runs: list[Run]
    saved: dict[str, list[Saved]] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)

    @property
    def all(self) -> list[Saved]:
        """Return all checkpoints that are meant."""
        return [one for run in self.runs for one in self.saved.get(run.id, [])]


def choose_runs(chosen: Filter, runs_dir: Path) -> list[Run]:
    """Return the runs that are meant; a scheduler is asked only where a state is.

    Raises:
        UsageError: words that stand for no run, or there is no `runs_dir`.
    """
    listing = runs.all_runs(runs_dir)
    if listing is None:
        raise runs.no_runs(runs_dir)
    meant = chosen.choose(listing.runs, time.time())
    if chosen.states:
        survey = runs_jobs.survey(runs_dir, meant)
        meant = [run for run in meant if chosen.has(survey.states[run.id].word)]
    return meant


def choose(chosen: Filter, runs_dir: Path) -> Chosen:
    """Return the checkpoints that are meant: a word is that of a run, or `RUN/checkpoint-40`, or `RUN/model`.

    Raises:
        UsageError: words that stand for nothing.
        HpctrainError: a directory cannot be read.
    """
    words = [_split(word) for word in chosen.words]
    meant = Chosen(choose_runs(replace(chosen, words=tuple(run for run, _ in words)), runs_dir))
    wanted: dict[str, set[str] | None] = {run.id: set() if words else None for run in meant.runs}
    for word, name in words:
        for run in resolve([word], meant.runs) if any(char in word for char in "*?[") or _known(word, meant.runs) else ():
            before = wanted[run]
            wanted[run] = None if name is None or before is None else before | {name}
    missing = []
    for run_id, names in wanted.items():
        saved = saved_in(runs_dir / run_id)
        meant.saved[run_id] = [one for one in saved if names is None or one.path.name in names]
        meant.named |= {f"{run_id}/{name}" for name in names or ()}
        missing += [f"{run_id}/{name}" for name in sorted((names or set()) - {one.path.name for one in saved})]
    if missing:
        first = missing[0].partition("/")[0]
        raise UsageError(f"there is no {', '.join(missing)}", fix=f"hpctrain checkpoints list {first}")
    return meant


def choose_again(before: Chosen, runs_dir: Path) -> Chosen:
    """Return what was meant as it is now: runs that went away are left out, and their files are read anew."""
    now = [run for each in before.runs if (run := read_run(runs_dir, each.id)) is not None]
    names = {each: {one.path.name for one in saved} for each, saved in before.saved.items()}
    saved = {run.id: [one for one in saved_in(runs_dir / run.id) if one.path.name in names[run.id]] for run in now}
    return Chosen(now, saved, before.named)


def choose_one(word: str, runs_dir: Path) -> Saved:
    """Return the checkpoint that a word stands for; of a run alone, its newest complete one.

    Raises:
        UsageError: there is none.
    """
    name, inside = _split(word)
    listing = runs.all_runs(runs_dir)
    if listing is None:
        raise runs.no_runs(runs_dir)
    run = one(name, listing.runs)
    saved = saved_in(runs_dir / run.id)
    fits = [each for each in saved if (each.is_checkpoint and not each.wrong if inside is None else each.path.name == inside)]
    if not fits:
        what = f"run {run.id} has no complete checkpoint" if inside is None else f"there is no {run.id}/{inside}"
        raise UsageError(what, fix=f"hpctrain checkpoints list {run.id}")
    return fits[-1]


def may_not_change(run: Run, state: State, runs_dir: Path, *, forgotten: bool) -> str | None:
    """Return why nothing of a run may be removed: something of it runs, waits, or may; the judgement is that of `runs drop`."""
    from hpctrain.cli import runs_drop

    return runs_drop.why_not(runs_dir, run, state, time.time() if forgotten else None)


def _known(word: str, meant: list[Run]) -> bool:
    """Whether a word still stands for a run once state and age have had their say."""
    return any(run.id.startswith(word) or run.tag == word for run in meant)


def _split(word: str) -> tuple[str, str | None]:
    """Return run and checkpoint of a word; `runs/RUN` is what a shell completes."""
    run, _, name = word.rstrip("/").removeprefix(f"{layout.RUNS}/").partition("/")
    return run, name.removeprefix("checkpoints/") or None


class Progress:
    """Lines on stderr for what takes long: one every 10 s."""

    def __init__(self, verb: str, total: int | None = None) -> None:
        self._verb, self._total, self._done = verb, total, 0
        self._next = time.monotonic() + _EVERY_S
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        """Take note of `count` more bytes."""
        with self._lock:
            self._done += count
            if time.monotonic() < self._next:
                return
            self._next = time.monotonic() + _EVERY_S
            of = f" of {runs_table.size(self._total)}" if self._total is not None else ""
            click.echo(f"{self._verb} {runs_table.size(self._done)}{of}", err=True)
