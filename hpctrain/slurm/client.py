"""The Slurm implementation of the protocol: argv lists, time limits, a clean environment, and text
output for the pure parsers.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpctrain.errors import HpctrainError, SchedulerError
from hpctrain.slurm import accounts as slurm_accounts
from hpctrain.slurm import batch_script, job_ids, ledger, query_cache
from hpctrain.slurm.base import LogFiles, is_unreachable, quoted, refusal
from hpctrain.slurm.job_ids import JobId, job_order
from hpctrain.slurm.ledger import Submission
from hpctrain.slurm.notations import directives, log_pattern, records, states
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.util import process, shell

#: Seconds to wait for one answer from Slurm. slurmctld itself gives up after MessageTimeout, 10 s
#: by default, and clients try again.
TIMEOUT_S = 60.0
#: Seconds before each search for a job whose sbatch did not answer.
_PAUSES_S = (0.0, 5.0, 15.0)
#: Seconds after which no further search is started.
_LOOKS_S = 60.0
#: sbatch's messages if the request was sent and no answer came back: the job may exist.
_NO_ANSWER = re.compile(
    r"socket timed out on send/recv|zero bytes were transmitted or received|connection (timed"
    r" out|reset)",
    re.IGNORECASE,
)


class SlurmScheduler:
    """The cluster of the sbatch on PATH.

    Args:
        timeout: seconds for each query.
        sleep: waits between searches for a job that may have been submitted.
    """

    name = "slurm"

    def __init__(
        self, *, timeout: float | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.timeout = (
            timeout
            if timeout is not None
            else process.time_limit(os.environ.get("HPCTRAIN_SLURM_TIMEOUT", ""), TIMEOUT_S)
        )
        self._sleep = sleep

    @staticmethod
    def is_available() -> bool:
        """Whether sbatch is on PATH."""
        return shutil.which("sbatch") is not None

    def submit(
        self,
        script: Path,
        *,
        arguments: Sequence[str] = (),
        dependency: str | None = None,
        array: str | None = None,
        shown: Path | None = None,
        draft: Submission | None = None,
        folder: Path | None = None,
    ) -> Submission:
        """Submit `script` with sbatch and return the submission with its job id.

        Raises:
            UsageError: it is not a batch script.
            HpctrainError: Slurm rejected it.
            SchedulerError: sbatch did not answer, now or in an earlier call, and no job has the
                comment.
        """
        text, found = batch_script.read(script)
        values = directives.last_values(found)
        self.refuse_unanswered(text)
        sent = replace(
            draft or Submission(),
            token=uuid.uuid4().hex[:16],
            digest=ledger.digest(text),
            directory=str(Path.cwd()),
            at=time.time(),
            cluster=job_ids.this_cluster(),
            name=values.get("job-name"),
            output=_absolute(values.get("output"), values),
            error=_absolute(values.get("error"), values),
            array=array or values.get("array"),
            dependency=dependency,
            arguments=tuple(arguments),
        )
        argv = _argv(script, sent, values, array)
        sent = ledger.record(replace(sent, argv=argv), folder)
        query_cache.invalidate()
        try:
            done = process.run(argv, timeout=self.timeout)
        except process.NoAnswerError as error:
            return self._look_for(sent, error.details)
        except SchedulerError:
            ledger.forget(sent.token)
            raise
        named = records.parse_submission(done.stdout)
        if done.returncode != 0:
            # The job may exist: sbatch was killed, or failed after it had printed a job id.
            if done.returncode < 0 or named is not None or _NO_ANSWER.search(done.stderr):
                return self._look_for(sent, quoted(done))
            ledger.forget(sent.token)
            raise refusal(done, str(shown or script))
        if named is None:
            return self._look_for(sent, quoted(done))
        query_cache.invalidate()
        sent = ledger.found(sent, *named)
        dropped = sorted(set(os.environ) - set(process.clean(os.environ)))
        dropped = [name for name in dropped if name.startswith("SBATCH_")]
        told = [f"not passed on, because they would override the script: {', '.join(dropped)}"]
        notes = [line for line in done.stderr.splitlines() if line.strip()]
        return replace(sent, notes=(*notes, *(told if dropped else ())))

    def dry_run(
        self,
        script: Path,
        values: Mapping[str, str | None],
        *,
        arguments: Sequence[str] = (),
        dependencies: Sequence[tuple[str, str]] = (),
        links: int = 0,
    ) -> list[str]:
        """Return the commands that would be run, with placeholders for unknown ids."""
        sent = Submission(token="TOKEN", arguments=tuple(arguments))  # noqa: S106 - a placeholder
        after = ",".join(f"{kind}:JOB_OF_{parent}" for parent, kind in dependencies)
        first, link = (
            shell.join(_argv(script, replace(sent, dependency=dependency), values))
            for dependency in (after or None, "afterany:JOB_BEFORE")
        )
        return [first, f"{link}  # {links} x"] if links else [first]

    def test_only(self, script: Path) -> str:
        """Return the output of `sbatch --test-only`, with the estimated start.

        Raises:
            HpctrainError: Slurm would reject the script.
        """
        done = process.run(["sbatch", "--test-only", str(script)], timeout=self.timeout)
        if done.returncode != 0:
            raise refusal(done, str(script))
        return (done.stderr + done.stdout).strip()

    def status(
        self, job_ids: Sequence[str] | None = None, *, max_age_s: float = 0.0
    ) -> list[JobRecord]:
        """Return the records of these jobs, or of all the user's jobs in the queue or ended within
        a day.

        One squeue for all; sacct (scontrol without accounting) only for jobs that squeue no longer
        shows and for exit codes.
        """
        known = {record.job_id: record for record in self._queue(max_age_s)}
        ended = [
            job_id for job_id in job_ids or known if job_id not in known or known[job_id].is_final
        ]
        if job_ids is None or ended:
            said = query_cache.ask_once(
                "recent" if job_ids is None else "ended",
                lambda: slurm_accounts.ask(
                    None if job_ids is None else ended, timeout=self.timeout, queue=known
                ),
                max_age_s=max_age_s,
                about=() if job_ids is None else ended,
            )
            for record in said:
                shown = known.get(record.job_id)
                # An answer older than the queue's may be outdated.
                if shown is None or (shown.is_final and record.is_final):
                    known[record.job_id] = record
        if job_ids is None:
            known.update({record.job_id: record for record in self._unanswered(known)})
            job_ids = list(known)
        return sorted(
            (known[job] for job in set(job_ids) if job in known),
            key=lambda record: job_order(record.job_id),
        )

    def accounts(self, job_ids: Sequence[str], *, max_age_s: float = 0.0) -> list[JobRecord]:
        """Return the allocations and usage of these jobs: one sacct for all, with their steps;
        slurmctld's records if sacct does not answer.

        Raises:
            SchedulerError: neither answers.
        """
        asked = list(dict.fromkeys(job_ids))
        return query_cache.ask_once(
            "accounts",
            lambda: slurm_accounts.ask(asked, timeout=self.timeout),
            max_age_s=max_age_s,
            about=asked,
        )

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Cancel these jobs.

        A scancel that timed out may have reached Slurm; cancelling twice is harmless.

        Raises:
            HpctrainError: scancel was rejected.
            SchedulerError: no answer; it is unknown whether the jobs were cancelled.
        """
        left = list(job_ids)
        try:
            done = process.run(["scancel", *left], timeout=self.timeout)
            said, is_answer = quoted(done), not is_unreachable(done.stderr)
            if done.returncode == 0:
                return
            left = self._open(left)
        except SchedulerError as error:
            said, is_answer = error.details or (f"  {error.what}",), False
        finally:
            query_cache.invalidate()
        if not left:
            return
        if is_answer:
            raise HpctrainError(
                f"Slurm did not cancel {', '.join(left)}", details=said, fix="hpctrain ps"
            )
        raise SchedulerError(
            f"Slurm does not answer, and whether {', '.join(left)} was cancelled is unknown",
            details=said,
            fix=shell.join(("hpctrain", "cancel", *left)),
        )

    def _open(self, job_ids: Sequence[str]) -> list[str]:
        """Return those of these jobs, arrays and task ranges that are neither ended nor completing.

        Raises:
            SchedulerError: Slurm does not answer.
        """
        queue = self._queue()
        # This squeue shows only the user's own jobs; look up the others by id.
        others = [job for job in job_ids if not any(_is_of(each.job_id, job) for each in queue)]
        shown = [*queue, *(self.status(others) if others else ())]
        left = [each.job_id for each in shown if not each.is_final and each.state != "COMPLETING"]
        return [job for job in job_ids if any(_is_of(each, job) for each in left)]

    def logs(self, job_id: str) -> LogFiles | None:
        """Return the job's log files: from the record of its submission, else from Slurm while it
        still has the job; None if neither has them.

        Raises:
            SchedulerError: nothing is recorded, and slurmctld does not answer.
        """
        array, _, task = job_id.partition("_")
        sent = ledger.of_jobs({array: None}).get(array)
        # Of an array, each task has its own job number.
        if sent is not None and sent.output is not None and not (task and "%j" in sent.output):
            user, name = getpass.getuser(), sent.name or ""
            values = {"j": job_id, "A": array, "a": task, "x": name, "u": user}
            patterns = (sent.output, sent.error or sent.output)
            return LogFiles(*(Path(log_pattern.expand(each, values)) for each in patterns))
        trouble = query_cache.recent_failure("slurmctld")
        if trouble is not None:
            raise trouble
        done = process.run(["scontrol", "show", "job", "-o", job_id], timeout=self.timeout)
        for fields in records.parse_scontrol_jobs(done.stdout) if done.returncode == 0 else []:
            if output := fields.get("StdOut"):
                return LogFiles(Path(output), Path(fields.get("StdErr") or output))
        return None

    def _unanswered(self, known: dict[str, JobRecord]) -> list[JobRecord]:
        """Return a record for each submission that sbatch did not answer and that matches no job in
        `known`.
        """
        missing = []
        for sent in ledger.submissions():
            if sent.job_id is not None:
                continue
            job = next((each for each in known.values() if sent.is_of(each.comment)), None)
            if job is not None:
                ledger.found(sent, job_ids.array_of(job.job_id))
            elif time.time() - sent.at < 86_400:  # later it is open still, and not listed
                record = JobRecord(
                    job_id=f"?{sent.token}",
                    scheduler="slurm",
                    state=states.UNKNOWN,
                    name=sent.name,
                    reason=f"sbatch did not answer; no job with the comment {sent.comment} so far",
                )
                missing.append(record)
        return missing

    def _queue(self, max_age_s: float = 0.0) -> list[JobRecord]:
        return query_cache.ask_once(
            "queue", lambda: self._squeue(may_wait=not max_age_s), max_age_s=max_age_s
        )

    def _squeue(self, *, may_wait: bool) -> list[JobRecord]:
        if not may_wait and (silent := query_cache.recent_failure("slurmctld")) is not None:
            raise silent
        argv = ["squeue", "-h", "-u", getpass.getuser(), "-t", "all", "-o", records.SQUEUE_FORMAT]
        try:
            # 0: the full task list of an array, which squeue(1) truncates at 64 bytes by default.
            done = process.run(
                argv,
                timeout=self.timeout,
                environment={**process.clean(os.environ), "SLURM_BITSTR_LEN": "0"},
            )
            if done.returncode != 0:
                raise SchedulerError("Slurm did not answer", details=quoted(done), fix="sinfo")
        except SchedulerError as error:
            query_cache.record_failure("slurmctld", error)
            raise
        return records.parse_squeue(done.stdout)

    def _find(self, sent: Submission) -> JobRecord | None:
        since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(sent.at - 60))
        which = ("-S", since, "-u", getpass.getuser())
        candidates = [*self._queue(), *slurm_accounts.sacct(which, timeout=self.timeout)[0]]
        return next((record for record in candidates if sent.is_of(record.comment)), None)

    def _look_for(self, sent: Submission, said: tuple[str, ...]) -> Submission:
        begun = time.monotonic()
        for look, pause in enumerate(_PAUSES_S):
            if look and time.monotonic() - begun > _LOOKS_S:
                break  # squeue does not answer either: report that now
            self._sleep(pause)
            try:
                record = self._find(sent)
            except SchedulerError:
                continue
            if record is not None:
                return replace(
                    ledger.found(sent, job_ids.array_of(record.job_id)),
                    notes=("sbatch did not answer, but the job is there: found by its comment",),
                )
        query_cache.invalidate()  # the job may appear at any moment
        raise SchedulerError(
            "sbatch did not answer, and whether the job exists is unknown",
            details=(
                *said,
                f"its comment is {sent.comment}; the next `hpctrain submit` of this script looks"
                " for it before it submits anything",
            ),
            fix="hpctrain ps",
        )

    def refuse_unanswered(self, text: str) -> None:
        """Refuse to resubmit a script whose sbatch was not answered, and whose job exists or may
        still arrive.

        Raises:
            HpctrainError: the job exists; the error names it, and the next call submits.
            SchedulerError: it may still arrive, or Slurm does not answer.
        """
        for sent in ledger.unanswered(text):
            record = self._find(sent)
            if record is None and time.time() - sent.at < ledger.ARRIVES_S:
                raise may_arrive("this script", sent.at)
            if record is None:  # the request was lost
                ledger.forget(sent.token)
                continue
            job = ledger.found(sent, job_ids.array_of(record.job_id)).answer
            rest = "".join(f"; its other jobs: hpctrain resubmit {tag}" for tag in sent.arguments)
            raise HpctrainError(
                f"job {job} is the earlier submission that sbatch did not answer; nothing new"
                " was submitted",
                fix=f"hpctrain watch {job}",
                hint=f"to submit the script again, run the same command{rest}",
            )


