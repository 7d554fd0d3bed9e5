"""The user's submissions, to sbatch or to the local scheduler: the record of each, with the request
and its job, and for those to Slurm a link to it.

A record is one file in the record of its launch (runs.launch), or here for a script without one.
Record and link are written before sbatch runs, so that a lost answer is noticed. The job's
comment, which Slurm keeps, contains the submission's token, so that the job can be found.
"""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from hpctrain.errors import HpctrainError
from hpctrain.slurm import job_ids
from hpctrain.slurm.notations import array as arrays
from hpctrain.util import stored
from hpctrain.util.files import read_json, state_dir, write_json

#: Prefix of a token in a job's comment.
PREFIX = "hpctrain:"
#: Seconds after which a request that sbatch sent without an answer cannot arrive any more.
ARRIVES_S = 600.0
#: Seconds for which submissions are kept: 90 days.
KEPT_S = 90 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One submission, to sbatch or to the local scheduler.

    Attributes:
        token: unique id, which Slurm keeps in the job's comment.
        argv: the command that was run.
        at: seconds since the epoch.
        scheduler: `slurm` or `local`.
        job_id: None until the scheduler reported one; the job may exist.
        cluster: the job's cluster; None if Slurm did not report it.
        array: the indices, in Slurm's syntax.
        dependency: in Slurm's syntax, such as `afterok:123`.
        arguments: the script's arguments: the tag of its launch.
        name, output, error: the job's name and log files, as Slurm filename patterns.
        directory: the directory of the submission.
        digest: of the script's text.
        script: file name in the launch's `scripts/`; `config`: in the launch's record.
        offset: added to an array index to get the index of a parameter combination; None: unknown.
        stage: the stage that it runs; None: unknown.
        command: the hpctrain command that submitted it.
        notes: sentences for the user, such as the scheduler's warnings; not stored.
        record: the path of its file, if it is linked here; not stored.
    """

    token: str = ""
    argv: tuple[str, ...] = ()
    at: float = 0.0
    scheduler: Literal["slurm", "local"] = "slurm"
    job_id: str | None = None
    cluster: str | None = None
    array: str | None = None
    dependency: str | None = None
    arguments: tuple[str, ...] = ()
    name: str | None = None
    output: str | None = None
    error: str | None = None
    directory: str | None = None
    digest: str | None = None
    script: str | None = None
    config: str | None = None
    offset: int | None = None
    stage: str | None = None
    command: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    record: str = ""

    @property
    def job(self) -> str | None:
        """The job's id in the notation of slurm.job_ids; None until the scheduler reported it."""
        return None if self.job_id is None else job_ids.of_record(self.job_id, self.cluster)

    @property
    def answer(self) -> str:
        """The job id, for a submission that has one."""
        if self.job_id is None:
            raise ValueError(f"the submission {self.token} has no job")
        return self.job_id

    @property
    def comment(self) -> str:
        """The submission's part of the job's comment."""
        return PREFIX + self.token

    def is_of(self, comment: str | None) -> bool:
        """Whether a job with this comment belongs to the submission."""
        return self.comment in (comment or "").split()

    def covers(self, index: int | None) -> bool:
        """Whether it contains the parameter combination `index` of a sweep; True if unknown."""
        return (
            index is None
            or self.array is None
            or arrays.contains(self.array, index - (self.offset or 0))
        )

    def write(self, folder: Path) -> Path:
        """Write the submission's file and return its path.

        Raises:
            HpctrainError: the job exists, and the file cannot be written.
            OSError: the file cannot be written.
        """
        path = folder / f"{self.token}.json"
        value = {"schema": 1, **asdict(self)}
        del value["notes"], value["record"]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(path, value)
        except OSError as error:
            if self.job_id is None:
                raise
            raise HpctrainError(
                f"job {self.job_id} was submitted, and the record of it cannot be written:"
                f" {error.strerror}",
                details=(str(error.filename),),
                fix=f"df -h {shlex.quote(str(folder))}",
                hint=f"to stop the job, run: hpctrain cancel {self.job_id}",
            ) from error
        return path


def record(sent: Submission, folder: Path | None) -> Submission:
    """Record a submission before it is sent, in `folder` or here, and link to the record."""
    for path in _directory().rglob("*.json"):
        with contextlib.suppress(FileNotFoundError):  # another submission removes them too
            if time.time() - path.lstat().st_mtime > KEPT_S:
                path.unlink()
    path = sent.write((folder or _directory() / "scripts").absolute())
    _link(sent.token).symlink_to(path)
    return replace(sent, record=str(path))


def found(sent: Submission, job_id: str, cluster: str | None = None) -> Submission:
    """Record the job id of a submission, and the cluster if sbatch named one."""
    sent = replace(sent, job_id=job_id, cluster=cluster or sent.cluster)
    sent.write(Path(sent.record).parent)
    return sent


def forget(token: str) -> None:
    """Delete a submission that Slurm refused, or that never arrived."""
    link = _link(token)
    link.resolve().unlink(missing_ok=True)
    link.unlink(missing_ok=True)


def submissions() -> list[Submission]:
    """Return all submissions to this cluster whose records exist, oldest first."""
    known = []
    for link in _directory().glob("*.json"):
        with contextlib.suppress(OSError):  # no link, or another command has removed it
            path = link.readlink()
            if (sent := stored.made(Submission, read_json(path))) is not None:
                known.append(replace(sent, record=str(path)))
    mine = [sent for sent in known if job_ids.is_this_cluster(sent.cluster)]
    return sorted(mine, key=lambda sent: sent.at)


def unanswered(text: str) -> list[Submission]:
    """Return the submissions of this script from this directory that sbatch did not answer, oldest
    first.
    """
    same = (None, digest(text), str(Path.cwd()))
    return [each for each in submissions() if (each.job_id, each.digest, each.directory) == same]


def digest(text: str) -> str:
    """Return the SHA-256 of a script's text."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def of_jobs(comments: Mapping[str, str | None]) -> dict[str, Submission]:
    """Map job ids to their newest submissions. Slurm reuses ids; `comments` has the known comments
    of the current jobs, to tell them apart.
    """
    return {
        each.job_id: each
        for each in submissions()
        if each.job_id is not None
        and each.job_id in comments
        and (each.is_of(comments[each.job_id]) or PREFIX not in (comments[each.job_id] or ""))
    }


def _link(token: str) -> Path:
    return _directory() / f"{token}.json"


def _directory() -> Path:
    directory = state_dir() / "submissions"
    directory.mkdir(exist_ok=True)
    return directory
