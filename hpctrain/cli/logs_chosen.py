"""Which logs `hpctrain logs` shows: of a job, a run, or of files that no scheduler knows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpctrain.cli import follow, jobs_meant, schedulers
from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.logs import found, read
from hpctrain.logs.model import LogFile
from hpctrain.runs import layout, store
from hpctrain.runs.store import Attempt
from hpctrain.scheduler import ledger
from hpctrain.scheduler.base import Scheduler
from hpctrain.scheduler.parse import states
from hpctrain.scheduler.parse.records import JobRecord

_HEAD_BYTES = 1 << 16
#: Seconds for Slurm to say what a job does whose log is known without it.
_PATIENCE_S = 15.0
#: The job script's first words (templates/_macros.j2).
_BEGINS = re.compile(rb"^hpctrain: attempt ([0-9]+)\.[0-9.]+ of the run ([A-Za-z0-9][A-Za-z0-9._-]{0,119}) begins", re.MULTILINE)
_PROCESSES = re.compile(rb"^export HPCTRAIN_WORLD_SIZE=([0-9]{1,7}) ", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What to show.

    Attributes:
        files: shared by all ranks, in their order; of the job, or of all jobs of its run.
        ranks: what each rank wrote for itself, where that is kept: copies.
        scheduler, record: of the job; None of files.
        run_dir: where it is known.
        processes: that write into the shared files.
        earlier: jobs of the run before this one, which are not shown.
    """

    files: tuple[LogFile, ...]
    ranks: tuple[LogFile, ...] = ()
    scheduler: Scheduler | None = None
    record: JobRecord | None = None
    run_dir: Path | None = None
    processes: int | None = None
    earlier: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


def choose(words: Sequence[str], *, every_job: bool = False, to_come: bool = False) -> Chosen:
    """Return what `words` stand for: files and folders, or one job, or the newest of a run; nothing stands for the newest job.

    With `to_come`, files need not be there yet.

    Raises:
        UsageError: files among jobs, or words that are neither.
        HpctrainError: there is no job, or nobody knows where it writes.
    """
    paths = [word for word in words if _is_path(word)]
    if paths and len(paths) != len(words):
        other = next(word for word in words if word not in paths)
        raise UsageError(f"{other!r} is no file, and {paths[0]!r} is: logs shows files, or a job", fix=f"ls -ld {other}")
    if len(words) > 1 and not paths:
        raise UsageError(f"two jobs: {words[0]!r} and {words[1]!r}; logs shows one at a time", fix=f"hpctrain logs {words[0]}")
    if not paths:
        return of_job(words[0] if words else None, every_job=every_job)
    missing = [] if to_come else [word for word in paths if not any(file.path.exists() for file in found.of_paths([Path(word)]))]
    missing = [word for word in missing if not Path(word).exists()]
    if missing:
        raise HpctrainError(
            f"there is no file {', '.join(missing)}", fix=f"ls {Path(missing[0]).parent}, or to wait for it: hpctrain logs -f"
        )
    return of_paths([Path(word) for word in paths])


def of_paths(paths: Sequence[Path]) -> Chosen:
    """Return the logs in files and folders.

    Raises:
        HpctrainError: one cannot be read, or a folder holds none.
    """
    files = found.of_paths(paths)
    for path in paths:
        why = None if path.is_dir() else read.problem(path)
        if why is not None:
            raise HpctrainError(f"cannot read {path}: {why}", fix=f"ls -ld {path}")
    if not files:
        raise HpctrainError(f"no logs in {', '.join(map(str, paths))}", fix=f"ls {paths[0]}")
    run_dir = next((path for path in paths if (path / "run.json").exists()), None)
    return Chosen(
        files=tuple(file for file in files if not file.copy), ranks=tuple(file for file in files if file.copy),
        run_dir=run_dir, processes=_processes(run_dir),
    )  # fmt: skip


