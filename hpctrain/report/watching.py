"""The data of `hpctrain watch`: runs and jobs from their files, logs and schedulers, and what
changed since the last poll.

Files are read only if their size or time changed. Each scheduler gets one query for all jobs, every
30 s, and none for jobs that have ended.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from hpctrain.errors import SchedulerError
from hpctrain.jobs import request, schedulers
from hpctrain.jobs.targets import Target
from hpctrain.logs import files
from hpctrain.logs.read import Growing, split
from hpctrain.report import idle, live, queue
from hpctrain.runs import job_state, launch, layout, progress, store
from hpctrain.runs.progress import Lines, Progress
from hpctrain.slurm import job_ids
from hpctrain.slurm.base import ASK_EVERY_S
from hpctrain.slurm.notations import array as arrays
from hpctrain.slurm.notations import states
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.util.text import clock, duration, is_number, number

# -- schedulers ------------------------------------------------------------------------------------

#: Seconds between two queries to Slurm.
_ASK_S = 30.0


class StatusPoller:
    """The newest records of jobs.

    Args:
        clock: monotonic, in seconds.

    Attributes:
        records: by job id; pending tasks share one, as Slurm shows them (`123_[4-9]`).
        taken: time of each record, in seconds since the epoch.
        unreachable: why Slurm did not answer the last query, or None.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.records: dict[str, JobRecord] = {}
        self.taken: dict[str, float] = {}
        self.unreachable: SchedulerError | None = None
        self._clock, self._last = clock, float("-inf")
        self._question: tuple[list[str], Future[list[JobRecord]]] | None = None

    @property
    def is_asking(self) -> bool:
        """Whether a query to Slurm is pending."""
        return self._question is not None

    def ask(self, jobs: Iterable[str], *, patience: float | None = None) -> None:
        """Query these jobs if it is time; local ones always.

        Args:
            jobs: their ids.
            patience: seconds to wait for Slurm's answer; a late one is read in a later call. None
                waits until it arrives.
        """
        open_ = [job for job in dict.fromkeys(jobs) if not self.has_ended(job)]
        for scheduler in schedulers.available() if open_ else ():
            mine = [job for job in open_ if schedulers.owner(job).name == scheduler.name]
            asked = None if any("_" in job for job in mine) else mine
            query = partial(scheduler.status, asked, max_age_s=ASK_EVERY_S)
            if scheduler.name == "local" and mine:
                self._keep(query(), mine)
            elif mine and self._question is None and self._clock() >= self._last + _ASK_S:
                self._question = mine, schedulers.in_background(query)
        if self._question is not None and futures.wait([self._question[1]], patience).done:
            (mine, question), self._question = self._question, None
            self.unreachable, self._last = None, self._clock()
            try:
                self._keep(question.result(), mine)
            except SchedulerError as error:  # e.g. slurmctld restarts: the run continues
                self.unreachable = error

    def _keep(self, found: list[JobRecord], jobs: list[str]) -> None:
        arrays_asked = {job.partition("_")[0] for job in jobs if "_" in job}
        before = self.records
        self.records = {  # pending tasks become fewer
            job: record
            for job, record in before.items()
            if "[" not in job or job.partition("_")[0] not in arrays_asked
        }
        for record in found:
            job = record.job_id
            if arrays_asked and job.partition("_")[0] not in arrays_asked | set(jobs):
                continue  # the answer covers all jobs
            if before.get(job) != record:  # a shared record may be older
                self.taken[job] = time.time()
            self.records[job] = record

    def record(self, job: str) -> JobRecord | None:
        """Return the record of a job, or of a task among pending ones; None if unknown."""
        array, _, task = job.partition("_")
        if job in self.records or not is_number(task):
            return self.records.get(job)
        for each, record in self.records.items():
            waiting = each.partition("_")[2].strip("[]")
            if each.startswith(f"{array}_[") and arrays.contains(waiting, int(task)):
                return record
        return None

    def has_ended(self, job: str) -> bool:
        """Whether a job's state is final; for an array, that of all tasks."""
        record = self.records.get(job)
        return record is not None and record.is_final and "[" not in job


