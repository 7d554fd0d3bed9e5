"""Which files the logs of a run, of a job, or in some folders are, in the order in which they were written.

Nothing is read but names, and the directives of scripts. Files may appear later: the newest job's are named before they are there.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from hpctrain.logs import names
from hpctrain.logs.model import LogFile
from hpctrain.runs import launch, launches, layout, store
from hpctrain.runs.store import Attempt, Run
from hpctrain.scheduler.parse import directives, log_pattern

#: In an attempt's directory: what each rank wrote, `rank-N.log`, and what torchrun keeps (hpctrain's templates).
RANKS = "ranks"
#: Of a folder that is named: how deep, and how many files at most. A folder of checkpoints is no folder of logs.
_DEPTH, _MOST = 6, 20_000
_NO_LOGS = re.compile(r"(?:checkpoint-.*|checkpoints|\..*|__pycache__|node_modules|site-packages|wandb)\Z")
_SCRIPT_BYTES = 1 << 20


def of_run(run_dir: Path, *, project: Path) -> tuple[LogFile, ...]:
    """Return the logs of a run, over all its jobs and restarts, the oldest attempt first; empty where there is no such run.

    A requeued job appends to its files: these have no attempt, because they hold several. A rank's own file is a `copy`.

    Args:
        run_dir: `runs/ID`.
        project: where its jobs run: names in directives are relative to it.
    """
    run = store.read_run(run_dir.parent, run_dir.name)
    if run is None:
        return ()
    found: list[LogFile] = []
    for job, attempts in _by_job(run_dir.parent, run).items():
        pattern = _patterns(run_dir, run, job, attempts, project)
        only = attempts[0].name if len(attempts) == 1 else None
        files = of_job(*pattern, job=job, attempt=only) if pattern else ()
        if not any(file.path.exists() for file in files):  # rendered elsewhere, or moved: by their names
            files = tuple(replace(file, attempt=only) for file in named_after(job, project)) or files
        found += files
        found += [file for attempt in attempts for file in of_attempt(run_dir, attempt.name, job=job)]
    return _numbered(found)


def of_job(output: Path, error: Path | None = None, *, job: str | None = None, attempt: str | None = None) -> tuple[LogFile, ...]:
    """Return the logs of a job that writes to these files, with their past rotations; where both are one, there is one.

    A name may hold what Slurm replaces for each task, node or rank (`%t`, `%n`, `%N`, `%s`): then it stands for all files of that form.
    """
    streams = [(output, "both" if error is None or error == output else "out")]
    if error is not None and error != output:
        streams.append((error, "err"))
    found: list[LogFile] = []
    for path, stream in streams:
        for each in _matching(path):
            found += [
                names.read(old, stream="err" if stream == "err" else "out" if stream == "out" else "both", job=job, attempt=attempt)
                for old in _rotations(each)
            ]
    return _numbered(found)


def of_attempt(run_dir: Path, attempt: str, *, job: str | None = None) -> tuple[LogFile, ...]:
    """Return what each rank of one attempt wrote, where its job script keeps that: by rank; all of it is in the job's output too."""
    folder = run_dir / "attempts" / attempt / RANKS
    found = [names.read(path, job=job, attempt=attempt, copy=True) for path in _in_folder(folder, _DEPTH)]
    return _numbered(sorted(found, key=lambda file: (file.rank is None, file.rank or 0, file.stream, str(file.path))))


def of_paths(paths: Iterable[Path]) -> tuple[LogFile, ...]:
    """Return these files, and the files that look like logs in these folders; each once, the past rotations of one before it.

    Rank, node, job and stream are read from the names. A folder that is a run of hpctrain's stands for its logs.
    """
    found: list[LogFile] = []
    for path in paths:
        if not path.is_dir():  # a link, such as logs/output_sft.log, has the name of its job at its other end
            found += [
                replace(names.read(old), name=names.shown(path) if old.name == path.name else names.shown(old))
                for old in _rotations(_end(path))
            ]
        elif (path / "run.json").exists() or ((path / "attempts").is_dir() and path.parent.name == layout.RUNS):
            absolute = path.absolute()
            found += of_run(absolute, project=absolute.parent.parent)
        else:
            inside = [names.read(file) for file in _in_folder(path, _DEPTH)]
            found += sorted(inside, key=lambda file: (file.job is None, *_job_order(file.job), *names.order(file)))
    return _numbered(names.settled(_each_once(found)))


