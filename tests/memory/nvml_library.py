"""A small NVML: the functions of pynvml that hpctrain calls, over devices that a test describes.

No GPU is needed; test_gpu.py checks that every name used here exists in the real pynvml.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from types import SimpleNamespace

import pynvml

MIB = 1 << 20


@dataclass
class Device:
    uuid: str
    name: str = "NVIDIA A100-SXM4-64GB"
    used: int = 1000
    total: int = 65536
    utilisation: int | None = 50
    shares_host_memory: bool = False
    mig: bool | None = False
    """True: split; None: the model has no MIG."""
    parts: list[Device | None] = field(default_factory=list)
    parent: Device | None = None
    lost: bool = False


class Nvml:
    """Handles are the Device objects themselves."""

    NVMLError = pynvml.NVMLError
    NVMLError_NotFound = pynvml.NVMLError_NotFound
    NVMLError_NotSupported = pynvml.NVMLError_NotSupported
    NVMLError_InvalidArgument = pynvml.NVMLError_InvalidArgument

    def __init__(self, devices: list[Device]) -> None:
        self._devices = devices
        for device in devices:
            for part in device.parts:
                if part is not None:
                    part.parent = device

    def _all(self) -> list[Device]:
        return self._devices + [
            part for device in self._devices for part in device.parts if part is not None
        ]

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self._devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:  # noqa: N802
        if index >= len(self._devices):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return self._devices[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Device:  # noqa: N802
        for device in self._all():
            if device.uuid == uuid:
                return device
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetMigMode(self, handle: Device) -> list[int]:  # noqa: N802
        if handle.mig is None or handle.parent is not None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [int(handle.mig), int(handle.mig)]

    def nvmlDeviceIsMigDeviceHandle(self, handle: Device) -> ctypes.c_uint:  # noqa: N802
        return ctypes.c_uint(handle.parent is not None)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Device) -> Device:  # noqa: N802
        assert handle.parent is not None
        return handle.parent

    def nvmlDeviceGetIndex(self, handle: Device) -> int:  # noqa: N802
        return self._devices.index(handle)

    def nvmlDeviceGetName(self, handle: Device) -> str:  # noqa: N802
        return handle.name

    def nvmlDeviceGetUUID(self, handle: Device) -> str:  # noqa: N802
        return handle.uuid

    def nvmlDeviceGetMemoryInfo(self, handle: Device) -> SimpleNamespace:  # noqa: N802
        if handle.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        if handle.shares_host_memory:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(used=handle.used * MIB + 7, total=handle.total * MIB, free=0)

    def nvmlDeviceGetUtilizationRates(self, handle: Device) -> SimpleNamespace:  # noqa: N802
        if handle.utilisation is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=handle.utilisation, memory=1)
