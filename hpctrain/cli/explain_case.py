"""What is known of a job that is to be explained: its logs, its record, its samples, its config; for explain, report and resubmit.

Nothing that is missing keeps the rest from being read: what could not be asked is said in `notes`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpctrain.cli import explain_config, explain_run, explain_steps, explain_words, schedulers
from hpctrain.errors import HpctrainError
from hpctrain.explain import engine, rule
from hpctrain.explain.case import Case, FileFact
from hpctrain.explain.hit import Scanned
from hpctrain.explain.model import Explanation
from hpctrain.logs import scan
from hpctrain.logs.model import LogFile
from hpctrain.scheduler.base import ASK_EVERY_S
from hpctrain.scheduler.parse import states
from hpctrain.scheduler.parse.accounting import Account

#: A job may write its last line so long after the scheduler counts it as ended, and clocks differ.
_SLACK_S = 3600.0
#: Seconds for each answer of Slurm where a log has been named: it says most, and Slurm may be installed here without a cluster.
_PATIENCE_S = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An explanation, and what it was made of.

    Attributes:
        title: what was explained: `run sft-3, job 123`, or the files.
        run: its id, where hpctrain made it.
        files: that were read; those of them that are there have sizes in `case.files`.
        notes: sentences on what could not be asked.
    """

    explanation: Explanation
    case: Case
    files: tuple[LogFile, ...]
    title: str
    run: str | None = None
    size: int = 0
    notes: tuple[str, ...] = ()


def explanation(word: str | None, *, runs_dir: Path | None = None, accounts: Sequence[Account] | None = None) -> Answer:
    """Return why the job, or the run, that `word` stands for failed; without a word, of the newest that did not end well.

    Raises:
        UsageError: there is no such job, run or file.
    """
    return explained([word] if word is not None else [], runs_dir=runs_dir, accounts=accounts)


def explained(words: Sequence[str], *, runs_dir: Path | None = None, accounts: Sequence[Account] | None = None) -> Answer:
    """Return why what `words` stand for failed: one run or job, or files and folders.

    Args:
        words: see there.
        runs_dir: where runs lie.
        accounts: what the schedulers have said of many jobs at once; none of them is asked again then.

    Raises:
        UsageError: they stand for nothing, or for several things.
    """
    meant = explain_words.meant(words, runs_dir)
    try:
        case, files, notes = case_of(meant, accounts)
        scanned = scan.scan(files, rule.shipped())
    finally:
        meant.forget()
    return Answer(
        explanation=judged(case, scanned), case=case, files=files, title=meant.title, run=meant.run.id if meant.run else None,
        size=scanned.size, notes=tuple(notes),
    )  # fmt: skip


def judged(case: Case, scanned: Scanned) -> Explanation:
    """Return what the engine says of what was found."""
    return engine.explain(
        case, scanned.hits, rule.shipped(), troubles=scanned.troubles, first_failed=scanned.first_failed, status=scanned.status
    )  # fmt: skip


def case_of(meant: explain_words.Meant, accounts: Sequence[Account] | None = None) -> tuple[Case, tuple[LogFile, ...], list[str]]:
    """Return all that is known of what is meant, its logs, and what could not be asked."""
    notes = list(meant.notes)
    case = explain_run.case(meant.run_dir, meant.run) if meant.run_dir is not None and meant.run is not None else Case()
    facts = tuple(_file_fact(file) for file in meant.files)
    times = [fact.grown for fact in facts if fact.grown is not None and fact.size]
    account = _account(meant, case, times, notes, accounts)
    if not case.samples:
        case = explain_run.with_logs(case, meant.files)
    case = replace(case, files=facts, account=account, now=time.time(), zone_s=time.localtime().tm_gmtoff)
    if meant.no_directory is not None:
        case = replace(case, extra={**case.extra, "no_log_directory": str(meant.no_directory)})
    if case.attempts and case.step is None:
        case = explain_steps.with_steps(case, meant.files)
    return explain_config.with_cluster(case), meant.files, notes


def _file_fact(file: LogFile) -> FileFact:
    try:
        known = file.path.stat()
    except OSError:
        known = None
    return FileFact(
        name=file.name, stream=file.stream, rank=file.rank, node=file.node, attempt=file.attempt, order=file.order,
        size=known.st_size if known else 0, grown=known.st_mtime if known else None,
    )  # fmt: skip


def _account(
    meant: explain_words.Meant, case: Case, times: Sequence[float], notes: list[str], known: Sequence[Account] | None = None
) -> Account | None:
    """Return the scheduler's record of the job; none where it is another job's, whose number is the same."""
    job = meant.job
    if job is None:
        return None
    last = case.attempts[-1] if case.attempts else None
    near = (last.started if last else None) or max(times, default=None)
    try:
        found = (
            [each for each in known if each.job_id == job]
            if known is not None
            else schedulers.accounts(
                [job], near={job: near} if near is not None else None, patience_s=_PATIENCE_S if meant.guessed else None
            )
        )
    except HpctrainError as error:
        said = error.details[-1].strip() if error.details and " said: " in error.details[-1] else error.what
        notes += [f"whether job {job} still runs, or how it ended, is not known", f"{said}; hpctrain ps {job} asks again"]
        return None
    account = next((each for each in found if each.job_id == job), found[0] if len(found) == 1 else None)
    if account is None or account.state == states.UNKNOWN:
        return None
    if not _is_of(account, last.started if last else None, times):
        notes.append(f"job {job} that the scheduler knows ran at another time than these logs: its record is left out")
        return None
    if account.note:
        notes.append(account.note)
    return _with_reason(account)


def _with_reason(account: Account) -> Account:
    """Return the record of a job that waits with the reason that squeue gives: accounting hears of it later."""
    if account.state not in states.WAITING or account.reason not in (None, "", "None"):
        return account
    # The last answer may be from before the job was submitted, by a plain sbatch: then squeue is asked anew.
    for age in (ASK_EVERY_S, 0.0):
        try:
            records = schedulers.owner(account.job_id).status([account.job_id], max_age_s=age)
        except HpctrainError:
            return account
        reason = next((record.reason for record in records if record.job_id == account.job_id and record.state == account.state), None)
        if reason not in (None, "", "None"):
            return replace(account, reason=reason)
    return account


def _is_of(account: Account, started: float | None, times: Sequence[float]) -> bool:
    """Whether the record is of the job that wrote the logs: job numbers are given again."""
    begin, end = account.started, account.ended
    if begin is not None and end is not None and end < begin:
        begin = None
    if started is not None:
        return (begin is None or started >= begin - _SLACK_S) and (end is None or started <= end + _SLACK_S)
    if not times:
        return True
    # Files are copied, which gives them the time of the copying; none is written before its job has begun.
    return begin is None or max(times) >= begin - _SLACK_S
