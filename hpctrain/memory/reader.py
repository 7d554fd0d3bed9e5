"""Takes a sample: asks every sensor, and lets none of them disturb the training.

A sensor that raises leaves its values None and is named once through `note`; the next sample asks it again.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hpctrain.memory import cgroup, host, torch_gpu
from hpctrain.memory.gpu import DeviceWanted, GpuReading, NvmlGpu, SmiGpu
from hpctrain.memory.sample import Event, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which process of the job is speaking."""

    host: str
    rank: int
    world_size: int
    local_rank: int


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """Return the node's name: Slurm's own (SLURMD_NODENAME), so that it can be given to scontrol, else the host's."""
    return environ.get("SLURMD_NODENAME") or socket.gethostname()


def load_nvml() -> Any:
    """Return `pynvml`, initialised.

    Raises:
        ImportError: the package is not installed.
        pynvml.NVMLError: there is no NVIDIA driver, or it does not answer.
    """
    import pynvml

    pynvml.nvmlInit()
    return pynvml


class MemoryReader:
    """Reads samples for one process.

    Args:
        identity: which rank this is.
        note: called with one line when a sensor fails for the first time; it must not raise.
        environ: the environment; for CUDA_VISIBLE_DEVICES.
        nvml: returns the initialised NVML module or raises.
        torch: returns the torch module, or None when the process has not imported it.
        root: where /proc/self/cgroup and the cgroup mounts are found.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        note: Callable[[str], None],
        environ: Mapping[str, str] = os.environ,
        nvml: Callable[[], Any] = load_nvml,
        torch: Callable[[], Any] = torch_gpu.loaded_torch,
        root: Path = Path("/"),
    ) -> None:
        self._identity = identity
        self._note = note
        self._environ = environ
        self._nvml = nvml
        self._torch = torch
        self._root = root
        self._children = host.ChildrenMemory()
        self._failed: set[str] = set()
        self._gpu: NvmlGpu | SmiGpu | None = None
        self._gpu_device: int | None = None
        self._cgroup: cgroup.CgroupLevel | None = None
        self._cgroup_known = False

    def read(self, step: int, event: Event) -> Sample:
        """Return one sample. Never raises for what a sensor does.

        Args:
            step: optimizer steps finished.
            event: why the sample is taken; only at other events than `step` are all threads searched for children.
        """
        torch = self._torch()
        device = self._try("torch", lambda: torch_gpu.current_device(torch))
        allocator, gpu = torch_gpu.AllocatorReading(), GpuReading()
        if device is not None:
            allocator = self._try("torch", lambda: torch_gpu.read_allocator(torch, device)) or allocator
            gpu = self._read_gpu(torch, device) or gpu
        node = self._try("node", host.node_mib) or (None, None)
        used, limit = self._try("cgroup", self._read_cgroup) or (None, None)
        return Sample(
            time_ms=time.time_ns() // 1_000_000,
            step=step,
            event=event,
            host=self._identity.host,
            rank=self._identity.rank,
            world_size=self._identity.world_size,
            local_rank=self._identity.local_rank,
            torch_allocated_mib=allocator.allocated_mib,
            torch_peak_mib=allocator.peak_mib,
            torch_reserved_mib=allocator.reserved_mib,
            gpu_index=gpu.index,
            gpu_name=gpu.name,
            gpu_uuid=gpu.uuid,
            gpu_used_mib=gpu.used_mib,
            gpu_total_mib=gpu.total_mib,
            gpu_utilisation_percent=gpu.utilisation_percent,
            rss_mib=self._try("process", host.own_rss_mib),
            children_rss_mib=self._try("children", lambda: self._children.read_mib(rescan=event != "step")),
            node_used_mib=node[0],
            node_total_mib=node[1],
            cgroup_used_mib=used,
            cgroup_limit_mib=limit,
        )

    def _try(self, sensor: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except Exception as error:  # whatever a sensor does, training goes on
            if sensor not in self._failed:
                self._failed.add(sensor)
                self._note(f"cannot read {sensor}: {type(error).__name__}: {error}")
            return None

    def _read_gpu(self, torch: Any, device: int) -> GpuReading | None:
        """Return the driver's numbers, filled up with torch's where the driver says nothing."""
        if device != self._gpu_device:
            self._gpu_device = device
            self._gpu = None
            if not self._try("torch", lambda: torch_gpu.is_amd(torch)):
                visible = self._environ.get("CUDA_VISIBLE_DEVICES")
                found = self._try("torch", lambda: torch_gpu.wanted(torch, device, self._environ))
                self._gpu = self._open_gpu(found or DeviceWanted(ordinal=device, visible=visible))
        reading = None if self._gpu is None else self._try("gpu", self._gpu.read)
        if reading is not None and reading.used_mib is not None:
            return reading
        whole = self._try("gpu by torch", lambda: torch_gpu.read_device(torch, device, self._environ))
        if reading is None or whole is None:
            return reading or whole
        return GpuReading(
            index=reading.index,
            name=reading.name or whole.name,
            uuid=reading.uuid,
            used_mib=whole.used_mib,
            total_mib=reading.total_mib or whole.total_mib,
            utilisation_percent=reading.utilisation_percent,
        )

    def _open_gpu(self, wanted: DeviceWanted) -> NvmlGpu | SmiGpu:
        """Return NVML's view of the device, or nvidia-smi's when NVML cannot give one."""
        return self._try("NVML", lambda: NvmlGpu(self._nvml(), wanted)) or SmiGpu(wanted)

    def _read_cgroup(self) -> tuple[int, int | None] | None:
        """Return the used memory and the limit of the limiting level, or None when nothing limits this process."""
        if not self._cgroup_known:
            self._cgroup = cgroup.find_limit(self._root)
            self._cgroup_known = True
        if self._cgroup is None:
            return None
        return self._cgroup.used_mib(), self._cgroup.limit_mib()
