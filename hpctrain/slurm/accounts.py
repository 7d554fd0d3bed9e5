"""Job accounting: one sacct query for all jobs, limited to the fields that this sacct supports;
without accounting, slurmctld's own records.
"""

from __future__ import annotations

import dataclasses
import getpass
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hpctrain.errors import SchedulerError
from hpctrain.slurm import query_cache
from hpctrain.slurm.base import last_words
from hpctrain.slurm.notations import records
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.util import process

#: Seconds for sacct: a slow slurmdbd must not delay what slurmctld can answer.
_SACCT_TIMEOUT_S = 30.0
#: Limit on jobs and arrays looked up with scontrol, which takes one query each.
BY_SCONTROL = 4
#: Slurm's placeholder for the job name in an incomplete accounting record, and how long, in
#: seconds, a record may stay incomplete.
_PLACEHOLDER, _BEHIND_S = "allocation", 300.0
_JOB_ID = re.compile(r"[0-9]{1,18}(?:_(?:[0-9]{1,9}|\[[0-9,:%-]+\]))?(?:\+[0-9]{1,9})?\Z")


def ask(
    job_ids: Sequence[str] | None, *, timeout: float, queue: Mapping[str, JobRecord] | None = None
) -> list[JobRecord]:
    """Return the usage of these jobs, one entry per array task; unknown jobs are omitted.

    Args:
        job_ids: as Slurm shows them: `123` (all tasks if it is an array), `123_4`, `123_[4-9%2]`;
            None: the user's jobs of a day, and those of `queue` that have ended.
        timeout: seconds for each query.
        queue: slurmctld's records, which are enough if neither query is answered.

    Raises:
        SchedulerError: neither sacct nor slurmctld answers, and there is no `queue`.
    """
    which, known = ["-S", "now-1days", "-u", getpass.getuser()], queue or {}
    ended = [job for job, record in known.items() if record.is_final]
    wanted = [
        job for job in dict.fromkeys(ended if job_ids is None else job_ids) if _JOB_ID.match(job)
    ]
    if job_ids is not None:
        # Not every sacct accepts `123_[4-9]`; all accept the array's id.
        which = ["-j", ",".join(dict.fromkeys(job.partition("_[")[0] for job in wanted))]
    if job_ids is not None and not wanted:
        return []
    accounts, said = sacct(which, timeout=timeout)
    # Seconds after its end, a job may still run for accounting.
    accounts = [each for each in accounts if each.is_final or each.job_id not in ended]
    found = {each.job_id: records.without_a_job(each, known) for each in accounts}
    missing = [job for job in wanted if not any(stands_for(job, each) for each in accounts)]
    # slurmdbd has the end of the job, but not yet its request, which can arrive seconds later
    # (tested with 22.05), and shows Slurm's placeholder as the name.
    now = time.time()
    half = [
        each.job_id
        for each in accounts
        if each.name == _PLACEHOLDER and now - (each.ended or now) < _BEHIND_S
    ]
    for job in set(half) & set(known):
        found[job] = _filled(found[job], known[job])
    if missing or half:  # accounting is off, unreachable, or seconds late
        note = f"what accounting would add is missing: {said}" if said is not None else None
        may_fail = said is None or queue is not None
        for shown in _shown([*missing, *half], timeout, may_fail=may_fail):
            if shown.job_id in half:
                found[shown.job_id] = _filled(found[shown.job_id], shown)
            else:
                found.setdefault(shown.job_id, replace(shown, note=note))
    if job_ids is None:
        return list(found.values())
    return [each for each in found.values() if any(stands_for(job, each) for job in wanted)]


