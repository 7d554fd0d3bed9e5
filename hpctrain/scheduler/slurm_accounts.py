"""What Slurm accounts for jobs: one sacct for all of them, asked for the fields that it knows; without accounting, what slurmctld shows."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hpctrain.errors import SchedulerError
from hpctrain.scheduler import process, slurm_asked
from hpctrain.scheduler.parse import accounting_sacct, accounting_shown, records, states
from hpctrain.scheduler.parse.accounting import Account

#: Seconds for sacct: a slurmdbd that is slow must not keep what slurmctld could say.
SACCT_TIMEOUT_S = 30.0
#: Jobs that scontrol is asked for, each by its own question; more of them are one squeue.
BY_SCONTROL = 4
#: The name in a record of accounting that lacks its own, and the seconds for which that may be so.
PLACEHOLDER, _BEHIND_S = "allocation", 300.0
#: Seconds by which clocks of nodes differ.
_CLOCKS_S = 300.0
_JOB_ID = re.compile(r"[0-9]{1,18}(?:_(?:[0-9]{1,9}|\[[0-9,:%-]+\]))?(?:\+[0-9]{1,9})?\Z")


def ask(job_ids: Sequence[str], *, timeout: float, near: Mapping[str, float] | None = None) -> list[Account]:
    """Return the accounts of these jobs, an array's tasks each; those that nobody knows are left out.

    Args:
        job_ids: as Slurm shows them: `123`, which stands for all tasks where it is an array, `123_4`, `123_[4-9%2]`.
        timeout: seconds for each answer.
        near: job id to seconds since the epoch at which the job ran, where ids may have been reused; else the newest counts.

    Raises:
        SchedulerError: neither sacct nor slurmctld answers.
    """
    wanted = [job for job in dict.fromkeys(job_ids) if _JOB_ID.match(job)]
    if not wanted:
        return []
    accounts, said = _sacct(wanted, min(timeout, SACCT_TIMEOUT_S), near)
    found = {account.job_id: account for account in accounts}
    missing = [job for job in wanted if not any(stands_for(job, account) for account in found.values())]
    half = [account.job_id for account in found.values() if _is_half(account)]
    if missing or half:  # accounting is off, silent, or seconds behind
        note = f"what accounting would add is missing: {said}" if said is not None else None
        for shown in _shown([*missing, *half], timeout, silent=said is not None):
            if shown.job_id in half:
                found[shown.job_id] = _filled(found[shown.job_id], shown)
            elif shown.job_id not in found and not _is_later(shown, near or {}):
                found[shown.job_id] = replace(shown, note=note)
    return [account for account in found.values() if any(stands_for(job, account) for job in wanted)]


def heard(done: process.Finished) -> None:
    """Remember whether sacct has answered, or why it could not; a site without accounting has no trouble with it."""
    if done.returncode == 0 or "disabled" in done.stderr:
        slurm_asked.answered("sacct")
    else:
        slurm_asked.fell_silent("sacct", f"sacct said: {_last_words(done)}", refused=True)


def stands_for(job_id: str, account: Account) -> bool:
    """Whether `job_id` means this account: itself, the array that it is a task of, its own number, tasks of it that wait together."""
    number, _, tasks = job_id.partition("_")
    if tasks.startswith("["):
        return account.job_id.partition("_")[0] == number
    return job_id in (account.job_id, account.slurm_job_id) or (not tasks and account.job_id.startswith((f"{job_id}_", f"{job_id}+")))


def _is_half(account: Account) -> bool:
    """Whether slurmdbd has heard how a job went and not yet what it asked for: its record has Slurm's placeholder for a name.

    What it is told of a job's start may come seconds after its end (tried on 22.05).
    """
    now = time.time()
    return account.name == PLACEHOLDER and now - (account.ended or now) < _BEHIND_S


def _filled(account: Account, shown: Account) -> Account:
    """Return what slurmctld shows of a job, with what accounting alone knows: of a half record even the nodes may be wrong."""
    lacking = {field.name: getattr(account, field.name) for field in dataclasses.fields(Account) if getattr(shown, field.name) is None}
    killed = account.state == "OUT_OF_MEMORY" and shown.state == "FAILED"
    # While the nodes of an ended job are cleaned up, slurmctld shows that in place of how it ended.
    cleaned = shown.state == "COMPLETING" and account.is_final
    state = account.state if killed or cleaned else shown.state
    return replace(shown, **{**lacking, "steps": account.steps, "earlier": account.earlier, "source": "sacct", "state": state})


def _is_later(account: Account, near: Mapping[str, float]) -> bool:
    """Whether a job has been submitted after the time at which the one that was meant ran: its id is in use again."""
    at = near.get(account.job_id)
    return at is not None and account.submitted is not None and account.submitted > at + _CLOCKS_S


def _sacct(job_ids: Sequence[str], timeout: float, near: Mapping[str, float] | None) -> tuple[list[Account], str | None]:
    """Return what sacct says, and why it says nothing."""
    if slurm_asked.is_silent("sacct"):
        return [], f"{slurm_asked.trouble('sacct')}, a short while ago"
    fields = _fields(timeout)
    # Tasks that wait together have no name that every sacct takes; the array has.
    ids = ",".join(dict.fromkeys(job.partition("_[")[0] for job in job_ids))
    argv = ["sacct", "-n", "-D", "-P", f"--delimiter={records.SEPARATOR}", "-o", ",".join(fields), "-j", ids]
    try:
        done = process.run(argv, timeout=timeout, environment=_environment())
    except process.NoAnswerError as error:
        slurm_asked.fell_silent("sacct", error.what)
        return [], error.what
    except SchedulerError as error:
        return [], error.what
    heard(done)
    if done.returncode != 0:
        return [], f"sacct said: {_last_words(done)}"
    return accounting_sacct.newest(accounting_sacct.parse(done.stdout, fields, epoch=epoch), near=near), None


def _fields(timeout: float) -> tuple[str, ...]:
    """Return the fields that this sacct knows; asked once for each sacct, and remembered."""
    known = slurm_asked.remembered_fields()
    if known is not None and set(accounting_sacct.NEEDED) <= set(known) <= set(accounting_sacct.FIELDS):
        return known
    try:
        done = process.run(["sacct", "--helpformat"], timeout=timeout)
    except SchedulerError:
        return accounting_sacct.fields_of("")
    fields = accounting_sacct.fields_of(done.stdout)
    if done.returncode == 0 and set(accounting_sacct.NEEDED) <= set(done.stdout.split()):
        slurm_asked.remember_fields(fields)
    return fields


def _shown(job_ids: Sequence[str], timeout: float, *, silent: bool) -> list[Account]:
    """Return what slurmctld shows of these jobs.

    Raises:
        SchedulerError: it does not answer either, where sacct was silent too.
    """
    trouble = slurm_asked.controller_trouble()
    if trouble is not None:
        if silent:
            raise trouble
        return []
    if len(job_ids) <= BY_SCONTROL and shutil.which("scontrol"):
        done = [process.run(["scontrol", "show", "job", "-o", job.partition("_[")[0]], timeout=timeout, environment=_environment())
                for job in job_ids]  # fmt: skip
        fields = [fields for each in done if each.returncode == 0 for fields in records.parse_scontrol_jobs(each.stdout)]
        refused = next((each for each in done if each.returncode != 0 and "Invalid job id" not in each.stderr), None)
        found = [accounting_shown.from_scontrol(each, epoch=epoch) for each in fields]
    else:
        ids = ",".join(dict.fromkeys(job.partition("_[")[0] for job in job_ids))
        argv = ["squeue", "-h", "-t", "all", "-j", ids, "-o", accounting_shown.SQUEUE_FORMAT]
        asked = process.run(argv, timeout=timeout, environment=_environment())
        refused = asked if asked.returncode != 0 and "Invalid job id" not in asked.stderr else None
        found = accounting_shown.from_squeue(asked.stdout, epoch=epoch)
    if refused is not None and silent and not found:
        raise SchedulerError("Slurm did not answer", details=(f"  {refused.argv[0]} said: {_last_words(refused)}",), fix="sinfo")
    return found


def epoch(text: str) -> float | None:
    """Return seconds since the epoch of a time as Slurm prints it: a number, or `2026-11-20T22:04:50` in this machine's time zone."""
    seconds = accounting_sacct.seconds_since_epoch(text)
    if seconds is not None:
        return seconds
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def _environment() -> dict[str, str]:
    return {**process.clean(os.environ), "SLURM_TIME_FORMAT": "%s"}


def _last_words(done: process.Finished) -> str:
    said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    words = re.sub(r"[^ -~]", "?", said[-1])[:200] if said else f"exit status {done.returncode}"
    return re.sub(r"^\w+: (?:error: )?", "", words)


def is_final(account: Account) -> bool:
    """Whether accounting has said its last word: the job has ended, all its steps are closed, and what comes late has had its time."""
    settled = account.ended is not None and time.time() - account.ended > _BEHIND_S
    return settled and account.source == "sacct" and account.is_final and all(states.is_final(step.state or "") for step in account.steps)
