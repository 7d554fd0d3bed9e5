"""Tells when a sample is close to a limit that ends the job. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hpctrain.memory.sample import Sample

NEAR = 0.95
"""The share of a limit from which a warning is due."""


def near_limits(sample: Sample) -> dict[Literal["gpu", "host"], str]:
    """Return, for each kind of memory of which more than 95 % of the limit was needed, one sentence that says so.

    gpu: torch's peak, plus what the device holds outside of torch's allocator (CUDA itself, NCCL, other processes),
        against the device's memory. The allocator's own cache is no need: it gives back what nobody uses.
    host: the cgroup's use against its limit; without a limit the node's use against its memory.
    """
    found: dict[Literal["gpu", "host"], str] = {}
    total = sample.gpu_total_mib
    if total and sample.torch_peak_mib is not None:
        outside = max(0, (sample.gpu_used_mib or 0) - (sample.torch_reserved_mib or 0))
        need = sample.torch_peak_mib + outside
        if need > NEAR * total:
            parts = f"torch's peak {sample.torch_peak_mib}M and {outside}M outside of torch"
            found["gpu"] = f"{parts} are {need / total:.1%} of the GPU's {total}M"
    for name, used, limit in (
        ("the cgroup", sample.cgroup_used_mib, sample.cgroup_limit_mib),
        ("the node", sample.node_used_mib, sample.node_total_mib),
    ):
        if used is None or not limit:
            continue
        if used > NEAR * limit:
            found["host"] = f"{name} uses {used}M, {used / limit:.1%} of its {limit}M"
        break
    return found
