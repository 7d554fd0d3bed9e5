"""The callbacks of MLflow, Weights & Biases and TensorBoard: transformers' own, opened on the run's
tracker run. A failure prints a notice, and the training continues.
"""

from __future__ import annotations

import os
import re
import shlex
import threading
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import MLflowCallback, TensorBoardCallback, WandbCallback

from hpctrain.runs.layout import DONE, REQUEUE, STOPPED
from hpctrain.training.process import OFFLINE, Guard, say
from hpctrain.training.trackers import Identity, without_secrets
from hpctrain.util import files

#: Seconds that the end of a training waits for one tracker: the time limit may be near.
CLOSE_S = 30.0


def bounded(do: Callable[[], object], seconds: float = CLOSE_S) -> bool:
    """Run `do` in a thread, and return whether it finished in time.

    Raises:
        Exception: raised by `do`.
    """
    errors: list[Exception] = []

    def guarded() -> None:
        try:
            do()
        except Exception as error:
            errors.append(error)

    # A daemon thread, so that a hang does not keep the process alive.
    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    return not thread.is_alive()


class TrackerCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not there on the login node
    """Passes the Trainer's events on to the tracker's callback of transformers.

    A tracker that is unreachable when the training starts is disabled for this start.
    """

    name: str

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._inner: Any = None
        self._guard = Guard(f"[train] notice: {self.name}:", clean=without_secrets)

    def open(self) -> Any:
        """Find or create the tracker's run, and return transformers' callback for it.

        Raises:
            Exception: whatever the library raises.
        """
        raise NotImplementedError

    def hint(self) -> str:
        """Return how the run can be viewed, for the end of the log."""
        raise NotImplementedError

    def finish(self, code: int) -> None:
        """Flush the queue, and set the run's status by the exit code.

        Raises:
            Exception: whatever the library raises.
        """

    def retreat(self) -> bool:
        """Go offline after a failed start, and return whether that is possible."""
        return False

    # -- the Trainer's events ----------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Open the tracker's run."""
        if self._inner is not None or not state.is_world_process_zero:
            return

        def begin() -> None:
            inner = self.open()
            inner.on_train_begin(args, state, control, **more)
            self._inner = inner

        def again() -> None:
            if self.retreat():
                begin()

        if not self._guard(begin):
            self._guard(again)
        if self._inner is None:
            self._guard.note("nothing is reported to it by this start of the job")

    def on_log(self, *event: Any, **more: Any) -> None:
        """Pass it on."""
        if self._inner is not None:
            self._guard(self._inner.on_log, *event, **more)

    def on_save(self, *event: Any, **more: Any) -> None:
        """Pass it on: some trackers store checkpoints."""
        if self._inner is not None:
            self._guard(self._inner.on_save, *event, **more)

    def on_train_end(self, *event: Any, **more: Any) -> None:
        """Pass it on; the run stays open until `close`, which has the exit code."""
        if self._inner is not None:
            self._guard(self._inner.on_train_end, *event, **more)

    def close(self, code: int) -> None:
        """Close the tracker's run with a status for the exit code, and print how to view it."""
        if self._inner is not None and self._guard(self.finish, code):
            self._guard(say, f"[train] {self.name}: {without_secrets(self.hint())}")
        self._inner = None


class TensorBoard(TrackerCallback):
    """All starts of a run write to one directory: RUN_DIR/tensorboard, or
    TENSORBOARD_LOGGING_DIR/RUN_ID.
    """

    name = "tensorboard"

    def __init__(self, identity: Identity) -> None:
        super().__init__(identity)
        self.directory = identity.directory / "tensorboard"
        if chosen := os.environ.get("TENSORBOARD_LOGGING_DIR"):
            self.directory = Path(chosen).expanduser().absolute() / identity.name

    def open(self) -> Any:
        """Return transformers' callback with a writer that has a purge_step."""
        callback = TensorBoardCallback()
        older = next(self.directory.glob("events.*"), None) is not None
        # Readers discard the values of earlier files from this step on.
        purge = self._identity.resumed_step + 1 if older and self._identity.continues else None
        callback.tb_writer = callback._SummaryWriter(log_dir=str(self.directory), purge_step=purge)
        return callback

    def hint(self) -> str:
        """Return the command that shows the run; `--logdir runs` would show all."""
        return f"tensorboard --logdir {shlex.quote(str(self.directory))}"


# -- MLflow ----------------------------------------------------------------------------------------

