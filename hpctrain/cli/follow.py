"""Follow a job: its log and its state. Slurm is queried rarely while the job runs, and immediately
when the run's files show that it has ended.
"""

from __future__ import annotations

import codecs
import gc
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import TextIO

from hpctrain.cli.output import say
from hpctrain.errors import SchedulerError
from hpctrain.jobs import schedulers, targets
from hpctrain.logs.read import Growing
from hpctrain.runs import launch
from hpctrain.slurm.base import ASK_EVERY_S, JobControl, LogFiles
from hpctrain.slurm.notations import states
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.terminal import raw

#: Seconds between reads of a log, and between checks of run directories: a base interval, and more
#: for each directory.
_LOOK_S = 0.3
_ENDS_S, _ENDS_EACH_S = 1.0, 0.02
#: Seconds between Slurm queries: they grow from the first to the last value, and restart after an
#: attempt has ended.
_ASK_LEAST_S, _ASK_LAST_S = 1.0, 60.0


class Tail:
    """Copies a growing file to a stream, from its start.

    Args:
        path: the file.
        target: the stream.
        shown: filters each piece before it is written.
    """

    def __init__(self, path: Path, target: TextIO, shown: Callable[[str], str] = str) -> None:
        self.target = target
        self._shown = shown
        self._file = Growing(path, whole_lines=False)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def copy(self) -> None:
        """Copy new content."""
        while new := self._file.look():  # in pieces: a log may be larger than memory
            # A multi-byte character may be split between two reads.
            self.target.write(self._shown(self._decoder.decode(new)))
        self.target.flush()


class Ends:
    """Detects the end of attempts in the run directories, where job scripts record it earlier than
    Slurm does.

    Args:
        job_ids: the jobs whose runs to check; jobs without a run are ignored.
    """

    def __init__(self, job_ids: Sequence[str]) -> None:
        found = targets.run_dirs(
            JobRecord(job_id=job, scheduler=schedulers.owner(job).name, state=states.UNKNOWN)
            for job in job_ids
        )
        whole = {each: launch.load(each.parent, each.name) for each in found.values()}
        self._dirs = [
            path
            for each, of in whole.items()
            for path in ([each] if of is None else launch.run_dirs_for(each.parent, of))
        ]
        self._next = 0.0
        self._seen: set[Path] = set()
        self.new()

    def new(self) -> bool:
        """Whether an attempt has ended since the last call, and every run has ended at least once:
        the end of one task among hundreds does not justify a Slurm query.
        """
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + max(_ENDS_S, _ENDS_EACH_S * len(self._dirs))
        ends = [set(each.glob("attempts/*/end.json")) for each in self._dirs]
        before, self._seen = self._seen, set().union(*ends)
        return self._seen > before and all(ends)


def _answers(
    scheduler: JobControl,
    job_ids: Sequence[str],
    asked: list[str] | None,
    tails: Sequence[Callable[[], None]],
    say: Callable[[str], None],
) -> Iterator[list[JobRecord]]:
    """Yield the state of all jobs, or of those in `asked`, after each query; copy the logs
    meanwhile.

    The scheduler is queried rarely, but often for a short while after a job has ended.
    """
    gc.enable()
    ends, pause, at, told = Ends(job_ids), ASK_EVERY_S, 0.0, ""
    while True:
        for copy in tails:
            copy()
        if ends.new():
            pause, at = _ASK_LEAST_S, 0.0
        if time.monotonic() < at:
            time.sleep(_LOOK_S)
            continue
        max_age_s = ASK_EVERY_S if pause >= ASK_EVERY_S else 0.0
        answer = schedulers.in_background(partial(scheduler.status, asked, max_age_s=max_age_s))
        while not futures.wait([answer], _LOOK_S).done:
            for copy in tails:
                copy()
        try:
            yield answer.result()
        except SchedulerError as error:
            # Continue: the controller may be restarting.
            if told != error.what:
                say(f"{error.what}; asking again")
            told = error.what
        at = time.monotonic() + (_LOOK_S if scheduler.name == "local" else pause)
        pause = min(pause * (2.0 if pause < ASK_EVERY_S else 1.5), _ASK_LAST_S)


