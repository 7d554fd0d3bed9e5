"""What a job really used: its record with its steps, as parsers of sacct, scontrol and the local scheduler's book fill it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One job step, `batch` and `extern` among them. What is not known is None.

    Attributes:
        name: the part behind the dot of its id: `0`, `batch`, `extern`.
        max_rss_bytes: the most of one task, at one moment that was sampled; `max_rss_node`, `max_rss_task` say whose.
        cpu_s: CPU seconds of all its tasks.
    """

    name: str
    state: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    elapsed_s: int | None = None
    n_tasks: int | None = None
    nodes: str | None = None
    max_rss_bytes: int | None = None
    max_rss_node: str | None = None
    max_rss_task: int | None = None
    cpu_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One job, or task of an array, as the scheduler accounts for it. What is not known is None.

    Attributes:
        job_id: `123` or `123_4`; slurm_job_id: its own number, where that differs.
        scheduler: slurm or local.
        state, reason: as in JobRecord. exit_code, signal: of the batch script.
        submitted, started, ended: seconds since the epoch.
        nodes: host list, `n[1-2]`; n_nodes: how many.
        memory_bytes: asked for, of each node.
        gpus: of the whole job.
        failed_node: that Slurm names as the one that failed.
        restarts: how often it was requeued.
        source: `sacct`, `scontrol`, `squeue` or `local`.
    """

    job_id: str
    scheduler: str
    state: str
    slurm_job_id: str | None = None
    name: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    elapsed_s: int | None = None
    time_limit_s: int | None = None
    nodes: str | None = None
    n_nodes: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    memory_bytes: int | None = None
    failed_node: str | None = None
    restarts: int | None = None
    dependency: str | None = None
    steps: tuple[Step, ...] = ()
    source: str = ""
