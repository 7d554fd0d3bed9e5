"""The files in which a run can be found again: what the training ran with, and what it logged. Written by rank 0.

    trainer = Trainer(..., callbacks=[RunFiles()])

`RUN_DIR/attempts/ATTEMPT/environment.json` is written when the training begins (hpctrain/training/surroundings.py collects it,
hpctrain/runs/environment.py compares two); `metrics.jsonl` beside it gets one line for each event (hpctrain/runs/metrics.py says what
is in it, and reads it). Works in any transformers Trainer.
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from hpctrain.runs import files, metrics
from hpctrain.runs.layout import ATTEMPT_VARIABLE, RUN_DIR_VARIABLE, attempt_name
from hpctrain.runs.speed import EVENT
from hpctrain.training import surroundings
from hpctrain.training.guard import Guard

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

ENVIRONMENT = "environment.json"


class RunFiles(TrainerCallback):  # type: ignore[misc]  # transformers is not there on the login node
    """Writes environment.json and metrics.jsonl of this attempt.

    Nothing that goes wrong in here reaches the training; the reason goes to standard error, once.

    Args:
        run_dir: the run directory. Default: the environment's HPCTRAIN_RUN_DIR, else the Trainer's output_dir.
        attempt: the attempt's name. Default: HPCTRAIN_ATTEMPT, else one made of the job id and the restart count, else `local.0`.
    """

    def __init__(self, run_dir: str | os.PathLike[str] | None = None, attempt: str | None = None) -> None:
        self._run_dir = None if run_dir is None else Path(run_dir)
        self._attempt = attempt
        self._file: int | None = None
        self._guard = Guard("[train] notice: run files:")

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        """Write environment.json, open metrics.jsonl, and write at which step the training begins."""
        if state.is_world_process_zero:
            self._guard(self._open, args)
            self._guard(self._environment, args)
            self._write("begin", state)

    def on_log(
        self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Write what was logged; what an evaluation logs is an event of its own."""
        if logs:
            self._write("evaluate" if any(name.startswith("eval_") for name in logs) else "log", state, logs)

    def on_save(self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        """Write that a checkpoint was saved."""
        self._write("save", state)

    def write_speed(self, state: TrainerState, values: dict[str, Any]) -> None:
        """Write a measurement of the speed (hpctrain.runs.speed.to_values)."""
        self._write(EVENT, state, values)

    def only_evaluated(self, args: TrainingArguments, state: TrainerState, values: dict[str, Any]) -> None:
        """Write the files of an evaluation without a training: no step begins, so nothing that was logged before is done again."""
        if state.is_world_process_zero:
            self._guard(self._open, args)
            self._guard(self._environment, args)
            self._write("evaluate", state, values)

    def on_train_end(self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        """Write that the training ended; the file stays open for an evaluation that follows."""
        self._write("end", state)

    # -- what the hooks do ---------------------------------------------------------------------------------------------

    def _directory(self, args: TrainingArguments) -> Path:
        run_dir = self._run_dir or Path(os.environ.get(RUN_DIR_VARIABLE) or args.output_dir or ".")
        job, restart = os.environ.get("SLURM_JOB_ID", "local"), os.environ.get("SLURM_RESTART_COUNT", "")
        default = attempt_name(job, int(restart) if restart.isdecimal() else 0)
        return run_dir / metrics.ATTEMPTS / (self._attempt or os.environ.get(ATTEMPT_VARIABLE) or default)

    def _open(self, args: TrainingArguments) -> None:
        if self._file is not None:
            descriptor, self._file = self._file, None
            os.close(descriptor)
        path = self._directory(args) / metrics.FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = not path.exists() or _last_byte(path) in (b"", b"\n")
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not whole:  # a start with the same name was killed while it wrote
            os.write(self._file, b"\n")

    def _environment(self, args: TrainingArguments) -> None:
        files.write_json(self._directory(args) / ENVIRONMENT, surroundings.collect(world_size=int(args.world_size)))

    def _write(self, event: str, state: TrainerState, logs: dict[str, Any] | None = None) -> None:
        self._guard(self._append, event, state, logs or {})

    def _append(self, event: str, state: TrainerState, logs: dict[str, Any]) -> None:
        # An evaluation outside a training has no attempt to belong to.
        if self._file is not None and state.is_world_process_zero:
            # One write: a reader, or another process of the same name, never finds half of it before the rest.
            os.write(self._file, line(event, state.global_step, state.epoch, logs))


def line(event: str, step: int, epoch: float | None, logs: dict[str, Any]) -> bytes:
    """Return one line of metrics.jsonl, as `hpctrain.runs.metrics` documents it: the numbers of `logs`, tensors of one number too."""
    row: dict[str, Any] = {"event": event, "step": int(step), "epoch": None if epoch is None else float(epoch), "at": round(time.time(), 3)}
    nonfinite: dict[str, str] = {}
    for name, value in logs.items():
        number = _number(value)
        if number is None or name in metrics.OWN:
            continue
        if not math.isfinite(number):
            nonfinite[name], number = str(float(number)), None
        row[name] = number
    if nonfinite:
        row["nonfinite"] = nonfinite
    return json.dumps(row, allow_nan=False).encode() + b"\n"


def _number(value: Any) -> int | float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    try:  # a tensor or an array of one number
        item = value.item()
    except Exception:
        return None
    return item if isinstance(item, int | float) and not isinstance(item, bool) else None


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - 1))
        return stream.read(1)