def _by_job(runs: Path, run: Run) -> dict[str, list[Attempt]]:
    """Return the jobs of a run, the oldest first, with their attempts; one that was submitted and has not started has none."""
    jobs: dict[str, list[Attempt]] = {}
    for attempt in run.attempts:
        if attempt.job is not None:
            jobs.setdefault(attempt.job, []).append(attempt)
    for job in launches.jobs_of(run, launches.read(runs, run.tag)):
        if job is not None:
            jobs.setdefault(job, [])
    return jobs


def _patterns(run_dir: Path, run: Run, job: str, attempts: list[Attempt], project: Path) -> tuple[Path, Path] | None:
    """Return where the script of a job writes output and errors: that of its submission, else the one that the run keeps."""
    array, _, task = job.partition("_")
    record = launch.load(run_dir.parent, run.tag)
    sent = [each.script for each in record.submissions if each.script and each.job_id in (job, array)] if record is not None else []
    scripts = [record.path / "scripts" / script for script in sent[-1:]] if record is not None else []
    for script in [*scripts, run_dir / "script.sbatch"]:
        try:
            with script.open("rb") as stream:
                text = stream.read(_SCRIPT_BYTES).decode("utf-8", "surrogateescape")
            said = directives.last_values(directives.read(text))
        except (OSError, ValueError):
            continue
        own = (attempts[-1].slurm_job_id if attempts else None) or array
        values = {"j": own, "A": array, "a": task or "4294967294", "x": said.get("job-name") or run.name or "", "u": _user(run_dir)}
        place = Path(project, said.get("chdir") or "")
        output = place / log_pattern.expand(said.get("output") or ("slurm-%A_%a.out" if task else "slurm-%j.out"), values)
        error = said.get("error")
        return output, place / log_pattern.expand(error, values) if error else output
    return None


def _user(run_dir: Path) -> str:
    try:
        return run_dir.owner()
    except (KeyError, OSError):
        return ""


def named_after(job: str, project: Path) -> tuple[LogFile, ...]:
    """Return the files in the project's logs/, and beside it, whose names say this job."""
    candidates = [*_in_folder(project / "logs", 1), *project.glob(f"slurm-{glob.escape(job)}*")]
    says = re.compile(rf"(?:^|[._-]){re.escape(job)}(?=[._-][^0-9]|$)")
    files = [names.read(path, job=job) for path in candidates if not path.is_symlink() and says.search(path.name)]
    return tuple(names.settled(sorted(files, key=names.order)))


def _matching(path: Path) -> list[Path]:
    """Return the files of a name that Slurm would fill in for each task; one without such letters is itself, there or not."""
    if not re.search(r"%[0-9]*[tnNs]", path.name):
        return [path]
    form = re.sub(r"%[0-9]*[tnNs]", "*", glob.escape(str(path)))
    return sorted((Path(name) for name in glob.glob(form)), key=names.natural)  # noqa: PTH207 - the whole path is the pattern


def _rotations(path: Path) -> list[Path]:
    """Return `path` behind its past rotations: name.2.gz, name.1, name."""
    old: list[tuple[int, Path]] = []
    try:
        with os.scandir(path.parent) as entries:
            for entry in entries:
                if entry.name.startswith(path.name) and (match := names.ROTATION.fullmatch(entry.name[len(path.name) :])):
                    old.append((int(match[1]), Path(entry.path)))
    except OSError:
        pass
    # `name.20261122`: a date grows, a number falls.
    dated = [number > 19_000_000 for number, _ in old]
    old.sort(key=lambda each: each[0], reverse=not any(dated))
    return [*(each for _, each in old), path]


def _in_folder(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the files in a folder that look like logs, no links among them: `output_sft.log` is another name of a file that is there."""
    left = _MOST
    waiting = [(folder, depth)]
    while waiting:
        place, deeper = waiting.pop()
        try:
            with os.scandir(place) as entries:
                here = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in here:
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                if deeper > 1 and not _NO_LOGS.match(entry.name):
                    waiting.append((path, deeper - 1))
            elif entry.is_file(follow_symlinks=False) and names.is_log(path) and left:
                left -= 1
                yield path


def _end(path: Path) -> Path:
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _job_order(job: str | None) -> tuple[int, int]:
    array, _, task = (job or "").partition("_")
    return int(array or 0), int(task or 0)


def _each_once(files: Iterable[LogFile]) -> list[LogFile]:
    seen: dict[str, LogFile] = {}
    for file in files:
        seen.setdefault(os.path.realpath(file.path), file)
    return list(seen.values())


def _numbered(files: Iterable[LogFile]) -> tuple[LogFile, ...]:
    return tuple(replace(file, order=number) for number, file in enumerate(files))
