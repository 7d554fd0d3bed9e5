"""Slurm's side of the protocol: argv lists, time limits, a clean environment, and text output for the pure parsers."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from hpctrain.errors import HpctrainError, SchedulerError
from hpctrain.scheduler import batch_script, ledger, pending, process, slurm_accounts, slurm_asked, slurm_logs, slurm_words
from hpctrain.scheduler.base import ASK_EVERY_S, LogFiles, Submission
from hpctrain.scheduler.parse import directives, log_pattern, records, states
from hpctrain.scheduler.parse.accounting import Account
from hpctrain.scheduler.parse.records import JobRecord

#: Seconds to wait for one answer of Slurm. slurmctld itself gives up after MessageTimeout, 10 s by default, and clients try again.
TIMEOUT_S = 60.0
#: Seconds before each look for a job whose sbatch did not answer.
_PAUSES_S = (0.0, 5.0, 15.0)
#: Seconds after which no other look is begun.
_LOOKS_S = 60.0
#: What sbatch says when the request went out and no answer came back: the job may exist.
_NO_ANSWER = re.compile(
    r"socket timed out on send/recv|zero bytes were transmitted or received|connection (timed out|reset)", re.IGNORECASE
)


class SlurmScheduler:
    """The cluster that sbatch on PATH talks to.

    Args:
        timeout: seconds for each answer.
        sleep: waits between looks for a job that may have been submitted.
    """

    name = "slurm"

    def __init__(self, *, timeout: float | None = None, sleep: Callable[[float], None] = time.sleep) -> None:
        self.timeout = timeout if timeout is not None else process.time_limit(os.environ.get("HPCTRAIN_SLURM_TIMEOUT", ""), TIMEOUT_S)
        self._sleep = sleep

    @staticmethod
    def is_available() -> bool:
        """Whether sbatch is on PATH."""
        return shutil.which("sbatch") is not None

    def submit(
        self,
        script: Path,
        *,
        resend: bool = False,
        arguments: Sequence[str] = (),
        dependency: str | None = None,
        array: str | None = None,
        shown: Path | None = None,
    ) -> Submission:
        """Hand `script` to sbatch and return the job's id.

        `resend` gives up earlier submissions of the same script with the same arguments that sbatch did not answer and that no job has been
        found for, whatever their dependency and array: those of two commands differ, and mean the same work.

        Raises:
            UsageError: the script is no batch script.
            HpctrainError: Slurm refused it.
            SchedulerError: no answer; the job is then looked up by its comment, here and at the next call, and never sent twice.
        """
        text, found = batch_script.read(script)
        values = directives.last_values(found)
        orders = _orders(dependency, array)
        already = self.earlier(text, tuple(arguments), resend=resend)
        if already is not None:
            return already
        entry = ledger.new(
            script,
            text,
            name=values.get("job-name"),
            output=_absolute(values.get("output"), values),
            error=_absolute(values.get("error"), values),
            orders=orders,
            arguments=arguments,
        )
        argv = self.sbatch_argv(script, entry, values, arguments=arguments, dependency=dependency, array=array)
        slurm_asked.changed()
        try:
            done = process.run(argv, timeout=self.timeout)
        except process.NoAnswerError as error:
            return self._look_for(entry, error.details)
        except SchedulerError:
            ledger.forget(entry)
            raise
        if done.returncode != 0:
            # sbatch that was killed, or that names a job and fails after it, may have submitted.
            if done.returncode < 0 or _names_a_job(done.stdout) or _NO_ANSWER.search(done.stderr):
                return self._look_for(entry, slurm_words.said(done))
            ledger.forget(entry)
            raise slurm_words.refusal(done, str(shown or script))
        try:
            job_id, cluster = records.parse_submission(done.stdout)
        except ValueError:
            return self._look_for(entry, slurm_words.said(done))
        slurm_asked.changed()
        slurm_asked.is_alive([job_id])
        ledger.found(entry, job_id, cluster)
        notes = [line for line in done.stderr.splitlines() if line.strip()]
        dropped = [name for name in process.leaks(os.environ) if name.startswith("SBATCH_")]
        if dropped:
            notes.append(f"not passed on, because they would override the script: {', '.join(dropped)}")
        return Submission(job_id=job_id, cluster=cluster, notes=tuple(notes))

    def sbatch_argv(
        self,
        script: Path,
        entry: ledger.Entry | None = None,
        values: dict[str, str | None] | None = None,
        *,
        arguments: Sequence[str] = (),
        dependency: str | None = None,
        array: str | None = None,
    ) -> list[str]:
        """Return the argv that submits `script`; without an entry, with a placeholder for the token."""
        own = (values or {}).get("comment")
        comment = " ".join(word for word in (entry.comment if entry else f"{ledger.PREFIX}TOKEN", own) if word)
        return ["sbatch", "--parsable", f"--comment={comment}", *_orders(dependency, array), str(script), *arguments]

    def test_only(self, script: Path) -> str:
        """Return Slurm's own word on `script`, with its estimate of the start; nothing is submitted.

        Raises:
            HpctrainError: Slurm would refuse the script.
        """
        done = process.run(["sbatch", "--test-only", str(script)], timeout=self.timeout)
        if done.returncode != 0:
            raise slurm_words.refusal(done, str(script))
        return (done.stderr + done.stdout).strip()

    def status(self, job_ids: Sequence[str] | None = None, *, max_age_s: float = 0.0) -> list[JobRecord]:
        """Return the records of these jobs, or of all mine that Slurm still shows or that ended within a day.

        One squeue for all; sacct (or scontrol, where there is no accounting) only for jobs that squeue no longer shows, and for the exit
        codes of those that ended.
        """
        known = {record.job_id: record for record in self._queue(max_age_s)}
        ended = [job_id for job_id in (job_ids or known) if job_id not in known or known[job_id].is_final]
        if job_ids is None or ended:
            said = self._recent(known, max_age_s) if job_ids is None else self._of_ids(ended, known, max_age_s)
            known.update({job_id: _filled(record, known) for job_id, record in said.items()})
        if job_ids is None:
            known.update({record.job_id: record for record in self._unanswered(known)})
        chosen = known if job_ids is None else {job_id: known[job_id] for job_id in job_ids if job_id in known}
        return sorted(chosen.values(), key=lambda record: [int(part) for part in re.findall(r"\d+", record.job_id.partition("?")[0])])

    def accounts(self, job_ids: Sequence[str], *, near: Mapping[str, float] | None = None, max_age_s: float = 0.0) -> list[Account]:
        """Return what these jobs were given and used: one sacct for all, with their steps; where it is silent, what slurmctld shows.

        Raises:
            SchedulerError: neither answers.
        """
        asked = list(dict.fromkeys(job_ids))

        def ask(left: list[str]) -> dict[str, tuple[slurm_asked.Answer, bool]]:
            found = slurm_accounts.ask(left, timeout=self.timeout, near=near)
            of_id = {job: [account for account in found if slurm_accounts.stands_for(job, account)] for job in left}
            return {
                job: ([account.to_json() for account in mine], bool(mine) and all(map(slurm_accounts.is_final, mine)))
                for job, mine in of_id.items()
            }

        # Of a job at a time, what is kept may be of another that has the id now.
        known = slurm_asked.of_jobs("accounts", asked, ask, max_age_s=0.0 if near else max_age_s)
        found = [Account.from_json(value) for job in asked for value in known.get(job, [])]
        return list({account.job_id: account for account in found}.values())

    def places(self, jobs: Sequence[JobRecord], *, max_age_s: float = 0.0) -> dict[str, pending.Place]:
        """Return where those of `jobs` that wait stand among all that wait, by job id; one squeue. Raises nothing."""
        return pending.places(jobs, timeout=self.timeout, max_age_s=max_age_s)

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Stop these jobs.

        Raises:
            HpctrainError: scancel refused.
        """
        slurm_asked.changed()
        done = process.run(["scancel", *job_ids], timeout=self.timeout)
        slurm_asked.changed()
        if done.returncode != 0:
            raise HpctrainError("Slurm did not cancel", details=slurm_words.said(done), fix="hpctrain ps")

    def logs(self, job_id: str) -> LogFiles | None:
        """Return where the job writes: from our own record, else from Slurm while it remembers the job."""
        return slurm_logs.of(job_id, lambda: self._shown(job_id), timeout=self.timeout)

    def _shown(self, job_id: str) -> JobRecord | None:
        """Return what is shown of the job that has this id, or of its array."""
        mine = [record for record in self._queue(ASK_EVERY_S) if record.job_id.partition("_")[0] == job_id.partition("_")[0]]
        return next(iter(mine or self.status([job_id], max_age_s=ASK_EVERY_S)), None)

    def _unanswered(self, known: dict[str, JobRecord]) -> list[JobRecord]:
        """Return a record for each submission that sbatch did not answer and that no job of `known` belongs to."""
        missing = []
        for entry in ledger.unanswered():
            job = next((record for record in known.values() if entry.is_of(record.comment)), None)
            if job is not None:
                ledger.found(entry, _submitted(job), None, told=False)
            elif time.time() - entry.at < 86_400:  # later it is no news, but no less open: only a submission clears it
                reason = f"sbatch did not answer; no job with the comment {entry.comment} so far"
                missing.append(JobRecord(job_id=f"?{entry.token}", scheduler="slurm", state=states.UNKNOWN, name=entry.name, reason=reason))
        return missing

    def _queue(self, max_age_s: float = 0.0) -> list[JobRecord]:
        """Return all my jobs that slurmctld remembers: one squeue.

        Raises:
            SchedulerError: it does not answer.
        """

        def ask() -> slurm_asked.Answer:
            silent = slurm_asked.controller_trouble() if max_age_s else None
            if silent is not None:
                raise silent
            found = self._squeue()
            slurm_asked.is_alive(record.job_id for record in found if not record.is_final)
            return [asdict(record) for record in found]

        return _records(slurm_asked.answer("queue", ask, max_age_s=max_age_s))

    def _squeue(self) -> list[JobRecord]:
        argv = ["squeue", "-h", "-u", getpass.getuser(), "-t", "all", "-o", records.SQUEUE_FORMAT]
        try:
            done = process.run(argv, timeout=self.timeout)
            if done.returncode != 0:
                raise SchedulerError("Slurm did not answer", details=slurm_words.said(done), fix="sinfo")
        except SchedulerError as error:
            slurm_asked.controller_is_silent(error)
            raise
        return records.parse_squeue(done.stdout)

    def _accounting(self, *which: str) -> list[JobRecord]:
        """Return what sacct says of these jobs; nothing where accounting is off, or silent: what slurmctld knows is shown all the same."""
        if slurm_asked.is_silent("sacct"):
            return []
        argv = ["sacct", "-n", "-P", f"--delimiter={records.SEPARATOR}", "-o", ",".join(records.SACCT_FIELDS), *which]
        try:
            done = process.run(argv, timeout=min(self.timeout, slurm_accounts.SACCT_TIMEOUT_S))
        except process.NoAnswerError as error:
            slurm_asked.fell_silent("sacct", error.what)
            return []
        slurm_accounts.heard(done)
        return records.parse_sacct(done.stdout) if done.returncode == 0 else []

    def _recent(self, queue: dict[str, JobRecord], max_age_s: float) -> dict[str, JobRecord]:
        """Return what is known of jobs that ended within a day."""
        said = slurm_asked.answer("recent", lambda: [asdict(each) for each in self._ended(None, queue).values()], max_age_s=max_age_s)
        found = {record.job_id: record for record in _records(said)}
        # What was asked before the queue may be behind it.
        return {job: record for job, record in found.items() if job not in queue or (queue[job].is_final and record.is_final)}

    def _of_ids(self, job_ids: Sequence[str], queue: dict[str, JobRecord], max_age_s: float) -> dict[str, JobRecord]:
        """Return what is known of jobs that squeue does not show any more, or shows as ended."""

        def ask(left: list[str]) -> dict[str, tuple[slurm_asked.Answer, bool]]:
            found = self._ended(left, queue)
            # A record that has no name yet may be of a job that slurmdbd has not heard all of.
            # One without an exit code is squeue's.
            return {
                job: ([asdict(each)], each.is_final and each.name != slurm_accounts.PLACEHOLDER and each.exit_code is not None)
                for job, each in found.items()
            }

        known = slurm_asked.of_jobs("ended", job_ids, ask, max_age_s=max_age_s)
        return {record.job_id: record for said in known.values() for record in _records(said)}

    def _ended(self, job_ids: Sequence[str] | None, queue: dict[str, JobRecord]) -> dict[str, JobRecord]:
        """Return what accounting says of jobs that ended and, where it is silent or still behind, what slurmctld remembers."""
        which = ["-S", "now-1days", "-u", getpass.getuser()] if job_ids is None else ["-j", ",".join(job_ids)]
        # Accounting lags by seconds: what squeue shows is newer than what sacct still calls running.
        found = {
            record.job_id: records.without_a_job(record, queue)
            for record in self._accounting(*which)
            if record.job_id not in queue or (queue[record.job_id].is_final and record.is_final)
        }
        asked = job_ids if job_ids is not None else [job_id for job_id, record in queue.items() if record.is_final]
        missing = [job_id for job_id in asked if job_id not in found]
        # A question for each array, not for each task, and few of them: of the others squeue's word is all.
        for number in list(dict.fromkeys(job_id.partition("_")[0] for job_id in missing))[: slurm_accounts.BY_SCONTROL]:
            shown = process.run(["scontrol", "show", "job", "-d", "-o", number], timeout=self.timeout)
            each = [records.from_scontrol(fields) for fields in records.parse_scontrol_jobs(shown.stdout)]
            found.update({record.job_id: record for record in each if record.job_id in missing})
        found.update({job_id: queue[job_id] for job_id in missing if job_id not in found and job_id in queue})
        return found

    def _find(self, entry: ledger.Entry) -> JobRecord | None:
        """Return the job whose comment carries the token: in the queue, else in the accounting."""
        since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(entry.at - 60))
        candidates = [*self._queue(), *self._accounting("-X", "-S", since, "-u", getpass.getuser())]
        return next((record for record in candidates if entry.is_of(record.comment)), None)

    def _look_for(self, entry: ledger.Entry, said: tuple[str, ...]) -> Submission:
        begun = time.monotonic()
        for look, pause in enumerate(_PAUSES_S):
            if look and time.monotonic() - begun > _LOOKS_S:
                break  # squeue gets no answer either: whoever waits here can be told
            self._sleep(pause)
            try:
                record = self._find(entry)
            except SchedulerError:
                continue
            if record is not None:
                ledger.found(entry, _submitted(record), None)
                return Submission(job_id=_submitted(record), notes=("sbatch did not answer, but the job is there: found by its comment",))
        slurm_asked.changed()  # the job may arrive at any moment
        raise SchedulerError(
            "sbatch did not answer, and whether the job exists is unknown",
            details=(*said, f"its comment is {entry.comment}; the next `hpctrain submit` looks for it before it submits anything"),
            fix="hpctrain ps",
        )

    def earlier(self, text: str, arguments: tuple[str, ...], *, resend: bool = False) -> Submission | None:
        """Return the job of an earlier submission of this script with these arguments of which the user was not told, if there is one.

        It is told by this: the next call returns the one after it.

        Raises:
            SchedulerError: Slurm shows no such job. That is no proof: it may be on its way still, or have ended and been forgotten, as
                many sites do not keep comments. Only the user can decide: `resend` gives it up.
        """
        for entry in ledger.unanswered_of(text):
            if entry.arguments != arguments:
                continue
            job_id = entry.job_id
            if job_id is None and (record := self._find(entry)) is not None:
                job_id = _submitted(record)
            if job_id is not None:
                ledger.found(entry, job_id, entry.cluster)
                return Submission(
                    job_id=job_id,
                    cluster=entry.cluster,
                    notes=(f"job {job_id} is that of the earlier call that sbatch did not answer; nothing new was submitted in its place",),
                )
            if not resend:
                slurm_asked.changed()
                raise SchedulerError(
                    "an earlier submission of this script has not been answered, and may still arrive",
                    details=(f"sent {int(time.time() - entry.at)} s ago with the comment {entry.comment}; Slurm shows no such job",),
                    fix="squeue --me; if it is not there, and did not run: the same command with --resend",
                )
            ledger.forget(entry)
        return None


