"""What a run's directory says of it: read as it is, whatever somebody, or a crash, has put there.

Nothing here raises for what lies in a run: a file that is missing, half-written, no file at all or larger than any that hpctrain writes
is left out and named in `Run.problems`. Nothing is opened that could keep the reader waiting.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.runs import layout

#: More than any of the small files that are read here.
MAX_BYTES = 1_000_000
#: Of metrics.jsonl, the end is read: some tens of lines.
TAIL_BYTES = 16384
#: 5138-11-16: beyond it, seconds since the epoch are no time that anybody wrote.
_MAX_TIME = 1e11
_MAX_TEXT = 300
#: See layout.attempt_name.
_ATTEMPT = re.compile(r"([0-9]{1,18})\.([0-9]{1,9})(?:\.([0-9]{1,11}))?\Z")
#: Seconds by which the clocks of two nodes may differ; no job id comes round again so soon.
_CLOCKS_DIFFER_S = 600
#: A job as schedulers name it; it becomes a word on their command lines.
JOB_ID = re.compile(r"[0-9]{1,18}(?:_[0-9]{1,9})?\Z")
_CHECKPOINT = re.compile(r"checkpoint-([0-9]{1,18})\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of the job. What its files do not say is None.

    Attributes:
        name: of its directory, see layout.attempt_name.
        job_id: as the scheduler shows it, `123` or `123_4`.
        slurm_job_id: SLURM_JOB_ID, which a task of an array has of its own.
        started, ended: seconds since the epoch, of the clock of the node.
        status: exit status of the training, as the job script saw it.
        outcome: `completed`, `failed`, `stopped` or `requeued`; None as long as the script has not said it.
        reason: the training's word for why it ended.
        exit_code: of the training, which it wrote itself (layout.DONE and its neighbours).
        was_interrupted: the script saw that the scheduler ended the job, or that it was told to end; Slurm says what became of it.
        output_at: when the job's output had last grown before the script came to its end, seconds since the epoch.
    """

    name: str
    job_id: str | None = None
    slurm_job_id: str | None = None
    restart: int = 0
    host: str | None = None
    started: float | None = None
    ended: float | None = None
    status: int | None = None
    outcome: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    output_at: float | None = None
    was_interrupted: bool = False

    @property
    def job(self) -> str | None:
        """The id to ask the scheduler for; of a start that came to write nothing, that of its directory, where tasks of arrays differ."""
        return self.job_id or self.slurm_job_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run. What its files do not say is None.

    Attributes:
        id: the name of its directory.
        tag: of its launch; of a run that does not say it, its id.
        index: of its point in a sweep.
        created: seconds since the epoch.
        attempts: the oldest first.
        last_step, last_loss: the newest that was logged; the step of the newest checkpoint, where nothing was.
        checkpoints: how many directories have a checkpoint's name; whether they are complete is not looked at.
        problems: what lies there and cannot be read, each with its name.
    """

    id: str
    tag: str
    name: str | None = None
    stage: str | None = None
    index: int | None = None
    created: float | None = None
    attempts: tuple[Attempt, ...] = ()
    last_step: int | None = None
    last_loss: float | None = None
    checkpoints: int = 0
    problems: tuple[str, ...] = ()

    @property
    def last(self) -> Attempt | None:
        """The attempt that started last."""
        return self.attempts[-1] if self.attempts else None

    @property
    def job_ids(self) -> tuple[str, ...]:
        """The job ids of all attempts, as the scheduler shows them, each once."""
        return tuple(dict.fromkeys(attempt.job for attempt in self.attempts if attempt.job is not None))

    @property
    def since(self) -> float | None:
        """Seconds since the epoch: of the last that is known to have happened, its end, its last start, or its making."""
        times = [time for attempt in self.attempts for time in (attempt.started, attempt.ended) if time is not None]
        return max(times, default=self.created)


def names(runs: Path) -> tuple[list[str], list[str]]:
    """Return the names in `runs` that may be runs, and those of directories that cannot be; hidden names are ours.

    Raises:
        OSError: the directory is not there, or cannot be read.
    """
    found: list[str] = []
    foreign: list[str] = []
    with os.scandir(runs) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and _is_directory(entry):
                (found if layout.NAME.match(entry.name) else foreign).append(entry.name)
    return sorted(found), sorted(foreign)


def read_run(runs: Path, run: str) -> Run | None:
    """Return the run called `run`, read from its files; None where there is none: neither run.json nor attempts."""
    return RunReader(str(runs), run).read()


class RunReader:
    """Reads one run, and remembers where it looked.

    Attributes:
        looked: the paths, relative to the run, whose change makes what was read out of date; a file is put in place by a rename, which
            changes its directory, so that only a file that grows stands here for itself.
    """

    def __init__(self, runs: str, run: str) -> None:
        self.path = f"{runs}/{run}"
        self.run = run
        self.looked: list[str] = [""]
        self.problems: list[str] = []

    def read(self) -> Run | None:
        """Return the run; None where the directory holds none, or is gone."""
        present = self._listed("")
        if "run.json" not in present and "attempts" not in present:
            return None
        who = self._json("run.json") if "run.json" in present else {}
        attempts = self._attempts() if "attempts" in present else []
        steps = self._checkpoints() if "checkpoints" in present else []
        step, loss = self._last_logged(attempts)
        index = who.get("index")
        tag = _text(who.get("tag"))
        return Run(
            id=self.run,
            tag=tag if tag and layout.NAME.match(tag) else self.run,
            name=_text(who.get("name")),
            stage=_text(who.get("stage")),
            index=index if isinstance(index, int) and not isinstance(index, bool) else None,
            created=_time(who.get("created")),
            attempts=tuple(attempts),
            last_step=step if step is not None else max(steps, default=None),
            last_loss=loss,
            checkpoints=len(steps),
            problems=tuple(self.problems),
        )

    def _attempts(self) -> list[Attempt]:
        self.looked.append("attempts")
        found = [self._attempt(name) for name in self._listed("attempts") if not name.startswith(".")]
        return _in_order([attempt for attempt in found if attempt is not None])

    def _attempt(self, name: str) -> Attempt | None:
        place = f"attempts/{name}"
        present = self._listed(place)
        if not present and self.problems and self.problems[-1].startswith(f"{place}: "):
            return None
        self.looked.append(place)
        start = self._json(f"{place}/start.json") if "start.json" in present else {}
        end = self._json(f"{place}/end.json") if "end.json" in present else {}
        code, reason = self._exit(f"{place}/exit") if "exit" in present and not end else (None, None)
        if not end:
            self.looked += [f"{place}/{file}" for file in ("start.json", "metrics.jsonl") if file in present]
        named = _ATTEMPT.match(name)
        restart, status, outcome = start.get("restart"), end.get("status"), _text(end.get("outcome"))
        return Attempt(
            name=name,
            job_id=job_id(start.get("job_id")),
            slurm_job_id=job_id(start.get("slurm_job_id")) or (named[1] if named else None),
            restart=int(named[2]) if named else restart if isinstance(restart, int) else 0,
            host=_text(start.get("host")),
            started=_time(start.get("at")),
            ended=_time(end.get("at")),
            status=status if isinstance(status, int) else None,
            outcome=outcome if outcome in ("completed", "failed", "stopped", "requeued") else None,
            reason=_text(end.get("reason")) or reason,
            exit_code=code,
            output_at=_time(end.get("output_at")),
            was_interrupted=outcome == "interrupted",
        )

    def _exit(self, name: str) -> tuple[int | None, str | None]:
        """Return code and reason of the file `exit`: `CODE REASON`."""
        words = (self._bytes(name) or b"").decode("utf-8", "replace").split(maxsplit=1)
        if not words or not words[0].isascii() or not words[0].isdigit() or len(words[0]) > 3:
            self.problems.append(f"{name}: it does not say CODE REASON")
            return None, None
        return int(words[0]), _text(words[1].strip()) if len(words) > 1 else None

    def _checkpoints(self) -> list[int]:
        self.looked.append("checkpoints")
        found = (_CHECKPOINT.match(name) for name in self._listed("checkpoints"))
        return [int(name[1]) for name in found if name]

    def _last_logged(self, attempts: list[Attempt]) -> tuple[int | None, float | None]:
        """Return step and loss of the newest attempt that logged something."""
        for attempt in reversed(attempts):
            step, loss = None, None
            for line in self._last_lines(f"attempts/{attempt.name}/metrics.jsonl"):
                said = _parsed(line)
                if not isinstance(said, dict):
                    continue
                if step is None and isinstance(said.get("step"), int) and not isinstance(said["step"], bool):
                    step = int(said["step"])
                loss = _loss(said)
                if loss is not None:
                    break
            if step is not None:
                return step, loss
        return None, None

    def _last_lines(self, name: str) -> Iterator[bytes]:
        """Yield whole lines from the end of a file, the last first; a line that is still being written is none."""
        try:
            with opened(f"{self.path}/{name}") as file:
                size = os.fstat(file.fd).st_size
                start = max(0, size - TAIL_BYTES)
                lines = os.pread(file.fd, TAIL_BYTES, start).split(b"\n")
        except FileNotFoundError:
            return
        except OSError as error:
            self.problems.append(f"{name}: {_why(error)}")
            return
        yield from reversed(lines[1 if start else 0 : -1])

    def _listed(self, name: str) -> list[str]:
        """Return the names in a directory; what is none is a problem, what is not there is not."""
        try:
            return os.listdir(f"{self.path}/{name}")  # noqa: PTH208 - a Path for each name costs more than the look
        except FileNotFoundError:
            return []
        except OSError as error:
            self.problems.append(f"{name or '.'}: {_why(error)}")
            return []

    def _bytes(self, name: str) -> bytes | None:
        try:
            with opened(f"{self.path}/{name}") as file:
                content = os.read(file.fd, MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.problems.append(f"{name}: {_why(error)}")
            return None
        if len(content) > MAX_BYTES:
            self.problems.append(f"{name}: larger than {MAX_BYTES / 1e6:g} MB")
            return None
        return content

    def _json(self, name: str) -> dict[str, Any]:
        content = self._bytes(name)
        if content is None:
            return {}
        value = _parsed(content)
        if not isinstance(value, dict):
            self.problems.append(f"{name}: {'empty' if not content.strip() else 'not a JSON object'}")
            return {}
        return value


class opened:  # noqa: N801 - read as a function
    """A regular file, open for reading: a FIFO would keep the reader waiting, and opening a device may already do something.

    As `clusters.load.open_regular`, without its Path and its buffer: 10,000 runs are 50,000 files.
    """

    __slots__ = ("fd",)

    def __init__(self, path: str) -> None:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
            raise OSError(0, "not a regular file", path)
        self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> opened:
        if not stat.S_ISREG(os.fstat(self.fd).st_mode):  # it was, a moment ago
            os.close(self.fd)
            raise OSError(0, "not a regular file")
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def read_object(path: str) -> dict[str, Any] | None:
    """Return the JSON object in a regular file of at most MAX_BYTES; None where there is none. Raises nothing."""
    try:
        with opened(path) as file:
            content = os.read(file.fd, MAX_BYTES + 1)
    except OSError:
        return None
    value = _parsed(content) if len(content) <= MAX_BYTES else None
    return value if isinstance(value, dict) else None


def job_id(value: Any) -> str | None:
    """Return a value of a file that is the id of a job; None for anything else."""
    return value if isinstance(value, str) and JOB_ID.match(value) else None


def _in_order(attempts: list[Attempt]) -> list[Attempt]:
    """Return the attempts, the oldest first.

    The clocks of two nodes differ; the restarts of one job are counted, and its first start stands for the job.
    """
    again = [(match[1], int(match[2]), float(match[3])) for each in attempts if (match := _ATTEMPT.match(each.name)) and match[3]]

    def job(attempt: Attempt) -> tuple[str | None, int]:
        """The id, and how many jobs of that id had been here before: a name with a time has found the one without it taken."""
        named = _ATTEMPT.match(attempt.name)
        begun = float(named[3]) if named and named[3] else _MAX_TIME if attempt.started is None else attempt.started + _CLOCKS_DIFFER_S
        latest = attempt.restart if named and named[3] else attempt.restart - 1
        before = Counter(restart for id_, restart, at in again if id_ == attempt.slurm_job_id and restart <= latest and at <= begun)
        return attempt.slurm_job_id, max(before.values(), default=0)

    first: dict[tuple[str | None, int], float] = {}
    for attempt in attempts:
        if attempt.started is not None:
            first[job(attempt)] = min(first.get(job(attempt), attempt.started), attempt.started)
    # What has not said when it started has just been made.
    return sorted(attempts, key=lambda each: (first.get(job(each), _MAX_TIME), _number(each.slurm_job_id), job(each)[1], each.restart))


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _parsed(content: bytes) -> Any:
    """Return the value in JSON text; None where it is none."""
    try:
        return json.loads(content.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return None


def _loss(said: dict[str, Any]) -> float | None:
    """Return the loss in a line of metrics.jsonl; NaN and infinities have a place of their own there (hpctrain.runs.metrics)."""
    loss, special = said.get("loss"), said.get("nonfinite")
    if loss is None and isinstance(special, dict) and special.get("loss") in ("nan", "inf", "-inf"):
        return float(special["loss"])
    try:
        return float(loss) if isinstance(loss, int | float) and not isinstance(loss, bool) else None
    except OverflowError:
        return None


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= _MAX_TEXT else None


def _time(value: Any) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _MAX_TIME
    return float(value) if usable else None


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else 0