_MAX_PARAMS = "MLFLOW_MAX_LOG_PARAMS"
_VARIABLES = {
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


class _KeepsRunOpen(MLflowCallback):  # type: ignore[misc]  # transformers is not there on the login node
    """Leaves ending the run to `finish`, because a stop for a requeue is not FINISHED."""

    def on_train_begin(self, *arguments: Any, **more: Any) -> None:
        try:
            super().on_train_begin(*arguments, **more)
        finally:
            self._auto_end_run = False
            os.environ.pop(_MAX_PARAMS, None)


class MLflow(TrackerCallback):
    """The MLflow run with the run's id as a tag, on the server or in the store that
    MLFLOW_TRACKING_URI names; by default plain files in `runs/.mlflow/mlruns`.

    It stays open across requeues: RUNNING while the job runs, SCHEDULED while it waits to resume;
    only the last start sets FINISHED or FAILED.
    """

    name = "mlflow"
    _uri = _run = ""

    def open(self) -> Any:
        """Find or create the run, and return transformers' callback, which reads MLFLOW_RUN_ID."""
        store = self._identity.runs / ".mlflow" / "mlruns"
        self._uri = os.environ.setdefault("MLFLOW_TRACKING_URI", store.as_uri())
        for name, value in _VARIABLES.items():
            os.environ.setdefault(name, value)
        import mlflow

        mlflow.set_tracking_uri(self._uri)
        self._run, continues = self._find(mlflow.MlflowClient())
        os.environ["MLFLOW_RUN_ID"] = self._run
        # The run id is enough, and MLflow refuses it if another experiment is set, too.
        os.environ.pop("MLFLOW_EXPERIMENT_NAME", None)
        if continues:
            # MLflow refuses a parameter whose value has changed, such as resume_from_checkpoint,
            # and all parameters sent with it.
            os.environ[_MAX_PARAMS] = "0"
        return _KeepsRunOpen()

    def _find(self, client: Any) -> tuple[str, bool]:
        if given := os.environ.get("MLFLOW_RUN_ID"):
            return given, True
        identity, experiment = self._identity, self.experiment()
        if identity.continues:
            query = f"tags.`{_RUN_TAG}` = '{identity.name}'"
            if found := client.search_runs([experiment], query, max_results=1):
                return str(found[0].info.run_id), True
        tags = {_RUN_TAG: identity.name}
        if identity.group:
            tags["hpctrain.tag"] = identity.group
        made = client.create_run(experiment, run_name=identity.name, tags=tags)
        return str(made.info.run_id), False

    def experiment(self) -> str:
        """Return the id of the experiment; the first of several simultaneous starts creates it."""
        import mlflow

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or self._identity.project
        store = self._identity.runs / ".mlflow" / "mlruns"
        is_ours = self._uri == store.as_uri()  # plain files allow two of the same name
        if is_ours:
            store.mkdir(parents=True, exist_ok=True)
        with files.lock(store.parent / "lock", timeout_s=_LOCK_S) if is_ours else nullcontext():
            return str(mlflow.set_experiment(name).experiment_id)

    def finish(self, code: int) -> None:
        """Flush the queue, and set the run's status."""
        import mlflow

        if mlflow.active_run() is None:
            return
        if not bounded(mlflow.flush_async_logging):
            self._guard.note("the last values were not sent in time; the run is still RUNNING")
            return
        mlflow.end_run(
            _STATUS.get(code, "FAILED")
        )  # in this thread: the active run is thread-local

    def hint(self) -> str:
        """Return the command that shows the run, or the server's address."""
        if urlsplit(self._uri).scheme in ("http", "https", "databricks"):
            return f"run {self._run} on {self._uri}"
        allow = "MLFLOW_ALLOW_FILE_STORE=true " * self._uri.startswith("file:")
        return f"{allow}mlflow ui --backend-store-uri {shlex.quote(self._uri)}"


# -- Weights & Biases ------------------------------------------------------------------------------

#: Characters that W&B refuses in project names and ids.
_REFUSED = re.compile(r"[/\\#?%:\s]")


class Wandb(TrackerCallback):
    """The W&B run whose id is the run id; offline if the Hugging Face libraries are.

    Offline, each start writes its own directory, `RUN_DIR/wandb/offline-run-TIME-RUN_ID`, and
    `wandb sync` of all of them gives one run.
    """

    name = "wandb"

    def open(self) -> Any:
        """Set W&B's environment variables unless the user has, and return transformers' callback."""
        identity = self._identity
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

    def retreat(self) -> bool:
        """Go offline: W&B is unreachable, or there is no API key."""
        import wandb

        # W&B's service process keeps the settings and the id, which it considers in use, until
        # teardown.
        if os.environ.get("WANDB_MODE") != "online" or not bounded(wandb.teardown):
            return False
        os.environ["WANDB_MODE"] = "offline"
        self._guard.note("continues offline")
        return True

    def finish(self, code: int) -> None:
        """Finish the run; mark it as preempted if it may continue."""
        import wandb

        run = wandb.run
        if run is None:
            return
        if code in (REQUEUE, STOPPED):
            run.mark_preempting()

        def end() -> None:
            run.finish(exit_code=code)
            wandb.teardown()  # ends its service: this process runs no exit handlers

        if not bounded(end):
            self._guard.note(f"did not finish within {CLOSE_S:.0f} s")
            wandb.run = None  # so that nothing waits for it again

    def hint(self) -> str:
        """Return the command that uploads the run, or the run's address."""
        if os.environ.get("WANDB_MODE") != "offline":
            return f"run {os.environ['WANDB_RUN_ID']} of project {os.environ['WANDB_PROJECT']}"
        directory = shlex.quote(f"{os.environ['WANDB_DIR']}/wandb")
        return f"to upload this run, where there is a network: wandb sync {directory}/offline-run-*"
