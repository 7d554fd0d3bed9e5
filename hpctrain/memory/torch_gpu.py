"""What torch itself knows: its allocator's numbers, and which device this process uses.

torch is never imported here. A process that trains has it in `sys.modules` already; one that has not, has nothing to
read. `torch.cuda` is also the name under which torch drives AMD's GPUs (ROCm).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpctrain.memory.gpu import DeviceWanted, GpuReading

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class AllocatorReading:
    """torch's caching allocator on one device, in MiB."""

    allocated_mib: int | None = None
    peak_mib: int | None = None
    reserved_mib: int | None = None


def loaded_torch() -> Any:
    """Return the torch module if this process imported it, else None."""
    return sys.modules.get("torch")


def current_device(torch: Any) -> int | None:
    """Return the number of the GPU this process works on, or None when it has not started using one.

    Asking does not start CUDA: a process that trains on the CPU of a GPU node must not take memory on the GPU.
    """
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.current_device())


def read_allocator(torch: Any, device: int) -> AllocatorReading:
    """Return the allocator's state: `memory_allocated`, `max_memory_allocated` and `memory_reserved` in one reading."""
    stats = torch.cuda.memory_stats(device)
    return AllocatorReading(
        allocated_mib=stats.get("allocated_bytes.all.current", 0) // MIB,
        peak_mib=stats.get("allocated_bytes.all.peak", 0) // MIB,
        reserved_mib=stats.get("reserved_bytes.all.current", 0) // MIB,
    )


def read_device(torch: Any, device: int, environ: Mapping[str, str]) -> GpuReading:
    """Return what torch says about the device as a whole, for GPUs that NVML does not know (AMD) or cannot read.

    `used` is total minus free as the driver says it, all processes together.
    """
    free, total = torch.cuda.mem_get_info(device)
    return GpuReading(
        index=_amd_index(device, environ) if is_amd(torch) else None,
        name=str(torch.cuda.get_device_properties(device).name),
        used_mib=(total - free) // MIB,
        total_mib=total // MIB,
    )


def is_amd(torch: Any) -> bool:
    """Return whether this torch was built for ROCm."""
    return getattr(torch.version, "hip", None) is not None


def wanted(torch: Any, device: int, environ: Mapping[str, str]) -> DeviceWanted:
    """Return how NVML and nvidia-smi will find the device; torch before 2.5 does not say the UUID."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return DeviceWanted(
        ordinal=device,
        cuda_uuid=None if uuid is None else str(uuid),
        visible=environ.get("CUDA_VISIBLE_DEVICES"),
    )


def _amd_index(device: int, environ: Mapping[str, str]) -> int | None:
    """Return the physical index of an AMD GPU; HIP_VISIBLE_DEVICES counts in what ROCR_VISIBLE_DEVICES left."""
    index: int | None = device
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        entries = environ[name].split(",") if environ.get(name) else None
        if entries is None or index is None:
            continue
        text = entries[index].strip() if index < len(entries) else ""
        index = int(text) if text.isdecimal() else None
    return index
