"""The callback of a tracker: transformers' own, opened on the run's tracker run. A failure prints a
notice, and the training continues.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from functools import partialmethod
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import MLflowCallback, TensorBoardCallback, WandbCallback

from hpctrain.runs.layout import DONE, REQUEUE, STOPPED
from hpctrain.training.process import OFFLINE, Guard
from hpctrain.training.trackers import Identity, without_secrets
from hpctrain.util import files

#: Seconds that the end of a training waits for one tracker: the time limit may be near.
CLOSE_S = 30.0


class Tracker(TrainerCallback):  # type: ignore[misc]  # transformers is not there on the login node
    """Passes the Trainer's events on to the tracker's callback of transformers.

    A tracker that is unreachable when the training starts is disabled for this start.
    """

    def __init__(self, name: str, identity: Identity) -> None:
        self.name, self._identity = name, identity
        self._inner: Any = None
        self._guard = Guard(f"[train] notice: {name}:", clean=without_secrets)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        if self._inner is not None or not state.is_world_process_zero:
            return

        def begin() -> None:
            inner = _OPEN[self.name](self._identity)
            inner.on_train_begin(args, state, control, **more)
            inner._auto_end_run = False  # MLflow's: `close` ends the run, with a status
            self._inner = inner

        if not self._guard(begin):
            self._guard.note("nothing is reported to it by this start of the job")

    def _forward(self, name: str, *event: Any, **more: Any) -> None:
        if self._inner is not None:
            self._guard(getattr(self._inner, name), *event, **more)

    # Some trackers store checkpoints. The run stays open until `close`, which has the exit code.
    on_log = partialmethod(_forward, "on_log")
    on_save = partialmethod(_forward, "on_save")
    on_train_end = partialmethod(_forward, "on_train_end")

    def close(self, code: int) -> None:
        """Close the tracker's run with a status for the exit code."""
        if self._inner is not None and self.name in _CLOSE:
            self._guard(_CLOSE[self.name], code)
        self._inner = None


def bounded(do: Callable[[], object], seconds: float = CLOSE_S) -> None:
    """Run `do` in a thread, and leave it there if it takes too long.

    Raises:
        Exception: raised by `do`.
        TimeoutError: it did not end in time.
    """
    running = ThreadPoolExecutor(1).submit(do)
    if not wait([running], seconds).done:
        raise TimeoutError(f"did not finish within {seconds:.0f} s")
    running.result()


# -- TensorBoard -----------------------------------------------------------------------------------


def _open_tensorboard(identity: Identity) -> Any:
    """All starts of a run write to one directory: RUN_DIR/tensorboard, or
    TENSORBOARD_LOGGING_DIR/RUN_ID.
    """
    callback = TensorBoardCallback()
    chosen = os.environ.get("TENSORBOARD_LOGGING_DIR")
    folder = Path(chosen).expanduser() / identity.name if chosen else None
    callback.logging_dir = str(folder or identity.directory / "tensorboard")
    return callback


# -- MLflow ----------------------------------------------------------------------------------------

_MLFLOW_VARIABLES = {
    # By default, the training waits for 7 tries of 120 s if the server does not answer.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    # MLflow 3 refuses plain files without this; SQLite's locks fail on Lustre, NFS and GPFS.
    "MLFLOW_ALLOW_FILE_STORE": "true",
}
_RUN_TAG = "hpctrain.run_id"
#: Seconds that simultaneous starts wait for the one that creates the experiment.
_LOCK_S = 60.0
_STATUS = {DONE: "FINISHED", REQUEUE: "SCHEDULED", STOPPED: "KILLED"}