def _records(answer: slurm_asked.Answer) -> list[JobRecord]:
    """Return the records in an answer that was kept."""
    return [JobRecord(**row) for row in answer]


def _filled(record: JobRecord, queue: Mapping[str, JobRecord]) -> JobRecord:
    """Return a record of a job that slurmdbd has not heard all of as squeue shows it: what it has heard is how the job ended."""
    shown = queue.get(record.job_id) if record.name == slurm_accounts.PLACEHOLDER else None
    return record if shown is None else replace(shown, state=record.state, exit_code=record.exit_code, signal=record.signal)


def _orders(dependency: str | None, array: str | None) -> tuple[str, ...]:
    """Return the options of sbatch that stand in place of the script's directives."""
    named = (("dependency", dependency), ("array", array))
    return tuple(f"--{name}={value}" for name, value in named if value is not None)


def _submitted(record: JobRecord) -> str:
    """Return the id that sbatch would have printed: an array's own, not that of a task of it."""
    return record.job_id.partition("_")[0]


def _names_a_job(said: str) -> bool:
    try:
        records.parse_submission(said)
    except ValueError:
        return False
    return True


def _absolute(pattern: str | None, values: dict[str, str | None]) -> str | None:
    if pattern is None or pattern.startswith("/"):
        return pattern
    return f"{log_pattern.escape(values.get('chdir') or str(Path.cwd()))}/{pattern}"
