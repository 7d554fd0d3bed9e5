"""Trackers of a run: MLflow, Weights & Biases, TensorBoard, selected by `--report_to`. One hpctrain
run is one tracker run, across requeues and resumes.

transformers' callbacks write the data (hpctrain/training/trackers/callback.py); errors of a tracker
never reach the training.

    problems(asked.report_to)         before the process group is started, on every rank
    callbacks = setup(training_args, ...)     on every rank, before the Trainer is built
    finish(exit_code)                 on rank 0, before the process ends; never raises

`RUN_DIR/tensorboard/` and `RUN_DIR/wandb/` are written by one process; MLflow's default store is
shared by all runs. This module does not import tracker libraries.
"""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.runs.layout import TAG_VARIABLE
from hpctrain.training.preflight import Problem
from hpctrain.util import files, installed
from hpctrain.util.secrets import named_secret, redacted

#: Trackers that are set up here; others are left to transformers.
NAMES = ("mlflow", "wandb", "tensorboard")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity of the run in a tracker.

    Attributes:
        name: its name in the tracker, the run id.
        project: groups runs: the job's name.
        group: the tag shared by the runs of a sweep, or by stages.
        directory: the run's directory, else the output_dir.
        runs: the directory of all runs.
        continues: the directory has files from earlier starts of this run.
    """

    name: str
    project: str
    group: str | None
    directory: Path
    runs: Path
    continues: bool


#: The callbacks of this process that `finish` closes.
_open: list[Any] = []


def asked(report_to: str | list[str] | None) -> list[str]:
    """Return the requested trackers in `NAMES`, parsed as the Trainer does; `all` means all that
    are installed.
    """
    words = [report_to] if isinstance(report_to, str) else list(report_to or ())
    return [name for name in NAMES if name in words or ("all" in words and _is_installed(name))]


def _is_installed(name: str) -> bool:
    modules = ("tensorboard", "tensorboardX") if name == "tensorboard" else (name,)
    return any(importlib.util.find_spec(module) for module in modules)


def problems(report_to: str | list[str] | None) -> list[Problem]:
    """Return problems for requested trackers that are not installed."""
    return [
        Problem(
            f"--report_to {name}: {name} is not installed",
            installed.command("trackers"),
            command=True,
        )
        for name in asked(report_to)
        if not _is_installed(name)
    ]


def setup(
    training_args: Any, *, run_dir: Path | None, run_id: str | None, resumed_step: int | None
) -> list[Any]:
    """Return callbacks for the requested trackers, and remove these from `training_args.report_to`.

    Call it on every rank before the Trainer is built; only rank 0 gets callbacks and loads a
    library. Nothing is connected or written before the training starts.

    Args:
        training_args: a transformers TrainingArguments; `run_name` is set to the run id if it has
            none.
        run_dir: the run directory, or None.
        run_id: the run id, or None.
        resumed_step: the step of the checkpoint to resume from; None for a start from scratch.
    """
    from hpctrain.training.trackers.callback import Tracker

    names = asked(training_args.report_to)
    if not names:
        return []
    training_args.report_to = [
        name for name in training_args.report_to if name not in (*NAMES, "all", "none")
    ]
    if int(training_args.process_index) != 0:
        return []
    directory = (run_dir or Path(training_args.output_dir or ".")).absolute()
    known = files.read_json(directory / "run.json") or {}
    tag = os.environ.get(TAG_VARIABLE) or known.get("tag")
    name = run_id or training_args.run_name or directory.name
    identity = Identity(
        name=name,
        project=str(known.get("name") or os.environ.get("SLURM_JOB_NAME") or tag or "hpctrain"),
        group=str(tag) if tag and tag != name else None,
        directory=directory,
        runs=directory.parent if run_dir is not None else Path("runs").absolute(),
        # A directory that is not a run's may be from another training.
        continues=run_dir is not None or resumed_step is not None,
    )
    training_args.run_name = training_args.run_name or name
    callbacks = [Tracker(name, identity) for name in names]
    _open.extend(callbacks)
    return callbacks


def finish(code: int) -> None:
    """Close the trackers of this process; never raises.

    Args:
        code: the exit code of the process: 0 marks the tracker's run as finished, REQUEUE and
            STOPPED as possibly continued, everything else as failed.
    """
    while _open:
        _open.pop(0).close(code)


_USER_INFO = re.compile(r"://[^/@\s]+@")
#: Shorter values are not keys, and would match everywhere.
_KEY_LENGTH = 8


def without_secrets(text: str) -> str:
    """Return `text` without tokens, credentials in URLs, and values of environment variables with
    secrets.
    """
    for name, value in os.environ.items():
        if len(value) >= _KEY_LENGTH and named_secret(name):
            text = text.replace(value, "…")
    return redacted(_USER_INFO.sub("://", text))