def until_the_end(
    scheduler: JobControl,
    job_id: str,
    tails: Sequence[Callable[[], None]],
    say: Callable[[str], None],
) -> JobRecord | None:
    """Copy the logs until the job has ended and return its record; None if the scheduler has
    forgotten the job.

    Args:
        scheduler: the scheduler of the job.
        job_id: the job.
        tails: each copies what is new in one of its logs; empty to print none.
        say: receives one line for each change of state.
    """
    state = ""
    for records in _answers(scheduler, [job_id], [job_id], tails, say):
        record = records[0] if records else None
        if record is None or record.is_final:
            for copy in tails:
                copy()
            return record
        if record.state != state:
            say(describe(record))
        state = record.state
    return None


def several_until_the_end(
    scheduler: JobControl,
    job_ids: Sequence[str],
    say: Callable[[str], None],
    gone_on: Callable[[], Collection[str]] = tuple,
) -> int:
    """Wait until all of these jobs, and all tasks of arrays among them, have ended; return the
    worst exit code.

    Args:
        scheduler: the scheduler of the jobs.
        job_ids: jobs and arrays.
        say: receives one line for each job or task that starts or ends.
        gone_on: called at the end; returns jobs and tasks whose exit codes do not count, because
            another of the jobs continued their run.
    """
    seen: dict[str, JobRecord] = {}
    mine = {job.partition("_")[0] for job in job_ids}
    for records in _answers(scheduler, job_ids, None, (), say):
        found = [record for record in records if record.job_id.partition("_")[0] in mine]
        single = {record.job_id: record for record in found if "[" not in record.job_id}
        changed = [
            each
            for job, each in single.items()
            if each.state != "PENDING" and (job not in seen or seen[job].state != each.state)
        ]
        for sentence in described(changed):
            say(sentence)
        seen.update(single)
        stuck = _stuck(found)
        for record in stuck:
            say(
                f"job {record.job_id} ({record.name}) will not start: it waits for a job that did"
                " not end as it should"
            )
        if found and all(record.is_final or record in stuck for record in found):
            beside = gone_on()
            ended = [each for each in seen.values() if each.is_final]
            counted = [each for each in ended if each.job_id not in beside]
            return max(record.exit_status for record in counted or seen.values())
        if not found:
            break
    say(f"{', '.join(job_ids)}: no longer known to the scheduler; the logs are in logs/")
    return 3


def left_running(jobs: Sequence[str]) -> int:
    """Print after Ctrl-C that jobs keep running, and return the exit code."""
    what, them = (f"job {jobs[0]} keeps", "it") if len(jobs) == 1 else ("jobs keep", "them")
    say(f"\n{what} running; to stop {them}: hpctrain cancel {shlex.join(jobs)}")
    return 130


def _stuck(found: Sequence[JobRecord]) -> list[JobRecord]:
    """Return the jobs that can never start, if no others are active: those whose dependency failed,
    and those that depend on them.
    """
    waiting = [record for record in found if not record.is_final]
    reasons = {record.reason or "" for record in waiting}
    vain = "DependencyNeverSatisfied" in reasons and all(
        reason.startswith("Dependency") for reason in reasons
    )
    return waiting if vain and all(record.state == "PENDING" for record in waiting) else []


def tails_of(logs: LogFiles | None) -> list[Callable[[], None]]:
    """Return what copies the job's output to stdout, and its errors to stderr."""
    if logs is None:
        return []
    targets = {logs.output: raw(sys.stdout)}
    targets.setdefault(logs.error, raw(sys.stderr))
    return [Tail(path, target, _shown).copy for path, target in targets.items()]


def _shown(piece: str) -> str:
    """Remove control sequences from a piece of a log, but keep carriage returns."""
    from hpctrain.logs import text

    return "\n".join(text.plain(line) for line in piece.split("\n"))


def known_jobs(
    words: Sequence[str], *, fresh: bool = False, patience_s: float | None = None
) -> list[JobRecord]:
    """Return the jobs like `targets.jobs`, but only print a note if Slurm does not answer."""
    found, silent = targets.jobs(words, fresh=fresh, patience_s=patience_s)
    if silent is not None:
        say("note: Slurm does not answer; only the jobs of this machine are known")
    return found


def describe(record: JobRecord) -> str:
    """Return a one-line description of the job's state."""
    return described([record])[0]


def described(records: Sequence[JobRecord]) -> list[str]:
    """Return a one-line description of each job's state; all runs are looked up at once."""
    from hpctrain.report import queue

    return [
        f"job {row.job_id}: {row.state.words}"
        for row in (queue.rows_of(records) if records else ())
    ]
