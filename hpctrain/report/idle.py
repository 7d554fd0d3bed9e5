"""GPUs that do nothing, and why: judged from samples. PURE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpctrain.memory.sample import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """One thing that wastes what the job has.

    Attributes:
        id: gpu-idle, node-underused, memory-on-one-gpu, data-starved or cpu-oversubscribed.
        what: with names and numbers; cause: the likely one; fix: something to type.
    """

    id: str
    what: str
    cause: str
    fix: str
    rank: int | None = None
    node: str | None = None


def judge(
    samples: Sequence[Sample], *, gpus_per_node: int | None, cpus_per_node: int | None, data_wait: float | None,
    config: Mapping[str, Any] | None = None,
) -> tuple[Idle, ...]:  # fmt: skip
    """Return what is wasted, the worst first.

    Args:
        samples: some of each rank, those of the last minutes, in time's order; one alone proves nothing.
        gpus_per_node: of the job.
        cpus_per_node: of the job.
        data_wait: the part of the time that the slowest rank waited for its data.
        config: the job config as resolved, for fixes in the user's own numbers.
    """
    raise NotImplementedError
