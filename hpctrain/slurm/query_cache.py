"""Slurm's answers within one process, so that a command does not repeat a query within seconds, nor
wait twice for a program that does not answer; and the name of this cluster.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hpctrain.errors import SchedulerError
from hpctrain.util import process, stored

#: Program → seconds for which it is not called again after a failure: sacct if slurmctld can
#: answer; a command does not wait twice for slurmctld.
_SILENT_S = {"sacct": 120.0, "slurmctld": 15.0}
#: Seconds for `scontrol show config`.
_CONFIG_S = 10.0
#: slurm.conf if SLURM_CONF is not set: the default of slurm.conf(5), and the path of a configless
#: slurmd.
_CONFIGURATIONS = (
    "/etc/slurm/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
)

T = TypeVar("T")
#: Query → its time (monotonic), the jobs that it was about, and the answer.
_answers: dict[str, tuple[float, tuple[str, ...], Any]] = {}
#: Program → the time (monotonic) of its last failure, its error, and whether it timed out.
_failures: dict[str, tuple[float, SchedulerError, bool]] = {}


def ask_once(name: str, ask: Callable[[], T], *, max_age_s: float, about: Sequence[str] = ()) -> T:
    """Return the answer to a query if it is at most `max_age_s` old, else a new one.

    Args:
        name: of the query.
        ask: queries Slurm; its exceptions propagate, and nothing is kept.
        max_age_s: seconds; 0 always queries.
        about: the jobs that the query is about.
    """
    kept = _answers.get(name)
    if kept is not None and time.monotonic() - kept[0] < max_age_s and kept[1] == tuple(about):
        answer: T = kept[2]
        return answer
    at, answer = time.monotonic(), ask()
    _answers[name] = (at, tuple(about), answer)
    return answer


def invalidate() -> None:
    """Discard answers from before a submission, a cancellation or a requeue."""
    _answers.clear()


def record_failure(program: str, error: SchedulerError, *, timed_out: bool = True) -> None:
    """Record that `sacct` or `slurmctld` did not answer, or refused to, so that this command does
    not wait for it again.
    """
    _failures[program] = (time.monotonic(), error, timed_out)


def recent_failure(program: str, *, timed_out: bool = False) -> SchedulerError | None:
    """Return the error of a program that failed recently, or only if it timed out; else None."""
    at, error, was_silent = _failures.get(program, (float("-inf"), None, False))
    is_recent = time.monotonic() - at < _SILENT_S[program]
    return error if is_recent and (was_silent or not timed_out) else None


def cluster_name() -> str | None:
    """Return the ClusterName of the local Slurm, or the one cluster in SLURM_CLUSTERS.

    None without Slurm, or if the name is unknown. If slurm.conf is not readable (a configless
    site), scontrol is called.
    """
    chosen = os.environ.get("SLURM_CLUSTERS")
    if chosen:
        return chosen if "," not in chosen and chosen != "all" else None
    if shutil.which("sbatch") is None:
        return None
    conf = os.environ.get("SLURM_CONF")
    names = (_cluster_name(Path(path)) for path in ([conf] if conf else _CONFIGURATIONS))
    return next(filter(None, names), None) or _ask_for_cluster_name()


def _ask_for_cluster_name() -> str | None:
    if shutil.which("scontrol") is None or recent_failure("slurmctld") is not None:
        return None
    try:
        done = process.run(["scontrol", "show", "config"], timeout=_CONFIG_S)
    except SchedulerError as error:
        record_failure("slurmctld", error)
        return None
    return _name_in(done.stdout) if done.returncode == 0 else None


def _cluster_name(path: Path) -> str | None:
    try:
        return _name_in(stored.read_regular(path, 4_000_000).decode("utf-8", "replace"))
    except OSError:
        return None


def _name_in(text: str) -> str | None:
    found = re.search(r"^\s*ClusterName\s*=\s*(\S+)", text, re.IGNORECASE | re.MULTILINE)
    return found[1].lower() if found else None
