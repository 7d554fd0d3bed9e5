"""Takes samples from all sensors; a failing sensor never disturbs the training.

If a sensor raises, its values are None and `note` is called once; the next sample tries it again.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from hpctrain.memory import gpu, host
from hpctrain.memory.gpu import GpuReading, NvmlGpu
from hpctrain.memory.sample import Event, Sample, node_name

T = TypeVar("T")

__all__ = ["MemoryReader", "load_nvml", "node_name"]


def load_nvml() -> Any:
    """Return `pynvml`, initialized.

    Raises:
        ImportError: the package is not installed.
        pynvml.NVMLError: the NVIDIA driver is missing or does not answer.
    """
    import pynvml

    pynvml.nvmlInit()
    return pynvml


class MemoryReader:
    """Reads samples for one process.

    Args:
        rank, world_size, local_rank: which process of the job this is.
        note: called with one line when a sensor fails for the first time; it must not raise.
        environ: the environment, for the node's name and CUDA_VISIBLE_DEVICES.
        nvml: returns the initialized NVML module or raises.
        torch: returns the torch module, or None if the process has not imported it.
        root: where /proc/self/cgroup and the cgroup mounts are.
    """

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        local_rank: int,
        note: Callable[[str], None],
        environ: Mapping[str, str] = os.environ,
        nvml: Callable[[], Any] = load_nvml,
        torch: Callable[[], Any] = lambda: sys.modules.get("torch"),
        root: Path = Path("/"),
    ) -> None:
        self._host = node_name(environ)
        self._rank, self._world_size, self._local_rank = rank, world_size, local_rank
        self._note = note
        self._environ = environ
        self._nvml = nvml
        self._torch = torch
        self._root = root
        self._failed: set[str] = set()
        self._gpu: NvmlGpu | None = None
        self._gpu_device: int | None = None

    def read(self, step: int, event: Event) -> Sample:
        """Return one sample; a failing sensor never raises.

        Args:
            step: optimizer steps finished.
            event: why the sample is taken.
        """
        torch = self._torch()
        device = self._try("torch", lambda: gpu.current_device(torch))
        allocator, device_reading = None, None
        if device is not None:
            allocator = self._try("torch", lambda: gpu.read_allocator(torch, device))
            device_reading = self._read_gpu(torch, device)
        allocated, peak, reserved = allocator or (None, None, None)
        device_reading = device_reading or GpuReading()
        node = self._try("node", host.node_mib) or (None, None)
        used, limit = self._try("cgroup", self._read_cgroup) or (None, None)
        return Sample(
            time_ms=time.time_ns() // 1_000_000,
            step=step,
            event=event,
            host=self._host,
            rank=self._rank,
            world_size=self._world_size,
            local_rank=self._local_rank,
            torch_allocated_mib=allocated,
            torch_peak_mib=peak,
            torch_reserved_mib=reserved,
            gpu_index=device_reading.index,
            gpu_name=device_reading.name,
            gpu_uuid=device_reading.uuid,
            gpu_used_mib=device_reading.used_mib,
            gpu_total_mib=device_reading.total_mib,
            gpu_utilisation_percent=device_reading.utilisation_percent,
            rss_mib=self._try("process", host.own_rss_mib),
            children_rss_mib=self._try("children", host.children_rss_mib),
            node_used_mib=node[0],
            node_total_mib=node[1],
            cgroup_used_mib=used,
            cgroup_limit_mib=limit,
        )

    def _try(self, sensor: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except Exception as error:  # no sensor may stop the training
            if sensor not in self._failed:
                self._failed.add(sensor)
                self._note(f"cannot read {sensor}: {type(error).__name__}: {error}")
            return None

    def _read_gpu(self, torch: Any, device: int) -> GpuReading | None:
        if device != self._gpu_device:
            self._gpu_device = device
            self._gpu = None
            if not self._try("torch", lambda: bool(torch.version.hip)):
                uuids = self._try("torch", lambda: gpu.wanted_uuids(torch, device, self._environ))
                self._gpu = self._try("NVML", lambda: NvmlGpu(self._nvml(), uuids or ()))
        reading = None if self._gpu is None else self._try("gpu", self._gpu.read)
        if reading is not None and reading.used_mib is not None:
            return reading
        whole = self._try("gpu by torch", lambda: gpu.read_device(torch, device))
        if reading is None or whole is None:
            return reading or whole
        used, total = whole.used_mib, reading.total_mib or whole.total_mib
        return replace(reading, name=reading.name or whole.name, used_mib=used, total_mib=total)

    @cached_property
    def _cgroup(self) -> host.CgroupLevel | None:
        return host.find_limit(self._root)

    def _read_cgroup(self) -> tuple[int, int | None] | None:
        if self._cgroup is None:
            return None
        return self._cgroup.used_mib(), self._cgroup.limit_mib()