def may_arrive(what: str, at: float) -> SchedulerError:
    """Return the error for a submission of `what` that was sent at `at` and not answered."""
    return SchedulerError(
        f"an earlier submission of {what} has not been answered, and may still arrive",
        details=(f"sent {int(time.time() - at)} s ago; Slurm shows no such job",),
        fix="squeue --me",
        hint=f"if it is not there {ledger.ARRIVES_S / 60:.0f} minutes after it was sent, run the same"
        " command again",
    )


def _argv(
    script: Path, sent: Submission, values: Mapping[str, str | None], array: str | None = None
) -> tuple[str, ...]:
    comment = " ".join(word for word in (sent.comment, values.get("comment")) if word)
    orders = (("dependency", sent.dependency), ("array", array))
    words = [f"--{name}={value}" for name, value in orders if value is not None]
    return ("sbatch", "--parsable", f"--comment={comment}", *words, str(script), *sent.arguments)


def _is_of(shown: str, job: str) -> bool:
    """Whether an id that squeue shows (`123`, `123_4`, `123_[4-9%2]`) is the given job, or shares a
    task with it (`123`, `123_4`, `123_[4-9]`).
    """
    wanted = JobId.parse(job) or JobId(job.partition("_")[0])  # squeue has truncated the tasks
    return wanted.covers(shown)


def _absolute(pattern: str | None, values: dict[str, str | None]) -> str | None:
    if pattern is None or pattern.startswith("/"):
        return pattern
    return f"{log_pattern.escape(values.get('chdir') or str(Path.cwd()))}/{pattern}"
