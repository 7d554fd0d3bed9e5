"""Select the logs of a job or a run, or logs in files that no scheduler has a record of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.jobs import schedulers, targets
from hpctrain.logs import files as log_files
from hpctrain.logs import read
from hpctrain.logs.view import LogSelection, processes_of, rank_files
from hpctrain.runs import layout, store
from hpctrain.util import shell
from hpctrain.util.text import is_number


def select(words: Sequence[str], *, every_job: bool = False, to_come: bool = False) -> LogSelection:
    """Return the logs of files and directories, of one job, or of a run's newest job; without
    words, of the newest job.

    With `to_come`, files need not exist yet.

    Raises:
        UsageError: files mixed with jobs, or words that match neither.
        HpctrainError: there is no job, or its log path is unknown.
    """
    paths, word = split(words)
    return of_paths(paths, to_come=to_come) if paths else of_job(word, every_job=every_job)


def split(words: Sequence[str], runs: Path = Path(layout.RUNS)) -> tuple[list[Path], str | None]:
    """Return the files and directories among the words, or the only word, which is something else.

    Raises:
        UsageError: files mixed with other words, or several of these.
    """
    paths = [word for word in words if is_path(word, runs)]
    if len(words) > 1 and len(paths) < len(words):
        raise UsageError(
            f"{' and '.join(map(repr, words))}: name files, or one job",
            hint=f"without {next(word for word in words if word not in paths)!r}, or only that",
        )
    return [Path(word) for word in paths], None if paths or not words else words[0]


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
    try:
        found, silent = targets.jobs([] if word is None else [word])
        record = targets.newest(found)
    except (SchedulerError, UsageError) as error:
        is_silent = isinstance(error, SchedulerError)
        why = "Slurm does not answer" if is_silent else f"no scheduler knows job {word} any more"
        if by_run is not None and log_files.of_run(by_run):
            unknown = f"{why}: whether {word} still runs is not known"
            return replace(of_paths([by_run]), notes=(unknown,) if is_silent else ())
        is_job = word is not None and is_number(word.replace("_", ""))
        named = log_files.named_after(word, Path.cwd()) if word is not None and is_job else ()
        if not named:
            raise
        return LogSelection(files=named, notes=(f"{why}; these files have {word} in their names",))
    job = record.job_id
    logs = schedulers.owner(job).logs(job)
    if logs is None:
        raise HpctrainError(f"where job {job} writes is no longer known", fix=f"ls -t logs/*{job}*")
    files = log_files.of_job(logs.output, logs.error, job=job)
    run_dir = by_run or targets.run_dirs([record]).get(record.job_id)
    run = store.read_run(run_dir.parent, run_dir.name) if run_dir is not None else None
    earlier = tuple(each for each in run.job_ids if each != job) if run is not None else ()
    ranks = rank_files(run_dir, job)
    if every_job and run_dir is not None and earlier:
        every = of_paths([run_dir])
        files, ranks, earlier = every.files, every.ranks, ()
    return LogSelection(
        files=files,
        ranks=ranks,
        record=record,
        run_dir=run_dir,
        processes=processes_of(run_dir),
        earlier=earlier,
        output=logs.output,
        notes=("note: Slurm does not answer; only the jobs of this machine are known",)
        if silent is not None
        else (),
    )


def is_path(word: str, runs: Path = Path(layout.RUNS)) -> bool:
    """Whether a word is a file or directory, possibly a future one, rather than a job or a run."""
    if "/" in word or Path(word).suffix in (".log", ".out", ".err", ".gz"):
        return True
    is_run = layout.NAME.match(word) and (runs / word).is_dir()
    return bool(word) and Path(word).exists() and not is_run