def sacct(which: Sequence[str], *, timeout: float) -> tuple[list[JobRecord], str | None]:
    """Return sacct's records of the jobs that its options `which` name, and why there are none.

    A sacct that timed out is not called again for two minutes; disabled accounting is not a
    failure.
    """
    silent = query_cache.recent_failure("sacct", timed_out=True)
    if silent is not None:
        return [], f"{silent.what}, a short while ago"
    seconds = min(timeout, _SACCT_TIMEOUT_S)
    try:
        fields = records.fields_of(process.run(["sacct", "--helpformat"], timeout=seconds).stdout)
        form = ["-n", "-P", f"--delimiter={records.SEPARATOR}", "-D", "-o", ",".join(fields)]
        done = process.run(["sacct", *form, *which], timeout=seconds, environment=_environment())
    except process.NoAnswerError as error:
        query_cache.record_failure("sacct", error)
        return [], error.what
    except SchedulerError as error:
        return [], error.what
    if done.returncode == 0:
        found = records.newest(records.parse_sacct(done.stdout, fields))
        return [_dated(record) for record in found], None
    said = f"sacct said: {last_words(done)}"
    if "disabled" not in done.stderr:
        query_cache.record_failure("sacct", SchedulerError(said, fix="sinfo"), timed_out=False)
    return [], said


def stands_for(job_id: str, account: JobRecord) -> bool:
    """Whether `job_id` refers to this entry: the same job or task, its array, its raw job number,
    or a range of pending tasks of its array.
    """
    number, _, tasks = job_id.partition("_")
    if tasks.startswith("["):
        return account.job_id.partition("_")[0] == number
    return job_id in (account.job_id, account.slurm_job_id) or (
        not tasks and account.job_id.startswith((f"{job_id}_", f"{job_id}+"))
    )


def _filled(account: JobRecord, shown: JobRecord) -> JobRecord:
    """Return slurmctld's record, with the fields that only accounting has; in an incomplete
    accounting record even the nodes may be wrong.
    """
    lacking = {
        field.name: getattr(account, field.name)
        for field in dataclasses.fields(JobRecord)
        if getattr(shown, field.name) is None
    }
    # slurmctld shows COMPLETING while the nodes of an ended job are cleaned up, and FAILED where
    # only accounting knows of a step that was killed.
    ended = account.is_final and (shown.is_final or shown.state == "COMPLETING")
    lacking["state"] = account.state if ended else shown.state
    return replace(shown, **lacking, steps=account.steps, earlier=account.earlier, source="sacct")


def _shown(job_ids: Sequence[str], timeout: float, *, may_fail: bool) -> list[JobRecord]:
    trouble = query_cache.recent_failure("slurmctld")
    if trouble is not None and not may_fail:
        raise trouble
    # One query per array, not per task, and only a few.
    numbers = dict.fromkeys(job.partition("_")[0] for job in job_ids)
    found: list[JobRecord] = []
    for number in [] if trouble is not None else list(numbers)[-BY_SCONTROL:]:
        argv = ["scontrol", "show", "job", "-o", number]
        done = process.run(argv, timeout=timeout, environment=_environment())
        if done.returncode == 0:
            jobs = records.parse_scontrol_jobs(done.stdout)
            found += [_dated(records.from_scontrol(fields)) for fields in jobs]
        elif "Invalid job id" not in done.stderr and not may_fail:
            raise SchedulerError(
                "Slurm did not answer",
                details=(f"  {done.argv[0]} said: {last_words(done)}",),
                fix="sinfo",
            )
    return found


def _dated(record: JobRecord) -> JobRecord:
    """Return the record with its start in squeue's form instead of seconds since the epoch."""
    at = epoch(record.start or "")
    if at is None:
        return record
    return replace(record, start=time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at)))


def epoch(text: str) -> float | None:
    """Return a time that Slurm printed as seconds since the epoch: a number, or
    `2026-11-20T22:04:50` in the local time zone.
    """
    seconds = records.seconds_since_epoch(text)
    if seconds is not None:
        return seconds
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def _environment() -> dict[str, str]:
    # 0: the full task list of an array, which Slurm truncates at 64 bytes by default.
    return {**process.clean(os.environ), "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
