"""What was sent to Slurm: one file for each submission, written before sbatch is asked, so that an answer that never came is known.

Each submission carries a token in the job's comment. Slurm keeps comments, so a job can be found by it.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hpctrain.scheduler.state_dir import read_json, state_dir, write_json

PREFIX = "hpctrain:"
#: Seconds for which a submission is remembered: 90 days.
KEPT_S = 90 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One submission. `job_id` is None until Slurm has named one; `at` is seconds since the epoch.

    Attributes:
        digest: of the script's text.
        orders: the options of sbatch that are not the script's, and `arguments` the script's own: two arrays of one script, or two tags,
            are two submissions. Whoever makes a new tag for each call finds here the tag of a call that was never answered.
        told: whether a command that submits has named the job to the user. Until then the user may well ask for it again, whoever else
            has found the job meanwhile (`hpctrain ps` looks for it too): the next submission names that job, and sends nothing.
    """

    token: str
    script: str
    digest: str
    directory: str
    output: str | None
    error: str | None
    at: float
    name: str | None = None
    job_id: str | None = None
    cluster: str | None = None
    orders: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    told: bool = True  # in the files of an older hpctrain, which did not say it

    @property
    def comment(self) -> str:
        """The word in the job's comment."""
        return PREFIX + self.token

    def is_of(self, comment: str | None) -> bool:
        """Whether a job with this comment is the one that was submitted."""
        return self.comment in (comment or "").split()


def new(
    script: Path,
    text: str,
    *,
    name: str | None,
    output: str | None,
    error: str | None,
    orders: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> Entry:
    """Record that `script` is about to be submitted; `orders` are what sbatch's command line asks for besides it."""
    entry = Entry(
        token=uuid.uuid4().hex[:16], script=str(script.resolve()), digest=digest(text), directory=str(Path.cwd()), output=output,
        error=error, at=time.time(), name=name, orders=tuple(orders), arguments=tuple(arguments), told=False,
    )  # fmt: skip
    _forget_old()
    _write(entry)
    return entry


def digest(text: str) -> str:
    """Return what tells scripts apart: the SHA-256 of the text."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def found(entry: Entry, job_id: str, cluster: str | None, *, told: bool = True) -> Entry:
    """Record the job id of a submission; `told` where the caller names the job to the user as what was asked for."""
    known = replace(entry, job_id=job_id, cluster=cluster, told=told)
    _write(known)
    return known


def forget(entry: Entry) -> None:
    """Drop a submission that Slurm refused, or that the user gives up."""
    _path(entry.token).unlink(missing_ok=True)


def entries() -> list[Entry]:
    """Return all submissions, the oldest first."""
    values = [read_json(path) for path in _directory().glob("*.json")]
    return sorted((entry for value in values if (entry := _entry(value)) is not None), key=lambda entry: entry.at)


def unanswered() -> list[Entry]:
    """Return the submissions that sbatch never answered and that no job has been found for."""
    return [entry for entry in entries() if entry.job_id is None]


def unanswered_of(text: str) -> list[Entry]:
    """Return the submissions of this script from this directory whose job the user has not been told, the oldest first.

    Their orders and arguments are whatever they are, and a look at the queue may have found the job since.
    """
    own = (entry for entry in entries() if entry.job_id is None or not entry.told)
    return [entry for entry in own if entry.digest == digest(text) and entry.directory == str(Path.cwd())]


def by_job_id(job_id: str) -> Entry | None:
    """Return the newest submission with this job id; whether a job that has the id now is that one, its comment says (`Entry.is_of`)."""
    matching = [entry for entry in entries() if entry.job_id == job_id]
    return matching[-1] if matching else None


def has_token(comment: str | None) -> bool:
    """Whether a job with this comment was submitted by some hpctrain."""
    return any(word.startswith(PREFIX) for word in (comment or "").split())


def _entry(value: dict[str, Any] | None) -> Entry | None:
    """Return what was written; keys of a newer hpctrain, on a home directory that machines share, are passed over."""
    try:
        if value is None:
            return None
        lists = {key: tuple(value.get(key, ())) for key in ("orders", "arguments")}
        return Entry(**{key: value[key] for key in value if key in Entry.__slots__} | lists)
    except TypeError:
        return None


def _forget_old() -> None:
    for path in _directory().glob("*.json"):
        if time.time() - path.stat().st_mtime > KEPT_S:
            path.unlink(missing_ok=True)


def _write(entry: Entry) -> None:
    write_json(_path(entry.token), asdict(entry))


def _path(token: str) -> Path:
    return _directory() / f"{token}.json"


def _directory() -> Path:
    directory = state_dir() / "submissions"
    directory.mkdir(exist_ok=True)
    return directory
