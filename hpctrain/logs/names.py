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
#: The names that hpctrain gives: output_NAME_ID.log. NAME is the user's, and `killed-rank_6` is job 6.
_OURS = re.compile(r"(?:output|error)_(?!(?:rank|task|proc)_[0-9]+\Z)(?:.+?)_(?:(?P<array>[0-9]{1,18})_)?(?P<job>[0-9]{1,18})\Z")
#: Of `lora_128_4711` the second number is the job: tasks have smaller numbers than jobs, or small ones.
_SMALL_TASK = 1000
_RANK = re.compile(
    r"(?P<front>.*?)(?:^|[._\-/])(?:(?:rank|task|proc)[._\-]?(?P<rank>[0-9]{1,6})|(?<=[0-9]_)r(?P<short>[0-9]{1,6}))(?![0-9])",
    re.IGNORECASE,
)
#: A node, as against a model, a GPU or an experiment, which have numbers too: a node's word, a zero in front, or many digits.
_NO_NODE = (
    r"(?!(?:exp|run|seed|step|lr|bs|v|test|try|epoch|iter|batch|len|seq|ctx|fold|part|trial|version|ckpt|checkpoint|sweep)[-_]?[0-9])"
)
_NODES_NAME = (
    _NO_NODE
    + r"(?:(?:n|node|host|nid|cn|gn|gpu|compute|worker|r[0-9]+[a-z])-?[0-9]{1,6}|[a-z][a-z0-9-]{0,30}?(?<![0-9])(?:0[0-9]{1,6}|[0-9]{4,6}))"
)
#: What may stand in front of `rank3`. Behind any other word it may be LoRA's rank, or a part of an experiment's name.
_BEFORE_RANK = re.compile(
    r"(?:(?:logs?|out|output|errors?|err|std|stdout|stderr|train|training|trainer|worker|main|run|slurm|job|nccl|debug|trace|python|local"
    rf"|node|host|[0-9]+|{_NODES_NAME.replace('a-z0-9-', 'a-z0-9')})(?:[._\-/]+|\Z))*",
    re.IGNORECASE,
)
#: Slurm's `%N_%t`.
_NODE_AND_RANK = re.compile(
    rf"(?:(?:logs?|out|output|err|error|slurm|job|[0-9]+)[._\-])*(?P<node>{_NODES_NAME})[_\-](?P<rank>[0-9]{{1,5}})\Z", re.IGNORECASE
)
_NODE = re.compile(_PARTS + r"(?:node|host)[._\-]([A-Za-z][A-Za-z0-9-]*[0-9]|[A-Za-z]+[0-9]+)(?=[._]|$)")
#: Slurm's ids are large soon; a small number is a rank, a restart or a part of a name.
_JOB = re.compile(
    r"(?:^|(?<!step)(?<!seed)(?<!epoch)(?<!iter)(?<!ckpt)(?<!checkpoint)(?<!lr)(?<!bs)[._\-])(?:slurm-|job[._\-]?)?"
    r"([0-9]{3,18}(?:_[0-9]{1,7})?)(?=[._\-]|$)"
)
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
    # A job that is known has its id in the name, and that is no rank.
    named = job is not None and not copy and re.search(rf"(?:^|[._\-]){re.escape(job)}\Z", stem) is not None
    rank, node, local = (None, None, None) if named or _OURS.match(stem) else _process(stem)
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
    if (match := _RANK.match(stem)) and _BEFORE_RANK.fullmatch(match["front"]):
        local = re.search(r"local[._\-]?(?:rank|task)", stem, re.IGNORECASE)
        number = int(match["rank"] or match["short"])
        return (None, node, number) if local else (number, node, None)
    if not _SLURM.match(stem) and (match := _NODE_AND_RANK.match(stem)):
        return int(match["rank"]), match["node"], None
    return None, node, None


def _job(stem: str) -> str | None:
    if match := _SLURM.match(stem):
        return match[1]
    if match := _OURS.match(stem):
        array, number = match["array"], match["job"]
        return number if array is None or int(number) >= max(_SMALL_TASK, int(array)) else f"{array}_{number}"
    if match := re.search(r"\.[oe]([0-9]{3,18})\Z", stem):  # of PBS, and of who comes from it
        return match[1]
    candidates = [number for number in _JOB.findall(stem) if not _DATE.match(number.partition("_")[0])]
    return candidates[-1] if candidates else None


def _family(file: LogFile) -> str:
    """Return what is equal in the names of a job's output and its errors."""
    base = _base(file.path.name).lower()
    return f"{file.path.parent}/" + re.sub(r"output|errors?|stdout|stderr|\bout\b|\berr\b|(?<=[._\-])(?:out|err)(?=[._\-]|\Z)", "*", base)