# -- one run ---------------------------------------------------------------------------------------

#: Only the end is read of a log that is new, or has grown by more at once.
_END_BYTES = 1 << 18
_MOST_LOGS = 12
#: Maximum number of queried jobs of a run with many restarts.
_ASKED = 8
_QUIET_S, _QUIET_INTERVALS = 120.0, 5.0
_OUTCOMES = ("completed", "failed", "stopped")

#: From a run, its ETA, its elapsed time and now: whether it ends before its limit, and a text.
Verdict = Callable[["WatchedRun", float, float | None, float], tuple[bool | None, str]]


@dataclass(slots=True)
class WatchedRun:
    """One run or job, from its files and its scheduler.

    Attributes:
        runs: the directory of all runs.
        run_id: the run, or None for a job that is not an hpctrain run.
        poller: of the schedulers.
        verdict: whether the training ends before its time limit.
        planned: a run that has no directory yet.
        jobs: its newest job ids, oldest first.
        run: read from its directory; None until that exists.
        gpus_per_node: requested by its newest launch, or None.
        heard: local time at which something new was read.
    """

    runs: Path
    run_id: str | None
    poller: StatusPoller
    verdict: Verdict
    planned: store.Run | None = None
    jobs: tuple[str, ...] = ()
    run: store.Run | None = None
    gpus_per_node: int | None = None
    progress: Progress = field(default_factory=Progress)
    wasted: tuple[idle.Idle, ...] = ()
    heard: float | None = None
    _stamps: dict[str, Any] = field(default_factory=dict)
    _logs: dict[Path, Growing] = field(default_factory=dict)
    _logs_of: tuple[str | None, int] | None = None
    _lines: Lines = field(default_factory=Lines)

    # -- its files

    @property
    def run_dir(self) -> Path | None:
        """The run's directory."""
        return None if self.run_id is None else self.runs / self.run_id

    @property
    def attempt(self) -> store.Attempt | None:
        """The newest start."""
        return self.run.last if self.run is not None else None

    @property
    def starts(self) -> int:
        """The number of starts."""
        return len(self.run.attempts) if self.run is not None else 0

    def look(self) -> None:
        """Read the files that have changed."""
        changed = self.run_dir is not None and self._has_changed(self.run_dir)
        if changed and self.run_id is not None:
            self.run = store.read_run(self.runs, self.run_id)
            run = self.run or self.planned or store.Run(id=self.run_id, tag=self.run_id)
            self.jobs = launch.every_job(self.runs, run)[-_ASKED:]
            config = request.ran_with(run, self.runs)[0] or {}
            self.gpus_per_node = (config.get("resources") or {}).get("gpus_per_node")
        self._find_logs()
        new = [line for log in self._logs.values() for line in split(log.look())]
        for raw in new:
            self._lines.add(raw.decode("utf-8", "replace"))
        if changed or new:
            self._measure()
            self.heard = time.time()

    def _has_changed(self, run_dir: Path) -> bool:
        tag = self.run.tag if self.run is not None else run_dir.name
        places = [run_dir, run_dir / "attempts", run_dir / "checkpoints"]
        places.append(self.runs / layout.LAUNCHES / tag / "submissions")
        if self.attempt is not None:
            places.append(run_dir / "attempts" / self.attempt.name)
        before, self._stamps = self._stamps, progress.watched(run_dir)
        self._stamps |= {str(place): progress.stamp(place) for place in places}
        return self._stamps != before

    def _find_logs(self) -> None:
        job = self.job
        if self._logs_of == (job, self.starts) and self._logs:
            return
        self._logs_of = job, self.starts
        found: Sequence[files.LogFile] = ()
        if self.run_dir is not None and self.run is not None:
            own = [file for file in files.of_run(self.run_dir) if not file.copy]
            found = ([file for file in own if file.job in (None, job)] or own)[-_MOST_LOGS:]
        elif job is not None and "[" not in job:
            logs = schedulers.owner(job).logs(job)
            found = () if logs is None else files.of_job(logs.output, logs.error, job=job)
        paths = [file.path for file in found if file.path.suffix != ".gz"]
        self._logs = {
            path: self._logs.get(path) or Growing(path, newest_bytes=_END_BYTES) for path in paths
        }

    def _measure(self) -> None:
        logged, read = self._lines.progress(), Progress()
        if self.run_dir is not None:
            read = progress.read(self.run_dir, end_bytes=_END_BYTES)
        samples = read if read.samples else logged
        read = logged if read.step is None else read
        read = replace(read, samples=samples.samples, recent=samples.recent)
        self.progress = replace(read, max_steps=read.max_steps or logged.max_steps)
        knows_gpus = any(sample.gpu_uuid for sample in read.samples)
        self.wasted = idle.judge(
            read.recent,
            gpus_per_node=self.gpus_per_node if knows_gpus else None,
            data_wait=read.data_wait,
            run=self.run_id,
        )

    # -- its jobs

    @property
    def record(self) -> JobRecord | None:
        """The record of the running job, else of the first pending one, else of the last that
        ended.
        """
        known = [each for job in self.jobs if (each := self.poller.record(job)) is not None]
        active = [each for each in known if each.state in states.ACTIVE]
        waiting = [each for each in known if not each.is_final]
        return next(iter((*active, *waiting, *known[-1:])), None)

    @property
    def job(self) -> str | None:
        """The id of the current job; for an array task, its own."""
        record = self.record
        if record is None:
            return self.jobs[-1] if self.jobs else None
        return next((job for job in self.jobs if self.poller.record(job) is record), record.job_id)

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen without action: no known job is pending or running."""
        records = [self.poller.record(job) for job in self.jobs]
        known = [record for record in records if record is not None]
        over = self.run_dir is not None and (self.run_dir / "over").exists()
        if any(each.state in states.ACTIVE or not (each.is_final or over) for each in known):
            return False
        # Without the scheduler's answer this is undecided, unless the script has recorded its end.
        unanswered = self.poller.unreachable is not None or self.poller.is_asking
        is_open = unanswered and len(known) < len(records)
        return not is_open or (self.attempt is not None and self.attempt.outcome in _OUTCOMES)

    @property
    def code(self) -> int:
        """The exit code of the job; 3 if unknown."""
        record, last = self.record, self.attempt
        if record is not None and record.is_final:
            return record.exit_status
        codes = () if last is None else (last.status, last.exit_code)
        return next((code for code in codes if code is not None), 3)


# -- the view --------------------------------------------------------------------------------------


def view(watched: WatchedRun, now: float) -> live.View:
    """Return the current state for display."""
    record, known, ended = watched.record, watched.progress, watched.ended
    runs = record is not None and record.state in states.ACTIVE
    elapsed, job = None, ""
    if record is not None and record.elapsed_s is not None:
        taken = watched.poller.taken.get(record.job_id, now)
        elapsed = record.elapsed_s + (max(0.0, now - taken) if runs else 0.0)
    if watched.job is not None:
        local = record is not None and record.scheduler == "local"
        job = f"job {watched.job} {'on this machine' if local else 'on Slurm'}"
    state = _state_of(watched, record, now)
    eta = known.eta_at(now) if runs else None
    fits, verdict = watched.verdict(watched, eta, elapsed, now) if eta is not None else (None, "")
    if state.level == "wait":  # rates and GPUs of the previous job no longer apply
        known = replace(known, tokens_per_s=None, mfu=None, data_wait=None, step_s=None, samples=())
    saved = ""
    if known.saved_step is not None:
        ago = "" if known.saved_at is None else f", {duration(max(0.0, now - known.saved_at))} ago"
        saved = f"saved checkpoint-{known.saved_step}{ago}"
    silent = 0.0 if watched.heard is None else now - watched.heard
    quiet = silent > max(_QUIET_S, _QUIET_INTERVALS * (known.interval_s or 0.0))
    unreachable, note = watched.poller.unreachable, ""
    if unreachable is not None and not all(map(watched.poller.has_ended, watched.jobs)):
        said = unreachable.details[-1].strip() if unreachable.details else unreachable.what
        note = f"Slurm does not answer ({said}); asking again"
    return live.View(
        title=watched.run_id or (record.name if record is not None else None) or watched.job or "",
        job=job,
        state=_words(watched, record, state, elapsed),
        level=state.level,
        elapsed_s=elapsed,
        limit_s=record.time_limit_s if record is not None else None,
        progress=known,
        eta_s=eta,
        fits=fits,
        verdict=verdict,
        quiet=f"nothing new for {duration(silent)}" if runs and quiet else "",
        saved=saved,
        idle=watched.wasted if runs else (),
        note=note,
        next=tuple(_next_steps(watched, saved=state.saved)) if ended else (),
        # A pending job has nothing that changes each second: avoid redrawing.
        clock=time.strftime("%H:%M:%S" if runs else "%H:%M", time.localtime(now)),
    )


def _state_of(watched: WatchedRun, record: JobRecord | None, now: float) -> job_state.JobState:
    """Return the state of the current job; without a scheduler record, that of the run's files."""
    if record is not None:
        return queue.state_of(
            replace(record, job_id=watched.job or record.job_id), watched.run, now=now
        )
    if watched.attempt is not None and watched.attempt.outcome in _OUTCOMES:
        return job_state.of_job(None, watched.attempt)
    words = f"unknown: the scheduler does not know job {watched.job} any more"
    if watched.poller.unreachable is not None:
        words = "unknown: Slurm does not answer"
    elif watched.poller.is_asking:
        words = "unknown yet: Slurm is being asked"
    elif not watched.jobs:
        words = "not submitted yet, or no job of it is known"
    elif elsewhere := job_ids.elsewhere(watched.job or ""):
        words = f"unknown: {elsewhere}"
    return job_state.JobState(states.UNKNOWN, words, "", "")


