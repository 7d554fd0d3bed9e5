"""What the words behind `hpctrain explain` stand for: a run, a job, files; without words, the newest job that did not end well."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpctrain.cli import schedulers
from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.logs import found, read
from hpctrain.logs.model import LogFile
from hpctrain.runs import layout, store
from hpctrain.runs.store import Run
from hpctrain.scheduler.parse import states
from hpctrain.scheduler.parse.records import JobRecord

STDIN = "-"
#: Endings of logs that lie beside other files.
_LOGS = (".out", ".err", ".log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Meant:
    """What is to be explained.

    Attributes:
        job: its id, where there is one that a scheduler may know.
        guessed: the name of a log is all that tells of the job.
        no_directory: of the log that the scheduler names, where that directory is not there.
        temporary: a file that holds what came from the standard input.
    """

    files: tuple[LogFile, ...]
    title: str
    job: str | None = None
    guessed: bool = False
    run: Run | None = None
    run_dir: Path | None = None
    notes: tuple[str, ...] = ()
    no_directory: Path | None = None
    temporary: Path | None = None

    def forget(self) -> None:
        """Remove what was written for the reading."""
        if self.temporary is not None:
            self.temporary.unlink(missing_ok=True)


def meant(words: Sequence[str], runs_dir: Path | None = None) -> Meant:
    """Return what `words` stand for.

    Raises:
        UsageError: they stand for nothing, or for several things.
    """
    runs = runs_dir or Path(layout.RUNS)
    if not words:
        return _newest(runs)
    if list(words) == [STDIN]:
        return _from_stdin()
    paths = [word for word in words if _is_path(word, runs)]
    if len(paths) == len(words):
        return _of_paths([Path(word) for word in paths])
    if len(words) > 1:
        other = next(word for word in words if word not in paths)
        raise UsageError(
            f"{other!r} is no file here, and several words are files of one job", details=("explain looks at one run, one job, or files",),
            fix=f"hpctrain explain {other}",
        )  # fmt: skip
    return _of_word(words[0], runs)


def _is_path(word: str, runs: Path) -> bool:
    return "/" in word or (Path(word).exists() and not (runs / word).is_dir())


def _from_stdin() -> Meant:
    handle, name = tempfile.mkstemp(prefix="hpctrain-", suffix=".log")
    with os.fdopen(handle, "wb") as stream:
        shutil.copyfileobj(sys.stdin.buffer, stream)
    return Meant(files=(LogFile(path=Path(name), name="<stdin>"),), title="what came from the standard input", temporary=Path(name))


def _of_paths(paths: Sequence[Path]) -> Meant:
    """Return the logs in files and folders.

    Raises:
        UsageError: one is not there, or cannot be read; all of them.
    """
    wrong = [(path, "no such file" if not path.exists() else read.problem(path)) for path in paths if not path.is_dir()]
    wrong = [(path, why) for path, why in wrong if why is not None]
    if wrong:
        raise UsageError(
            f"cannot read {', '.join(str(path) for path, _ in wrong)}", details=tuple(f"{path}: {why}" for path, why in wrong),
            fix="hpctrain explain, or hpctrain explain RUN",
        )  # fmt: skip
    files = found.of_paths(paths)
    if not files:
        raise UsageError(f"no logs in {', '.join(map(str, paths))}", fix=f"ls {paths[0]}")
    run_dir = next((path.resolve() for path in paths if (path / "run.json").is_file()), None)
    if run_dir is not None and len(paths) == 1:
        return _of_run(run_dir)
    jobs = {file.job for file in files}
    job = jobs.pop() if len(jobs) == 1 else None
    title = str(paths[0]) if len(paths) == 1 else f"{len(files)} files"
    return Meant(files=files, title=title, job=job if job and store.JOB_ID.match(job) else None, guessed=True)


def _of_run(run_dir: Path) -> Meant:
    run = store.read_run(run_dir.parent, run_dir.name)
    if run is None:
        raise UsageError(f"{run_dir} is no run", fix="hpctrain runs list")
    files = found.of_run(run_dir.absolute(), project=run_dir.absolute().parent.parent)
    job = (run.last.job if run.last else None) or next(reversed(schedulers.jobs_of_run(run.id)), None)
    title = f"run {run.id}" + (f", job {job}" if job else "")
    return Meant(files=files, title=title, job=job, run=run, run_dir=run_dir)


def _of_word(word: str, runs: Path) -> Meant:
    """Return the run, or the job, of this name."""
    if layout.NAME.match(word) and store.read_run(runs, word) is not None:
        return _of_run(runs / word)
    try:
        jobs, silent = schedulers.all_jobs()
        records = schedulers.select([word], jobs)
    except SchedulerError as error:
        records, silent = [], error
    except UsageError:
        if silent is None and (files := _named(word)):
            return _of_paths(files)
        if silent is None:
            raise UsageError(
                f"there is no run, job or file {word!r}", fix="hpctrain ps, hpctrain runs list, or: hpctrain explain FILE"
            ) from None
        records = []
    if records:
        return _of_tasks(word, records, runs)
    # What the files here say of a job that no scheduler names now.
    run = _run_of(JobRecord(job_id=word, scheduler="slurm", state=states.UNKNOWN), runs) if store.JOB_ID.match(word) else None
    if run is not None:
        return replace(_of_run(runs / run.id), title=f"run {run.id}, job {word}", job=word)
    if files := _named(word):
        return _of_paths(files)
    raise UsageError(
        f"there is no run or file {word!r}, and Slurm does not say whether there is such a job",
        details=(silent.what,) if silent else (), fix="hpctrain explain logs/FILE",
    )  # fmt: skip


def _of_tasks(word: str, records: Sequence[JobRecord], runs: Path) -> Meant:
    """Return the newest of these jobs; of the tasks of an array, of those that failed."""
    tasks = [record for record in records if record.job_id.startswith(f"{word}_")]
    failed = [record for record in tasks if record.state in states.FAILED]
    chosen = schedulers.newest(failed or records)
    meant = _of_record(chosen, runs)
    others = [record.job_id for record in failed if record.job_id != chosen.job_id]
    more = f"; another: hpctrain explain {others[0]}" if others else ""
    note = f"{len(failed)} of {len(tasks)} tasks of {word} that are known failed; this is {chosen.job_id}{more}"
    return replace(meant, notes=(*meant.notes, note)) if failed else meant


def _named(word: str) -> list[Path]:
    """Return the logs here that have the number of a job in their names."""
    if not store.JOB_ID.match(word):
        return []
    own = re.compile(rf"(?<![0-9]){re.escape(word)}(?![0-9])")
    here = (path for path in Path().glob(f"*{word}*") if path.suffix in _LOGS)
    return sorted({path for path in (*Path("logs").glob(f"*{word}*"), *here) if own.search(path.name) and path.is_file()})


def _of_record(record: JobRecord, runs: Path) -> Meant:
    run = _run_of(record, runs)
    if run is not None:
        of_run = _of_run(runs / run.id)
        return Meant(
            files=of_run.files, title=f"run {run.id}, job {record.job_id}", job=record.job_id, run=run, run_dir=of_run.run_dir,
        )  # fmt: skip
    logs = schedulers.owner(record.job_id).logs(record.job_id)
    files = found.of_job(logs.output, logs.error, job=record.job_id) if logs is not None else ()
    missing = None
    if not any(file.path.exists() for file in files):
        # slurmctld forgets a job minutes after its end, and accounting does not know its log before 24.05.
        named = found.of_paths(_named(record.job_id))
        missing = logs.output.parent if logs is not None and not named and not logs.output.parent.exists() else None
        files = named or files
    notes = () if files else (f"where job {record.job_id} writes is not known",)
    name = f" ({record.name})" if record.name else ""
    return Meant(files=files, title=f"job {record.job_id}{name}", job=record.job_id, notes=notes, no_directory=missing)


def _run_of(record: JobRecord, runs: Path) -> Run | None:
    """Return the run of a job, where it lies here."""
    try:
        names, _ = store.names(runs)
    except OSError:
        return None
    for name in names:
        run = store.read_run(runs, name)
        if run is not None and record.job_id in run.job_ids:
            return run
    tag = record.name or ""
    return next((run for name in names if name == tag and (run := store.read_run(runs, name)) and not run.attempts), None)


def _newest(runs: Path) -> Meant:
    """Return the newest job that did not end well; else the newest job; else the newest run that did not.

    Raises:
        HpctrainError: there is nothing.
    """
    jobs, silent = schedulers.all_jobs()
    failed = [record for record in jobs if record.state in states.FAILED]
    if failed or jobs:
        return _of_record(schedulers.newest(failed or jobs), runs)
    try:
        known = [run for name in store.names(runs)[0] if (run := store.read_run(runs, name)) is not None and run.attempts]
    except OSError:
        known = []
    bad = [run for run in known if run.last is not None and run.last.outcome != "completed"]
    if known:
        return _of_run(runs / max(bad or known, key=lambda run: run.since or 0.0).id)
    why = (f"Slurm does not answer: {silent.what}",) if silent else ()
    raise HpctrainError("no job and no run of yours is known here", details=why, fix="hpctrain explain FILE")
