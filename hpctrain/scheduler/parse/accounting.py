"""What a job really used: its record with its steps, as parsers of sacct, scontrol and the local scheduler's book fill it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hpctrain.scheduler.parse import states


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
        cancelled_by: the user id of who cancelled it.
        command: the words of the submission, where Slurm keeps them.
        output, error: files of the batch script, with or without their patterns filled in, as the scheduler says them.
        earlier: the records of its earlier starts, before it was requeued; the oldest first, and those have none themselves.
        source: `sacct`, `scontrol`, `squeue` or `local`.
        note: a sentence on what could not be asked, such as why it is not sacct that says it.
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
    cancelled_by: int | None = None
    comment: str | None = None
    work_dir: str | None = None
    command: str | None = None
    output: str | None = None
    error: str | None = None
    steps: tuple[Step, ...] = ()
    earlier: tuple[Account, ...] = ()
    source: str = ""
    note: str | None = None

    @property
    def is_final(self) -> bool:
        """Whether the state never changes again."""
        return states.is_final(self.state)

    @property
    def max_rss_bytes(self) -> int | None:
        """The most memory of one task of any step that was sampled."""
        return max((step.max_rss_bytes for step in self.steps if step.max_rss_bytes is not None), default=None)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Account:
        """Return what `to_json` gave.

        Raises:
            TypeError: it is something else, such as what a newer hpctrain wrote.
        """
        steps = tuple(Step(**step) for step in value.get("steps", ()))
        earlier = tuple(cls.from_json(account) for account in value.get("earlier", ()))
        return cls(**{**value, "steps": steps, "earlier": earlier})
