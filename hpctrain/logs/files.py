"""Find the log files of a run, a job, or directories, in the order they were written; and derive
the writer (job, stream, rank, node) from each file's name and location.

Only names, and the directives of scripts, are read. Files may appear later: the newest job's files
are listed before they exist.
"""

from __future__ import annotations

import getpass
import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hpctrain.runs import launch, layout, store
from hpctrain.slurm import job_ids
from hpctrain.slurm.notations import directives, log_pattern
from hpctrain.util import stored
from hpctrain.util.text import is_number

Stream = Literal["out", "err", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """One log file of a job. Values that its name and location do not reveal are None.

    Attributes:
        path: it may not exist yet.
        name: for display: relative to the current directory if it is below it.
        stream: `both` if output and errors go into one file.
        rank: of the only process that writes it.
        node: of the only node that writes it.
        attempt: the attempt (hpctrain.runs.layout) that wrote it, if it contains no other; a
            requeued job appends to its files.
        order: sorts the files of one job: attempts, then output, errors, ranks.
        local_rank: of its process on its node, if the name has only that (torchrun's log
            directory).
        job: the job that wrote it, as the scheduler calls it: `123`, `123_4`.
        copy: its lines are also in another file of the job, as a rank's own lines are in the job's
            output.
    """

    path: Path
    name: str
    stream: Stream = "both"
    rank: int | None = None
    node: str | None = None
    attempt: str | None = None
    order: int = 0
    local_rank: int | None = None
    job: str | None = None
    copy: bool = False


# -- parsing names ---------------------------------------------------------------------------------

_LOGS = re.compile(
    r"(?:.*\.(?:log|out|err|e|o|stdout|stderr|txt)|.*\.(?:log|out|err|txt)\.[A-Za-z0-9_-]{1,40}|.*\.[oe][0-9]+|stdout|stderr|nohup\.out)"
)
_NOT_LOGS = re.compile(
    r"(?:requirements.*|readme.*|license.*|constraints.*|cmakelists|merges|vocab|notice.*)\.txt",
    re.IGNORECASE,
)
#: Suffixes of logs that are next to other files.
_ENDS = (".out", ".err", ".log")
_PARTS = r"(?:^|[._\-/])"
_ERR = re.compile(_PARTS + r"(?:errors?|err|stderr)(?=[._\-]|[0-9]|$)|\.e[0-9]*$", re.IGNORECASE)
_OUT = re.compile(_PARTS + r"(?:output|out|stdout)(?=[._\-]|[0-9]|$)|\.o[0-9]*$", re.IGNORECASE)
#: hpctrain's own names: output_NAME_ID.log. NAME is the user's, and `killed-rank_6` is job 6.
_OURS = re.compile(
    r"(?:output|error)_(?!(?:rank|task|proc)_[0-9]+\Z)(?:.+?)_(?:(?P<array>[0-9]{1,18})_)?(?P<job>[0-9]{1,18})\Z"
)
#: In `lora_128_4711` the second number is the job: tasks have smaller numbers than jobs, or small
#: ones.
_SMALL_TASK = 1000
_RANK = re.compile(
    r"(?<!lora)(?<!low)(?:^|[._\-/])(?:rank|task|proc)[._\-]?([0-9]{1,6})(?![0-9])", re.IGNORECASE
)
_LOCAL = re.compile(r"local[._\-]?(?:rank|task)", re.IGNORECASE)
_NODE = re.compile(
    _PARTS + r"(?:node|host)[._\-]([A-Za-z][A-Za-z0-9-]*[0-9]|[A-Za-z]+[0-9]+)(?=[._]|$)"
)
#: Slurm's ids soon get large; a small number is a rank, a restart or a part of a name.
_JOB = re.compile(
    r"(?:^|(?<!step)(?<!seed)(?<!epoch)(?<!iter)(?<!ckpt)(?<!checkpoint)(?<!lr)(?<!bs)[._\-])(?:slurm-|job[._\-]?)?"
    r"([0-9]{3,18}(?:_[0-9]{1,7})?)(?=[._\-]|$)"
)
#: `slurm-12.out`, `job_12.log`, and PBS's `name.o12345`.
_SLURM = re.compile(
    r"^(?:slurm|job)[._\-]([0-9]{1,18}(?:_[0-9]{1,7})?)(?=[._\-]|$)|\.[oe]([0-9]{3,18})\Z"
)
_DATE = re.compile(r"20[0-9]{6}\Z")
#: Slurm's placeholders for each task, node or step.
_EACH = re.compile(r"%[0-9]*[tnNs]")
#: torchrun's log directory: LOG_DIR/RUN_ID_RANDOM/attempt_0/3/stderr.log, where 3 is a local rank.
_TORCHRUN = re.compile(r"attempt_([0-9]+)/([0-9]+)/(stdout|stderr)\.log\Z")


def log_file(
    path: Path,
    *,
    stream: Stream | None = None,
    job: str | None = None,
    attempt: str | None = None,
    copy: bool = False,
) -> LogFile:
    """Derive a LogFile from a file's name; the arguments take precedence."""
    base = path.name.removesuffix(".gz")
    stem = re.sub(r"\.(?:log|out|err|txt|stdout|stderr)\Z", "", base)
    # The id of a known job in the name is not a rank.
    has_id = not copy and re.search(rf"(?:^|[._\-]){re.escape(job or '-')}\Z", stem) is not None
    rank, node, local = None, None, None
    if not has_id and not _OURS.match(stem):
        node = match[1] if (match := _NODE.search(stem)) else None
        number = int(match[1]) if (match := _RANK.search(stem)) else None
        rank, local = (None, number) if _LOCAL.search(stem) else (number, None)
    if elastic := _TORCHRUN.search(path.as_posix()):
        local, stream = int(elastic[2]), "err" if elastic[3] == "stderr" else "out"
    # `output_error_7.log` is an output file: the first match counts.
    err, out = _ERR.search(base), _OUT.search(base)
    if err and (out is None or err.start() < out.start() or base.endswith((".err", ".stderr"))):
        out = None
    return LogFile(
        path=path,
        name=shown(path),
        stream=stream or ("out" if out else "err" if err else "both"),
        rank=rank,
        node=node,
        attempt=attempt,
        local_rank=local,
        job=job or _job(stem),
        copy=copy,
    )


def shown(path: Path) -> str:
    """Return a path for display: relative to the current directory if it is below it."""
    text = os.path.abspath(path)  # noqa: PTH100 - keeps the name of a link as typed
    here = os.getcwd()  # noqa: PTH109 - as above
    return text[len(here) + 1 :] if text.startswith(f"{here}/") else text


def settled(files: Sequence[LogFile]) -> list[LogFile]:
    """Return files with the ranks of torchrun's log directory: a local rank is the rank if all files
    are from one node.
    """
    matches = [(file, _TORCHRUN.search(file.path.as_posix())) for file in files]
    nodes = {file.path.as_posix()[: match.start()] for file, match in matches if match}
    is_rank = len(nodes) == 1
    return [
        replace(file, rank=file.local_rank) if is_rank and file.rank is None else file
        for file in files
    ]


def order(file: LogFile) -> tuple[object, ...]:
    """Return the sort key of a job's files: shared ones first, output before errors, then ranks;
    numbers sort numerically.
    """
    ranked = file.rank if file.rank is not None else file.local_rank
    return (ranked is not None, ranked or 0, file.stream == "err", *natural(file.path))


def natural(name: Path | str) -> tuple[object, ...]:
    """Return a sort key for paths, and job ids, that sorts numbers numerically."""
    words = re.split(r"([0-9]+)", str(name))
    return tuple((int(word), "") if is_number(word) else (-1, word) for word in words)


def _job(stem: str) -> str | None:
    if match := _SLURM.search(stem):
        return match[1] or match[2]
    if match := _OURS.match(stem):
        array, number = match["array"], match["job"]
        is_job = array is None or int(number) >= max(_SMALL_TASK, int(array))
        return number if is_job else f"{array}_{number}"
    found = [number for number in _JOB.findall(stem) if not _DATE.match(number.partition("_")[0])]
    return found[-1] if found else None


# -- logs of runs, jobs and directories ------------------------------------------------------------

#: In an attempt's directory: the output of each rank, `rank-N.log`, and torchrun's files
#: (hpctrain's templates).
RANKS = "ranks"
#: Limits for a directory that the user names: depth, and number of files. It may contain
#: checkpoints.
_DEPTH, _MOST = 6, 20_000
_NOT_LOG_DIRS = re.compile(
    r"(?:checkpoint-.*|checkpoints|\..*|__pycache__|node_modules|site-packages|wandb)\Z"
)
_SCRIPT_BYTES = 1 << 20


def of_run(run_dir: Path) -> tuple[LogFile, ...]:
    """Return the logs of the run `runs/ID`, over all its jobs and restarts, the oldest attempt
    first; empty if the run does not exist.

    A requeued job appends to its files: these have no attempt, because they contain several. A
    rank's own file is a `copy`: its lines are also in the job's output.
    """
    run_dir = run_dir.absolute()
    runs = run_dir.parent
    run = store.read_run(runs, run_dir.name)
    if run is None:
        return ()
    found: list[LogFile] = []
    record, project = launch.load(runs, run.tag), runs.parent
    for job in launch.every_job(runs, run):
        attempts = [attempt for attempt in run.attempts if attempt.job == job]
        only = attempts[0].name if len(attempts) == 1 else None
        pattern = _patterns(run_dir, run, record, job, attempts)
        files = of_job(*pattern, job=job) if pattern else ()
        if not any(file.path.exists() for file in files):  # rendered elsewhere, or moved
            files = named_after(job, project) or files
        found += (replace(file, attempt=only) for file in files)
        for attempt in attempts:
            paths = _in_directory(run_dir / "attempts" / attempt.name / RANKS, _DEPTH)
            ranks = [log_file(path, job=job, attempt=attempt.name, copy=True) for path in paths]
            found += sorted(ranks, key=order)
    return _numbered(found)


def of_job(
    output: Path, error: Path | None = None, *, job: str | None = None
) -> tuple[LogFile, ...]:
    """Return the logs of a job that writes to these files, or the one file if both are the same.

    A name with Slurm's placeholders for each task, node or step (`%t`, `%n`, `%N`, `%s`) matches all
    such files; their ranks and nodes are those that the names tell.
    """
    streams: list[tuple[Path, Stream]] = [(output, "both")]
    if error is not None and error != output:
        streams = [(output, "out"), (error, "err")]
    found = []
    for path, stream in streams:
        # A name without placeholders is a log even if the file is missing.
        pattern = _EACH.sub("*", glob.escape(path.name))
        many = sorted(path.parent.glob(pattern), key=natural) if _EACH.search(path.name) else [path]
        found += [log_file(each, stream=stream, job=job) for each in many]
    return _numbered(found)


def of_paths(paths: Iterable[Path]) -> tuple[LogFile, ...]:
    """Return these files, and the files that look like logs in these directories, without
    duplicates.

    Rank, node, job and stream are derived from the names. For the directory of an hpctrain run, its
    logs are returned.
    """
    found: list[LogFile] = []
    for path in paths:
        if not path.is_dir():
            # The target of a link, such as logs/output_sft.log, has the job's name.
            found.append(replace(log_file(Path(os.path.realpath(path))), name=shown(path)))
        elif (path / "run.json").exists() or (
            (path / "attempts").is_dir() and path.parent.name == layout.RUNS
        ):
            found += of_run(path)
        else:
            found += sorted(
                [log_file(file) for file in _in_directory(path, _DEPTH)],
                key=lambda file: (file.job is None, natural(file.job or ""), order(file)),
            )
    once = {os.path.realpath(file.path): file for file in found}
    return _numbered(settled(list(once.values())))


def _patterns(
    run_dir: Path,
    run: store.Run,
    record: launch.Launch | None,
    job: str,
    attempts: list[store.Attempt],
) -> tuple[Path, Path] | None:
    """Return where the script of a job writes output and errors: that of its submission, else the
    one that the run keeps.
    """
    array, _, task = job_ids.split(job)[0].partition("_")
    names = (job, job_ids.array_of(job))
    submissions = record.submissions if record is not None else ()
    sent = [each.script for each in submissions if each.script and each.job in names]
    kept = run_dir.parent / layout.LAUNCHES / run.tag / "scripts"
    for script in [*(kept / script for script in sent[-1:]), run_dir / "script.sbatch"]:
        try:
            with stored.open_regular(script) as stream:
                text = stream.read(_SCRIPT_BYTES).decode("utf-8", "surrogateescape")
            said = directives.last_values(directives.read(text))
        except (OSError, ValueError):
            continue
        values = {
            "j": (attempts[-1].slurm_job_id if attempts else None) or array,
            "A": array,
            "a": task or "4294967294",
            "x": said.get("job-name") or run.name or "",
            "u": getpass.getuser(),
        }
        output = said.get("output") or ("slurm-%A_%a.out" if task else "slurm-%j.out")
        place = Path(run_dir.parent.parent, said.get("chdir") or "")
        paths = (log_pattern.expand(each, values) for each in (output, said.get("error") or output))
        first, second = (place / path for path in paths)
        return first, second
    return None


def named_after(job: str, project: Path) -> tuple[LogFile, ...]:
    """Return the files in the project's logs/, and next to it, whose names contain the id of this
    job.
    """
    here = (path for path in project.glob(f"*{glob.escape(job)}*") if path.suffix in _ENDS)
    says = re.compile(rf"(?:^|[._-]){re.escape(job)}(?=[._-][^0-9]|$)")
    return tuple(
        settled(
            sorted(
                [
                    log_file(path, job=job)
                    for path in (*_in_directory(project / "logs", 1), *here)
                    if not path.is_symlink() and says.search(path.name)
                ],
                key=order,
            )
        )
    )


def _in_directory(directory: Path, depth: int) -> Iterator[Path]:
    """Yield the files in a directory that look like logs. Links are skipped: `output_sft.log` is
    another name of an existing file.
    """
    found = 0
    for place, folders, names in os.walk(directory):
        is_deep = len(Path(place).relative_to(directory).parts) >= depth - 1
        folders[:] = [each for each in folders if not is_deep and not _NOT_LOG_DIRS.match(each)]
        for path in map(Path(place).joinpath, names):
            base = path.name.removesuffix(".gz")
            is_log = _LOGS.fullmatch(base) and not _NOT_LOGS.fullmatch(base)
            if found < _MOST and is_log and not path.is_symlink() and path.is_file():
                found += 1
                yield path


def _numbered(files: Iterable[LogFile]) -> tuple[LogFile, ...]:
    return tuple(replace(file, order=number) for number, file in enumerate(files))
