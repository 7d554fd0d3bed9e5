"""The right device is read, whatever CUDA_VISIBLE_DEVICES and MIG do; a wrong one never is."""

import os
import re
from pathlib import Path

import pynvml
import pytest
from nvml_library import Device, Nvml

from hpctrain.memory import gpu
from hpctrain.memory.gpu import DeviceNotFoundError, DeviceWanted, GpuReading, NvmlGpu, SmiGpu, parse_smi
from hpctrain.memory.reader import load_nvml

A, B, C = "GPU-aaaa1111-0000", "GPU-bbbb2222-0000", "GPU-bbbb3333-0000"
MIG1, MIG2 = "MIG-11111111-0000", "MIG-22222222-0000"


def three() -> Nvml:
    return Nvml([Device(A, used=10), Device(B, used=20), Device(C, used=30, mig=None)])


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (DeviceWanted(ordinal=0, cuda_uuid="bbbb2222-0000"), 1),  # what torch says wins
        (DeviceWanted(ordinal=0, cuda_uuid="bbbb2222-0000", visible="2,1"), 1),
        (DeviceWanted(ordinal=0, cuda_uuid="bbbb3333-0000"), 2),
        (DeviceWanted(ordinal=1), 1),
        (DeviceWanted(ordinal=1, visible="2,0"), 0),
        (DeviceWanted(ordinal=0, visible=" 2 "), 2),
        (DeviceWanted(ordinal=1, visible=f"{A},{C}"), 2),
        (DeviceWanted(ordinal=0, visible="GPU-bbbb3"), 2),  # CUDA allows a shortened UUID
    ],
)
def test_nvml_finds_the_device(wanted: DeviceWanted, index: int) -> None:
    reading = NvmlGpu(three(), wanted).read()
    assert reading == GpuReading(
        index=index,
        name="NVIDIA A100-SXM4-64GB",
        uuid=(A, B, C)[index],
        used_mib=(index + 1) * 10,
        total_mib=65536,
        utilisation_percent=50,
    )


@pytest.mark.parametrize(
    "wanted",
    [
        DeviceWanted(ordinal=0, cuda_uuid="cccc"),
        DeviceWanted(ordinal=2, visible="0,1"),
        DeviceWanted(ordinal=0, visible=""),
        DeviceWanted(ordinal=0, visible="-1"),
        DeviceWanted(ordinal=0, visible="GPU-bbbb"),  # two start like this
        DeviceWanted(ordinal=0, visible="GPU-dddd"),
        DeviceWanted(ordinal=0, visible="MIG-dddd"),
    ],
)
def test_nvml_does_not_guess(wanted: DeviceWanted) -> None:
    with pytest.raises(DeviceNotFoundError):
        NvmlGpu(three(), wanted)


def split() -> Nvml:
    part = {"name": "NVIDIA A100-SXM4-64GB MIG 1g.8gb", "total": 8000, "utilisation": None}
    parts = [Device(MIG1, used=100, **part), None, Device(MIG2, used=200, **part)]
    return Nvml([Device(A, used=10), Device(B, used=20, mig=True, parts=parts)])


@pytest.mark.parametrize(
    "wanted",
    [
        DeviceWanted(ordinal=0, cuda_uuid="22222222-0000"),
        DeviceWanted(ordinal=0, visible=MIG2),
        DeviceWanted(ordinal=0, visible="MIG-2222"),
        DeviceWanted(ordinal=0, cuda_uuid="bbbb2222-0000", visible=MIG2),  # CUDA names the parent
    ],
)
def test_a_mig_device_is_its_own_part(wanted: DeviceWanted) -> None:
    reading = NvmlGpu(split(), wanted).read()
    assert (reading.index, reading.uuid, reading.used_mib, reading.total_mib) == (1, MIG2, 200, 8000)
    assert reading.utilisation_percent is None


@pytest.mark.parametrize(
    "wanted",
    [DeviceWanted(ordinal=0, cuda_uuid="bbbb2222-0000"), DeviceWanted(ordinal=1), DeviceWanted(ordinal=0, visible=B)],
)
def test_a_split_gpus_sum_is_nobodys_number(wanted: DeviceWanted) -> None:
    with pytest.raises(DeviceNotFoundError, match="MIG"):
        NvmlGpu(split(), wanted)