def _words(
    watched: WatchedRun, record: JobRecord | None, state: job_state.JobState, elapsed: float | None
) -> str:
    if record is None or state.level == "wait":
        return state.words
    if state.level != "run":
        after = f" after {clock(elapsed)}" if elapsed is not None and record.is_final else ""
        return state.head + after + state.tail
    words = state.words
    if elapsed is not None:
        limit = f" of {clock(record.time_limit_s)}" if record.time_limit_s else ""
        words += f" for {clock(elapsed)}{limit}"
    words += f" on {record.n_nodes} nodes" if (record.n_nodes or 0) > 1 else ""
    words += f", start {watched.starts}" if watched.starts > 1 else ""
    last, known = watched.attempt, watched.progress
    is_earlier = last is not None and known.attempt not in (None, last.name)
    return words + "; no step is logged yet" * (not known.step or is_earlier)


def _next_steps(watched: WatchedRun, *, saved: bool) -> Iterable[str]:
    """Yield the commands to type after the end; a run that saved and stopped needs no
    explanation.
    """
    word = shlex.quote(watched.run_id or watched.job or "")
    bad = watched.code != 0
    if bad and not saved:
        yield f"hpctrain explain {word}"
    if watched.run_id is not None:
        yield f"hpctrain report {word}"
        if bad:
            yield f"hpctrain resubmit {word}"
    elif not bad:
        yield f"hpctrain logs {word}"


