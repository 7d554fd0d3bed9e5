"""The user's jobs, as `hpctrain ps` lists them: each with its run, progress, and why it waits or
how it ended.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpctrain.jobs import targets
from hpctrain.memory.sample import Sample
from hpctrain.runs import job_state, progress, store
from hpctrain.runs.progress import Progress
from hpctrain.slurm import pending
from hpctrain.slurm.accounts import epoch
from hpctrain.slurm.notations import array, states
from hpctrain.slurm.notations.records import JobRecord
from hpctrain.util import text

#: Running tasks of one array that have a line each; more of them share one line.
_TASKS_SHOWN = 8
#: What `hpctrain ps --json` shows of a record.
_RECORD_KEYS = (
    "job_id",
    "scheduler",
    "state",
    "name",
    "reason",
    "elapsed_s",
    "time_limit_s",
    "partition",
    "start",
    "comment",
    "exit_code",
    "signal",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """One job, or several tasks of an array that share a line.

    Attributes:
        job_id: as displayed: `123_[0-7]` for several tasks.
        run: id of its run; None for a job without a known run.
        run_dir: of the run, which may not exist yet.
        state: as text.
    """

    record: JobRecord
    state: job_state.JobState
    job_id: str
    run: str | None = None
    run_dir: Path | None = None
    progress: Progress | None = None

    @property
    def eta_s(self) -> float | None:
        """Seconds that the training still needs."""
        runs = self.record.state in states.ACTIVE and self.progress is not None
        return self.progress.eta_at(time.time()) if runs and self.progress is not None else None

    def to_json(self) -> dict[str, Any]:
        """Return the keys of `hpctrain ps --json`."""
        known = self.progress or Progress()
        return {
            **{name: getattr(self.record, name) for name in _RECORD_KEYS},
            "nodes": self.record.n_nodes,
            "run": self.run,
            "run_dir": None if self.run_dir is None else str(self.run_dir),
            "why": self.state.why or None,
            "summary": self.state.words or None,
            "expected": expected_start(self.record),
            "step": known.step,
            "max_steps": known.max_steps,
            "loss": known.loss,
            "tokens_per_s": known.tokens_per_s,
            "eta_s": known.eta_s,
            "memory": worst_rank(known.worst, "host"),
        }


def worst_rank(worst: Sample | None, host: str) -> dict[str, Any] | None:
    """Return the memory of the rank with the highest usage as JSON; `host` is the key of its
    node.
    """
    if worst is None:
        return None
    return {
        "rank": worst.rank,
        host: worst.host,
        "gpu_used_mib": worst.gpu_used_mib,
        "gpu_total_mib": worst.gpu_total_mib,
        "cgroup_used_mib": worst.cgroup_used_mib,
        "cgroup_limit_mib": worst.cgroup_limit_mib,
    }


def rows_of(jobs: Sequence[JobRecord]) -> list[QueueRow]:
    """Return the rows of jobs, in their order."""
    now = time.time()
    dirs = targets.run_dirs(jobs)
    # Pending tasks that share a record have the run of the entire sweep, which has no attempts.
    runs = {
        job.job_id: store.read_run(where.parent, where.name)
        for job in jobs
        if (where := dirs.get(job.job_id)) is not None and "[" not in job.job_id
    }
    rows = []
    for job in jobs:
        where, run = dirs.get(job.job_id), runs.get(job.job_id)
        rows.append(
            QueueRow(
                record=job,
                job_id=job.job_id,
                run=where.name if where is not None else None,
                run_dir=where,
                progress=_progress(where, run, job) if where is not None else None,
                state=state_of(job, run, now=now),
            )
        )
    return rows


def _progress(run_dir: Path, run: store.Run | None, job: JobRecord) -> Progress | None:
    """Return a job's progress, from its own attempts: the run's others belong to other jobs."""
    own = [each.name for each in run.attempts if each.job == job.job_id] if run is not None else []
    if not own:
        return None
    found = progress.read(run_dir, attempts=own)
    if job.state in states.ACTIVE and found.attempt in (None, own[-1]):
        return found
    # Rates apply only while the job runs.
    samples = () if job.state in states.WAITING else found.samples
    return replace(found, eta_s=None, tokens_per_s=None, samples=samples)


def folded(rows: Sequence[QueueRow]) -> list[QueueRow]:
    """Merge the tasks of an array that ended in the same way, and running ones if there are many;
    the row shows the longest elapsed time.
    """
    groups: dict[tuple[object, ...], list[QueueRow]] = {}
    for row in rows:
        number, _, task = row.record.job_id.partition("_")
        same = (number, row.state) if text.is_number(task) else (row.record.job_id,)
        groups.setdefault(same, []).append(row)
    found = []
    for group in groups.values():
        if len(group) <= (1 if group[0].record.is_final else _TASKS_SHOWN):
            found += group
            continue
        ids = [row.record.job_id.partition("_") for row in group]
        tasks = array.compress([int(task) for _, _, task in ids])
        tags = {row.run.rpartition("_")[0] for row in group if row.run is not None}
        longest = max(group, key=lambda row: row.record.elapsed_s or 0)
        found.append(
            replace(
                longest,
                job_id=f"{ids[0][0]}_[{tasks}]",
                run=tags.pop() if len(tags) == 1 else None,
                progress=None,
            )
        )
    return found


# -- the state of a job as text --------------------------------------------------------------------


def expected_start(job: JobRecord) -> float | None:
    """Return the start of a job that squeue expects, in seconds since the epoch."""
    return epoch(job.start) if job.state == "PENDING" and job.start is not None else None


def state_of(job: JobRecord, run: store.Run | None, *, now: float) -> job_state.JobState:
    """Describe the state of a job.

    Args:
        job: the scheduler's record.
        run: its run, or None.
        now: seconds since the epoch.
    """
    attempt, waits = job_state.attempt_of(run, job.job_id), None
    if job.state in states.WAITING:
        start = expected_start(job)
        waits = pending.explain(job.reason).words
        if job.scheduler != "slurm" and job.reason not in pending.REASONS:
            waits = job.reason or "its turn"
        waits += f"; Slurm expects {when(start, now)}" if start else ""
    return job_state.of_job(
        job.state,
        attempt,
        exit_code=job.exit_code,
        signal=job.signal,
        reason=job.reason,
        waits=waits,
        next_job=job_state.continuation(run, attempt),
    )


def when(at: float, now: float) -> str:
    """Format a time in local time: `14:20` today, `2026-11-24 14:20` on another day."""
    if at <= now + 60:
        return "now"
    there, here = time.localtime(at), time.localtime(now)
    return time.strftime("%H:%M" if there[:3] == here[:3] else "%Y-%m-%d %H:%M", there)


def pending_job(row: QueueRow) -> dict[str, Any]:
    """Return why a job waits: the keys of `pending` in `hpctrain ps JOB --json`.

    `fix` is the command to type, null if there is nothing to do but wait; `expected` is when Slurm
    expects it to start, in seconds since the epoch.
    """
    reason = pending.explain(row.record.reason)
    return {
        "reason": row.record.reason,
        "words": row.state.why,
        "kind": reason.kind,
        "fix": reason.fix and reason.fix.replace("{job}", row.job_id.partition("_[")[0]),
        "expected": None if reason.kind == "never" else expected_start(row.record),
    }
