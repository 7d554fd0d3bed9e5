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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpctrain.clusters import discover, load
from hpctrain.config import to_spec
from hpctrain.config.schema import EnvironmentSection
from hpctrain.errors import HpctrainError, SchedulerError, UsageError
from hpctrain.explain import engine, rules
from hpctrain.explain.model import (
    AttemptFact,
    Explanation,
    FileFact,
    JobContext,
)
from hpctrain.jobs import job_logs, schedulers, suggest, targets
from hpctrain.jobs import requested as run_request
from hpctrain.logs import files as log_files
from hpctrain.logs import scan, text
from hpctrain.logs.files import LogFile
from hpctrain.memory.sample import MARK, Sample, parse_line
from hpctrain.runs import history, layout, predicted, progress, store
from hpctrain.runs.store import Run
from hpctrain.slurm.notations import states
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.util import stored


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


def job_of_words(words: Sequence[str], runs_dir: Path | None = None) -> ExplainedJob:
    """Return the run, job or files that `words` name.

    Raises:
        UsageError: they match nothing, or several things.
    """
    runs = runs_dir or Path(layout.RUNS)
    if not words:
        return _newest(runs)
    paths = [word for word in words if job_logs.is_path(word, runs)]
    if len(paths) == len(words):
        return _of_paths([Path(word) for word in paths])
    if len(words) > 1:
        other = next(word for word in words if word not in paths)
        raise UsageError(
            f"{other!r} is not a file, and several words are files of one job",
            details=("explain looks at one run, one job, or files",),
            fix=f"hpctrain explain {other}",
        )
    return _of_word(words[0], runs)


