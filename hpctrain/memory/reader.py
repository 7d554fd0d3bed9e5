"""Takes samples from all sensors; a failing sensor never disturbs the training.

If a sensor raises, its values are None and `note` is called once; the next sample tries it again.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeVar

from hpctrain.memory import gpu, host
from hpctrain.memory.sample import Event, Sample, node_name

T = TypeVar("T")


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
    ) -> None:
        self._rank: dict[str, Any] = {
            "rank": rank,
            "world_size": world_size,
            "local_rank": local_rank,
        }
        self._host, self._environ = node_name(environ), environ
        self._note, self._nvml, self._torch = note, nvml, torch
        self._failed: set[str] = set()
        self._gpu: gpu.NvmlGpu | None = None
        self._gpu_device: int | None = None

    def read(self, step: int, event: Event) -> Sample:
        """Return one sample; a failing sensor never raises.

        Args:
            step: optimizer steps finished.
            event: why the sample is taken.
        """
        torch, found = self._torch(), dict[str, Any]()
        device = self._try("torch", lambda: gpu.current_device(torch))
        if device is not None:
            found |= self._try("torch", lambda: gpu.read_allocator(torch, device)) or {}
            found |= self._read_gpu(torch, device)
        node = self._try("node", host.node_mib) or (None, None)
        cgroup = self._try("cgroup", self._read_cgroup) or (None, None)
        return Sample(
            time_ms=time.time_ns() // 1_000_000,
            step=step,
            event=event,
            host=self._host,
            rss_mib=self._try("process", host.own_rss_mib),
            children_rss_mib=self._try("children", host.children_rss_mib),
            node_used_mib=node[0],
            node_total_mib=node[1],
            cgroup_used_mib=cgroup[0],
            cgroup_limit_mib=cgroup[1],
            **self._rank,
            **found,
        )

    def _try(self, sensor: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except Exception as error:  # no sensor may stop the training
            if sensor not in self._failed:
                self._failed.add(sensor)
                self._note(f"cannot read {sensor}: {type(error).__name__}: {error}")
            return None

    def _read_gpu(self, torch: Any, device: int) -> dict[str, Any]:
        if device != self._gpu_device:
            self._gpu, self._gpu_device = None, device
            if not self._try("torch", lambda: bool(torch.version.hip)):
                uuids = self._try("torch", lambda: gpu.wanted_uuids(torch, device, self._environ))
                self._gpu = self._try("NVML", lambda: gpu.NvmlGpu(self._nvml(), uuids or ()))
        reading = (None if self._gpu is None else self._try("gpu", self._gpu.read)) or {}
        if reading.get("gpu_used_mib") is not None:
            return reading
        whole = self._try("gpu by torch", lambda: gpu.read_device(torch, device)) or {}
        return {**whole, **{name: value for name, value in reading.items() if value is not None}}

    def _read_cgroup(self) -> tuple[int, int | None] | None:
        level = self._cgroup
        return None if level is None else (level.used_mib(), level.limit_mib())

    @cached_property
    def _cgroup(self) -> host.CgroupLevel | None:
        return host.find_limit()