def of_job(word: str | None, *, every_job: bool = False) -> Chosen:
    """Return the logs of a job, which stands for itself, its name or its run; with `every_job`, of all jobs of its run.

    Raises:
        UsageError: there is no such job.
        HpctrainError: nobody knows where it writes.
    """
    by_run = _run(word) if word else None
    silent: SchedulerError | None = None
    known = _remembered(word)
    try:
        record = schedulers.newest(jobs_meant.find([] if word is None else [word], patience_s=_PATIENCE_S if known is not None else None))
    except SchedulerError as error:
        if known is None and by_run is not None and found.of_run(by_run.absolute(), project=Path.cwd()):
            return replace(of_paths([by_run]), notes=(f"whether the run {word} still runs is not known",))
        if known is None:
            raise
        record, silent = known, error
    except UsageError:
        if by_run is not None and found.of_run(by_run.absolute(), project=Path.cwd()):  # every scheduler has forgotten its jobs
            return of_paths([by_run])
        named = found.named_after(word, Path.cwd()) if word and word.replace("_", "").isdigit() else ()
        if not named:
            raise
        return Chosen(files=named, notes=(f"no scheduler knows job {word} any more; these files have its number in their names",))
    scheduler = schedulers.owner(record.job_id)
    logs = scheduler.logs(record.job_id)
    if logs is None:
        raise HpctrainError(f"where job {record.job_id} writes is no longer known", fix=f"ls -t logs/*{record.job_id}*")
    files = found.of_job(logs.output, logs.error, job=record.job_id)
    run_dir = by_run or _run_of(logs.output)
    attempts = _attempts(run_dir)
    ranks = [file for each in attempts if each.job == record.job_id for file in _ranks(run_dir, each)]
    earlier = tuple(dict.fromkeys(each.job for each in attempts if each.job is not None and each.job != record.job_id))
    if every_job and run_dir is not None and earlier:
        every = found.of_run(run_dir.absolute(), project=run_dir.absolute().parent.parent)
        files = tuple(file for file in every if not file.copy)
        ranks, earlier = [file for file in every if file.copy], ()
    return Chosen(
        files=files, ranks=tuple(ranks), scheduler=scheduler, record=record, run_dir=run_dir, processes=_processes(run_dir),
        earlier=earlier,
        notes=(f"{read_as(logs.output)}: {follow.describe(record) if silent is None else _unknown(record, silent)}",),
    )  # fmt: skip


def _remembered(word: str | None) -> JobRecord | None:
    """Return a record without a state of a job that hpctrain has submitted, or of the newest of a run; Slurm does not say what it does."""
    jobs = [word] if word is not None and store.JOB_ID.match(word) else schedulers.jobs_of_run(word) if word is not None else []
    if word is None:
        jobs = [entry.job_id for entry in ledger.entries() if entry.job_id is not None and entry.directory == str(Path.cwd())]
    mine = [job for job in jobs if schedulers.owner(job).name == "slurm" and ledger.by_job_id(job.partition("_")[0]) is not None]
    return JobRecord(job_id=mine[-1], scheduler="slurm", state=states.UNKNOWN) if mine else None


def _unknown(record: JobRecord, silent: SchedulerError) -> str:
    return f"whether job {record.job_id} still runs is not known\n{silent.what}"


def ranks_now(chosen: Chosen) -> tuple[LogFile, ...]:
    """Return what each rank has written by now: a job that is followed makes its files when it starts, and when it starts again."""
    if chosen.run_dir is None or chosen.record is None:
        return chosen.ranks
    job = chosen.record.job_id
    attempts = [each for each in _attempts(chosen.run_dir) if each.job == job]
    known = {file.path for file in chosen.ranks}
    new = [file for each in attempts for file in _ranks(chosen.run_dir, each) if file.path not in known]
    return (*chosen.ranks, *new)


def with_run(chosen: Chosen) -> Chosen:
    """Return what is shown with the run, where the job has begun to write meanwhile."""
    if chosen.run_dir is not None or not chosen.files:
        return chosen
    run_dir = _run_of(chosen.files[0].path)
    return chosen if run_dir is None else replace(chosen, run_dir=run_dir, processes=_processes(run_dir))


def read_as(path: Path) -> str:
    """Return a path as people read it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _is_path(word: str) -> bool:
    if not word:
        return False
    if "/" in word or Path(word).suffix in (".log", ".out", ".err", ".gz"):  # such as one that comes later
        return True
    return Path(word).exists() and not (layout.NAME.match(word) and (Path(layout.RUNS) / word).is_dir())


def _run(word: str) -> Path | None:
    path = Path(layout.RUNS) / word
    return path if layout.NAME.match(word) and path.is_dir() else None


def _run_of(output: Path) -> Path | None:
    """Return the run that a job's log names in its first words, where it lies beside the log, or here."""
    try:
        with output.open("rb") as stream:
            match = _BEGINS.search(stream.read(_HEAD_BYTES))
    except OSError:
        return None
    if match is None:
        return None
    places = [parent / layout.RUNS / match[2].decode() for parent in (*output.parents[:3], Path.cwd())]
    return next((place for place in places if place.is_dir()), None)


def _attempts(run_dir: Path | None) -> tuple[Attempt, ...]:
    run = store.read_run(run_dir.parent, run_dir.name) if run_dir is not None else None
    return run.attempts if run is not None else ()


def _ranks(run_dir: Path | None, attempt: Attempt) -> tuple[LogFile, ...]:
    return found.of_attempt(run_dir, attempt.name, job=attempt.job) if run_dir is not None else ()


def _processes(run_dir: Path | None) -> int | None:
    if run_dir is None:
        return None
    try:
        with (run_dir / "script.sbatch").open("rb") as stream:
            match = _PROCESSES.search(stream.read(_HEAD_BYTES))
    except OSError:
        return None
    return int(match[1]) if match else None
