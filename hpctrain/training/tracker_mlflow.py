"""MLflow: a server when MLFLOW_TRACKING_URI names one, else a store of the project in `runs/.mlflow`.

The store is SQLite (`mlflow.db`), MLflow's default, where the file system is one of this machine, and plain files (`mlruns/`)
everywhere else: SQLite trusts locks that Lustre, NFS and GPFS do not all give, and the points of a sweep write at the same time.
MLflow 3 keeps plain files in maintenance and asks for MLFLOW_ALLOW_FILE_STORE=true, which is set here; `mlflow migrate-filestore`
moves them into a database later.

An MLflow run stays open over requeues: RUNNING while the job runs, SCHEDULED while it waits to go on, and only the last start says
FINISHED or FAILED.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hpctrain.runs.layout import DONE, REQUEUE, STOPPED
from hpctrain.training.trackers import Has, Identity, bounded, notice, recalled, remember, without_secrets

DIRECTORY = ".mlflow"
"""In the directory of all runs."""

LOCAL_FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay"})
"""Where POSIX locks of all processes that can see a file work, since all of them are on one machine."""

_RUN_TAG = "hpctrain.run_id"
_GROUP_TAG = "hpctrain.tag"
_MAX_PARAMS = "MLFLOW_MAX_LOG_PARAMS"
#: How patient MLflow is while the training waits for it: by default a server that does not answer costs 7 tries of 120 s.
_IMPATIENT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
_STATUS = {DONE: "FINISHED", REQUEUE: "SCHEDULED", STOPPED: "KILLED"}


class MLflow:
    """The MLflow run that belongs to a run of ours: known by tracker.json, else by its tag."""

    name = "mlflow"

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._run = ""
        self._continues = False
        self._uri = ""

    # -- the beginning -------------------------------------------------------------------------------------------------

    def open(self) -> Any:
        """Find the run or make it, and return transformers' callback, which takes it from MLFLOW_RUN_ID.

        Raises:
            Exception: the store or the server cannot be reached, or refuses.
        """
        self._uri = self._choose()
        os.environ["MLFLOW_TRACKING_URI"] = self._uri
        if store(self._uri) == "files":
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        with _impatient():
            import mlflow
            from transformers.integrations import MLflowCallback

            mlflow.set_tracking_uri(self._uri)
            client = mlflow.MlflowClient()
            self._run, self._continues = self._find(client)
            remember(self._identity, self.name, {"uri": without_secrets(self._uri), "run_id": self._run})
        os.environ["MLFLOW_RUN_ID"] = self._run
        # The run's id says it all, and MLflow refuses it when the experiment is named too, and is another.
        os.environ.pop("MLFLOW_EXPERIMENT_NAME", None)
        if self._continues:
            # MLflow refuses a parameter that has another value now, such as resume_from_checkpoint, and all that are sent with it.
            os.environ[_MAX_PARAMS] = "0"

        class Callback(MLflowCallback):  # type: ignore[misc]  # transformers is not there on the login node
            """Begins without patience, and leaves it to `close` to end the run: a training that stops for a requeue is not FINISHED."""

            def on_train_begin(self, *arguments: Any, **more: Any) -> None:
                try:
                    with _impatient():
                        super().on_train_begin(*arguments, **more)
                finally:
                    self._auto_end_run = False

        return Callback()

    def retreat(self) -> bool:
        """Nowhere: a run that is in two stores is two runs. It is told what it missed when it is reached again."""
        return False

    def _choose(self) -> str:
        if uri := os.environ.get("MLFLOW_TRACKING_URI"):
            if store(uri) == "sqlite" and (kind := _file_system(_sqlite_path(uri))) not in LOCAL_FILE_SYSTEMS:
                notice(f"mlflow: {uri} is SQLite on {kind}, which may lock up or lose runs; unset MLFLOW_TRACKING_URI for plain files")
            return uri
        folder = self._identity.runs / DIRECTORY
        folder.mkdir(parents=True, exist_ok=True)
        # mlflow-skinny alone has nothing for databases.
        database = all(importlib.util.find_spec(name) for name in ("sqlalchemy", "alembic"))
        if (folder / "mlruns").is_dir() or not database or _file_system(folder) not in LOCAL_FILE_SYSTEMS:
            return (folder / "mlruns").as_uri()
        return f"sqlite:///{folder / 'mlflow.db'}"

    def _find(self, client: Any) -> tuple[str, bool]:
        """Return the id of the MLflow run, and whether it was there before."""
        if given := os.environ.get("MLFLOW_RUN_ID"):
            return given, True
        known = recalled(self._identity, self.name)
        if known.get("uri") == without_secrets(self._uri) and (found := self._usable(client, known.get("run_id"))):
            return found, True
        experiment = self._experiment(client, os.environ.get("MLFLOW_EXPERIMENT_NAME") or self._identity.project)
        # A start that was killed before it could write tracker.json. Plain files would all be opened for this.
        if self._identity.continues and store(self._uri) != "files":
            named = self._identity.name.replace("'", "")
            runs = client.search_runs([experiment], filter_string=f"tags.`{_RUN_TAG}` = '{named}'", max_results=1)
            if runs:
                return str(runs[0].info.run_id), True
        tags = {_RUN_TAG: self._identity.name, **({_GROUP_TAG: self._identity.group} if self._identity.group else {})}
        return str(client.create_run(experiment, run_name=self._identity.name, tags=tags).info.run_id), False

    def _usable(self, client: Any, run: Any) -> str | None:
        from mlflow.exceptions import MlflowException

        try:
            found = client.get_run(str(run))
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                notice(f"mlflow: run {run} is not there any more; a new one is made")
                return None
            raise
        return str(run) if found.info.lifecycle_stage == "active" else None

    def _experiment(self, client: Any, name: str) -> str:
        """Return the id of the experiment; the first of several starts at the same time makes it."""
        from mlflow.exceptions import MlflowException

        if found := client.get_experiment_by_name(name):
            return str(found.experiment_id)
        kind = store(self._uri)
        if kind == "files":
            return make_experiment(_files_path(self._uri), name)
        artifacts = (_sqlite_path(self._uri).parent / "artifacts").as_uri() if kind == "sqlite" else None
        try:
            return str(client.create_experiment(name, artifact_location=artifacts))
        except MlflowException:
            if found := client.get_experiment_by_name(name):
                return str(found.experiment_id)
            raise

    def began(self) -> Has:
        """Return which values of which steps the run has from earlier starts."""
        import mlflow

        os.environ.pop(_MAX_PARAMS, None)
        have: set[tuple[str, int]] = set()
        if self._continues:
            with _impatient():
                client = mlflow.MlflowClient()
                for name in client.get_run(self._run).data.metrics:
                    have.update((name, metric.step) for metric in client.get_metric_history(self._run, name))
        return lambda name, step: (name, step) in have

    def key(self, name: str) -> str:
        """Return the name of a value as transformers passes it on: MLflow allows fewer characters."""
        return re.sub(r"[^0-9A-Za-z_\-\.\ :/]", "_", name)

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self, code: int) -> None:
        """Send what is in the queue, and set the run's status."""
        import mlflow

        with _impatient():
            if mlflow.active_run() is None:
                return
            if not bounded(mlflow.flush_async_logging):
                notice("mlflow: the last values could not be sent in time, and the run is still marked as running")
                return
            # Of this thread: the active run is known to no other.
            mlflow.end_run(_STATUS.get(code, "FAILED"))

    def hint(self) -> str:
        """Return the command that shows the run, or the server's address."""
        kind = store(self._uri)
        if kind == "server":
            return f"run {self._run} on {without_secrets(self._uri)}"
        allow = "MLFLOW_ALLOW_FILE_STORE=true " if kind == "files" else ""
        # MLflow's page is in the package mlflow, and not in mlflow-skinny.
        where = "" if importlib.util.find_spec("flask") else ", in an environment that has all of mlflow (pip install mlflow)"
        return f"{allow}mlflow ui --backend-store-uri {shlex.quote(self._uri)}{where}"


