"""RUN_DIR/fit.json: a training's memory and speed, predicted before its first step and measured.

Rank 0 writes it at the start of the training, at each save, and at the end. `hpctrain runs show`
compares the two.

    {"schema": 1, "layout": {…}, "shape": {…}, "gpu": "NVIDIA H100 80GB HBM3", "gpu_bytes":
    85045542912,
     "predicted": {"total": 41…, "allocated": 38…, "reserved": 39…, "parts": {"weights": …},
     "tokens_per_s": 14210.0}, "measured": {"allocated": 38…, "reserved": 40…, "used": 42…, "host":
     9…, "tokens_per_s": 13180.0, "useful_tokens_per_s": …,
                  "mfu": 0.41, "rank": 3, "steps": 999, "ended": "completed"}}

Sizes are bytes. `layout` and `shape` are the fields of hpctrain.fit's Layout and ModelShape, null
if they could not be computed; other unknown values are null, too. `predicted` is for the GPU that
needs most memory, or null. `measured` is null until a step was measured: `rank` is the process with
the highest peak, `used` the memory in use on its GPU by all processes, `host` the highest of all
nodes, `steps` the steps over which the speed was measured, `ended` one of running, stopped and
completed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpctrain.runs import layout
from hpctrain.util import files, stored

SCHEMA = 1
#: Name, key of the prediction, key of the measurement.
_QUANTITIES = (
    ("GPU, tensors", "allocated", "allocated"),
    ("GPU, reserved", "reserved", "reserved"),
    ("GPU, all", "total", "used"),
    ("node's memory", "host", "host"),
    ("tokens/s", "tokens_per_s", "tokens_per_s"),
)


class Beside(NamedTuple):
    """One quantity, predicted and measured; None if unknown."""

    name: str
    predicted: float | None
    measured: float | None
    is_size: bool = True

    @property
    def off(self) -> float | None:
        """The prediction's relative error, as a fraction of the measured value; negative if too
        low.
        """
        if self.predicted is None or not self.measured:
            return None
        return self.predicted / self.measured - 1


def write(run_dir: Path, record: Mapping[str, Any]) -> None:
    """Write a run's fit.json.

    Raises:
        OSError: the file system refuses.
    """
    files.write_json(run_dir / layout.FIT, {"schema": SCHEMA, **record})


def read(run_dir: Path) -> dict[str, Any] | None:
    """Return the content of a run's fit.json; None if it is missing or not valid."""
    record = files.read_json(run_dir / layout.FIT)
    if record is None or record.get("schema") != SCHEMA:
        return None
    parts = (record.get(name) for name in ("predicted", "measured"))
    return record if all(part is None or isinstance(part, dict) for part in parts) else None


def beside(record: Mapping[str, Any]) -> list[Beside]:
    """Return the quantities to compare: GPU memory, speed, and those that were only measured."""
    rows = []
    for name, before, after in _QUANTITIES:
        predicted, measured = (
            value
            if isinstance(value, int | float) and stored.fits(value, float) and value >= 0
            else None
            for value in (
                (record.get("predicted") or {}).get(before),
                (record.get("measured") or {}).get(after),
            )
        )
        if predicted is not None or measured is not None:
            rows.append(Beside(name, predicted, measured, name != "tokens/s"))
    return rows
