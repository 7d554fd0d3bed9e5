"""What the name and the place of a log file say of who wrote it: job, stream, rank, node. Looks at no file."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hpctrain.logs.model import LogFile, Stream

#: What rotating adds to a name: `.1`, `.2.gz`, `-20261122.gz`.
ROTATION = re.compile(r"[.-]([0-9]{1,3}|20[0-9]{6})(?:\.gz)?")
_LOGS = re.compile(
    r"(?:.*\.(?:log|out|err|e|o|stdout|stderr|txt)|.*\.(?:log|out|err|txt)\.[A-Za-z0-9_-]{1,40}|.*\.[oe][0-9]+|stdout|stderr|nohup\.out)"
)
_NO_LOGS = re.compile(r"(?:requirements.*|readme.*|license.*|constraints.*|cmakelists|merges|vocab|notice.*)\.txt", re.IGNORECASE)
_PARTS = r"(?:^|[._\-/])"
_ERR = re.compile(_PARTS + r"(?:errors?|err|stderr)(?=[._\-]|[0-9]|$)|\.e[0-9]*$", re.IGNORECASE)
_OUT = re.compile(_PARTS + r"(?:output|out|stdout)(?=[._\-]|[0-9]|$)|\.o[0-9]*$", re.IGNORECASE)
_RANK = re.compile(_PARTS + r"(?:rank|task|proc)[._\-]?([0-9]{1,6})(?![0-9])|_r([0-9]{1,6})(?![0-9])", re.IGNORECASE)
_NODE_AND_RANK = re.compile(
    r"(?:^|.*[._\-])(?P<node>[A-Za-z][A-Za-z0-9]*?[A-Za-z-][0-9]{1,6}|[A-Za-z]+[0-9]{1,6})[_\-](?P<rank>[0-9]{1,5})\Z"
)
_NODE = re.compile(_PARTS + r"(?:node|host)[._\-]([A-Za-z][A-Za-z0-9-]*[0-9]|[A-Za-z]+[0-9]+)(?=[._]|$)")
#: Slurm's ids are large soon; a small number is a rank, a restart or a part of a name.
_JOB = re.compile(r"(?:^|[._\-])(?:slurm-|job[._\-]?)?([0-9]{3,18}(?:_[0-9]{1,7})?)(?=[._\-]|$)")
_SLURM = re.compile(r"^(?:slurm|job)[._\-]([0-9]{1,18}(?:_[0-9]{1,7})?)(?=[._\-]|$)")
_DATE = re.compile(r"20[0-9]{6}\Z")
#: torchrun's log directory: LOG_DIR/RUN_ID_CHANCE/attempt_0/3/stderr.log, where 3 is a local rank.
_TORCHRUN = re.compile(r"attempt_([0-9]+)/([0-9]+)/(stdout|stderr)\.log\Z")


def read(
    path: Path, *, stream: Stream | None = None, job: str | None = None, attempt: str | None = None, copy: bool = False
) -> LogFile:  # fmt: skip
    """Return what the name of a file says; what is given is not read from it."""
    base = _base(path.name)
    stem = re.sub(r"\.(?:log|out|err|txt|stdout|stderr)\Z", "", base)
    rank, node, local = _process(stem)
    if elastic := _TORCHRUN.search(path.as_posix()):
        local, stream = int(elastic[2]), "err" if elastic[3] == "stderr" else "out"
    return LogFile(
        path=path, name=shown(path), stream=stream or _stream(base), rank=rank, node=node, attempt=attempt, local_rank=local,
        job=job or _job(stem), copy=copy,
    )  # fmt: skip


def shown(path: Path) -> str:
    """Return a path as people read it: relative to the current directory where it lies below it."""
    text = os.path.abspath(path)  # noqa: PTH100 - a link stays the name that was typed
    here = os.getcwd()  # noqa: PTH109 - as above
    return text[len(here) + 1 :] if text.startswith(f"{here}/") else text


def is_log(path: Path) -> bool:
    """Whether a file in a folder looks like a log by its name."""
    base = _base(path.name)
    return bool(_LOGS.fullmatch(base)) and not _NO_LOGS.fullmatch(base)


def settled(files: Sequence[LogFile]) -> list[LogFile]:
    """Return files with what only their neighbours tell: whose errors go to another file, and the ranks of torchrun's log directory.

    `train.out` has output and errors, unless there is `train.err`. A local rank is a rank where one node wrote all that is there.
    """
    places = {_TORCHRUN.split(file.path.as_posix())[0] for file in files if _TORCHRUN.search(file.path.as_posix())}
    errors = {_family(file) for file in files if file.stream == "err"}
    found = []
    for file in files:
        if file.local_rank is not None and file.rank is None and len(places) == 1:
            file = replace(file, rank=file.local_rank)  # noqa: PLW2901 - the same file, better known
        if file.stream == "out" and not file.attempt and _family(file) not in errors:
            file = replace(file, stream="both")  # noqa: PLW2901
        found.append(file)
    return found


def order(file: LogFile) -> tuple[object, ...]:
    """Return what sorts the files of one job: the shared ones first, output before errors, then ranks; numbers as numbers."""
    ranked = file.rank if file.rank is not None else file.local_rank
    return (ranked is not None, ranked or 0, file.stream == "err", *natural(file.path))


def natural(path: Path) -> tuple[object, ...]:
    """Return what sorts paths with their numbers as numbers, and past rotations before what came later."""
    base, text = _base(path.name), path.as_posix()
    rotated = ROTATION.fullmatch(path.name[len(base) :]) if path.name.startswith(base) else None
    number = int(rotated[1]) if rotated else None
    age = 0 if number is None else -number if number < 10_000 else number - 100_000_000
    words = re.split(r"([0-9]+)", text[: len(text) - len(path.name)] + base)
    return tuple((int(word), "") if word.isdigit() and word.isascii() else (-1, word) for word in words), age


def _base(name: str) -> str:
    """Return a name without what rotating adds to it."""
    name = name.removesuffix(".gz")
    match = re.search(r"(?<=\.log|\.out|\.err|\.txt)[.-](?:[0-9]{1,3}|20[0-9]{6})\Z", name)
    return name[: match.start()] if match else name


def _stream(base: str) -> Stream:
    # `output_error_7.log` is one of output: what comes first counts.
    err, out = _ERR.search(base), _OUT.search(base)
    if err and (out is None or err.start() < out.start() or base.endswith((".err", ".stderr"))):
        return "err"
    return "out" if out else "both"


def _process(stem: str) -> tuple[int | None, str | None, int | None]:
    """Return rank, node and local rank."""
    node = found[1] if (found := _NODE.search(stem)) else None
    if match := _RANK.search(stem):
        local = re.search(r"local[._\-]?(?:rank|task)", stem, re.IGNORECASE)
        number = int(match[1] or match[2])
        return (None, node, number) if local else (number, node, None)
    if not _SLURM.match(stem) and (match := _NODE_AND_RANK.match(stem)):
        return int(match["rank"]), match["node"], None
    return None, node, None


def _job(stem: str) -> str | None:
    if match := _SLURM.match(stem):
        return match[1]
    if match := re.search(r"\.[oe]([0-9]{3,18})\Z", stem):  # of PBS, and of who comes from it
        return match[1]
    candidates = [number for number in _JOB.findall(stem) if not _DATE.match(number.partition("_")[0])]
    return candidates[-1] if candidates else None


def _family(file: LogFile) -> str:
    """Return what is equal in the names of a job's output and its errors."""
    base = _base(file.path.name).lower()
    return f"{file.path.parent}/" + re.sub(r"output|errors?|stdout|stderr|\bout\b|\berr\b|(?<=[._\-])(?:out|err)(?=[._\-]|\Z)", "*", base)
