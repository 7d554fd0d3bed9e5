"""Runs that are trials of a study, as lists of runs show them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpctrain.cli.runs_table import printable
from hpctrain.jobs.tune import spoken
from hpctrain.runs import files
from hpctrain.runs.store import Run

HEAD = ("TRIAL", "VALUES")


def trial_of(runs_dir: Path, run: str) -> dict[str, Any] | None:
    """Return study, number and values of a run's trial; None of a run that is none."""
    said = files.read_json(runs_dir / run / "trial.json")
    if said is None or not isinstance(said.get("params"), dict) or not isinstance(said.get("number"), int):
        return None
    return {name: said.get(name) for name in ("study", "number", "params")}


def columns(runs_dir: Path, shown: Sequence[Run]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the cells of what trials have besides; nothing where none of the runs is one."""
    trials = [trial_of(runs_dir, run.id) for run in shown]
    if not any(trials):
        return (), [()] * len(trials)
    return HEAD, [("-", "-") if trial is None else (str(trial["number"]), values(trial["params"])) for trial in trials]


def facts(directory: Path) -> list[tuple[str, str]]:
    """Return the line of `runs show` for a run that is a trial."""
    trial = trial_of(directory.parent, directory.name)
    return [] if trial is None else [("trial", f"{trial['number']} of {printable(str(trial['study']))}: {values(trial['params'])}")]


def values(params: dict[str, Any]) -> str:
    """Return `learning_rate=0.00012 lora_r=8`."""
    words = [f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={spoken(value)}" for key, value in params.items()]
    return printable(" ".join(words))
