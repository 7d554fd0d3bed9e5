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


class _Tail:  # copies a growing log to a stream, without control sequences
    def __init__(self, path: Path, target: TextIO) -> None:
        self.target = target
        self._file = Growing(path, whole_lines=False)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def copy(self) -> None:
        from hpctrain.logs import text

        while new := self._file.look():  # in pieces: a log may be larger than memory
            # A multi-byte character may be split between two reads.
            lines = self._decoder.decode(new).split("\n")
            self.target.write("\n".join(map(text.plain, lines)))
        self.target.flush()


def _run_dirs(job_ids: Sequence[str]) -> list[Path]:
    """Return the run directories of jobs, where job scripts record the end of an attempt earlier
    than Slurm does.
    """
    found = targets.run_dirs(
        JobRecord(job_id=job, scheduler=schedulers.owner(job).name, state=states.UNKNOWN)
        for job in job_ids
    )
    dirs: list[Path] = []
    for each in found.values():
        whole = launch.load(each.parent, each.name)
        dirs += [each] if whole is None else [each.parent / run for run in whole.run_ids]
    return dirs


def _answers(
    scheduler: JobControl,
    job_ids: Sequence[str],
    asked: list[str] | None,
    tails: Sequence[Callable[[], None]],
    say: Callable[[str], None],
) -> Iterator[list[JobRecord]]:
    """Yield the state of all jobs, or of those in `asked`, after each query; copy the logs
    meanwhile.

    The scheduler is queried rarely, but often for a short while after every run has ended once: the
    end of one task among hundreds does not justify a Slurm query.
    """
    gc.enable()
    dirs, seen = _run_dirs(job_ids), None
    pause, ask_at, look_at, told = ASK_EVERY_S, 0.0, 0.0, ""
    while True:
        for copy in tails:
            copy()
        if time.monotonic() >= look_at:
            look_at = time.monotonic() + max(_ENDS_S, _ENDS_EACH_S * len(dirs))
            ends = [len(list(each.glob("attempts/*/end.json"))) for each in dirs]
            if seen is not None and sum(ends) > seen and all(ends):
                pause, ask_at = _ASK_LEAST_S, 0.0
            seen = sum(ends)
        if time.monotonic() < ask_at:
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
        ask_at = time.monotonic() + (_LOOK_S if scheduler.name == "local" else pause)
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
        for sentence in described(
            [
                each
                for job, each in single.items()
                if each.state != "PENDING" and (job not in seen or seen[job].state != each.state)
            ]
        ):
            say(sentence)
        seen.update(single)
        stuck = _stuck(found)
        for record in stuck:
            say(f"job {record.job_id} ({record.name}) will not start: its dependency has failed")
        if not found:
            break
        if all(record.is_final or record in stuck for record in found):
            beside = gone_on()
            ended = [each for each in seen.values() if each.is_final]
            counted = [each for each in ended if each.job_id not in beside]
            return max(record.exit_status for record in counted or seen.values())
    say(f"{', '.join(job_ids)}: no longer known to the scheduler; the logs are in logs/")
    return 3


def left_running(jobs: Sequence[str]) -> int:
    """Print after Ctrl-C that jobs keep running, and return the exit code."""
    say(f"\njob {' '.join(jobs)} keeps running; to stop it: hpctrain cancel {shlex.join(jobs)}")
    return 130


def _stuck(found: Sequence[JobRecord]) -> list[JobRecord]:
    """Return the jobs that can never start, if no others are active: those whose dependency failed,
    and those that depend on them.
    """
    waiting = [record for record in found if not record.is_final]
    reasons = {record.reason or "" for record in waiting}
    is_stuck = all(record.state == "PENDING" for record in waiting) and all(
        reason.startswith("Dependency") for reason in reasons
    )
    return waiting if is_stuck and "DependencyNeverSatisfied" in reasons else []


def tails_of(logs: LogFiles | None) -> list[Callable[[], None]]:
    """Return what copies the job's output to stdout, and its errors to stderr."""
    if logs is None:
        return []
    targets = {logs.output: raw(sys.stdout)}
    targets.setdefault(logs.error, raw(sys.stderr))
    return [_Tail(path, target).copy for path, target in targets.items()]


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