def _of_paths(paths: Sequence[Path]) -> ExplainedJob:
    selected = job_logs.of_paths(paths)
    if len(paths) == 1 and (target := _of_run(paths[0].resolve())) is not None:
        return target
    files = (*selected.files, *selected.ranks)
    jobs = {file.job for file in files}
    job = jobs.pop() if len(jobs) == 1 else None
    return ExplainedJob(
        files=files,
        title=str(paths[0]) if len(paths) == 1 else f"{len(files)} files",
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
    files = log_files.of_run(run_dir)
    title = f"run {run.id}" + (f", job {job}" if job else "")
    return ExplainedJob(files=files, title=title, job=job, run=run, run_dir=run_dir)


def _of_word(word: str, runs: Path) -> ExplainedJob:
    if (meant := _of_run(runs / word)) is not None:
        return meant
    records: list[JobRecord] = []
    silent: SchedulerError | None = None
    try:
        records, silent = targets.jobs([word], runs)
    except SchedulerError as error:
        silent = error
    except UsageError:
        pass
    if records:
        return _of_tasks(word, records)
    # Local files may still describe a job that no scheduler lists any more.
    with contextlib.suppress(HpctrainError):
        run = targets.resolve([word], runs)[0].run
        job = word if store.JOB_ID.match(word) else None
        if run is not None and (meant := _of_run(runs / run.id, job)) is not None:
            return meant
    named = _named(word) if store.JOB_ID.match(word) else ()
    if named:
        return _of_paths([file.path for file in named])
    if silent is None:
        raise UsageError(
            f"there is no run, job or file {word!r}",
            fix="hpctrain ps",
            hint="or name a run (hpctrain runs list shows them), or a file",
        )
    raise UsageError(
        f"there is no run or file {word!r}, and Slurm does not say whether there is such a job",
        details=(silent.what,),
        hint="name the log: hpctrain explain logs/FILE",
    )


def _of_tasks(word: str, records: Sequence[JobRecord]) -> ExplainedJob:
    """Return the newest of these jobs; of array tasks, the newest that failed."""
    tasks = [record for record in records if record.job_id.startswith(f"{word}_")]
    failed = [record for record in tasks if record.state in states.FAILED]
    chosen = targets.newest(failed or records)
    meant = _of_record(chosen)
    others = [record.job_id for record in failed if record.job_id != chosen.job_id]
    more = f"; another: hpctrain explain {others[0]}" if others else ""
    note = f"{len(failed)} of {len(tasks)} tasks of {word} failed; this is {chosen.job_id}{more}"
    return replace(meant, notes=(*meant.notes, note)) if failed else meant


def _named(job: str) -> tuple[LogFile, ...]:
    """Return the logs here that are named after a job; else those with its id anywhere in their
    names: `job123.out`, or `slurm-123_4.out` of an array.
    """
    own = re.compile(rf"(?<![0-9]){job}(?![0-9])")
    here = (*Path("logs").glob(f"*{job}*"), *Path().glob(f"*{job}*"))
    logs = (path for path in here if path.suffix in (".out", ".err", ".log"))
    loose = sorted(path for path in logs if own.search(path.name) and path.is_file())
    return log_files.named_after(job, Path.cwd()) or log_files.of_paths(loose)


def _of_record(record: JobRecord) -> ExplainedJob:
    run_dir = targets.run_dirs([record]).get(record.job_id)
    if run_dir is not None and (meant := _of_run(run_dir, record.job_id)) is not None:
        return meant
    logs = schedulers.owner(record.job_id).logs(record.job_id)
    files = log_files.of_job(logs.output, logs.error, job=record.job_id) if logs is not None else ()
    missing = None
    if not any(file.path.exists() for file in files):
        # slurmctld forgets a job minutes after its end, and accounting does not record the log path
        # before 24.05.
        named = _named(record.job_id)
        if logs is not None and not named and not logs.output.parent.exists():
            missing = logs.output.parent
        files = named or files
    name = f" ({record.name})" if record.name else ""
    return ExplainedJob(
        files=files,
        title=f"job {record.job_id}{name}",
        job=record.job_id,
        notes=() if files else (f"where job {record.job_id} writes is not known",),
        no_directory=missing,
    )


def _newest(runs: Path) -> ExplainedJob:
    """Return the newest job that has ended, else the newest of all; without jobs, the newest run.

    Jobs of this directory's runs come before those of other directories. If the newest job did not
    fail, a note names an older one that did.

    Raises:
        HpctrainError: there are no jobs and no runs.
    """
    jobs, silent = schedulers.all_jobs()
    known: list[Run] = []
    with contextlib.suppress(OSError):
        known = [run for run in store.list_runs(runs).runs if run.attempts]
    ours = {job for run in known for job in run.job_ids}
    jobs = [record for record in jobs if record.job_id in ours] or jobs
    ended = [record for record in jobs if record.is_final]
    if jobs:
        newest = targets.newest(ended or jobs)
        number = newest.job_id.partition("_")[0]
        tasks = [record for record in ended if record.job_id.startswith(f"{number}_")]
        target, state = _of_tasks(number, tasks or [newest]), newest.state
        failed = [record for record in ended if record.state in states.FAILED]
        others = [] if newest in failed or target.notes else failed
        older = targets.newest(others).job_id if others else None
    elif known:
        in_order = sorted(known, key=lambda each: each.since or 0.0)
        target = _of_word(in_order[-1].id, runs)
        bad = [each for each in in_order if each.last and each.last.outcome != "completed"]
        older, state = bad[-1].id if bad and bad[-1] != in_order[-1] else None, "completed"
    else:
        raise HpctrainError(
            "no jobs or runs found",
            details=(schedulers.no_answer(silent).what,) if silent else (),
            hint="name a log: hpctrain explain FILE",
        )
    if older is None:
        return target
    note = f"the newest, {target.title}, is {state}; an older one failed: hpctrain explain {older}"
    return replace(target, notes=(*target.notes, note))


# -- the config, and the cluster -------------------------------------------------------------------

_TIMEOUT_S = 5.0
#: States whose fix depends on the cluster's limits; only then are Slurm's partitions queried.
_OF_LIMITS = frozenset({"TIMEOUT", "DEADLINE", "OUT_OF_MEMORY"}) | states.WAITING


def _config_of_run(run_dir: Path, run: Run) -> Mapping[str, Any] | None:
    """Return the job config of the newest submission, or None. Its training section includes the
    arguments after `--` and a sweep's parameter combination.
    """
    config = run_request.ran_with(run, run_dir.parent).config
    point = stored.read_object(run_dir / "point.json") or {}
    return config and {
        **config,
        "training": {
            **(config.get("training") or {}),
            **{name.removeprefix("training."): value for name, value in point.items()},
        },
    }


def with_cluster(case: JobContext) -> JobContext:
    """Add what the config's cluster profile and, for a job that met a limit, Slurm report about its
    partition.
    """
    config, account = case.config or {}, case.account
    extra = {**case.extra, **_variables(config)}
    if account is not None and account.cancelled_by is not None:
        with contextlib.suppress(KeyError, OverflowError):
            extra["canceller"] = pwd.getpwuid(account.cancelled_by).pw_name
    partition = account.partition if account is not None else None
    partition = partition or (config.get("resources") or {}).get("partition")
    case = replace(case, extra=extra)
    if isinstance(name := config.get("cluster"), str) and name:
        with contextlib.suppress(HpctrainError):
            case = _with_profile(case, name, str(partition))
    slurm = account is not None and account.scheduler == "slurm" and discover.is_available()
    if account is not None and slurm and account.state in _OF_LIMITS:
        case = _with_live(case, partition)
    return case


def _variables(config: Mapping[str, Any]) -> dict[str, Any]:
    section = config.get("environment")
    if not isinstance(section, dict):
        return {}
    names = ("profile", "profiles", "env", "unset")
    known = {name: section[name] for name in names if name in section}
    try:
        environment = EnvironmentSection.read(known)
        return {"variables": to_spec.environment_variables(environment)[0]} if known else {}
    except (ValueError, HpctrainError):
        return {}


def _with_profile(case: JobContext, name: str, partition: str) -> JobContext:
    profile = load.load(name, os.environ).profile
    known = profile.partitions.get(partition)
    shape = profile.nodes.get(known.nodes or "") if known is not None else None
    extra: dict[str, Any] = {**case.extra, "profile": profile.to_data()}
    if known is not None and known.time_max:
        extra["time_max_s"] = known.time_max
    memory = shape.memory if shape and not shape.memory_installed else None
    return replace(
        case,
        extra=extra,
        gpu_memory_bytes=case.gpu_memory_bytes or (shape.gpu_memory if shape else None),
        node_memory_bytes=case.node_memory_bytes or memory,
    )


def _with_live(case: JobContext, partition: object) -> JobContext:
    live = discover.discover(timeout=_TIMEOUT_S)
    partitions = live.partitions or ()
    known = next((each for each in partitions if each.name == partition), None)
    memory = [shape.memory for shape in (known.nodes if known else ()) if shape.memory]
    found = {
        "time_max_s": known.time_max if known is not None else None,
        "accounts": live.accounts,
        "partitions": tuple(each.name for each in partitions if each.up is not False),
        "qos": tuple(dict.fromkeys(qos for each in live.associations or () for qos in each.qos)),
    }
    return replace(
        case,
        extra={**case.extra, **{name: value for name, value in found.items() if value}},
        node_memory_bytes=case.node_memory_bytes or min(memory, default=None),
    )


# -- the run, and its logs -------------------------------------------------------------------------

#: Samples of each rank.
_MOST = 200
#: Bytes read at each end of a log without samples.
_END_BYTES = 64 * 1024
_HEAD, _TAIL = 4, 12
_MIB = 1 << 20


def _case_of_run(run_dir: Path, run: Run) -> JobContext:
    told, now = history.read(run_dir, most=_MOST), progress.read(run_dir)
    starts = {start.name: start for start in told.starts}
    attempts = [
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
        for attempt in run.attempts
    ]
    return _with_samples(
        JobContext(
            attempts=tuple(attempts),
            config=_config_of_run(run_dir, run),
            step=now.step,
            max_steps=now.max_steps,
            step_s=now.step_s,
            fit=predicted.read(run_dir),
            extra={"run": run.id},
        ),
        [sample for rank in told.ranks for sample in rank.samples],
    )


def _with_logs(case: JobContext, files: Sequence[LogFile]) -> JobContext:
    samples: list[Sample] = []
    for file in files:
        found = [line for line in _ends(file.path) if MARK in line]
        shown = found if len(found) <= _HEAD + _TAIL else [*found[:_HEAD], *found[-_TAIL:]]
        samples += [sample for line in shown if (sample := parse_line(line)) is not None]
    return _with_samples(case, set(samples)) if samples else case


def _ends(path: Path) -> list[str]:
    try:
        with stored.open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            content = stream.read(min(size, _END_BYTES))
            if size > _END_BYTES:
                stream.seek(max(_END_BYTES, size - _END_BYTES))
                content += b"\n" + stream.read(_END_BYTES)
    except OSError:
        return []
    return content.decode("utf-8", "replace").splitlines()


def _with_samples(case: JobContext, samples: Iterable[Sample]) -> JobContext:
    """Add the samples, and the nodes and world size that they and the config give."""
    ordered = sorted(samples, key=lambda sample: sample.time_ms)
    resources = (case.config or {}).get("resources") or {}
    gpus, nodes = resources.get("gpus_per_node"), resources.get("nodes")
    asked = (gpus or 1) * nodes if isinstance(gpus, int) and isinstance(nodes, int) else None
    gpu = next((each.gpu_total_mib for each in reversed(ordered) if each.gpu_total_mib), 0)
    node = next((each.node_total_mib for each in reversed(ordered) if each.node_total_mib), 0)
    return replace(
        case,
        samples=tuple(ordered),
        gpus_per_node=gpus if isinstance(gpus, int) else None,
        world_size=ordered[-1].world_size if ordered else asked,
        gpu_memory_bytes=gpu * _MIB or None,
        node_memory_bytes=node * _MIB or None,
    )


#: Fewer printed steps than this show no rhythm, and may be anything: `step 1/4: loading`.
_LEAST = 5
_STEP = re.compile(
    r"(?i)\b(?:global[ _]?)?(?:step|iter(?:ation)?|it|batch|update)s?\b\W{0,3}"
    r"(?P<step>[0-9]{1,12})(?:\s*(?:/|of)\s*(?P<most>[0-9]{1,12}))?"
    r"|[0-9]{1,3}%\|[^|]*\| (?P<bar>[0-9]{1,12})/(?P<length>[0-9]{1,12}) \["
)
_BEGINS = re.compile(r"^hpctrain: attempt \S+ of the run \S+ begins on ")


def printed_steps(lines: Iterable[str]) -> list[tuple[int, int | None]]:
    """Return the steps printed since the newest start, each once, with the total if printed."""
    found: dict[tuple[int, int | None], None] = {}
    for raw in lines:
        if _BEGINS.match(raw):
            found = {}
        elif match := _STEP.search(text.label(text.clean(raw)).rest):
            step, most = match["step"] or match["bar"], match["most"] or match["length"]
            found[int(step), int(most) if most else None] = None
    last = next(reversed(found), (0, None))
    mine = sorted(step for step, most in found if most == last[1])
    return [(step, last[1]) for step in mine] if len(mine) >= _LEAST else []


def _with_steps(case: JobContext, files: Sequence[LogFile]) -> JobContext:
    last = case.attempts[-1]
    mine = [file for file in files if file.job in (None, last.job_id) and not file.copy]
    said = {file.stream: printed_steps(_ends(file.path)) for file in mine}
    # A progress bar goes to stderr, and does not show how stdout grows.
    steps = said.get("out") or said.get("both") or []
    case = replace(case, printed_steps=0 if said.get("err") else len(steps))
    steps = steps or said.get("err") or []
    if not steps or steps[-1][1] is None:
        return case
    done, step_s = steps[-1][0] - steps[0][0], None
    if last.output_at is not None and last.started is not None and done:
        # an upper bound: it includes loading
        step_s = max(0.0, last.output_at - last.started) / done
    return replace(case, step=steps[-1][0], max_steps=steps[-1][1], step_s=step_s)


# -- the explanation -------------------------------------------------------------------------------

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
    that did not complete.

    Args:
        words: see above.
        runs_dir: the directory of all runs.

    Raises:
        UsageError: the words match nothing, or several things.
    """
    meant = job_of_words(words, runs_dir)
    case, notes = _case_of(meant)
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
        asked = run_request.of_run(meant.run, meant.run_dir.parent) or suggest.Asked()
        fixes = [
            replace(each.fix, text=suggest.kept(each.fix.text, asked)) for each in found.diagnoses
        ]
        both = zip(found.diagnoses, fixes, strict=True)
        found = replace(found, diagnoses=tuple(replace(each, fix=fix) for each, fix in both))
    return JobExplanation(
        explanation=found,
        case=case,
        title=meant.title,
        run=meant.run.id if meant.run else None,
        size=scanned.size,
        notes=tuple(notes),
    )


def _case_of(meant: ExplainedJob) -> tuple[JobContext, list[str]]:
    notes, case = list(meant.notes), JobContext()
    if meant.run_dir is not None and meant.run is not None:
        case = _case_of_run(meant.run_dir, meant.run)
    facts = tuple(_file_fact(file) for file in meant.files)
    times = [fact.grown for fact in facts if fact.grown is not None and fact.size]
    account = _account(meant, case, times, notes)
    if not case.samples:
        case = _with_logs(case, meant.files)
    case = replace(
        case, files=facts, account=account, now=time.time(), zone_s=time.localtime().tm_gmtoff
    )
    if meant.no_directory is not None:
        case = replace(case, extra={**case.extra, "no_log_directory": str(meant.no_directory)})
    if case.attempts and case.step is None:
        case = _with_steps(case, meant.files)
    return with_cluster(case), notes


def _file_fact(file: LogFile) -> FileFact:
    try:
        known = file.path.stat()
    except OSError:
        known = None
    return FileFact(
        name=file.name,
        size=known.st_size if known else 0,
        grown=known.st_mtime if known else None,
    )


def _account(
    meant: ExplainedJob,
    case: JobContext,
    times: Sequence[float],
    notes: list[str],
) -> JobRecord | None:
    """Return the scheduler's record of the job, unless it belongs to another job with this id."""
    job = meant.job
    if job is None:
        return None
    started = case.attempts[-1].started if case.attempts else None
    try:
        found = schedulers.accounts([job], patience_s=_PATIENCE_S if meant.guessed else None)
    except HpctrainError as error:
        notes += [
            f"whether job {job} still runs, or how it ended, is not known",
            f"{schedulers.last_message(error)}; hpctrain ps {job} asks again",
        ]
        return None
    account = next((each for each in found if each.job_id == job), None)
    if account is None and len(found) == 1:
        account = found[0]
    if account is None or account.state == states.UNKNOWN:
        return None
    if not _is_of(account, started, times):
        notes.append(
            f"job {job} that the scheduler knows ran at another time than these logs: its record is"
            " left out"
        )
        return None
    notes += [account.note] if account.note else []
    return _with_reason(account)


def _with_reason(account: JobRecord) -> JobRecord:
    """Add squeue's reason to the record of a waiting job: accounting receives it later."""
    unknown = (None, "", "None")
    if account.state not in states.WAITING or account.reason not in unknown:
        return account
    try:
        [record, *_] = schedulers.owner(account.job_id).status([account.job_id])
    except (HpctrainError, ValueError):
        return account
    known = record.state == account.state and record.reason not in unknown
    return replace(account, reason=record.reason) if known else account


def _is_of(account: JobRecord, started: float | None, times: Sequence[float]) -> bool:
    """Whether the record belongs to the job that wrote the logs: Slurm reuses job ids."""
    begin, end = account.started, account.ended
    if begin is not None and end is not None and end < begin:
        begin = None
    if started is not None:
        return (begin is None or started >= begin - _SLACK_S) and (
            end is None or started <= end + _SLACK_S
        )
    # Copying sets a file's time to that of the copy, but no log is older than its job's start.
    return begin is None or max(times, default=begin) >= begin - _SLACK_S
