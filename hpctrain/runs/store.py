"""Reading a run's directory, in whatever condition a user or a crash has left it.

The content of a run never raises an error: a file that is missing, incomplete, not a regular file
or too large is skipped and listed in `Run.problems`. Nothing is opened that could block the reader.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpctrain.runs import layout, metrics
from hpctrain.slurm import job_ids
from hpctrain.util import stored
from hpctrain.util.text import integer

#: More than the size of any of the small files read here.
MAX_BYTES = 1_000_000
#: Bytes read from the end of metrics.jsonl: some tens of lines.
TAIL_BYTES = 16384
#: 5138-11-16: a later time is not valid.
_MAX_TIME = 1e11
_MAX_TEXT = 300
#: See hpctrain/runs/layout.py.
_ATTEMPT = re.compile(r"([0-9]{1,18})\.([0-9]{1,9})(?:\.([0-9]{1,11}))?\Z")
#: A scheduler's job id; it is passed on command lines.
JOB_ID = re.compile(r"[0-9]{1,18}(?:_[0-9]{1,9})?\Z")
_CHECKPOINT = re.compile(r"checkpoint-([0-9]{1,18})\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of the job. Values missing from its files are None.

    Attributes:
        name: the directory's name, see hpctrain/runs/layout.py.
        job_id: as shown by the scheduler, `123` or `123_4`.
        slurm_job_id: SLURM_JOB_ID, which is different for each array task.
        cluster: the cluster that the job belongs to.
        started, ended: seconds since the epoch, by the node's clock.
        status: exit status of the training, from the job script.
        outcome: `completed`, `failed`, `stopped` or `requeued`; None until the script has written
            it.
        reason: the training's exit reason.
        exit_code: the code that the training wrote (layout.DONE and following).
        was_interrupted: the script was told to end, or saw that the scheduler ended the job; Slurm
            has the final state.
        output_at: when the job's output last grew before the script ended, in seconds since the
            epoch.
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
    cluster: str | None = None

    @property
    def job(self) -> str | None:
        """The id to query the scheduler with (slurm.job_ids); if the start wrote nothing, the id in
        its directory's name, which differs for array tasks.
        """
        known = self.job_id or self.slurm_job_id
        return None if known is None else job_ids.of_record(known, self.cluster)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run. Values missing from its files are None.

    Attributes:
        id: the name of its directory.
        tag: its launch's tag; its own id if unknown.
        index: its index in a sweep.
        created: seconds since the epoch.
        attempts: oldest first.
        last_step, last_loss: the newest logged values; without any, the step of the newest
            checkpoint.
        checkpoints: number of directories with a checkpoint's name, complete or not.
        problems: files that exist but cannot be read, by name.
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
        return tuple(
            dict.fromkeys(attempt.job for attempt in self.attempts if attempt.job is not None)
        )

    @property
    def since(self) -> float | None:
        """Time of the last known event (end, last start or creation), in seconds since the epoch."""
        times = [
            time
            for attempt in self.attempts
            for time in (attempt.started, attempt.ended)
            if time is not None
        ]
        return max(times, default=self.created)


def names(runs: Path) -> tuple[list[str], list[str]]:
    """Return the names in `runs` that may be runs, and those of other directories, except hidden
    ones, which are hpctrain's.

    Raises:
        OSError: the directory does not exist, or cannot be read.
    """
    found: list[str] = []
    with os.scandir(runs) as entries:
        for entry in entries:
            with suppress(OSError):  # a link to itself
                found += [entry.name] if entry.is_dir() and entry.name[0] != "." else []
    foreign = [name for name in found if not layout.NAME.match(name)]
    return sorted(set(found).difference(foreign)), sorted(foreign)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The content of a directory of runs.

    Attributes:
        path: the directory.
        runs: by id.
        foreign: names of the directories that are not runs.
    """

    path: Path
    runs: tuple[Run, ...] = ()
    foreign: tuple[str, ...] = ()


def list_runs(runs: Path) -> Listing:
    """Return all runs in `runs`, each read from its files.

    Raises:
        OSError: the directory is missing, or cannot be read.
    """
    possible, foreign = names(runs)
    found = {name: read_run(runs, name) for name in possible}
    foreign += [name for name, run in found.items() if run is None]
    return Listing(
        path=runs,
        runs=tuple(run for run in found.values() if run is not None),
        foreign=tuple(sorted(foreign)),
    )


def read_run(runs: Path, run: str) -> Run | None:
    """Return the run `run`, read from its files; None if it has neither run.json nor attempts."""
    home, problems = runs / run, list[str]()
    present = _listed(home, ".", problems)
    if "run.json" not in present and "attempts" not in present:
        return None
    who = _object(home, "run.json", problems)
    found = [
        _attempt(home, name, problems)
        for name in _listed(home, metrics.ATTEMPTS, problems)
        if not name.startswith(".")
    ]
    attempts = _in_order(home, [attempt for attempt in found if attempt is not None])
    saved = map(_CHECKPOINT.match, _listed(home, "checkpoints", problems))
    steps = [int(match[1]) for match in saved if match]
    step, loss = _last_logged(home, attempts, problems)
    index, tag = who.get("index"), _text(who.get("tag"))
    return Run(
        id=run,
        tag=tag if tag and layout.NAME.match(tag) else run,
        name=_text(who.get("name")),
        stage=_text(who.get("stage")),
        index=index if stored.fits(index, int) else None,
        created=_time(who.get("created")),
        attempts=tuple(attempts),
        last_step=step if step is not None else max(steps, default=None),
        last_loss=loss,
        checkpoints=len(steps),
        problems=tuple(problems),
    )


