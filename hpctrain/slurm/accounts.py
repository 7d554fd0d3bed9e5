"""Job accounting: one sacct query for all jobs, limited to the fields that this sacct supports;
without accounting, slurmctld's own records.
"""

from __future__ import annotations

import dataclasses
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
BY_SCONTROL = 20
#: Slurm's placeholder for the job name in an incomplete accounting record, and how long, in
#: seconds, a record may stay incomplete.
PLACEHOLDER, _BEHIND_S = "allocation", 300.0
_JOB_ID = re.compile(r"[0-9]{1,18}(?:_(?:[0-9]{1,9}|\[[0-9,:%-]+\]))?(?:\+[0-9]{1,9})?\Z")


def ask(job_ids: Sequence[str], *, timeout: float) -> list[JobRecord]:
    """Return the usage of these jobs, one entry per array task; unknown jobs are omitted.

    Args:
        job_ids: as Slurm shows them: `123` (all tasks if it is an array), `123_4`, `123_[4-9%2]`.
        timeout: seconds for each query.

    Raises:
        SchedulerError: neither sacct nor slurmctld answers.
    """
    wanted = [job for job in dict.fromkeys(job_ids) if _JOB_ID.match(job)]
    if not wanted:
        return []
    accounts, said = _sacct(wanted, timeout)
    found = {account.job_id: account for account in accounts}
    missing = [
        job for job in wanted if not any(stands_for(job, account) for account in found.values())
    ]
    half = [account.job_id for account in found.values() if _is_half(account)]
    if missing or half:  # accounting is off, unreachable, or seconds late
        note = f"what accounting would add is missing: {said}" if said is not None else None
        for shown in _shown([*missing, *half], timeout, silent=said is not None):
            if shown.job_id in half:
                found[shown.job_id] = _filled(found[shown.job_id], shown)
            elif shown.job_id not in found:
                found[shown.job_id] = replace(shown, note=note)
    return [
        account for account in found.values() if any(stands_for(job, account) for job in wanted)
    ]


def sacct(
    words: Sequence[str], *, timeout: float, environment: Mapping[str, str] | None = None
) -> tuple[str, str | None]:
    """Return the output of sacct with these options, and why there is none.

    A sacct that timed out is not called again for two minutes; disabled accounting is not a
    failure.
    """
    silent = query_cache.recent_failure("sacct", timed_out=True)
    if silent is not None:
        return "", f"{silent.what}, a short while ago"
    argv = ["sacct", "-n", "-P", f"--delimiter={records.SEPARATOR}", *words]
    try:
        done = process.run(argv, timeout=min(timeout, _SACCT_TIMEOUT_S), environment=environment)
    except process.NoAnswerError as error:
        query_cache.record_failure("sacct", error)
        return "", error.what
    except SchedulerError as error:
        return "", error.what
    if done.returncode == 0:
        return done.stdout, None
    said = f"sacct said: {last_words(done)}"
    if "disabled" not in done.stderr:
        query_cache.record_failure("sacct", SchedulerError(said, fix="sinfo"), timed_out=False)
    return "", said


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


def _is_half(account: JobRecord) -> bool:
    """Whether the record is incomplete: slurmdbd has the end of the job, but not yet its request,
    and shows Slurm's placeholder as the name.

    The start record can arrive seconds after the end record (tested with 22.05).
    """
    now = time.time()
    return account.name == PLACEHOLDER and now - (account.ended or now) < _BEHIND_S


def _filled(account: JobRecord, shown: JobRecord) -> JobRecord:
    """Return slurmctld's record, with the fields that only accounting has; in an incomplete
    accounting record even the nodes may be wrong.
    """
    lacking = {
        field.name: getattr(account, field.name)
        for field in dataclasses.fields(JobRecord)
        if getattr(shown, field.name) is None
    }
    killed = account.state == "OUT_OF_MEMORY" and shown.state == "FAILED"
    # While the nodes of an ended job are cleaned up, slurmctld shows COMPLETING instead of the
    # final state.
    cleaned = shown.state == "COMPLETING" and account.is_final
    state = account.state if killed or cleaned else shown.state
    return replace(
        shown,
        **{
            **lacking,
            "steps": account.steps,
            "earlier": account.earlier,
            "source": "sacct",
            "state": state,
        },
    )


def _sacct(job_ids: Sequence[str], timeout: float) -> tuple[list[JobRecord], str | None]:
    fields = _fields(timeout)
    # Not every sacct accepts `123_[4-9]`; all accept the array's id.
    ids = ",".join(dict.fromkeys(job.partition("_[")[0] for job in job_ids))
    words = ("-D", "-o", ",".join(fields), "-j", ids)
    output, said = sacct(words, timeout=timeout, environment=_environment())
    return records.newest(records.parse_sacct(output, fields, epoch=epoch)), said


def _fields(timeout: float) -> tuple[str, ...]:
    if query_cache.recent_failure("sacct", timed_out=True) is not None:
        return records.fields_of("")  # sacct is not called either
    try:
        done = process.run(["sacct", "--helpformat"], timeout=min(timeout, _SACCT_TIMEOUT_S))
        return records.fields_of(done.stdout)
    except SchedulerError:
        return records.fields_of("")


def _shown(job_ids: Sequence[str], timeout: float, *, silent: bool) -> list[JobRecord]:
    trouble = query_cache.recent_failure("slurmctld")
    if trouble is not None:
        if silent:
            raise trouble
        return []
    numbers = list(dict.fromkeys(job.partition("_[")[0] for job in job_ids))
    found: list[JobRecord] = []
    refused = None
    for number in numbers[-BY_SCONTROL:]:
        argv = ["scontrol", "show", "job", "-o", number]
        done = process.run(argv, timeout=timeout, environment=_environment())
        if done.returncode == 0:
            jobs = records.parse_scontrol_jobs(done.stdout)
            found += [records.from_scontrol(fields, epoch=epoch) for fields in jobs]
        elif "Invalid job id" not in done.stderr:
            refused = done
    if refused is not None and silent and not found:
        raise SchedulerError(
            "Slurm did not answer",
            details=(f"  {refused.argv[0]} said: {last_words(refused)}",),
            fix="sinfo",
        )
    return found


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
    return {**process.clean(os.environ), "SLURM_TIME_FORMAT": "%s"}
