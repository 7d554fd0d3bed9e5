"""What a training logged, over all of its starts: `attempts/*/metrics.jsonl`, written by hpctrain/training/run_files.py.

One JSON object for each line:

    {"event": "log", "step": 10, "epoch": 0.33, "at": 1795232331.6, "loss": 5.1234, "grad_norm": null, "nonfinite": {"grad_norm": "nan"}}

    event       begin | log | evaluate | save | speed | end; `evaluate` has the values whose names begin with eval_, `speed` those that
                hpctrain.runs.speed reads
    step        optimizer steps that are done; in `begin` the step that was resumed, 0 for a training that starts anew
    epoch       or null
    at          seconds since the epoch
    nonfinite   the values that JSON has no number for ("nan", "inf", "-inf"); their own keys hold null

A start that was killed leaves steps behind that the next one does again. What lies behind the step that a later start resumed
is lost work, and is not read. Half a line at the end of a file is passed over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpctrain.runs import files

ATTEMPTS = "attempts"
FILE = "metrics.jsonl"
OWN = ("event", "step", "epoch", "at", "nonfinite")
"""The keys of a row that are no values of the Trainer's."""
EVENTS = ("begin", "log", "evaluate", "save", "speed", "end")

_TAIL_BYTES = 65536

Row = dict[str, Any]


def read(run_dir: Path) -> Iterator[Row]:
    """Yield the rows of all attempts, oldest first, without those that a later attempt did again or gave up.

    Nothing is kept in memory but the steps at which attempts began. Files that are not there, or that cannot be read, have no rows.
    """
    paths = [attempt / FILE for attempt in attempts(run_dir)]
    # A file holds several parts when a start has no id of its own, as outside Slurm.
    begins = [[row["step"] for row in _rows(path) if row["event"] == "begin"] for path in paths]
    later = [step for steps in begins for step in steps]
    for path in paths:
        limit = min(later, default=None)
        for row in _rows(path):
            if row["event"] == "begin":
                later = later[1:]
                limit = min(later, default=None)
            if limit is None or row["step"] <= limit:
                yield row


def last(run_dir: Path, event: str | None = None) -> Row | None:
    """Return the newest row, or the newest of one kind; from the ends of the files, 64 KiB of each at most."""
    for attempt in reversed(attempts(run_dir)):
        for line in reversed(_tail(attempt / FILE)):
            row = row_of(line)
            if row is not None and event in (None, row["event"]):
                return row
    return None


def values(row: Row) -> dict[str, float]:
    """Return what the Trainer logged in a row: names and numbers, NaN and infinities as such."""
    found = {name: value for name, value in row.items() if name not in OWN and isinstance(value, int | float)}
    nonfinite = row.get("nonfinite")
    for name, text in nonfinite.items() if isinstance(nonfinite, dict) else ():
        if text in ("nan", "inf", "-inf"):
            found[name] = float(text)
    return found


def attempts(run_dir: Path) -> list[Path]:
    """Return the directories of a run's attempts, in the order in which they began."""
    try:
        with os.scandir(run_dir / ATTEMPTS) as entries:
            found = [Path(entry.path) for entry in entries if entry.is_dir()]
    except OSError:
        return []
    if len(found) < 2:  # most runs: no file needs to be opened
        return found
    return sorted(found, key=lambda path: (_began(path), path.name))


def _began(attempt: Path) -> float:
    """Return when an attempt began, in seconds since the epoch; one that says nothing comes last, as the newest."""
    at = (files.read_json(attempt / "start.json") or {}).get("at")
    if isinstance(at, int | float):
        return float(at)
    first = next(_rows(attempt / FILE), None)
    return float(first["at"]) if first else float("inf")


def _rows(path: Path) -> Iterator[Row]:
    try:
        with path.open("rb") as stream:
            for line in stream:
                row = row_of(line)
                if row is not None:
                    yield row
    except OSError:
        return


def row_of(line: bytes) -> Row | None:
    """Return a line's row; None for one that is cut off, or was written by something else."""
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    known = (
        isinstance(row, dict) and row.get("event") in EVENTS and isinstance(row.get("step"), int) and isinstance(row.get("at"), int | float)
    )
    return row if known else None


def _tail(path: Path) -> list[bytes]:
    """Return the last lines of a file, each with its end of line but perhaps the last."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            start = max(0, size - _TAIL_BYTES)
            stream.seek(start)
            lines = stream.read(size - start).splitlines(keepends=True)
    except OSError:
        return []
    return lines[1:] if start else lines