# -- stores ------------------------------------------------------------------------------------------------------------


def store(uri: str) -> str:
    """Return what is behind a tracking URI: `files`, `sqlite` or `server` (another database is one, too)."""
    scheme = urlsplit(uri).scheme
    if scheme.startswith("sqlite"):
        return "sqlite"
    return "files" if scheme in ("", "file") and uri != "databricks" else "server"


def make_experiment(root: Path, name: str) -> str:
    """Make an experiment in a store of plain files, and return its id, which the name gives; MLflow makes two when two jobs ask at once.

    The folder is made elsewhere and renamed into place, so the one that comes second finds it there.

    Raises:
        OSError: the file system refuses.
    """
    import yaml

    identity = str(int(hashlib.sha256(name.encode()).hexdigest(), 16) % 10**18).zfill(18)
    root.mkdir(parents=True, exist_ok=True)
    now = int(time.time() * 1000)
    facts = {
        "artifact_location": (root / identity).as_uri(),
        "creation_time": now,
        "experiment_id": identity,
        "last_update_time": now,
        "lifecycle_stage": "active",
        "name": name,
    }
    # Not in the store, where MLflow would take it for a broken experiment.
    new = root.parent / f".new-{uuid.uuid4().hex}"
    new.mkdir()
    try:
        (new / "meta.yaml").write_text(yaml.safe_dump(facts), encoding="utf-8")
        new.rename(root / identity)
    except OSError:
        if not (root / identity / "meta.yaml").is_file():
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return identity


def _files_path(uri: str) -> Path:
    from urllib.request import url2pathname

    return Path(url2pathname(urlsplit(uri).path) if uri.startswith("file:") else uri).absolute()


def _sqlite_path(uri: str) -> Path:
    return Path(urlsplit(uri).path.removeprefix("/") or ".").absolute()


def _file_system(path: Path) -> str | None:
    from hpctrain.doctor.probes.storage import file_system

    return file_system(str(path))


@contextmanager
def _impatient() -> Iterator[None]:
    """Let MLflow give up soon, where the user has not said how soon."""
    mine = [name for name in _IMPATIENT if name not in os.environ]
    os.environ.update({name: _IMPATIENT[name] for name in mine})
    try:
        yield
    finally:
        for name in mine:
            os.environ.pop(name, None)
