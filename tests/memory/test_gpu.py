"""The right device is read, whatever CUDA_VISIBLE_DEVICES and MIG do; a wrong one never is."""

from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from hpctrain.memory import gpu
from hpctrain.memory.gpu import DeviceNotFoundError, NvmlGpu
from hpctrain.memory.reader import load_nvml
from tests.memory.nvml_library import Device, Nvml

A, B, C = "GPU-aaaa1111-0000", "GPU-bbbb2222-0000", "GPU-bbbb3333-0000"
MIG1, MIG2 = "MIG-11111111-0000", "MIG-22222222-0000"


def three() -> Nvml:
    return Nvml([Device(A, used=10), Device(B, used=20), Device(C, used=30, mig=None)])


@pytest.mark.parametrize("index", [0, 1, 2])
def test_nvml_finds_the_device(index: int) -> None:
    reading = NvmlGpu(three(), ((A, B, C)[index],)).read()
    assert reading == {
        "gpu_index": index,
        "gpu_name": "NVIDIA A100-SXM4-64GB",
        "gpu_uuid": (A, B, C)[index],
        "gpu_used_mib": (index + 1) * 10,
        "gpu_total_mib": 65536,
        "gpu_utilisation_percent": 50,
    }


@pytest.mark.parametrize("uuids", [(), ("GPU-cccc", "MIG-cccc"), ("GPU-bbbb",)])
def test_nvml_does_not_guess(uuids: tuple[str, ...]) -> None:
    with pytest.raises(DeviceNotFoundError):
        NvmlGpu(three(), uuids)


def split() -> Nvml:
    part = {"name": "NVIDIA A100-SXM4-64GB MIG 1g.8gb", "total": 8000, "utilisation": None}
    parts = [Device(MIG1, used=100, **part), None, Device(MIG2, used=200, **part)]
    return Nvml([Device(A, used=10), Device(B, used=20, mig=True, parts=parts)])


@pytest.mark.parametrize(
    ("uuid", "visible", "found"),
    [
        ("bbbb2222-0000", None, (B, "MIG-bbbb2222-0000")),
        ("bbbb2222-0000", "2,1", (B, "MIG-bbbb2222-0000")),
        ("bbbb2222-0000", f"{MIG2},x", (MIG2,)),  # CUDA names the parent
    ],
)
def test_the_environment_names_a_part(
    uuid: str, visible: str | None, found: tuple[str, ...]
) -> None:
    torch = SimpleNamespace(
        cuda=SimpleNamespace(get_device_properties=lambda _: SimpleNamespace(uuid=uuid))
    )
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gpu.wanted_uuids(torch, 0, environ) == found


def test_a_mig_device_is_its_own_part() -> None:
    reading = NvmlGpu(split(), ("GPU-22222222-0000", MIG2)).read()
    fields = ("index", "uuid", "used_mib", "total_mib", "utilisation_percent")
    assert [reading[f"gpu_{name}"] for name in fields] == [1, MIG2, 200, 8000, None]


def test_a_split_gpus_sum_is_nobodys_number() -> None:
    with pytest.raises(DeviceNotFoundError, match="MIG"):
        NvmlGpu(split(), (B, "MIG-bbbb2222-0000"))


def test_what_a_device_does_not_say_is_none_and_a_lost_one_raises() -> None:
    nvml = Nvml([Device(A, shares_host_memory=True), Device(B, lost=True)])
    reading = NvmlGpu(nvml, (A,)).read()
    found = [reading[f"gpu_{name}"] for name in ("used_mib", "total_mib", "name")]
    assert found == [None, None, "NVIDIA A100-SXM4-64GB"]
    lost = NvmlGpu(nvml, (B,))
    with pytest.raises(pynvml.NVMLError, match="lost"):
        lost.read()


def test_the_real_library_says_that_there_is_no_driver_or_lists_its_devices() -> None:
    try:
        nvml = load_nvml()
    except pynvml.NVMLError as error:
        assert not Path("/dev/nvidiactl").exists(), error  # noqa: PT017
    else:
        for index in range(nvml.nvmlDeviceGetCount()):
            uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))
            assert NvmlGpu(nvml, (uuid,)).read()["gpu_index"] == index
