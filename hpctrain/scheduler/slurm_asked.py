"""What Slurm was asked last, shared by all hpctrain processes of a user: nobody asks the same again within seconds, nor after the end.

Files in `state_dir()/slurm/CLUSTER/`, private, each written whole. Nothing here fails a command: where nothing can be kept, Slurm is asked.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from hpctrain.errors import HpctrainError, SchedulerError
from hpctrain.scheduler.parse.accounting import Account, Step
from hpctrain.scheduler.parse.records import JobRecord
from hpctrain.scheduler.state_dir import read_json, state_dir

#: Of the newest jobs, whose last state is kept, and the seconds for which: job ids are given out again some day.
_KEPT_JOBS = 3000
_KEPT_S = 30 * 86_400
#: Seconds after which whoever asks counts as gone, more than any answer takes; for which others wait for its answer, as of a controller
#: that is silent there may be none; and between two looks.
_GIVEN_UP_S = 120.0
_WAIT_S = 20.0
_LOOK_S = 0.1
#: Seconds for which a program that did not answer in time is left alone, where another can say something too; and for which a command
#: that the controller has left without an answer does not wait for it once more.
_SILENT_S = 120.0
_CONTROLLER_S = 15.0
#: What is kept by an hpctrain with other records is not read.
_FORM = " ".join(field.name for record in (JobRecord, Account, Step) for field in fields(record)) + " 1"
#: slurm.conf where SLURM_CONF does not name it: slurm.conf(5), and the place of a configless slurmd.
_CONFIGURATIONS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/etc/slurm-llnl/slurm.conf")

Answer = list[dict[str, Any]]


def answer(name: str, ask: Callable[[], Answer], *, max_age_s: float) -> Answer:
    """Return the answer to a question: the last one, where it is not older than `max_age_s`, else a new one.

    Of several processes that want it at the same moment, one asks and the others wait for it. What was asked before the last change of ours
    (`changed`) is too old.

    Args:
        name: of the question.
        ask: asks Slurm; what it raises is raised, and nothing is kept.
        max_age_s: seconds; 0 asks in any case.
    """
    fresh = _fresh(name, max_age_s)
    if fresh is not None:
        return fresh
    with _turn(name, wait=max_age_s > 0):
        fresh = _fresh(name, max_age_s)  # whoever had the turn before has asked
        if fresh is not None:
            return fresh
        at = time.time()
        said = ask()
        _write(f"{name}.json", {"at": at, "answer": said})
        return said


def of_jobs(
    name: str, ids: Sequence[str], ask: Callable[[list[str]], Mapping[str, tuple[Answer, bool]]], *, max_age_s: float
) -> dict[str, Answer]:
    """Return the answers about jobs, one question for all that must be asked; what is known to be the last word is not asked again.

    Args:
        name: of the question.
        ids: of the jobs.
        ask: gets the ids that are left; returns for each an answer, and whether it is the last word. Ids that it leaves out have none.
        max_age_s: seconds; 0 asks for all of them.
    """
    known, left = _known(name, ids, max_age_s)
    if not left:
        return known
    with _turn(name, wait=max_age_s > 0):
        known, left = _known(name, ids, max_age_s)
        if left:
            at = time.time()
            said = ask(left)
            known.update({job: answer for job, (answer, _) in said.items()})
            _keep(name, {job: {"at": at, "answer": said.get(job, ([], False))[0], "last": said.get(job, ([], False))[1]} for job in left})
    return known


def changed() -> None:
    """Say that something was submitted, cancelled or requeued: answers from before are too old, except of jobs that have ended."""
    _write("changed.json", {"at": time.time()})


def fell_silent(program: str, words: str = "", *, refused: bool = False) -> None:
    """Say that a program did not answer in time: whoever asks next need not wait for it as long again.

    Args:
        program: such as `sacct`.
        words: its own, or that there were none.
        refused: it answered, and that was an error: nothing keeps anybody from asking again.
    """
    _write(f"silent-{program}.json", {"at": time.time(), "words": words, "refused": refused})


def answered(program: str) -> None:
    """Say that a program has answered: what kept it from that is over."""
    directory = _directory()
    if directory is not None:
        try:
            (directory / f"silent-{program}.json").unlink(missing_ok=True)
        except OSError:  # a home directory that is read only
            return


def is_silent(program: str) -> bool:
    """Whether a program did not answer in time, a short while ago."""
    return trouble(program) is not None and _read(f"silent-{program}.json").get("refused") is not True


def trouble(program: str) -> str | None:
    """Return what kept a program from answering a short while ago; None where nothing did, as far as is known."""
    said = _read(f"silent-{program}.json")
    if abs(time.time() - _at(said)) >= _SILENT_S:
        return None
    words = said.get("words")
    return words if isinstance(words, str) and words else f"{program} did not answer in time"


#: Directory to when, on this process's clock, the controller left a question without an answer, and the error. Of this process alone:
#: whoever types the next command may have seen that Slurm is back.
_unheard: dict[Path | None, tuple[float, SchedulerError]] = {}


def controller_is_silent(error: SchedulerError) -> None:
    """Say that slurmctld has left a question without an answer: this command does not wait for the next one as long again."""
    _unheard[_directory()] = (time.monotonic(), error)


def controller_trouble() -> SchedulerError | None:
    """Return what kept slurmctld from answering this process a moment ago; None where nothing did."""
    at, error = _unheard.get(_directory(), (float("-inf"), None))
    return error if time.monotonic() - at < _CONTROLLER_S else None


def is_alive(ids: Iterable[str]) -> None:
    """Say that these jobs wait or run, so that a last word on one of that id, or its tasks, is none: requeued, or the id is used again."""
    alive = set(ids)
    for name in ("ended", "accounts"):
        jobs = _jobs(name)
        again = {job for job, entry in jobs.items() if entry.get("last") and (job in alive or job.partition("_")[0] in alive)}
        if again:
            _write(f"{name}.json", {"jobs": {job: entry for job, entry in jobs.items() if job not in again}})


def remembered_fields() -> tuple[str, ...] | None:
    """Return the fields that this sacct knows, where it was asked for them; a sacct that has changed on disk was not."""
    said = _read("fields.json")
    fields = said.get("fields") if said.get("sacct") == _identity("sacct") else None
    return tuple(fields) if isinstance(fields, list) and all(isinstance(each, str) for each in fields) else None


def remember_fields(fields: Sequence[str]) -> None:
    """Keep what `remembered_fields` returns."""
    _write("fields.json", {"sacct": _identity("sacct"), "fields": list(fields)})


def _known(name: str, ids: Sequence[str], max_age_s: float) -> tuple[dict[str, Answer], list[str]]:
    """Return the answers that are kept, and the ids that are left."""
    if max_age_s <= 0:
        return {}, list(ids)
    jobs, since = _jobs(name), _changed_at()
    found: dict[str, Answer] = {}
    for job in ids:
        entry = jobs.get(job, {})
        last = entry.get("last") is True and time.time() - _at(entry) < _KEPT_S
        if (last or _is_fresh(entry, max_age_s, since)) and _is_answer(entry.get("answer")):
            found[job] = entry["answer"]
    return found, [job for job in ids if job not in found]


def _keep(name: str, entries: Mapping[str, dict[str, Any]]) -> None:
    jobs = {**_jobs(name), **entries}
    newest = sorted(jobs, key=lambda job: _at(jobs[job]))[-_KEPT_JOBS:]
    _write(f"{name}.json", {"jobs": {job: jobs[job] for job in newest if time.time() - _at(jobs[job]) < _KEPT_S}})


def _jobs(name: str) -> dict[str, dict[str, Any]]:
    jobs = _read(f"{name}.json").get("jobs")
    return {job: entry for job, entry in jobs.items() if isinstance(entry, dict)} if isinstance(jobs, dict) else {}


def _fresh(name: str, max_age_s: float) -> Answer | None:
    if max_age_s <= 0:
        return None
    said = _read(f"{name}.json")
    return said["answer"] if _is_fresh(said, max_age_s, _changed_at()) and _is_answer(said.get("answer")) else None


def _is_fresh(entry: Mapping[str, Any], max_age_s: float, changed_at: float) -> bool:
    # Of another machine's clock it may be from the future.
    return abs(time.time() - _at(entry)) < max_age_s and _at(entry) > changed_at


def _changed_at() -> float:
    return _at(_read("changed.json"))


def _at(entry: Mapping[str, Any]) -> float:
    at = entry.get("at")
    return float(at) if isinstance(at, int | float) and not isinstance(at, bool) else 0.0


def _is_answer(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(row, dict) for row in value)


@contextmanager
def _turn(name: str, *, wait: bool) -> Iterator[None]:
    """Hold the right to ask, which one process of the user has at a time; without `wait`, ask beside whoever holds it."""
    directory = _directory() if wait else None
    if directory is None:
        yield
        return
    claim = directory / f".{name}.asking"
    deadline = time.monotonic() + _WAIT_S
    mine = False
    while not mine and time.monotonic() < deadline:
        try:
            os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            claim.write_text(f"{socket.gethostname()} {os.getpid()}")
            mine = True
        except FileExistsError:
            if _is_left_behind(claim):
                claim.unlink(missing_ok=True)
            else:
                time.sleep(_LOOK_S)
        except OSError:
            break  # a home directory that is full, or read only
    try:
        yield
    finally:
        if mine:
            claim.unlink(missing_ok=True)


def _is_left_behind(claim: Path) -> bool:
    """Whether whoever holds a claim was killed."""
    try:
        host, _, pid = claim.read_text().partition(" ")
        if host == socket.gethostname() and pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            return True
        return time.time() - claim.stat().st_mtime > _GIVEN_UP_S
    except OSError:
        return False


def _read(name: str) -> dict[str, Any]:
    directory = _directory()
    return (read_json(directory / name) if directory is not None else None) or {}


def _write(name: str, value: dict[str, Any]) -> None:
    """Write a file whole, for nobody else to read: job names and comments are the user's own."""
    directory = _directory()
    if directory is None:
        return
    temporary = directory / f".{name}.{uuid.uuid4().hex[:12]}"
    try:
        with os.fdopen(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            json.dump(value, file)
        temporary.replace(directory / name)
    except OSError:  # a home directory that is full
        try:
            temporary.unlink(missing_ok=True)
        except OSError:
            return


def _directory() -> Path | None:
    """Return the directory of this cluster and of the programs that are asked; None where none can be made."""
    try:
        directory = state_dir() / "slurm" / _cluster()
        for each in (directory.parent, directory):
            each.mkdir(exist_ok=True, mode=0o700)
    except (HpctrainError, OSError):
        return None
    return directory


def _cluster() -> str:
    """Return a word for the cluster: clusters of one site share home directories, and their programs may lie at the same place."""
    conf = os.environ.get("SLURM_CONF")
    name = next((found for path in ([conf] if conf else _CONFIGURATIONS) if (found := _cluster_name(Path(path))) is not None), None)
    where = name or f"host {socket.gethostname()}"
    parts = (str(os.getuid()), conf or "", os.environ.get("SLURM_CLUSTERS", ""), where, _identity("squeue"), _FORM)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _cluster_name(path: Path) -> str | None:
    try:
        if not path.is_file() or path.stat().st_size > 4_000_000:
            return None
        found = re.search(r"^\s*ClusterName\s*=\s*(\S+)", path.read_text(encoding="utf-8", errors="replace"), re.IGNORECASE | re.MULTILINE)
    except OSError:
        return None
    return found[1].lower() if found else None


def _identity(program: str) -> str:
    """Return a word that changes where another program of that name is found, or it is another version."""
    path = shutil.which(program)
    if path is None:
        return ""
    try:
        status = Path(path).stat()
    except OSError:
        return path
    return f"{path} {status.st_size} {status.st_mtime_ns}"
