"""Following a job: its log as it grows, and its state, asked for politely."""

from __future__ import annotations

import codecs
import gc
import re
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol, TextIO

from hpctrain.cli.asking import Question
from hpctrain.errors import SchedulerError
from hpctrain.scheduler.base import ASK_EVERY_S, LogFiles, Scheduler
from hpctrain.scheduler.parse.records import JobRecord

#: Seconds between looks at a file, and between questions to Slurm, which grow from the first to the last.
_LOOK_S = 0.3
_ASK_FIRST_S, _ASK_LAST_S = 15.0, 60.0
_PIECE_BYTES = 1 << 20
#: The rendered script's last words: the moment to ask whether the job has ended.
_LAST_WORDS = re.compile(r"^hpctrain: job \S+ ended with exit code \d+$", re.MULTILINE)


class Tail:
    """A file that is copied to a stream as it grows, from its beginning; it may not exist yet, and may be replaced."""

    def __init__(self, path: Path, target: TextIO) -> None:
        self.path = path
        self.target = target
        self._position = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def copy(self) -> str:
        """Copy what is new and return its end. Reads by position: inotify does not see what another node writes over NFS."""
        end = ""
        try:
            with self.path.open("rb") as stream:
                if stream.seek(0, 2) < self._position:
                    self._position = 0
                stream.seek(self._position)
                while new := stream.read(_PIECE_BYTES):  # a log may be larger than the memory
                    self._position += len(new)
                    # A character may be written in two pieces, and read in two.
                    text = self._decoder.decode(new)
                    self.target.write(text)
                    end = (end + text)[-_PIECE_BYTES:]
        except OSError:
            return end
        self.target.flush()
        return end


class Copies(Protocol):
    """What shows a log as it grows."""

    def copy(self) -> str:
        """Show what is new, and return its end."""


def until_the_end(scheduler: Scheduler, job_id: str, tails: Sequence[Copies], say: Callable[[str], None]) -> JobRecord | None:
    """Copy the logs until the job has ended and return its record; None where the scheduler has forgotten the job.

    Args:
        scheduler: of the job.
        job_id: the job.
        tails: its logs; empty for waiting in silence.
        say: gets one line for each change of state.
    """
    gc.enable()
    local = scheduler.name == "local"
    pause, next_question, last_state = (_LOOK_S, 0.0, "") if local else (_ASK_FIRST_S, 0.0, "")
    while True:
        ended = any(_LAST_WORDS.search(tail.copy()) for tail in tails)
        now = time.monotonic()
        if now >= next_question or ended:
            question = Question(lambda: scheduler.status([job_id], max_age_s=ASK_EVERY_S))
            while not question.wait(_LOOK_S):
                ended = any(_LAST_WORDS.search(tail.copy()) for tail in tails) or ended
            try:
                records = question.answer()
            except SchedulerError as error:
                # A controller that restarts is no reason to leave a job that runs.
                if last_state != error.what:
                    last_state = error.what
                    say(f"{error.what}; asking again")
                next_question = time.monotonic() + _ASK_FIRST_S
                continue
            record = records[0] if records else None
            if record is None or record.is_final:
                for tail in tails:
                    tail.copy()
                return record
            if record.state != last_state:
                last_state = record.state
                say(describe(record))
            # Once the script has said its last words, the scheduler needs a few seconds to close the job.
            next_question = now + (2.0 if ended and not local else pause)
            if not local and not ended:
                pause = min(pause * 1.5, _ASK_LAST_S)
        time.sleep(_LOOK_S)


def several_until_the_end(
    scheduler: Scheduler, job_ids: Sequence[str], say: Callable[[str], None], gone_on: Callable[[], Collection[str]] = tuple
) -> int:
    """Wait until all of these jobs, and all tasks of those that are arrays, have ended; return the worst exit code.

    Args:
        scheduler: of the jobs.
        job_ids: jobs, arrays among them.
        say: gets one line for each job or task that starts or ends.
        gone_on: asked at the end: jobs and tasks whose exit codes do not count, because another of the jobs has ended what they do.
    """
    gc.enable()
    seen: dict[str, JobRecord] = {}
    mine = {job.partition("_")[0] for job in job_ids}
    pause = _LOOK_S if scheduler.name == "local" else _ASK_FIRST_S
    while True:
        try:
            found = [record for record in scheduler.status(max_age_s=ASK_EVERY_S) if record.job_id.partition("_")[0] in mine]
        except SchedulerError as error:
            say(f"{error.what}; asking again")
            time.sleep(_ASK_FIRST_S)
            continue
        for record in found:
            before = seen.get(record.job_id)
            if "[" not in record.job_id and (before is None or before.state != record.state) and record.state != "PENDING":
                say(describe(record))
        seen.update({record.job_id: record for record in found if "[" not in record.job_id})
        stuck = _stuck(found)
        for record in stuck:
            say(f"job {record.job_id} ({record.name}) will not start: it waits for a job that did not end as it should")
        if found and all(record.is_final or record in stuck for record in found):
            beside = gone_on()
            counted = [record for record in seen.values() if record.job_id not in beside and record.is_final]
            return max(exit_status(record) for record in counted or seen.values())
        if not found:
            say(f"{', '.join(job_ids)}: no longer known to the scheduler; the logs are in logs/")
            return 3
        time.sleep(pause)
        if scheduler.name != "local":
            pause = min(pause * 1.5, _ASK_LAST_S)


def _stuck(found: Sequence[JobRecord]) -> list[JobRecord]:
    """Return the jobs that wait in vain, where nothing else is under way: those whose dependency has failed, and those behind them."""
    waiting = [record for record in found if not record.is_final]
    reasons = {record.reason or "" for record in waiting}
    vain = "DependencyNeverSatisfied" in reasons and all(reason.startswith("Dependency") for reason in reasons)
    return waiting if vain and all(record.state == "PENDING" for record in waiting) else []


def tails_of(logs: LogFiles | None) -> list[Tail]:
    """Return the job's output on stdout and its errors on stderr."""
    if logs is None:
        return []
    if logs.output == logs.error:
        return [Tail(logs.output, sys.stdout)]
    return [Tail(logs.output, sys.stdout), Tail(logs.error, sys.stderr)]


def describe(record: JobRecord) -> str:
    """Return one line on the job's state."""
    words = f"job {record.job_id} is {record.state}"
    if record.reason is not None and record.reason != "NonZeroExitCode":
        words += f" ({record.reason})"
    if record.is_final and (record.exit_code or record.state == "COMPLETED"):
        words += f", exit code {record.exit_code}"
    return words


def exit_status(record: JobRecord) -> int:
    """Return the exit status that stands for how the job ended: its own, and never 0 for a job that did not complete."""
    if record.state == "COMPLETED":
        return record.exit_code or 0
    if record.exit_code:
        return record.exit_code
    return 128 + record.signal if record.signal and record.signal < 65 else 1
