"""RUN_DIR/fit.json: what was worked out of a training's memory and speed before its first step, and what was measured.

Rank 0 of the training writes it when it begins, and again at each save and at its end; `hpctrain runs show` lays the two side by side, and
`hpctrain fit` learns from them.

    {"schema": 1, "layout": {…}, "shape": {…}, "gpu": "NVIDIA H100 80GB HBM3", "gpu_bytes": 85045542912, "cluster": "leonardo",
     "predicted": {"total": 41…, "allocated": 38…, "reserved": 39…, "parts": {"weights": …}, "tokens_per_s": 14210.0},
     "measured": {"allocated": 38…, "reserved": 40…, "used": 42…, "host": 9…, "tokens_per_s": 13180.0, "useful_tokens_per_s": …,
                  "mfu": 0.41, "rank": 3, "steps": 999, "ended": "completed"}}

Sizes are bytes. `layout` and `shape` are the fields of hpctrain.fit's Layout and ModelShape, null where they could not be worked out; what
else is not known is null. `predicted` is null where nothing was; it is of the GPU that needs most. `measured` is null until a step
was measured: `rank` is the process with the highest peak, `used` all that its GPU held, `host` the most of a node, `steps` how many the
speed was measured over, `ended` one of running, stopped, completed, error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.runs import files, layout

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """One quantity: predicted and measured, None where either is not known."""

    name: str
    predicted: float | None
    measured: float | None
    is_size: bool = True

    @property
    def off(self) -> float | None:
        """By which part of the measured value the prediction is too high; negative: too low."""
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
    """Return what a run's fit.json holds; None where there is none, or none of this form."""
    record = files.read_json(run_dir / layout.FIT)
    if record is None or record.get("schema") != SCHEMA:
        return None
    parts = (record.get(name) for name in ("predicted", "measured"))
    return record if all(part is None or isinstance(part, dict) for part in parts) else None


def beside(record: Mapping[str, Any]) -> list[Beside]:
    """Return what can be compared: of the GPU, the speed, and what was only measured."""
    predicted, measured = (record.get(name) or {} for name in ("predicted", "measured"))
    rows = [
        Beside(name="GPU, tensors", predicted=_number(predicted, "allocated"), measured=_number(measured, "allocated")),
        Beside(name="GPU, reserved", predicted=_number(predicted, "reserved"), measured=_number(measured, "reserved")),
        Beside(name="GPU, all", predicted=_number(predicted, "total"), measured=_number(measured, "used")),
        Beside(name="node's memory", predicted=_number(predicted, "host"), measured=_number(measured, "host")),
    ]
    speed = (_number(part, "tokens_per_s") for part in (predicted, measured))
    rows.append(Beside(name="tokens/s", predicted=next(speed), measured=next(speed), is_size=False))
    return [row for row in rows if row.predicted is not None or row.measured is not None]


def _number(values: Mapping[str, Any], name: str) -> float | None:
    value = values.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None
