"""Trackers of a run: MLflow, Weights & Biases, TensorBoard, as `--report_to` asks for them. One run of ours is one run of theirs.

The Trainer's own callbacks do the writing. What is added here: a job that is requeued or resumed goes on in the same tracker run, steps
that are done again after a kill do not appear twice, steps that a tracker missed are told to it later, and nothing that goes wrong in a
tracker reaches the training.

    problems(asked.report_to)                      before the process group is started, on every rank
    callbacks = setup(training_args, ...)          on every rank, before the Trainer is built
    finish(exit_code)                              rank 0, when the exit code is known and before the process ends; never raises

Where things lie: `RUN_DIR/tracker.json` says which tracker runs belong to the run; `RUN_DIR/tensorboard/` and `RUN_DIR/wandb/` are
written by one process; MLflow's store is shared by all runs and lies in `runs/.mlflow` (hpctrain/training/tracker_mlflow.py), if
MLFLOW_TRACKING_URI names no other. Without a run directory the output_dir stands for it.

Only this module is imported by the training itself; it imports no library of a tracker.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hpctrain import installed
from hpctrain.jobs.secret_forms import named_secret
from hpctrain.jobs.secrets_in_text import redacted
from hpctrain.runs import files
from hpctrain.runs.layout import TAG_VARIABLE
from hpctrain.training.preflight import Problem
from hpctrain.training.process import say

NAMES = ("mlflow", "wandb", "tensorboard")
"""The trackers that are set up here; any other that transformers knows is left to it."""

FILE = "tracker.json"
MLFLOW_AT_LEAST = (2, 8)
"""The first MLflow that logs in the background. `pip install mlflow` falls back to 1.x without a word where the installed pyarrow or
pandas is newer than MLflow allows."""

CLOSE_S = 30.0
"""How long the end of a training waits for one tracker, in seconds: the time limit of the job may be near."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which run this is, for a tracker."""

    name: str
    """The run's name in the tracker: the run id."""
    project: str
    """What its runs are filed under: the job's name."""
    group: str | None
    """The tag that points of a sweep, or stages, have in common; None for a run of its own."""
    directory: Path
    """The run directory."""
    runs: Path
    """The directory of all runs."""
    continues: bool
    """Whether the directory belongs to this run from earlier starts."""
    resumed_step: int
    """Steps that are done already; 0 when the training starts anew."""


Has = Callable[[str, int], bool]
"""Whether a tracker's run has a value, by the tracker's name of it, at a step."""


class Tracker(Protocol):
    """One tracker, between this package's manner and its library."""

    name: str

    def open(self) -> Any:
        """Find or make the tracker's run, and return transformers' callback for it.

        Raises:
            Exception: whatever the library raises.
        """

    def retreat(self) -> bool:
        """After `open` or its callback failed: go to where less is needed (offline), and return whether there is such a place."""

    def began(self) -> Has | None:
        """Return what tells which values the run has already; None if the tracker takes care of repeated steps itself."""

    def key(self, name: str) -> str:
        """Return the tracker's name of a logged value."""

    def close(self, code: int) -> None:
        """Write what is in the queue, and mark the run as the exit code says.

        Raises:
            Exception: whatever the library raises.
        """

    def hint(self) -> str:
        """Return how the run can be looked at: the last words about this tracker in the log."""


_open: list[Any] = []
"""The callbacks of this process that `finish` closes."""


# -- before training ---------------------------------------------------------------------------------------------------


def problems(report_to: str | list[str] | None) -> list[Problem]:
    """Return what is wrong with the trackers asked for: one that is not installed, or is too old to be used."""
    found = []
    for name in asked(report_to):
        modules = ("tensorboard", "tensorboardX") if name == "tensorboard" else (name,)
        if not any(importlib.util.find_spec(module) for module in modules):
            found.append(Problem(f"--report_to {name}: {name} is not installed", installed.command("trackers")))
    if "mlflow" in asked(report_to) and (version := _mlflow_version()) is not None and _numbers(version) < MLFLOW_AT_LEAST:
        older = f"MLflow {version} is older than {'.'.join(map(str, MLFLOW_AT_LEAST))}"
        found.append(Problem(f"--report_to mlflow: {older}", installed.command("trackers")))
    return found


def asked(report_to: str | list[str] | None) -> list[str]:
    """Return which of `NAMES` are asked for, as the Trainer reads its `report_to`; `all` is all that are installed."""
    words = [report_to] if isinstance(report_to, str) else list(report_to or ())
    if "all" in words:
        return [name for name in NAMES if importlib.util.find_spec(name)]
    return [name for name in NAMES if name in words]


