"""Select the logs of a job or a run, or logs in files that no scheduler has a record of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.jobs import schedulers, targets
from hpctrain.logs import files as log_files
from hpctrain.logs import read
from hpctrain.logs.view import LogSelection, processes_of, rank_files, run_of
from hpctrain.runs import layout, store
from hpctrain.util import shell
from hpctrain.util.text import is_number

_ONLY_HERE = "note: Slurm does not answer; only the jobs of this machine are known"


def select(words: Sequence[str], *, every_job: bool = False, to_come: bool = False) -> LogSelection:
    """Return the logs of files and directories, of one job, or of a run's newest job; without
    words, of the newest job.

    With `to_come`, files need not exist yet.

    Raises:
        UsageError: files mixed with jobs, or words that match neither.
        HpctrainError: there is no job, or its log path is unknown.
    """
    paths = [word for word in words if is_path(word)]
    if paths and len(paths) != len(words):
        other = next(word for word in words if word not in paths)
        raise UsageError(
            f"{other!r} is not a file, and {paths[0]!r} is: logs shows files, or a job",
            fix=f"ls -ld {other}",
        )
    if len(words) > 1 and not paths:
        raise UsageError(
            f"two jobs: {words[0]!r} and {words[1]!r}; logs shows one at a time",
            fix=f"hpctrain logs {words[0]}",
        )
    if not paths:
        return of_job(words[0] if words else None, every_job=every_job)
    return of_paths([Path(word) for word in paths], to_come=to_come)


def of_paths(paths: Sequence[Path], *, to_come: bool = False) -> LogSelection:
    """Return the logs in files and directories; with `to_come`, files need not exist yet.

    Raises:
        UsageError: a file is missing or unreadable, or a directory contains no logs.
    """
    files = log_files.of_paths(paths)
    for path in paths:
        if not path.exists() and not to_come:
            raise UsageError(
                f"there is no file {path}",
                fix=f"ls {shell.quote(path.parent)}",
                hint=f"or wait for it: hpctrain logs -f {shell.quote(path)}",
            )
        why = None if path.is_dir() else read.problem(path)
        if why is not None:
            raise UsageError(f"cannot read {path}: {why}", fix=f"ls -ld {shell.quote(path)}")
    if not files:
        raise UsageError(
            f"no logs in {', '.join(map(str, paths))}", fix=f"ls {shell.quote(paths[0])}"
        )
    run_dir = next((path for path in paths if (path / "run.json").exists()), None)
    return LogSelection(
        files=tuple(file for file in files if not file.copy),
        ranks=tuple(file for file in files if file.copy),
        run_dir=run_dir,
        processes=processes_of(run_dir),
    )


def of_job(word: str | None, *, every_job: bool = False) -> LogSelection:
    """Return the logs of a job, named by its id, its name or its run; with `every_job`, of all jobs
    of its run.

    Raises:
        UsageError: there is no such job.
        HpctrainError: its log path is unknown.
    """
    place = Path(layout.RUNS) / (word or "")
    by_run = place if word and layout.NAME.match(word) and place.is_dir() else None
    in_run = log_files.of_run(by_run) if by_run is not None else ()
    try:
        found, no_slurm = targets.jobs([] if word is None else [word])
        record = targets.newest(found)
    except (SchedulerError, UsageError) as error:
        silent = isinstance(error, SchedulerError)
        if by_run is not None and in_run:
            notes = (
                (f"Slurm does not answer: whether {word} still runs is not known",)
                if silent
                else ()
            )
            return replace(of_paths([by_run]), notes=notes)
        is_job = word is not None and is_number(word.replace("_", ""))
        named = log_files.named_after(word, Path.cwd()) if word is not None and is_job else ()
        if not named:
            raise
        why = "Slurm does not answer" if silent else f"no scheduler knows job {word} any more"
        return LogSelection(
            files=named, notes=(f"{why}; these files have its number in their names",)
        )
    scheduler = schedulers.owner(record.job_id)
    logs = scheduler.logs(record.job_id)
    if logs is None:
        raise HpctrainError(
            f"where job {record.job_id} writes is no longer known",
            fix=f"ls -t logs/*{record.job_id}*",
        )
    files = log_files.of_job(logs.output, logs.error, job=record.job_id)
    run_dir = by_run or run_of(logs.output)
    run = store.read_run(run_dir.parent, run_dir.name) if run_dir is not None else None
    earlier = tuple(job for job in run.job_ids if job != record.job_id) if run is not None else ()
    ranks = rank_files(run_dir, record.job_id)
    if every_job and run_dir is not None and earlier:
        every = log_files.of_run(run_dir)
        files = tuple(file for file in every if not file.copy)
        ranks, earlier = tuple(file for file in every if file.copy), ()
    return LogSelection(
        files=files,
        ranks=ranks,
        record=record,
        run_dir=run_dir,
        processes=processes_of(run_dir),
        earlier=earlier,
        output=logs.output,
        notes=(_ONLY_HERE,) if no_slurm is not None else (),
    )


def is_path(word: str, runs: Path = Path(layout.RUNS)) -> bool:
    """Whether a word is a file or directory, possibly a future one, rather than a job or a run."""
    if "/" in word or Path(word).suffix in (".log", ".out", ".err", ".gz"):
        return True
    is_run = layout.NAME.match(word) and (runs / word).is_dir()
    return bool(word) and Path(word).exists() and not is_run
