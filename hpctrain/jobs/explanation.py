"""Collect what is known about a failed run, job or set of files, and diagnose it; for explain,
report and resubmit.

Reads the logs, the scheduler's record, samples, steps and the config; hpctrain.explain diagnoses.
Missing sources do not stop the others from being read; they are listed in `notes`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpctrain.clusters import load
from hpctrain.config import to_spec
from hpctrain.config.schema import EnvironmentSection
from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.explain import engine, rules
from hpctrain.explain.model import AttemptFact, Explanation, FileFact, JobContext
from hpctrain.jobs import job_logs, request, schedulers, suggest, targets
from hpctrain.logs import files as log_files
from hpctrain.logs import scan
from hpctrain.logs.files import LogFile
from hpctrain.memory.sample import MARK, Sample, parse_line
from hpctrain.runs import history, layout, predicted, progress, store
from hpctrain.runs.store import Run
from hpctrain.slurm.job_ids import JobId
from hpctrain.slurm.notations import states
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.util import files, stored


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedJob:
    """What to explain.

    Attributes:
        job: the job id, if a scheduler may have a record of it.
        guessed: whether only the name of a log identifies the job.
        no_directory: the missing directory of the log path that the scheduler reports.
    """

    files: tuple[LogFile, ...]
    title: str
    job: str | None = None
    guessed: bool = False
    run: Run | None = None
    run_dir: Path | None = None
    notes: tuple[str, ...] = ()
    no_directory: Path | None = None


def _of_paths(paths: Sequence[Path]) -> ExplainedJob:
    selected = job_logs.of_paths(paths)
    if len(paths) == 1 and (target := _of_run(paths[0].resolve())) is not None:
        return target
    found = (*selected.files, *selected.ranks)
    jobs = {file.job for file in found}
    job = jobs.pop() if len(jobs) == 1 else None
    return ExplainedJob(
        files=found,
        title=str(paths[0]) if len(paths) == 1 else f"{len(found)} files",
        job=job if job and store.JOB_ID.match(job) else None,
        guessed=True,
    )


def _of_run(run_dir: Path, job: str | None = None) -> ExplainedJob | None:
    """Return a run and its newest job, or the named one; None if the directory is not a run."""
    run_dir = run_dir.absolute()
    run = store.read_run(run_dir.parent, run_dir.name) if layout.NAME.match(run_dir.name) else None
    if run is None:
        return None
    job = job or (run.last.job if run.last else None)
    job = job or next(reversed(targets.job_ids_of(run.id, run_dir.parent)), None)
    title = f"run {run.id}" + (f", job {job}" if job else "")
    found = log_files.of_run(run_dir)
    return ExplainedJob(files=found, title=title, job=job, run=run, run_dir=run_dir)


def _of_word(word: str, runs: Path) -> ExplainedJob:
    if (meant := _of_run(runs / word)) is not None:
        return meant
    try:
        return _of_tasks(word, targets.jobs([word], runs)[0])
    except (SchedulerError, UsageError):
        # Local files may still describe a job that no scheduler lists any more.
        job = word if store.JOB_ID.match(word) else None
        with contextlib.suppress(HpctrainError):
            for run in targets.runs_of(word, targets.existing_runs(runs)):
                if (meant := _of_run(runs / run.id, job)) is not None:
                    return meant
        if job is not None and (named := log_files.named_after(job, Path.cwd())):
            return _of_paths([file.path for file in named])
        raise


def _of_tasks(word: str, records: Sequence[JobRecord]) -> ExplainedJob:
    """Return the newest of these jobs; of array tasks, the newest that failed."""
    tasks = [record for record in records if "_" in record.job_id and record.name != word]
    failed = [record for record in tasks if record.state in states.FAILED]
    chosen = targets.newest(failed or records)
    meant = _of_record(chosen)
    note = f"{len(failed)} of {len(tasks)} tasks of {word} failed; this is {chosen.job_id}"
    return replace(meant, notes=(*meant.notes, note)) if failed else meant


def _of_record(record: JobRecord) -> ExplainedJob:
    job, missing = record.job_id, None
    run_dir = targets.run_dirs([record]).get(job)
    if run_dir is not None and (meant := _of_run(run_dir, job)) is not None:
        return meant
    logs = schedulers.owner(job).logs(job)
    found = log_files.of_job(logs.output, logs.error, job=job) if logs is not None else ()
    if not any(file.path.exists() for file in found):
        # slurmctld forgets a job minutes after its end, and accounting does not record the log path
        # before 24.05.
        named = log_files.named_after(job, Path.cwd())
        if logs is not None and not named and not logs.output.parent.exists():
            missing = logs.output.parent
        found = named or found
    return ExplainedJob(
        files=found,
        title=f"job {job} ({record.name})" if record.name else f"job {job}",
        job=job,
        notes=() if found else (f"where job {job} writes is not known",),
        no_directory=missing,
    )


def _newest(runs: Path) -> ExplainedJob:
    """Return the newest job that has ended, else the newest of all; without jobs, the newest run.
    Jobs of this directory's runs come before those of other directories.
    """
    jobs, silent = schedulers.all_jobs()
    known: list[Run] = []
    with contextlib.suppress(OSError):
        known = [run for run in store.list_runs(runs).runs if run.attempts]
    ours = {job for run in known for job in run.job_ids}
    jobs = [record for record in jobs if record.job_id in ours] or jobs
    jobs = [record for record in jobs if record.is_final] or jobs
    if jobs:
        number = targets.newest(jobs).job_id.partition("_")[0]
        return _of_tasks(number, [each for each in jobs if JobId(number).covers(each.job_id)])
    if known:
        return _of_word(max(known, key=lambda each: each.since or 0.0).id, runs)
    raise HpctrainError(
        "no jobs or runs found",
        details=(schedulers.no_answer(silent).what,) if silent else (),
        hint="name a log: hpctrain explain FILE",
    )


# -- what is known -------------------------------------------------------------------------------

#: Samples of each rank.
_MOST = 200
#: Bytes read at the end of a log without samples, and the samples of it.
_END_BYTES, _TAIL = 128 * 1024, 16
_MIB = 1 << 20
#: Tolerance: a job may write its last line after the scheduler records its end, and clocks differ.
_SLACK_S = 3600.0
#: Timeout of each Slurm query if a log was named: the log contains most of the evidence, and Slurm
#: may be installed here without a cluster.
_PATIENCE_S = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobExplanation:
    """An explanation, and the facts that it was derived from.

    Attributes:
        title: what was explained: `run sft-3, job 123`, or the files.
        run: the run id, if hpctrain created the run.
        notes: sentences on sources that could not be queried.
    """

    explanation: Explanation
    case: JobContext
    title: str
    run: str | None = None
    size: int = 0
    notes: tuple[str, ...] = ()


def explained(words: Sequence[str], *, runs_dir: Path | None = None) -> JobExplanation:
    """Explain why a run, a job, or the job of some log files failed; without words, the newest one
    that has ended.

    Args:
        words: see above.
        runs_dir: the directory of all runs.

    Raises:
        UsageError: the words match nothing, or several things.
    """
    runs = runs_dir or Path(layout.RUNS)
    paths, word = job_logs.split(words, runs)
    meant = _of_paths(paths) if paths else _of_word(word, runs) if word else _newest(runs)
    notes = list(meant.notes)
    case = _case_of(meant, notes)
    scanned = scan.scan(meant.files, rules.shipped())
    found = engine.explain(
        case,
        scanned.hits,
        rules.shipped(),
        troubles=scanned.troubles,
        first_failed=scanned.first_failed,
        status=scanned.status,
    )
    if meant.run is not None and meant.run_dir is not None:
        asked = request.of_run(meant.run, meant.run_dir.parent) or suggest.Asked()
        diagnoses = tuple(
            replace(each, fix=replace(each.fix, text=suggest.kept(each.fix.text, asked)))
            for each in found.diagnoses
        )
        found = replace(found, diagnoses=diagnoses)
    return JobExplanation(
        explanation=found,
        case=case,
        title=meant.title,
        run=meant.run.id if meant.run else None,
        size=scanned.size,
        notes=tuple(notes),
    )


_STEP = re.compile(r"(?i)\b(?:step|iter(?:ation)?|batch|update)s?\b\W{0,3}([0-9]{1,12})")


def _case_of(meant: ExplainedJob, notes: list[str]) -> JobContext:
    case, samples, extra = JobContext(), set[Sample](), dict[str, Any]()
    if meant.run_dir is not None and meant.run is not None:
        told, now = history.read(meant.run_dir, most=_MOST), progress.read(meant.run_dir)
        samples = {sample for rank in told.ranks for sample in rank.samples}
        starts = {start.name: start for start in told.starts}
        config, _ = request.ran_with(meant.run, meant.run_dir.parent)
        # Its training section includes a sweep's parameter combination.
        point = stored.read_object(meant.run_dir / "point.json") or {}
        values = {name.removeprefix("training."): value for name, value in point.items()}
        case = JobContext(
            attempts=tuple(
                AttemptFact(
                    name=attempt.name,
                    job_id=attempt.job,
                    restart=attempt.restart,
                    started=attempt.started,
                    ended=attempt.ended,
                    status=attempt.status,
                    outcome=attempt.outcome,
                    reason=attempt.reason,
                    first_step=start.first_step if (start := starts.get(attempt.name)) else None,
                    last_step=start.last_step if start else None,
                    last_logged_at=start.last_at if start else None,
                    output_at=attempt.output_at,
                )
                for attempt in meant.run.attempts
            ),
            config=config and {**config, "training": {**(config.get("training") or {}), **values}},
            step=now.step,
            max_steps=now.max_steps,
            step_s=now.step_s,
            fit=predicted.read(meant.run_dir),
        )
        extra["run"] = meant.run.id
    printed = set[str]()
    for file in meant.files if not samples else ():
        ends = [line.decode("utf-8", "replace") for line in files.tail(file.path, _END_BYTES)]
        # A progress bar goes to stderr, and does not show how stdout grows.
        if file.stream != "err":
            printed |= {match[1] for line in ends if (match := _STEP.search(line)) is not None}
        marked = [line for line in ends if MARK in line]
        samples |= {sample for line in marked[-_TAIL:] if (sample := parse_line(line)) is not None}
    facts = []
    for file in meant.files:
        fact = FileFact(name=file.name, size=0, grown=None)
        with contextlib.suppress(OSError):
            known = file.path.stat()
            fact = replace(fact, size=known.st_size, grown=known.st_mtime)
        facts.append(fact)
    times = [fact.grown for fact in facts if fact.grown is not None and fact.size]
    account = _account(meant, case, times, notes)
    if meant.no_directory is not None:
        extra["no_log_directory"] = str(meant.no_directory)
    if account is not None and account.cancelled_by is not None:
        with contextlib.suppress(KeyError, OverflowError):
            extra["canceller"] = pwd.getpwuid(account.cancelled_by).pw_name
    ordered = sorted(samples, key=lambda sample: sample.time_ms)
    resources = (case.config or {}).get("resources") or {}
    gpus, nodes = resources.get("gpus_per_node"), resources.get("nodes")
    asked = (gpus or 1) * nodes if isinstance(gpus, int) and isinstance(nodes, int) else None
    gpu = next((each.gpu_total_mib for each in reversed(ordered) if each.gpu_total_mib), 0)
    node = next((each.node_total_mib for each in reversed(ordered) if each.node_total_mib), 0)
    case = replace(
        case,
        files=tuple(facts),
        account=account,
        samples=tuple(ordered),
        printed_steps=len(printed),
        gpus_per_node=gpus if isinstance(gpus, int) else None,
        world_size=ordered[-1].world_size if ordered else asked,
        gpu_memory_bytes=gpu * _MIB or None,
        node_memory_bytes=node * _MIB or None,
    )
    zone_s = time.localtime().tm_gmtoff
    return _with_profile(replace(case, now=time.time(), zone_s=zone_s, extra=extra))


def _with_profile(case: JobContext) -> JobContext:
    config, account, extra = case.config or {}, case.account, dict(case.extra)
    name = account.partition if account is not None else None
    name = name or (config.get("resources") or {}).get("partition")
    try:
        section = config.get("environment") or {}
        names = {"profile", "profiles", "env", "unset"}
        environment = EnvironmentSection.read(
            {each: section[each] for each in section.keys() & names}
        )
        extra["variables"] = to_spec.environment_variables(environment)[0]
        profile = load.load(str(config["cluster"]), os.environ).profile
    except (KeyError, TypeError, ValueError, AttributeError, HpctrainError):
        return replace(case, extra=extra)
    known = profile.partitions.get(str(name))
    shape = profile.nodes.get(known.nodes or "") if known is not None else None
    if known is not None and known.time_max:
        extra["time_max_s"] = known.time_max
    memory = shape.memory if shape and not shape.memory_installed else None
    return replace(
        case,
        extra=extra,
        gpu_memory_bytes=case.gpu_memory_bytes or (shape.gpu_memory if shape else None),
        node_memory_bytes=case.node_memory_bytes or memory,
    )


def _account(
    meant: ExplainedJob, case: JobContext, times: Sequence[float], notes: list[str]
) -> JobRecord | None:
    """Return the scheduler's record of the job, unless it belongs to another job with this id."""
    job, unknown = meant.job, (None, "", "None")
    if job is None:
        return None
    try:
        found = schedulers.accounts([job], patience_s=_PATIENCE_S if meant.guessed else None)
    except HpctrainError as error:
        notes += [
            f"whether job {job} still runs, or how it ended, is not known",
            f"{schedulers.last_message(error)}; hpctrain ps {job} asks again",
        ]
        return None
    account = next((each for each in found if each.job_id == job or len(found) == 1), None)
    if account is None or account.state == states.UNKNOWN:
        return None
    if not _is_of(account, case.attempts[-1].started if case.attempts else None, times):
        notes.append(
            f"job {job} that the scheduler knows ran at another time than these logs: its record is"
            " left out"
        )
        return None
    notes += [account.note] if account.note else []
    if account.state in states.WAITING and account.reason in unknown:
        # squeue's reason: accounting receives it later
        with contextlib.suppress(HpctrainError, ValueError):
            [record, *_] = schedulers.owner(account.job_id).status([account.job_id])
            if record.state == account.state and record.reason not in unknown:
                return replace(account, reason=record.reason)
    return account


def _is_of(account: JobRecord, started: float | None, times: Sequence[float]) -> bool:
    """Whether the record belongs to the job that wrote the logs: Slurm reuses job ids."""
    begin, end = account.started, account.ended
    if begin is not None and end is not None and end < begin:
        begin = None
    if started is None:
        # Copying sets a file's time to that of the copy, but no log is older than its job's start.
        return begin is None or max(times, default=begin) >= begin - _SLACK_S
    after = begin is None or started >= begin - _SLACK_S
    return after and (end is None or started <= end + _SLACK_S)
