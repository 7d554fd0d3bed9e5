"""Tables of runs as plain text, with control characters from files escaped."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpctrain.cli.output import has_colour
from hpctrain.config.study import spoken
from hpctrain.errors import SchedulerError
from hpctrain.runs import job_state
from hpctrain.runs.job_state import State
from hpctrain.runs.store import Run
from hpctrain.terminal import style
from hpctrain.util import files, text
from hpctrain.util.text import number, printable

_COLOURS = {
    "completed": "green",
    "running": "cyan",
    "pending": "yellow",
    "failed": "red",
    "unknown": "yellow",
    "stopped": "magenta",
}
HEAD = ("RUN", "STATE", "STEP", "LOSS", "SINCE", "JOB", "WHY")


def cells(run: Run, state: State, now: float) -> tuple[str, ...]:
    """Return the table cells of a run."""
    jobs = run.job_ids
    more = f" +{len(jobs) - 1}" if len(jobs) > 1 else ""
    return (
        run.id,
        state.word,
        "-" if run.last_step is None else str(run.last_step),
        number(run.last_loss),
        ago(run.since, now),
        printable(jobs[-1]) + more if jobs else "-",
        why(run, state),
    )


def why(run: Run, state: State) -> str:
    """Return the state of a run as text; empty if that only repeats the state."""
    words = job_state.of_run(run, state).words
    return "" if words == state.word else printable(words)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table; on a terminal limited to its width, with colored states."""
    lines = text.table([head, *rows])
    if not sys.stdout.isatty():
        return lines
    width = shutil.get_terminal_size().columns
    without_last = text.table([row[:-1] for row in (head, *rows)])
    shown = []
    for row, line, short in zip((head, *rows), lines, without_last, strict=True):
        cut = short if len(short) <= width else f"{short[: width - 1]}…"
        shown += beside_or_below(line, cut, row[-1], width, row[1], _COLOURS.get(row[1]))
    return [style(shown[0], bold=True) if has_colour() else shown[0], *shown[1:]]


def beside_or_below(  # noqa: PLR0917 - the parts of a line, in their order
    line: str, short: str, why: str, width: int, state: str, colour: str | None
) -> list[str]:
    """Return a row of a table: the whole `line` if it fits into `width`, else `short` with `why`,
    often a sentence, below; on a terminal, its state is colored.
    """
    fits = text.width(line) <= width
    found = [line] if fits else [short, *text.wrap(why, max(20, width), indent="  ")]
    if has_colour():
        found[0] = found[0].replace(f"  {state}", f"  {style(state, fg=colour)}", 1)
    return found


def summary(silent: SchedulerError) -> str:
    """Return the reason why a scheduler did not answer, on one line."""
    why = silent.details[-1].strip() if silent.details else ""
    return f"{silent.what}{f' ({why})' if why else ''}"


def ago(at: float | None, now: float) -> str:
    """Return the time since `at` in its largest unit: `3 h`."""
    if at is None:
        return "-"
    seconds = max(0, int(now - at))
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length or (unit == "min" and seconds >= length):
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


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
    short = f"{parameter:.4g}" if isinstance(parameter, float) else spoken(parameter)
    return printable(short)
