"""One run, or job, that is watched: what its files and its log say, looked at by stat only as long as they have not changed."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpctrain.cli import schedulers
from hpctrain.logs import found, text
from hpctrain.logs.model import LogFile
from hpctrain.report import idle
from hpctrain.report.idle import Idle
from hpctrain.runs import launches, layout, pieces, progress, progress_lines, store
from hpctrain.runs.progress import Progress
from hpctrain.runs.store import Run

#: Of a log that is met for the first time, or that has grown by more at once, the end is read.
_END_BYTES = 1 << 18
_MOST_LOGS, _MOST_WARNINGS = 12, 50
_WARNING = re.compile(
    r"\b(?:warning|error|critical|fatal|killed|aborted|oom[-_ ]kill|out of memory|[A-Za-z]+(?:Error|Exception|Warning))\b", re.IGNORECASE
)
_NO_WARNING = re.compile(r"\b(?:0|no) (?:errors?|warnings?)\b|\bTraceback\b|^\s*(?:File |warnings\.warn|raise )", re.IGNORECASE)
_NUMBERS = re.compile(r"[0-9]+")


@dataclass(slots=True)
class LogEnd:
    """A log of which what is new is read, its end where that is much; it may not exist yet, shrink, and be replaced."""

    path: Path
    position: int = 0
    inode: int = 0
    rest: bytes = b""

    def new_lines(self) -> list[bytes]:
        """Return the whole lines that were written since the last time."""
        size, _, inode = pieces.stamp(self.path)
        if inode != self.inode or size < self.position:
            self.position, self.inode, self.rest = 0, inode, b""
        if size == self.position:
            return []
        start = max(self.position, size - _END_BYTES)
        try:
            with store.opened(str(self.path)) as file:
                got = os.pread(file.fd, size - start, start)
        except OSError:
            return []
        whole = self.rest + got if start == self.position else got.partition(b"\n")[2]
        self.position = start + len(got)
        *lines, self.rest = whole.split(b"\n")
        if len(self.rest) > _END_BYTES:  # a line without an end: a progress bar
            self.rest = self.rest[-_END_BYTES:]
        return lines


@dataclass(slots=True)
class Looked:
    """What is known of a run or job without a scheduler.

    Attributes:
        runs: the directory of all runs.
        run_id: the run, or None for a job that is no run of hpctrain's.
        run: as its directory says; None as long as there is none.
        jobs: all job ids of it, the oldest first; None among them is a submission that was never answered.
        warnings: the last of its log, each once with how often it came, the newest last.
        heard: this machine's time at which something new was read; started: at which the last start was seen first.
    """

    runs: Path
    run_id: str | None
    run: Run | None = None
    jobs: tuple[str | None, ...] = ()
    progress: Progress = field(default_factory=Progress)
    warnings: dict[str, tuple[str, int]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    idle: tuple[Idle, ...] = ()
    heard: float | None = None
    started: float | None = None
    _stamps: dict[str, Any] = field(default_factory=dict)
    _logs: dict[Path, LogEnd] = field(default_factory=dict)
    _lines: progress_lines.Lines = field(default_factory=progress_lines.Lines)
    _threads: int | None = None
    _cpus: int | None = None

    @property
    def run_dir(self) -> Path | None:
        """The run's directory."""
        return None if self.run_id is None else self.runs / self.run_id

    def look(self, job: str | None) -> bool:
        """Read what has changed; return whether anything has.

        Args:
            job: the newest job, whose logs are read where there is no run.
        """
        changed = self._look_at_run()
        lines = self._new_lines(job)
        if not changed and not lines:
            return False
        self._take_lines(lines)
        self._measure(job)
        self.heard = time.time()
        return True

    # -- the run's directory -------------------------------------------------------------------------------------------

    def _look_at_run(self) -> bool:
        if self.run_dir is None:
            return False
        stamps = progress.watched(self.run_dir)
        for place in (self.run_dir, self.run_dir / "attempts", self.run_dir / "checkpoints"):
            stamps[str(place)] = pieces.stamp(place)
        if self.run is not None and self.run.last is not None:
            stamps["last"] = pieces.stamp(self.run_dir / "attempts" / self.run.last.name)
        tag = self.run.tag if self.run is not None else self.run_id or ""
        stamps["launch"] = pieces.stamp(self.runs / layout.LAUNCHES / tag / "submissions")
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        self._read_run()
        return True

    def _read_run(self) -> None:
        if self.run_id is None or self.run_dir is None:
            return
        before = self.run.last.name if self.run is not None and self.run.last is not None else None
        self.run = store.read_run(self.runs, self.run_id)
        if self.run is not None and self.run.last is not None and self.run.last.name != before:
            self.started = time.time()
        run = self.run or _not_started(self.runs, self.run_id)
        submitted = tuple(launches.jobs_of(run, launches.read(self.runs, run.tag)))
        self.jobs = (*run.job_ids, *(job for job in submitted if job not in run.job_ids))
        launch = self.runs / layout.LAUNCHES / run.tag
        of_stage = [launch / f"config.{run.stage}.json"] if run.stage else []
        record: dict[str, Any] = next(
            (
                value
                for path in (self.run_dir / "config.json", *of_stage, launch / "config.json")
                if (value := store.read_object(str(path)))
            ),
            {},
        )
        config = record.get("config")
        self.config = config if isinstance(config, dict) else {}
        if run.last is not None:
            said = store.read_object(str(self.run_dir / "attempts" / run.last.name / "environment.json")) or {}
            self._read_environment(said.get("variables"))

    def _read_environment(self, variables: Any) -> None:
        self._threads, self._cpus = idle.threads_and_cores(variables)

    # -- its log -------------------------------------------------------------------------------------------------------

    def _log_files(self, job: str | None) -> Iterable[LogFile]:
        if self.run_dir is not None and self.run is not None:
            files = [file for file in found.of_run(self.run_dir.absolute(), project=self.runs.absolute().parent) if not file.copy]
            newest = [file for file in files if file.job in (None, job)] or files
            return newest[-_MOST_LOGS:]
        if job is None or "[" in job:
            return ()
        logs = schedulers.owner(job).logs(job)
        return () if logs is None else found.of_job(logs.output, logs.error, job=job)

    def _new_lines(self, job: str | None) -> list[bytes]:
        key = (job, len(self.run.attempts) if self.run is not None else 0)
        if self._stamps.get("logs of") != key or not self._logs:
            kept = {file.path: self._logs.get(file.path, LogEnd(file.path)) for file in self._log_files(job) if file.path.suffix != ".gz"}
            self._logs = kept
            if self.run is not None or job is not None:
                self._stamps["logs of"] = key
        return [line for log in self._logs.values() for line in log.new_lines()]

    def _take_lines(self, lines: Iterable[bytes]) -> None:
        for raw in lines:
            self._lines.add(raw.decode("utf-8", "replace"))
            if _WARNING.search(raw.decode("latin-1")):
                line = text.label(text.clean(raw)).rest.strip()
                if line and not _NO_WARNING.search(line) and not text.progress_bar(line):
                    key = _NUMBERS.sub("0", line)
                    _, count = self.warnings.pop(key, ("", 0))
                    self.warnings[key] = (line, count + 1)
        for key in list(self.warnings)[:-_MOST_WARNINGS]:
            del self.warnings[key]

    # -- what both say -------------------------------------------------------------------------------------------------

    def _measure(self, job: str | None) -> None:
        read = progress.read(self.run_dir) if self.run_dir is not None else Progress()
        said = self._lines.progress()
        if read.step is None:
            read = replace(said, samples=read.samples or said.samples, recent=read.recent if read.samples else said.recent)
        elif not read.samples:
            read = replace(read, samples=said.samples, recent=said.recent, max_steps=read.max_steps or said.max_steps)
        self.progress = read
        resources = self.config.get("resources")
        gpus = resources.get("gpus_per_node") if isinstance(resources, dict) else None
        self.idle = idle.judge(
            read.recent,
            gpus_per_node=gpus if isinstance(gpus, int) and any(sample.gpu_uuid for sample in read.samples) else None,
            cpus_per_node=self._cpus,
            data_wait=read.data_wait,
            config=self.config,
            threads=self._threads,
            load=_load(job),
            run=self.run_id,
        )


def _load(job: str | None) -> dict[str, tuple[float, int]]:
    """Return the load of this machine where the job runs here; of nodes of a cluster nobody says it."""
    if job is None or schedulers.owner(job).name != "local":
        return {}
    return {"this machine": (os.getloadavg()[0], os.cpu_count() or 1)}


def _not_started(runs: Path, run_id: str) -> Run:
    """Return what is known of a run that has no directory yet: that it is a point of a sweep, or a stage."""
    for tag, rest in _tags(run_id):
        if (runs / layout.LAUNCHES / tag / "launch.json").exists():
            index = int(rest) if rest.isdigit() else None
            return Run(id=run_id, tag=tag, index=index, stage=rest if rest and index is None else None)
    return Run(id=run_id, tag=run_id)


def _tags(run_id: str) -> Iterable[tuple[str, str]]:
    """Yield (tag, what is behind it) for each way to cut a run's id."""
    yield run_id, ""
    for position in reversed([index for index, sign in enumerate(run_id) if sign == "_"]):
        yield run_id[:position], run_id[position + 1 :]
