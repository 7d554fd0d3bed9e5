"""A sample is put together from all sensors, and no sensor's failure gets out."""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from hpctrain.memory import Sample, format_line, gpu, host, parse_line
from hpctrain.memory.reader import MemoryReader, node_name
from hpctrain.memory.sample import near_limits
from tests.memory.nvml_library import Device, Nvml

MIB = 1 << 20
UUID = "aaaa1111-0000"


class Torch:
    """The part of torch that is asked about one GPU."""

    def __init__(self, *, device: int | None = 0, hip: str | None = None) -> None:
        self.version = SimpleNamespace(hip=hip)
        properties = SimpleNamespace(name="Some GPU", uuid=UUID)
        self.cuda = SimpleNamespace(
            is_initialized=lambda: device is not None,
            current_device=lambda: device,
            get_device_properties=lambda _device: properties,
            memory_stats=lambda _device: {
                "allocated_bytes.all.current": 10 * MIB,
                "allocated_bytes.all.peak": 20 * MIB + 5,
                "reserved_bytes.all.current": 30 * MIB,
            },
            mem_get_info=lambda _device: (600 * MIB, 1000 * MIB),
        )


def no_nvml() -> Any:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


def reader(
    notes: list[str],
    *,
    torch: Any = None,
    nvml: Callable[[], Any] = no_nvml,
    environ: dict[str, str] | None = None,
) -> MemoryReader:
    return MemoryReader(
        rank=1,
        world_size=4,
        local_rank=1,
        note=notes.append,
        torch=lambda: torch,
        nvml=nvml,
        environ={"SLURMD_NODENAME": "n1", **(environ or {})},
    )


def test_on_a_machine_without_gpu_the_host_is_reported() -> None:
    notes: list[str] = []
    sample = reader(notes).read(3, "step")
    assert (sample.host, sample.rank, sample.world_size, sample.local_rank, sample.step) == (
        "n1",
        1,
        4,
        1,
        3,
    )
    assert sample.torch_allocated_mib is sample.gpu_total_mib is sample.gpu_name is None
    assert sample.rss_mib
    assert sample.rss_mib > 5
    assert sample.node_used_mib
    assert sample.node_total_mib
    assert sample.children_rss_mib is not None
    assert " | torch - | gpu - | process rss=" in format_line(sample)
    assert notes == []


def test_a_gpu_is_reported_by_torch_and_nvml() -> None:
    notes: list[str] = []
    nvml = Nvml([Device("GPU-zzzz"), Device(f"GPU-{UUID}", used=400)])
    sample = reader(notes, torch=Torch(), nvml=lambda: nvml).read(1, "first_step")
    assert (sample.torch_allocated_mib, sample.torch_peak_mib, sample.torch_reserved_mib) == (
        10,
        20,
        30,
    )
    assert (sample.gpu_index, sample.gpu_uuid, sample.gpu_used_mib) == (1, f"GPU-{UUID}", 400)
    assert (sample.gpu_total_mib, sample.gpu_utilisation_percent) == (65536, 50)
    assert parse_line(format_line(sample)) == sample
    assert notes == []


def test_a_process_that_does_not_use_the_gpu_reports_none() -> None:
    sample = reader([], torch=Torch(device=None), nvml=lambda: Nvml([Device("GPU-0")])).read(
        1, "step"
    )
    assert sample.gpu_uuid is None
    assert sample.torch_allocated_mib is None


def test_without_nvml_the_runtime_is_asked() -> None:
    notes: list[str] = []
    own = reader(notes, torch=Torch())
    for _ in range(3):
        sample = own.read(1, "step")
    assert (sample.gpu_name, sample.gpu_used_mib, sample.gpu_total_mib) == ("Some GPU", 400, 1000)
    assert (sample.gpu_index, sample.gpu_utilisation_percent) == (None, None)
    assert [note.split(":")[0] for note in notes] == ["cannot read NVML"]  # once


def test_an_amd_gpu_is_torchs_own() -> None:
    notes: list[str] = []
    sample = reader(notes, torch=Torch(hip="6.4"), nvml=lambda: 1 / 0).read(1, "step")
    assert (sample.gpu_index, sample.gpu_used_mib, sample.gpu_name) == (None, 400, "Some GPU")
    assert notes == []


def test_a_sensor_that_fails_is_none_and_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Any:
        raise OSError("gone")

    for module, name in ((host, "own_rss_mib"), (host, "node_mib"), (host, "find_limit")):
        monkeypatch.setattr(module, name, broken)
    monkeypatch.setattr(host, "children_rss_mib", broken)
    monkeypatch.setattr(gpu, "read_allocator", broken)
    notes: list[str] = []
    nvml = Nvml([Device(f"GPU-{UUID}", lost=True)])
    torch = Torch()
    torch.cuda.mem_get_info = broken
    own = reader(notes, torch=torch, nvml=lambda: nvml)
    for _ in range(2):
        sample = own.read(1, "step")
    line = format_line(sample)
    assert line.endswith(" | torch - | gpu - | process - | node - | cgroup -")
    assert parse_line(line) == sample
    sensors = ["torch", "gpu", "gpu by torch", "process", "children", "node", "cgroup"]
    assert sorted(note.split(":")[0].removeprefix("cannot read ") for note in notes) == sorted(
        sensors
    )


def test_the_nodes_name_is_slurms() -> None:
    assert node_name({"SLURMD_NODENAME": "nid001"}) == "nid001"
    assert node_name({}) == os.uname().nodename


def limits(**values: int) -> dict[str, str]:
    base = {
        "time_ms": 0,
        "step": 1,
        "event": "step",
        "host": "n",
        "rank": 0,
        "world_size": 1,
        "local_rank": 0,
    }
    return dict(near_limits(Sample(**base, **values)))


def test_95_percent_of_a_limit() -> None:
    gpu = {"gpu_total_mib": 1000, "torch_reserved_mib": 900}
    assert (
        limits(**gpu, gpu_used_mib=990, torch_peak_mib=800) == {}
    )  # the allocator's cache is no need
    assert limits(**gpu, gpu_used_mib=950, torch_peak_mib=900) == {}
    assert limits(**gpu, gpu_used_mib=951, torch_peak_mib=900) == {
        "gpu": "torch's peak 900M and 51M outside of torch are 95.1% of the GPU's 1000M"
    }
    assert limits(gpu_total_mib=1000, torch_peak_mib=951)["gpu"].startswith(
        "torch's peak 951M and 0M"
    )
    assert (
        limits(cgroup_used_mib=95, cgroup_limit_mib=100, node_used_mib=99, node_total_mib=100) == {}
    )
    assert limits(cgroup_used_mib=96, cgroup_limit_mib=100) == {
        "host": "the cgroup uses 96M, 96.0% of its 100M"
    }
    assert limits(node_used_mib=96, node_total_mib=100) == {
        "host": "the node uses 96M, 96.0% of its 100M"
    }
    assert limits() == {}
