"""What the driver says about one GPU: NVML, or `nvidia-smi` when NVML's library cannot be loaded.

The device is found by its UUID, so that CUDA_VISIBLE_DEVICES, a reordering and MIG cannot make one rank report another
rank's GPU. May not import torch; the NVML module (`pynvml`) is an argument.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One device at one moment; sizes in MiB, what the driver does not say is None."""

    index: int | None = None
    name: str | None = None
    uuid: str | None = None
    used_mib: int | None = None
    total_mib: int | None = None
    utilisation_percent: int | None = None


class DeviceNotFoundError(LookupError):
    """The driver's list has no device that is certainly the wanted one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWanted:
    """What is known about the device that CUDA calls number `ordinal` in this process.

    Args:
        ordinal: CUDA's number for it, counted within CUDA_VISIBLE_DEVICES.
        cuda_uuid: its UUID as CUDA says it, without a prefix; for a MIG device CUDA 11.4 and later say the MIG UUID.
        visible: the value of CUDA_VISIBLE_DEVICES, or None when it is not set.
    """

    ordinal: int
    cuda_uuid: str | None = None
    visible: str | None = None

    def entry(self) -> str | None:
        """Return the entry of CUDA_VISIBLE_DEVICES that stands for the device: `3`, `GPU-5a4f...` or `MIG-...`."""
        entries = [] if self.visible is None else [entry.strip() for entry in self.visible.split(",")]
        return entries[self.ordinal] if self.ordinal < len(entries) else None


class NvmlGpu:
    """One device read through NVML.

    Args:
        nvml: the `pynvml` module, initialised.
        wanted: which device.

    Raises:
        DeviceNotFoundError: no device matches, or only a whole GPU does where CUDA sees a part of it (MIG).
    """

    def __init__(self, nvml: Any, wanted: DeviceWanted) -> None:
        self._nvml = nvml
        self._handle = _find(nvml, wanted)
        self._fixed = GpuReading(
            index=self._optional(lambda: int(nvml.nvmlDeviceGetIndex(_physical(nvml, self._handle)))),
            name=self._optional(lambda: _text(nvml.nvmlDeviceGetName(self._handle))),
            uuid=self._optional(lambda: _text(nvml.nvmlDeviceGetUUID(self._handle))),
        )

    def read(self) -> GpuReading:
        """Return the device's state now.

        `used` counts what the driver reserves for itself too: it is what a process cannot have.

        Raises:
            pynvml.NVMLError: the driver does not answer (a GPU that fell off the bus, for instance).
        """
        memory = None
        try:
            memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        except self._nvml.NVMLError_NotSupported:  # GPUs that share the host's memory have none of their own
            pass
        return replace(
            self._fixed,
            used_mib=None if memory is None else int(memory.used) // MIB,
            total_mib=None if memory is None else int(memory.total) // MIB,
            # A MIG device has no utilisation, and some sites forbid reading it.
            utilisation_percent=self._optional(lambda: int(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)),
        )

    def _optional(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except self._nvml.NVMLError:
            return None


def _find(nvml: Any, wanted: DeviceWanted) -> Any:
    """Return the NVML handle of the wanted device."""
    entry = wanted.entry()
    if entry is not None and entry.startswith("MIG-"):
        # CUDA may name the parent GPU for a MIG device; the environment names the part.
        return _by_uuid(nvml, entry)
    if wanted.cuda_uuid is not None:
        for prefix in ("GPU-", "MIG-"):
            try:
                return _whole(nvml, nvml.nvmlDeviceGetHandleByUUID(prefix + wanted.cuda_uuid))
            except nvml.NVMLError_NotFound:
                continue
            except nvml.NVMLError_InvalidArgument:  # what older drivers say to a prefix that they do not know
                continue
        raise DeviceNotFoundError(f"NVML lists no device {wanted.cuda_uuid}")
    if entry is not None and entry.startswith("GPU-"):
        return _whole(nvml, _by_uuid(nvml, entry))
    index = entry if entry is not None else str(wanted.ordinal) if wanted.visible is None else ""
    if not index.isdecimal():
        raise DeviceNotFoundError(f"CUDA_VISIBLE_DEVICES={wanted.visible!r} has no device number {wanted.ordinal}")
    return _whole(nvml, nvml.nvmlDeviceGetHandleByIndex(int(index)))


def _whole(nvml: Any, handle: Any) -> Any:
    """Refuse a GPU that is split by MIG: CUDA sees a part of it, and its numbers would be those of all parts."""
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:  # the model has no MIG, or the handle is a MIG device already
        return handle
    if current == 1 and not _is_mig(nvml, handle):
        raise DeviceNotFoundError("the GPU is split by MIG and nothing says which part is ours")
    return handle


def _by_uuid(nvml: Any, text: str) -> Any:
    """Return the device of a UUID, which may be shortened as CUDA allows it in CUDA_VISIBLE_DEVICES."""
    try:
        return nvml.nvmlDeviceGetHandleByUUID(text)
    except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
        pass
    found = [handle for handle in _devices(nvml) if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(text)]
    if len(found) != 1:
        raise DeviceNotFoundError(f"NVML lists {len(found)} devices whose UUID starts with {text!r}")
    return found[0]


def _devices(nvml: Any) -> Iterator[Any]:
    """Yield every GPU and every MIG device."""
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        yield handle
        try:
            count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        except nvml.NVMLError:
            continue
        for part in range(count):
            try:
                yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, part)
            except nvml.NVMLError_NotFound:
                continue


def _is_mig(nvml: Any, handle: Any) -> bool:
    answer = nvml.nvmlDeviceIsMigDeviceHandle(handle)
    return bool(getattr(answer, "value", answer))  # pynvml returns the ctypes object here


def _physical(nvml: Any, handle: Any) -> Any:
    """Return the GPU that a MIG device is a part of, or the GPU itself."""
    try:
        return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if _is_mig(nvml, handle) else handle
    except nvml.NVMLError:
        return handle


def _text(value: str | bytes) -> str:
    """Return a name as text: pynvml before version 11.5 returned bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


