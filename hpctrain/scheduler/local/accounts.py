"""What the local scheduler's book says of a job, as an account: what it was given, how it ended, and the memory of its largest process."""

from __future__ import annotations

import time
from typing import Any

from hpctrain.scheduler.local import book
from hpctrain.scheduler.local.book import Meant
from hpctrain.scheduler.local.job_directory import JobDirectory
from hpctrain.scheduler.local.plan import Plan
from hpctrain.scheduler.parse import hostlist
from hpctrain.scheduler.parse.accounting import Account, Step
from hpctrain.scheduler.parse.records import JobRecord


def of(meant: Meant) -> list[Account]:
    """Return the account of a job, or of each task of an array that is meant; tasks that wait together share one."""
    if not meant.is_array:
        return [_account(meant.job.record(), meant.job, meant.job, meant.plan)]
    found = book.rows(meant.job) if meant.indices is None else book.records(meant)
    accounts = []
    for record in found:
        task = record.job_id.partition("_")[2]
        plan = meant.plan.task(int(task)) if task.isdigit() else meant.plan
        accounts.append(_account(record, meant.job, meant.job.task(int(task)) if task.isdigit() else None, plan))
    return accounts


def _account(record: JobRecord, job: JobDirectory, own: JobDirectory | None, plan: Plan) -> Account:
    """Return one account.

    Args:
        record: of the job, the task, or tasks that wait.
        job: the directory that says when it was submitted.
        own: the directory with its state; None for tasks that wait.
        plan: of it.
    """
    state: dict[str, Any] = own.state() if own is not None else {}
    # A task that waits has no directory, and so no plan of its own with the GPUs that it has got.
    started, ended = state.get("start"), state.get("end") if record.is_final else None
    restarts = state.get("restarts")
    return Account(
        job_id=record.job_id, scheduler="local", state=record.state,
        slurm_job_id=plan.job_id if plan.job_id != record.job_id else None, name=plan.name, user=plan.user or None, partition="local",
        reason=record.reason, exit_code=record.exit_code, signal=record.signal, submitted=(job.job() or {}).get("submitted"),
        started=started, ended=ended,
        elapsed_s=None if started is None else max(0, int((ended or time.time()) - started)), time_limit_s=plan.time_limit_s,
        nodes=hostlist.compress(plan.hosts) if started is not None else None, n_nodes=plan.nodes,
        cpus=plan.nodes * plan.tasks_per_node * plan.cpus_per_task, gpus=plan.total_gpus,
        restarts=restarts if isinstance(restarts, int) else 0, dependency=plan.dependency,
        work_dir=plan.chdir, command=plan.command or None, output=plan.output, error=plan.error,
        steps=_steps(state, record), source="local",
    )  # fmt: skip


def _steps(state: dict[str, Any], record: JobRecord) -> tuple[Step, ...]:
    """Return the batch step with what its supervisor measured; none for a job that is held still, or was held by an older hpctrain."""
    rss, cpu = state.get("max_rss_bytes"), state.get("cpu_s")
    if rss is None and cpu is None:
        return ()
    return (Step(name="batch", state=record.state, exit_code=record.exit_code, signal=record.signal, n_tasks=1,
                 elapsed_s=record.elapsed_s, max_rss_bytes=rss, cpu_s=cpu),)  # fmt: skip
