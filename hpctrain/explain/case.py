"""All that is known of a job that is to be explained. What is not known is None, or empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpctrain.explain.model import Evidence
from hpctrain.memory.sample import Sample
from hpctrain.scheduler.parse.accounting import Account


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFact:
    """One log file that was read.

    Attributes:
        name: as in hpctrain.logs.LogFile, as are the others.
        size: bytes.
        grown: seconds since the epoch of its last change.
        steps: different steps that its two ends tell of since the newest start; 0 where it tells of none.
    """

    name: str
    stream: str = "both"
    rank: int | None = None
    node: str | None = None
    attempt: str | None = None
    order: int = 0
    size: int = 0
    grown: float | None = None
    steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFact:
    """One start of the job (hpctrain.runs.store.Attempt), and the steps it did. Times are seconds since the epoch of the node's clock."""

    name: str
    job_id: str | None = None
    restart: int = 0
    started: float | None = None
    ended: float | None = None
    status: int | None = None
    outcome: str | None = None
    reason: str | None = None
    first_step: int | None = None
    last_step: int | None = None
    last_logged_at: float | None = None
    output_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueFact:
    """What logs say of requeues, where they are all that is known.

    Attributes:
        times: how many.
        at: of the first, seconds since the epoch.
        span_s: from the first to the last.
        steps: lines of progress behind the first.
        evidence: the first and the last.
    """

    times: int
    evidence: tuple[Evidence, Evidence]
    at: float | None = None
    span_s: float | None = None
    steps: int = 0
    job: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """See the module.

    Attributes:
        files: that were read, in their order.
        account: of the job that is explained, as the scheduler says it.
        attempts: of the run, oldest first; `requeues`: what is known without them.
        config: the job config as resolved (keys of config.yaml), where hpctrain rendered the job.
        samples: of the MemoryCallback: for each rank its first, its highest and its last ones, in time's order.
        step, max_steps: the last step that was logged, and how many there were to be; `step_s`: seconds of a step.
        fit: runs/ID/fit.json.
        gpu_memory_bytes, node_memory_bytes: what a GPU and a node of the partition have, where the cluster says it.
        zone_s: seconds that the clock of the logs is before UTC's; for times that people read.
        now: seconds since the epoch, or None: then nothing is said of how long ago something was.
    """

    files: tuple[FileFact, ...] = ()
    account: Account | None = None
    attempts: tuple[AttemptFact, ...] = ()
    requeues: RequeueFact | None = None
    config: Mapping[str, Any] | None = None
    samples: tuple[Sample, ...] = ()
    step: int | None = None
    max_steps: int | None = None
    step_s: float | None = None
    fit: Mapping[str, Any] | None = None
    world_size: int | None = None
    gpus_per_node: int | None = None
    gpu_memory_bytes: int | None = None
    node_memory_bytes: int | None = None
    now: float | None = None
    zone_s: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)
