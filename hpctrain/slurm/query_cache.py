"""A cache of Slurm's answers, shared by all hpctrain processes of a user, so that none repeats a
query within seconds.

Private files in `state_dir()/slurm/CLUSTER/`, replaced atomically. Errors of the cache never fail a
command: Slurm is queried instead.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpctrain import __version__
from hpctrain.errors import HpctrainError, SchedulerError
from hpctrain.util import process, stored
from hpctrain.util.files import read_json, state_dir, write_json

#: Seconds for which a program that timed out is not called again if another one can answer; and for
#: which a command does not wait again for an unresponsive controller.
_SILENT_S = 120.0
_CONTROLLER_S = 15.0
#: Seconds for which the name of a cluster is cached.
_NAMED_S = 86_400.0
#: Seconds for `scontrol show config`.
_CONFIG_S = 10.0
#: slurm.conf if SLURM_CONF is not set: the default of slurm.conf(5), and the path of a configless
#: slurmd.
_CONFIGURATIONS = (
    "/etc/slurm/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
)

Answer = list[dict[str, Any]]


def ask_once(
    name: str, ask: Callable[[], Answer], *, max_age_s: float, about: Sequence[str] = ()
) -> Answer:
    """Return the cached answer to a query if it is at most `max_age_s` old, else a new one.

    An answer from before the user's last change (`invalidate`) is not reused.

    Args:
        name: of the query.
        ask: queries Slurm; its exceptions propagate, and nothing is cached.
        max_age_s: seconds; 0 always queries.
        about: the jobs that the query is about.
    """
    kept, answer = _read(f"{name}.json"), None
    fresh = _age_s(kept) < max_age_s and _at(kept) > _at(_read("changed.json"))
    if fresh and kept.get("about") == list(about):
        answer = kept.get("answer")
    if isinstance(answer, list) and all(isinstance(row, dict) for row in answer):
        return answer
    at = time.time()
    found = ask()
    _write(f"{name}.json", {"at": at, "about": list(about), "answer": found})
    return found


def invalidate() -> None:
    """Discard answers from before a submission, a cancellation or a requeue."""
    _write("changed.json", {"at": time.time()})


def record_failure(program: str, words: str = "", *, refused: bool = False) -> None:
    """Record that a program timed out, so that the next command does not wait for it as long.

    Args:
        program: such as `sacct`.
        words: its error message, if any.
        refused: it answered with an error, so it may be called again.
    """
    _write(f"silent-{program}.json", {"at": time.time(), "words": words, "refused": refused})


def record_answer(program: str) -> None:
    """Record that a program answered, which clears its failure."""
    if _read(f"silent-{program}.json"):
        _write(f"silent-{program}.json", {})


def timed_out_recently(program: str) -> bool:
    """Whether a program timed out recently."""
    return recent_failure(program) is not None and not _read(f"silent-{program}.json").get(
        "refused"
    )


def recent_failure(program: str) -> str | None:
    """Return why a program did not answer recently; None if no failure is known."""
    failure = _read(f"silent-{program}.json")
    if _age_s(failure) >= _SILENT_S:
        return None
    return str(failure.get("words") or f"{program} did not answer in time")


#: Directory to the time (monotonic) and the error of the controller's last timeout. Not stored on
#: disk: Slurm may be back for the user's next command.
_unheard: dict[Path | None, tuple[float, SchedulerError]] = {}


def record_controller_failure(error: SchedulerError) -> None:
    """Record that slurmctld did not answer, so that this command does not wait for it again."""
    _unheard[_directory()] = (time.monotonic(), error)


def recent_controller_failure() -> SchedulerError | None:
    """Return slurmctld's recent timeout in this process; None if there was none."""
    at, error = _unheard.get(_directory(), (float("-inf"), None))
    return error if time.monotonic() - at < _CONTROLLER_S else None


def _at(entry: Mapping[str, Any]) -> float:
    at: Any = entry.get("at")
    return float(at) if stored.fits(at, float) else 0.0


def _age_s(entry: Mapping[str, Any]) -> float:
    return abs(time.time() - _at(entry))  # another host's clock may be ahead


def _read(name: str) -> dict[str, Any]:
    directory = _directory()
    return (read_json(directory / name) if directory is not None else None) or {}


def _write(name: str, value: dict[str, Any]) -> None:
    directory = _directory()
    if directory is not None:
        with suppress(OSError):  # such as a full home directory
            # Private: job names and comments are the user's own.
            write_json(directory / name, value, mode=0o600, durable=False)


def _directory() -> Path | None:
    try:
        directory = state_dir() / "slurm" / _cluster()
        for each in (directory.parent, directory):
            each.mkdir(exist_ok=True, mode=0o700)
    except (HpctrainError, OSError):
        return None
    return directory


def _cluster() -> str:
    """Return a key for the cluster: clusters of one site share home directories, and may have their
    programs at the same path.
    """
    conf = os.environ.get("SLURM_CONF")
    where = configured_cluster() or f"host {socket.gethostname()}"
    parts = (
        str(os.getuid()),
        conf or "",
        os.environ.get("SLURM_CLUSTERS", ""),
        where,
        __version__,
        _identity("squeue"),
    )
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def configured_cluster() -> str | None:
    """Return ClusterName from slurm.conf, if that is readable here."""
    conf = os.environ.get("SLURM_CONF")
    return next(
        (
            found
            for path in ([conf] if conf else _CONFIGURATIONS)
            if (found := _cluster_name(Path(path))) is not None
        ),
        None,
    )


def cluster_name() -> str | None:
    """Return the ClusterName of the local Slurm, or the one cluster in SLURM_CLUSTERS.

    None without Slurm, or if the name is unknown. If slurm.conf is not readable (a configless
    site), scontrol is called once a day.
    """
    chosen = os.environ.get("SLURM_CLUSTERS")
    if chosen:
        return chosen if "," not in chosen and chosen != "all" else None
    if shutil.which("sbatch") is None:
        return None
    configured = configured_cluster()
    if configured is not None:
        return configured
    kept = _read("cluster.json")
    known = str(kept["name"]) if isinstance(kept.get("name"), str) else None
    if known is not None and _age_s(kept) < _NAMED_S:
        return known
    name = _ask_for_cluster_name()
    if name is not None:
        _write("cluster.json", {"at": time.time(), "name": name})
    return name or known


def _ask_for_cluster_name() -> str | None:
    if shutil.which("scontrol") is None or recent_controller_failure() is not None:
        return None
    try:
        done = process.run(["scontrol", "show", "config"], timeout=_CONFIG_S)
    except SchedulerError as error:
        record_controller_failure(error)
        return None
    found = re.search(r"^ClusterName\s*=\s*(\S+)", done.stdout, re.MULTILINE)
    return found[1] if done.returncode == 0 and found is not None else None


def _cluster_name(path: Path) -> str | None:
    try:
        found = re.search(
            r"^\s*ClusterName\s*=\s*(\S+)",
            stored.read_regular(path, 4_000_000).decode("utf-8", "replace"),
            re.IGNORECASE | re.MULTILINE,
        )
    except OSError:
        return None
    return found[1].lower() if found else None


def _identity(program: str) -> str:
    """Return a key that changes with the program's path or version."""
    path = shutil.which(program) or ""
    try:
        status = Path(path).stat()
    except OSError:
        return path
    return f"{path} {status.st_size} {status.st_mtime_ns}"
