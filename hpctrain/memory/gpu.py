"""One GPU's memory and utilization, as reported by the driver (NVML) and by torch.

The device is found by its UUID, so that CUDA_VISIBLE_DEVICES, a reordering and MIG cannot make one
rank report another rank's GPU. This module must not import torch; the NVML module (`pynvml`) is an
argument.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

MIB = 1 << 20


class DeviceNotFoundError(LookupError):
    """No device in the driver's list certainly matches."""


class NvmlGpu:
    """One device read through NVML.

    Args:
        nvml: the `pynvml` module, initialized.
        uuids: possible UUIDs of the device, with their prefixes (`wanted_uuids`).

    Raises:
        DeviceNotFoundError: no device matches, or only an entire GPU of which CUDA sees a part
            (MIG).
    """

    def __init__(self, nvml: Any, uuids: Sequence[str]) -> None:
        self._nvml, self._handle = nvml, _find(nvml, uuids)
        self._fixed = {
            "gpu_index": self._optional(
                lambda: int(nvml.nvmlDeviceGetIndex(_physical(nvml, self._handle)))
            ),
            "gpu_name": self._optional(lambda: str(nvml.nvmlDeviceGetName(self._handle))),
            "gpu_uuid": self._optional(lambda: str(nvml.nvmlDeviceGetUUID(self._handle))),
        }

    def read(self) -> dict[str, Any]:
        """Return the device's current state as fields of a Sample; None for what the driver does
        not report.

        `used` includes what the driver reserves for itself, because no process can use it.

        Raises:
            pynvml.NVMLError: the driver does not answer, for instance because the GPU fell off the
                bus.
        """
        memory = None
        # GPUs that share the host's memory do not report their own.
        with contextlib.suppress(self._nvml.NVMLError_NotSupported):
            memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        return {
            **self._fixed,
            "gpu_used_mib": None if memory is None else int(memory.used) // MIB,
            "gpu_total_mib": None if memory is None else int(memory.total) // MIB,
            # A MIG device has no utilization, and some sites forbid reading it.
            "gpu_utilisation_percent": self._optional(
                lambda: int(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
            ),
        }

    def _optional(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except self._nvml.NVMLError:
            return None


def _find(nvml: Any, uuids: Sequence[str]) -> Any:
    """Return the NVML handle of the device. A GPU split by MIG is refused: CUDA sees one part of
    it, and NVML reports the sum of all parts.
    """
    for uuid in uuids:
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            continue
        try:
            current, _pending = nvml.nvmlDeviceGetMigMode(handle)
        except nvml.NVMLError:  # the GPU model has no MIG, or the handle is a MIG device already
            return handle
        if current == 1 and not _is_mig(nvml, handle):
            raise DeviceNotFoundError(
                "the GPU is split by MIG, and the instance of this process is unknown"
            )
        return handle
    raise DeviceNotFoundError(f"NVML lists no device {' or '.join(uuids)}")


def _is_mig(nvml: Any, handle: Any) -> bool:
    answer = nvml.nvmlDeviceIsMigDeviceHandle(handle)
    return bool(getattr(answer, "value", answer))  # pynvml returns the ctypes object here


def _physical(nvml: Any, handle: Any) -> Any:
    if _is_mig(nvml, handle):
        return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    return handle


def current_device(torch: Any) -> int | None:
    """Return the index of the GPU that this process uses, or None before it uses one.

    This does not initialize CUDA: a process that trains on the CPU of a GPU node must not take GPU
    memory.
    """
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.current_device())


def read_allocator(torch: Any, device: int) -> dict[str, int]:
    """Return `memory_allocated`, `max_memory_allocated` and `memory_reserved` of torch's caching
    allocator on a device, in MiB, from one reading, as fields of a Sample.
    """
    stats = torch.cuda.memory_stats(device)
    names = {
        "torch_allocated_mib": "allocated_bytes.all.current",
        "torch_peak_mib": "allocated_bytes.all.peak",
        "torch_reserved_mib": "reserved_bytes.all.current",
    }
    return {field: stats.get(name, 0) // MIB for field, name in names.items()}


def read_device(torch: Any, device: int) -> dict[str, Any]:
    """Return torch's reading of the entire device as fields of a Sample, for GPUs that NVML does
    not support (AMD) or cannot read.

    `used` is the driver's total minus free, over all processes.
    """
    free, total = torch.cuda.mem_get_info(device)
    name = str(torch.cuda.get_device_properties(device).name)
    return {
        "gpu_name": name,
        "gpu_used_mib": (total - free) // MIB,
        "gpu_total_mib": total // MIB,
    }


def wanted_uuids(torch: Any, device: int, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the possible NVML UUIDs of CUDA device `device`.

    For a MIG device CUDA may report the parent GPU; CUDA_VISIBLE_DEVICES has the MIG UUID.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    entry = visible[device].strip() if device < len(visible) else ""
    if entry.startswith("MIG-"):
        return (entry,)
    uuid = torch.cuda.get_device_properties(device).uuid
    return f"GPU-{uuid}", f"MIG-{uuid}"