def test_what_a_device_does_not_say_is_none_and_a_lost_one_raises() -> None:
    nvml = Nvml([Device(A, shares_host_memory=True), Device(B, lost=True)], bytes_=True)
    reading = NvmlGpu(nvml, DeviceWanted(ordinal=0)).read()
    assert (reading.used_mib, reading.total_mib, reading.name) == (None, None, "NVIDIA A100-SXM4-64GB")
    lost = NvmlGpu(nvml, DeviceWanted(ordinal=1))
    with pytest.raises(pynvml.NVMLError, match="lost"):
        lost.read()


def test_every_nvml_name_that_is_used_exists() -> None:
    used = set(re.findall(r"nvml\.(nvml\w+|NVML\w+)", Path(gpu.__file__).read_text()))
    assert {"nvmlDeviceGetHandleByUUID", "NVMLError_NotFound"} < used
    assert [name for name in used if not hasattr(pynvml, name)] == []


def test_the_real_library_says_that_there_is_no_driver_or_lists_its_devices() -> None:
    try:
        nvml = load_nvml()
    except pynvml.NVMLError as error:
        assert not Path("/dev/nvidiactl").exists(), error  # noqa: PT017
    else:
        for index in range(nvml.nvmlDeviceGetCount()):
            assert NvmlGpu(nvml, DeviceWanted(ordinal=index)).read().index == index


# -- nvidia-smi --------------------------------------------------------------------------------------------------------

TABLE = (
    f"0, {A}, NVIDIA A100-SXM4-64GB, 11, 65536, 7, Disabled\n"
    f"1, {B}, NVIDIA A100-SXM4-64GB, 22, 65536, [N/A], [N/A]\n"
    f"2, {C}, NVIDIA H100, 33, 81559, 99, Enabled\n"
)


@pytest.mark.parametrize(
    ("wanted", "used"),
    [
        (DeviceWanted(ordinal=0, cuda_uuid="bbbb2222-0000"), 22),
        (DeviceWanted(ordinal=1), 22),
        (DeviceWanted(ordinal=1, visible="1,0"), 11),
        (DeviceWanted(ordinal=0, visible="GPU-bbbb2"), 22),
    ],
)
def test_smi_finds_the_device(wanted: DeviceWanted, used: int) -> None:
    assert parse_smi(TABLE, wanted).used_mib == used


@pytest.mark.parametrize(
    "wanted",
    [
        DeviceWanted(ordinal=0, visible="MIG-1"),
        DeviceWanted(ordinal=2),  # split by MIG
        DeviceWanted(ordinal=0, visible="GPU-bbbb"),
        DeviceWanted(ordinal=3),
        DeviceWanted(ordinal=1, visible="0"),
    ],
)
def test_smi_does_not_guess(wanted: DeviceWanted) -> None:
    with pytest.raises(DeviceNotFoundError):
        parse_smi(TABLE, wanted)


def program(folder: Path, body: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{body}")
    path.chmod(0o755)


def test_the_program_is_run_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, f'echo "$@" >> {tmp_path}/calls\ncat <<END\n{TABLE}END\n')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    now = 0.0
    smi = SmiGpu(DeviceWanted(ordinal=0), clock=lambda: now)
    first = smi.read()
    assert (first.used_mib, first.utilisation_percent) == (11, 7)
    now = 59.0
    between = smi.read()
    assert (between.uuid, between.total_mib, between.used_mib, between.utilisation_percent) == (A, 65536, None, None)
    now = 60.0
    assert smi.read().used_mib == 11
    call = "--query-gpu=index,uuid,name,memory.used,memory.total,utilization.gpu,mig.mode.current"
    assert (tmp_path / "calls").read_text() == f"{call} --format=csv,noheader,nounits\n" * 2


def test_a_program_that_fails_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "echo 'NVIDIA-SMI has failed'; exit 9\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(Exception, match="exit status 9"):
        SmiGpu(DeviceWanted(ordinal=0)).read()