def _mlflow_version() -> str | None:
    for name in ("mlflow-skinny", "mlflow"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


# -- the training ------------------------------------------------------------------------------------------------------


def setup(training_args: Any, *, run_dir: Path | None, run_id: str | None, resumed_step: int | None) -> list[Any]:
    """Return the Trainer's callbacks of the trackers asked for, and take these out of `training_args.report_to`.

    To be called on every rank before the Trainer is built; ranks other than 0 get no callbacks and load no library. Nothing is
    connected or written before the training begins.

    Args:
        training_args: a transformers TrainingArguments; `run_name` is set to the run id if it has none.
        run_dir: the run directory; None for a training that has none.
        run_id: the run id; None for a training that has none.
        resumed_step: the step of the checkpoint that is resumed; None when the training starts anew.
    """
    from hpctrain.training.tracker_callback import callback_for

    names = asked(training_args.report_to)
    if not names:
        return []
    training_args.report_to = [name for name in training_args.report_to if name not in (*NAMES, "all", "none")]
    if int(training_args.process_index) != 0:
        return []
    identity = _identity(training_args, run_dir, run_id, resumed_step)
    training_args.run_name = training_args.run_name or identity.name
    callbacks = [callback_for(make(name, identity), identity) for name in names]
    _open.extend(callbacks)
    return callbacks


def make(name: str, identity: Identity) -> Tracker:
    """Return the tracker `name` for a run."""
    if name == "mlflow":
        from hpctrain.training.tracker_mlflow import MLflow

        return MLflow(identity)
    if name == "wandb":
        from hpctrain.training.tracker_wandb import Wandb

        return Wandb(identity)
    from hpctrain.training.tracker_tensorboard import TensorBoard

    return TensorBoard(identity)


def finish(code: int) -> None:
    """Close the trackers of this process, and say how each can be looked at; at most `CLOSE_S` for each, and nothing raised.

    Args:
        code: what the process will exit with: 0 marks the tracker's run as finished, REQUEUE and STOPPED as one that may go on, and
            everything else as failed.
    """
    while _open:
        callback = _open.pop(0)
        try:
            callback.close(code)
        except Exception as error:
            notice(f"{callback.tracker.name}: {type(error).__name__}: {error}")


def _identity(training_args: Any, run_dir: Path | None, run_id: str | None, resumed_step: int | None) -> Identity:
    directory = (run_dir or Path(training_args.output_dir or ".")).absolute()
    known = files.read_json(directory / "run.json") or {}
    tag = os.environ.get(TAG_VARIABLE) or known.get("tag")
    name = run_id or training_args.run_name or directory.name
    return Identity(
        name=name,
        project=str(known.get("name") or os.environ.get("SLURM_JOB_NAME") or tag or "hpctrain"),
        group=str(tag) if tag and tag != name else None,
        directory=directory,
        runs=directory.parent if run_dir is not None else Path("runs").absolute(),
        # A folder that is no run directory may have been used by another training before.
        continues=run_dir is not None or resumed_step is not None,
        resumed_step=resumed_step or 0,
    )


# -- for the trackers --------------------------------------------------------------------------------------------------


def recalled(identity: Identity, tracker: str) -> dict[str, Any]:
    """Return what was remembered about a tracker's run at an earlier start; {} when nothing was, or it is another training's."""
    known = (files.read_json(identity.directory / FILE) or {}).get(tracker) if identity.continues else None
    return known if isinstance(known, dict) else {}


def remember(identity: Identity, tracker: str, facts: Mapping[str, str]) -> None:
    """Write what the next start needs to go on in the same tracker run. It may hold no secret: people copy it.

    Raises:
        OSError: it cannot be written.
    """
    path = identity.directory / FILE
    known = files.read_json(path) or {}
    if known.get(tracker) != dict(facts):
        identity.directory.mkdir(parents=True, exist_ok=True)
        files.write_json(path, {**known, "schema": 1, tracker: dict(facts)})


def bounded(do: Callable[[], object], seconds: float = CLOSE_S) -> bool:
    """Do something in a thread of its own, and return whether it was done in time.

    Raises:
        Exception: what it raised.
    """
    errors: list[Exception] = []

    def guarded() -> None:
        try:
            do()
        except Exception as error:
            errors.append(error)

    # A daemon: what hangs in there must not keep the process.
    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    return not thread.is_alive()


_USER_INFO = re.compile(r"://[^/@\s]+@")
#: A shorter value is no key, and would be found everywhere.
_KEY_LENGTH = 8


def without_secrets(text: str) -> str:
    """Return `text` without tokens, without user and password in a URL, and without the values of variables that hold secrets."""
    for name, value in os.environ.items():
        if len(value) >= _KEY_LENGTH and named_secret(name):
            text = text.replace(value, "…")
    return redacted(_USER_INFO.sub("://", text))


def notice(text: str) -> None:
    """Say on standard error why something is missing, without secrets; never raises."""
    try:
        sys.stderr.write(f"[train] notice: {without_secrets(' '.join(text.split()))}\n")
        sys.stderr.flush()
    except Exception:  # noqa: S110 - standard error is closed; there is nobody left to tell
        pass


def tell(text: str) -> None:
    """Write one line into the log, without secrets; never raises."""
    try:
        say(f"[train] {without_secrets(text)}")
    except Exception:  # noqa: S110 - standard output is closed
        pass