SMI_INTERVAL_S = 60.0
"""Starting nvidia-smi takes up to a second of a busy node, so it is asked this seldom, in seconds."""

_SMI_FIELDS = ("index", "uuid", "name", "memory.used", "memory.total", "utilization.gpu", "mig.mode.current")


class SmiGpu:
    """One device read through the `nvidia-smi` program, at most once in `SMI_INTERVAL_S` seconds.

    In between, `read` returns only what does not change: a number from a minute ago is not a sample of now.

    Args:
        wanted: which device.
        clock: seconds that only grow; for tests.
    """

    def __init__(self, wanted: DeviceWanted, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._wanted = wanted
        self._clock = clock
        self._asked: float | None = None
        self._fixed = GpuReading()

    def read(self) -> GpuReading:
        """Return the device's state now, or only its index, name and UUID when it was asked a short time ago.

        Raises:
            DeviceNotFoundError: the program's list has no device that is certainly ours.
            OSError, subprocess.SubprocessError: the program is missing, failed, or took more than ten seconds.
        """
        now = self._clock()
        if self._asked is not None and now - self._asked < SMI_INTERVAL_S:
            return self._fixed
        self._asked = now
        path = shutil.which("nvidia-smi")
        if path is None:
            raise FileNotFoundError("neither NVML's library nor nvidia-smi is there")
        argv = [path, f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader,nounits"]
        answer = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=True)
        reading = parse_smi(answer.stdout, self._wanted)
        self._fixed = replace(reading, used_mib=None, utilisation_percent=None)
        return reading


def parse_smi(text: str, wanted: DeviceWanted) -> GpuReading:
    """Return the wanted device from what `nvidia-smi --query-gpu=... --format=csv,noheader,nounits` printed.

    nvidia-smi lists whole GPUs only, so a MIG device is not found in it.

    Raises:
        DeviceNotFoundError: no row matches, several do, or the GPU is split by MIG.
    """
    rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines())]
    rows = [row for row in rows if len(row) == len(_SMI_FIELDS)]
    entry = wanted.entry()
    if wanted.cuda_uuid is not None:
        found = [row for row in rows if row[1] == f"GPU-{wanted.cuda_uuid}"]
    elif entry is not None and not entry.isdecimal():
        found = [row for row in rows if row[1].startswith(entry)]
    else:
        index = entry if entry is not None else str(wanted.ordinal) if wanted.visible is None else None
        found = [row for row in rows if row[0] == index]
    if len(found) != 1 or found[0][6] == "Enabled":
        raise DeviceNotFoundError(f"nvidia-smi lists {len(found)} whole GPUs that could be device {wanted.ordinal}")
    index_text, uuid, name, used, total, utilisation, _mig = found[0]
    return GpuReading(
        index=_number(index_text),
        name=name,
        uuid=uuid,
        used_mib=_number(used),
        total_mib=_number(total),
        utilisation_percent=_number(utilisation),
    )


def _number(text: str) -> int | None:
    """Return an integer, or None for `[N/A]` and `[Not Supported]`."""
    return int(text) if text.isdecimal() else None