def run_of_launch(
    runs: Path,
    run: str,
    *,
    tag: str,
    name: str | None = None,
    created: float | None = None,
    index: int | None = None,
    stage: str | None = None,
) -> Run:
    """Return a run of a launch; values (still) missing from its directory are taken from the
    launch.

    A job creates the directory before it writes run.json.
    """
    found = read_run(runs, run)
    if found is None:
        return Run(id=run, tag=tag, name=name, created=created, index=index, stage=stage)
    if found.tag == tag:
        return found
    return replace(found, tag=tag, name=found.name or name, index=index, stage=stage)


def _attempt(home: Path, name: str, problems: list[str]) -> Attempt | None:
    place, known = f"{metrics.ATTEMPTS}/{name}", len(problems)
    present = _listed(home, place, problems)
    if len(problems) > known:
        return None
    start, end = (
        _object(home, f"{place}/{file}", problems) if file in present else {}
        for file in ("start.json", "end.json")
    )
    exited = None
    if "exit" in present and not end:
        content = _content(home, f"{place}/exit", problems) or b""
        exited = re.match(r"([0-9]{1,3})\b\s*(.*)", content.decode("utf-8", "replace"))
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
        reason=_text(end.get("reason")) or (_text(exited[2]) if exited else None),
        exit_code=int(exited[1]) if exited else None,
        output_at=_time(end.get("output_at")),
        was_interrupted=outcome == "interrupted",
        cluster=job_ids.valid_cluster(start.get("cluster")),
    )


def _last_logged(
    home: Path, attempts: list[Attempt], problems: list[str]
) -> tuple[int | None, float | None]:
    for attempt in reversed(attempts):
        name = f"{metrics.ATTEMPTS}/{attempt.name}/{metrics.FILE}"
        lines = (_content(home, name, problems, end=TAIL_BYTES) or b"").splitlines(keepends=True)
        rows = [row for line in reversed(lines) if (row := metrics.row_of(line)) is not None]
        losses = (metrics.values(row).get("loss") for row in rows)
        if rows:
            return rows[0]["step"], next((loss for loss in losses if loss is not None), None)
    return None, None


def _in_order(home: Path, attempts: list[Attempt]) -> list[Attempt]:
    """Return the attempts, oldest first.

    Because clocks of nodes differ, attempts of a job are ordered by restart number, and jobs by
    their first start. If Slurm reused a job id, the name has a time (hpctrain/runs/layout.py).
    """
    names = {each.name: _ATTEMPT.match(each.name) for each in attempts}
    again = {match[1] for match in names.values() if match and match[3]}
    begun: dict[str, float] = {}
    first: dict[str | None, float] = {}
    for each in attempts:
        # Without a start time, as outside the job script: when it first logged. Without either, it
        # was just created.
        rows = metrics.rows(home / metrics.ATTEMPTS / each.name / metrics.FILE)
        logged = each.started or next((float(row["at"]) for row in rows), _MAX_TIME)
        begun[each.name] = logged
        first[each.slurm_job_id] = min(first.get(each.slurm_job_id, _MAX_TIME), logged)

    def order(each: Attempt) -> tuple[float, int, int, int]:
        own = each.slurm_job_id is None or each.slurm_job_id in again
        match = names[each.name]
        time_in_name = int(match[3] or 0) if match else 0
        at = begun[each.name] if own else first[each.slurm_job_id]
        return at, integer(each.slurm_job_id or "") or 0, each.restart, time_in_name

    return sorted(attempts, key=order)


def _listed(home: Path, name: str, problems: list[str]) -> list[str]:
    """Return the names in a directory; none if it is missing. Any other file is a problem."""
    try:
        return os.listdir(home / name)  # noqa: PTH208 - a Path per name costs more than the listing
    except FileNotFoundError:
        return []
    except OSError as error:
        problems.append(f"{name}: {(error.strerror or str(error)).lower()}")
        return []


def _content(home: Path, name: str, problems: list[str], end: int | None = None) -> bytes | None:
    """Return the content of a small file, or its last `end` bytes; None if there is none."""
    try:
        if end is None:
            return stored.read_regular(home / name, MAX_BYTES)
        with stored.open_regular(home / name) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - end))
            return stream.read(end)
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(f"{name}: {(error.strerror or str(error)).lower()}")
        return None


def _object(home: Path, name: str, problems: list[str]) -> dict[str, Any]:
    content = _content(home, name, problems)
    if content is None:
        return {}
    try:
        value = stored.value_of(content)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        problems.append(f"{name}: not a JSON object")
        return {}
    return value


def job_id(value: Any) -> str | None:
    """Return a value if it is a valid job id, else None."""
    return value if isinstance(value, str) and JOB_ID.match(value) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= _MAX_TEXT else None


def _time(value: Any) -> float | None:
    usable = (
        isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _MAX_TIME
    )
    return float(value) if usable else None
