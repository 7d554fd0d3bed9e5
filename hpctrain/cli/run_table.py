"""Tables of runs, and what several commands say of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpctrain.cli.output import show_table
from hpctrain.config.study import spoken
from hpctrain.errors import SchedulerError
from hpctrain.runs import job_state
from hpctrain.runs.store import Run
from hpctrain.util import files, text

_COLOURS = {
    "completed": "green",
    "running": "cyan",
    "pending": "yellow",
    "failed": "red",
    "unknown": "yellow",
    "stopped": "magenta",
}
HEAD = ("RUN", "STATE", "STEP", "LOSS", "SINCE", "JOB")


def cells(run: Run, state: job_state.State, now: float) -> tuple[str, ...]:
    """Return the table cells of a run."""
    jobs = run.job_ids
    more = f" +{len(jobs) - 1}" if len(jobs) > 1 else ""
    return (
        run.id,
        state.word,
        "-" if run.last_step is None else str(run.last_step),
        text.number(run.last_loss),
        ago(run.since, now),
        jobs[-1] + more if jobs else "-",
    )


def why(run: Run, state: job_state.State) -> str:
    """Return the state of a run as text; empty if that only repeats the state."""
    words = job_state.of_run(run, state).words
    return "" if words == state.word else words


def show(rows: Sequence[Sequence[str]], *last: str, err: bool = False) -> None:
    """Print rows that start with the `cells` of runs; `last` are the headings of other cells."""
    show_table((*HEAD, *last), rows, colours=[_COLOURS.get(row[1]) for row in rows], err=err)


def summary(silent: SchedulerError) -> str:
    """Return the reason why a scheduler did not answer, on one line."""
    why = silent.details[-1].strip() if silent.details else ""
    return f"{silent.what}{f' ({why})' if why else ''}"


def ago(at: float | None, now: float) -> str:
    """Return the time since `at`."""
    return "-" if at is None else text.duration(now - at)


def trial_of(runs_dir: Path, run: str) -> dict[str, Any] | None:
    """Return study, number and parameters of a run's trial; None if the run is not a trial."""
    trial = files.read_json(runs_dir / run / "trial.json") or {}
    if not isinstance(trial.get("params"), dict) or not isinstance(trial.get("number"), int):
        return None
    return {name: trial.get(name) for name in ("study", "number", "params")}


def values(params: Mapping[str, Any]) -> str:
    """Return the parameters as text: `learning_rate=0.00012 lora_r=8`."""
    return " ".join(f"{key}={value(each)}" for key, each in params.items())


def value(parameter: Any) -> str:
    """Return a parameter of a trial in a few characters."""
    if parameter is None:
        return "-"
    return f"{parameter:.4g}" if isinstance(parameter, float) else spoken(parameter)