# -- events ----------------------------------------------------------------------------------------

#: Minimum seconds between two lines of steps.
STEP_S = 15.0
_MEASURED = (
    "step",
    "max_steps",
    "epoch",
    "loss",
    "eval_loss",
    "tokens_per_s",
    "mfu",
    "data_wait",
    "step_s",
)


class ChangeLog:
    """What was already printed for one run, so that only news is printed."""

    def __init__(self, watched: WatchedRun) -> None:
        self._watched = watched
        self._told: dict[object, object] = {}
        self._step_at = float("-inf")

    def changes(self, view: live.View, now: float) -> Iterable[dict[str, Any]]:
        """Yield news as the keys of `watch --json`: `change` (state, step, saved, idle, note or
        end), `text`, and values; steps at most every 15 s.
        """
        watched, record, known = self._watched, self._watched.record, self._watched.progress
        ended, step = watched.ended, known.step
        state, reason, start = None, None, None
        if record is not None:
            state, reason, start = record.state, record.reason, record.start
        key = (watched.job, max(1, watched.starts), state, reason, record is None and view.state)
        if self._is_new("state", key) and not ended:  # the end is printed once
            told = f"{view.job}: {view.state}" if view.job else view.state
            yield _change("state", told, state=state, reason=reason, start=start)
        is_due = now - self._step_at >= STEP_S or ended
        if step is not None and is_due and self._is_new("step", step):
            self._step_at = now
            of = f" of {known.max_steps}" if known.max_steps else ""
            parts = [
                f"step {step}{of}" if step else "the training has started",
                "" if known.loss is None else f"loss {number(known.loss)}",
                "" if known.tokens_per_s is None else f"{known.tokens_per_s:.0f} tokens/s",
                view.verdict,
            ]
            yield _change(
                "step",
                ", ".join(filter(None, parts)),
                **{name: getattr(known, name) for name in _MEASURED},
                worst=queue.worst_rank(known.worst, "node"),
                eta_s=view.eta_s,
                elapsed_s=view.elapsed_s,
                time_limit_s=view.limit_s,
                fits=view.fits,
            )
        if self._is_new("saved", known.saved_step) and known.saved_step is not None:
            yield _change("saved", f"saved checkpoint-{known.saved_step}", step=known.saved_step)
        for waste in view.idle:
            if self._is_new((waste.id, waste.node, waste.rank), key=True):
                yield _change(
                    "idle", f"{waste.what}; {waste.cause}; fix: {waste.fix}", **asdict(waste)
                )
        if self._is_new("note", view.note or None) and view.note:
            yield _change("note", view.note)
        if self._is_new("ended", ended or None) and ended:
            yield _change("end", view.state, exit_code=watched.code, next=list(view.next))

    def _is_new(self, about: object, key: object) -> bool:
        before, self._told[about] = self._told.get(about), key
        return before != key