def _open_mlflow(identity: Identity) -> Any:
    """Find the MLflow run with the run's id as a tag, or create it, on the server or in the store
    that MLFLOW_TRACKING_URI names; by default plain files in `runs/.mlflow/mlruns`.
    """
    store = identity.runs / ".mlflow" / "mlruns"
    uri = os.environ.setdefault("MLFLOW_TRACKING_URI", store.as_uri())
    for name, value in _MLFLOW_VARIABLES.items():
        os.environ.setdefault(name, value)
    import mlflow

    mlflow.set_tracking_uri(uri)
    new = False
    if "MLFLOW_RUN_ID" not in os.environ:
        client, experiment = mlflow.MlflowClient(), mlflow_experiment(identity, uri)
        query = f"tags.`{_RUN_TAG}` = '{identity.name}'"
        found = client.search_runs([experiment], query, max_results=1) if identity.continues else ()
        if new := not found:
            tags = {_RUN_TAG: identity.name, "hpctrain.tag": identity.group or identity.name}
            found = [client.create_run(experiment, run_name=identity.name, tags=tags)]
        os.environ["MLFLOW_RUN_ID"] = str(found[0].info.run_id)
    if not new:
        # MLflow refuses a parameter whose value has changed, such as resume_from_checkpoint, and all
        # parameters sent with it.
        os.environ["MLFLOW_MAX_LOG_PARAMS"] = "0"
    # The run id is enough, and MLflow refuses it if another experiment is set, too.
    os.environ.pop("MLFLOW_EXPERIMENT_NAME", None)
    return MLflowCallback()


def mlflow_experiment(identity: Identity, uri: str) -> str:
    """Return the id of the experiment; the first of several simultaneous starts creates it."""
    import mlflow

    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or identity.project
    store = identity.runs / ".mlflow" / "mlruns"
    is_ours = uri == store.as_uri()  # plain files allow two of the same name
    if is_ours:
        store.mkdir(parents=True, exist_ok=True)
    with files.lock(store.parent / "lock", timeout_s=_LOCK_S) if is_ours else nullcontext():
        return str(mlflow.set_experiment(name).experiment_id)


def _close_mlflow(code: int) -> None:
    """Flush the queue, and set the run's status: RUNNING while the job runs, SCHEDULED while it waits
    to resume.
    """
    import mlflow

    bounded(mlflow.flush_async_logging)
    mlflow.end_run(_STATUS.get(code, "FAILED"))  # in this thread: the active run is thread-local


# -- Weights & Biases ------------------------------------------------------------------------------

#: Characters that W&B refuses in project names and ids.
_REFUSED = re.compile(r"[/\\#?%:\s]")


def _open_wandb(identity: Identity) -> Any:
    """Set W&B's environment variables unless the user has: its run has the run's id, and is offline
    if the Hugging Face libraries are.

    Offline, each start writes its own directory, `RUN_DIR/wandb/offline-run-TIME-RUN_ID`, and
    `wandb sync` of all of them gives one run.
    """
    run_id = identity.name if identity.continues else uuid.uuid4().hex[:8]
    offline = any(
        os.environ.get(name, "").lower() in {"1", "true", "yes", "on"} for name in OFFLINE
    )
    variables = {
        "WANDB_MODE": "offline" if offline else "online",
        "WANDB_RUN_ID": _REFUSED.sub("-", run_id),
        "WANDB_RESUME": "allow",
        "WANDB_PROJECT": _REFUSED.sub("-", identity.project),
        "WANDB_NAME": identity.name,
        "WANDB_DIR": str(identity.directory),
        # W&B's console capture would split lines that are written whole.
        "WANDB_CONSOLE": "off",
        "WANDB_QUIET": "true",
        "WANDB_INIT_TIMEOUT": "30",
        **({"WANDB_RUN_GROUP": identity.group} if identity.group else {}),
    }
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    identity.directory.mkdir(parents=True, exist_ok=True)
    return WandbCallback()


def _close_wandb(code: int) -> None:
    import wandb

    run = wandb.run
    if run is None:
        return
    if code in (REQUEUE, STOPPED):
        run.mark_preempting()

    def end() -> None:
        run.finish(exit_code=code)
        wandb.teardown()  # ends its service: this process runs no exit handlers

    bounded(end)


_OPEN: dict[str, Callable[[Identity], Any]] = {
    "mlflow": _open_mlflow,
    "wandb": _open_wandb,
    "tensorboard": _open_tensorboard,
}
_CLOSE: dict[str, Callable[[int], None]] = {"mlflow": _close_mlflow, "wandb": _close_wandb}