def _change(kind: str, text: str, **values: Any) -> dict[str, Any]:
    return {"change": kind, "text": text, **values}


# -- the session -----------------------------------------------------------------------------------


class WatchSession:
    """Watched runs and jobs, with one shared poller.

    Args:
        targets: runs, and jobs; an array that is not an hpctrain run has a row for each task.
        runs_dir: of all runs.
        verdict: whether a training ends before its time limit, and a text.
    """

    def __init__(self, targets: Iterable[Target], runs_dir: Path, verdict: Verdict) -> None:
        self.poller = StatusPoller(time.monotonic)
        self.watched: list[WatchedRun] = []
        for target in targets:
            run_id = target.run.id if target.run is not None else None
            found: list[tuple[str, ...]] = [()]
            if target.job is not None:
                found = [(job,) for job in arrays.task_ids(target.job) or [target.job]]
            self.watched += [
                WatchedRun(runs_dir, run_id, self.poller, verdict, planned=target.run, jobs=jobs)
                for jobs in found
            ]

    def look(self, patience: float | None = None) -> None:
        """Read the files, and query the schedulers if it is time; wait `patience` seconds for
        Slurm's answer, or until it arrives.
        """
        for each in self.watched:
            each.look()
        self.poller.ask([job for each in self.watched for job in each.jobs], patience=patience)

    @property
    def ended(self) -> bool:
        """Whether all have ended."""
        return all(each.ended for each in self.watched)

    @property
    def code(self) -> int:
        """The worst exit code."""
        return max((each.code for each in self.watched if each.ended), default=0)

    def frame(self, width: int, height: int) -> list[live.Line]:
        """Return the lines to display now."""
        now = time.time()
        views = [view(each, now) for each in self.watched]
        if len(views) == 1:
            return live.frame(views[0], width, height)
        tags = {each.run.tag for each in self.watched if each.run is not None}
        title = tags.pop() if len(tags) == 1 else f"{len(views)} runs"
        return live.frame_of_many(views, title, width, height)
