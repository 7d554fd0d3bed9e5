"""The probes of places, on this machine: file systems, the network switched off, a node with its
GPUs.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from hpctrain.doctor import environment, node
from hpctrain.doctor.facts import DoctorContext
from hpctrain.util.file_systems import FileSystem, file_system, quota_of

# -- storage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/proc", "/dev/shm", "/usr/bin/env"])
def test_the_file_system_is_what_findmnt_says(path: str) -> None:
    said = subprocess.run(
        ["findmnt", "-n", "-o", "FSTYPE", "-T", path], capture_output=True, text=True, check=True
    )
    assert file_system(path).kind == said.stdout.split()[-1]


@pytest.mark.parametrize(
    ("kind", "said", "used"),
    [
        ("nfs4", " Filesystem blocks quota\n nas:/h 100* 90 100 5 7 0 0 0", 102400),
        # It breaks the line after a long path.
        ("lustre", "/mnt/h\n    100* 90 0 - 7 0 0 -", 102400),
        ("nfs4", "Disk quotas for user ada (uid 1000): none", None),
        ("nfs4", "nas:/h 100", None),
    ],
)
def test_the_quota_programs_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, said: str, used: int | None
) -> None:
    path = tmp_path / "bin" / ("lfs" if kind == "lustre" else "quota")
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\nexit 1\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    found = quota_of(FileSystem(mount="/mnt/h", kind=kind, device="nas:/h", free=0))
    assert (found.used if found else None) == used
    if found is not None:
        assert (found.limit, found.files, found.files_limit) == (
            (90 if kind == "lustre" else 100) * 1024,
            7,
            0,
        )


# -- the network switched off ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "the job names no model and no dataset yet"),
        (("--model_name_or_path", "m"), "the job names no dataset yet"),
        (("--dataset-name=d",), "the job names no model yet"),
    ],
)
def test_what_is_not_named_is_said(
    context: Callable[..., DoctorContext], arguments: tuple[str, ...], said: str
) -> None:
    assert environment.offline(context(spec={"arguments": arguments})).skipped == said


def test_the_libraries_and_proxies_are_offline(
    context: Callable[..., DoctorContext], tmp_path: Path
) -> None:
    (tmp_path / "says.py").write_text(
        "import os, sys\nsys.exit(os.environ['https_proxy'] + os.environ['HF_HUB_OFFLINE'])\n"
    )
    (tmp_path / "train.py").write_text("import says\n")
    facts = environment.offline(context(spec={"venv": sys.prefix, "script": "train.py"}))
    assert facts.failed == "import says"
    assert facts.messages == ("SystemExit: http://127.0.0.1:91",)


# -- a node ----------------------------------------------------------------------------------------


def test_reading_and_writing_are_measured_and_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/part.arrow").write_bytes(os.urandom(5 << 20))
    found = node.read_speed(str(tmp_path / "data"), most=4 << 20)
    assert 4 << 20 <= int(str(found["bytes"])) <= 5 << 20
    assert float(str(found["seconds"])) > 0
    before = sorted(tmp_path.rglob("*"))
    written = node.write_speed(str(tmp_path / "runs/sft-1/checkpoints"), most=16 << 20)
    assert written["bytes"] == 16 << 20
    assert sorted(tmp_path.rglob("*")) == before


def test_what_cannot_be_read_or_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert node.write_speed(str(tmp_path / "file/out"))["error"] == "Not a directory"
    assert node.write_speed("/proc/sys")["error"]
    assert node.read_speed(str(tmp_path / "nowhere"))["error"] == "it contains no file"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_the_interfaces_of_real_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert "lo" not in node.interfaces_in_use(None), "who listens has no connection"
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), server.accept()[0]:
            assert "lo" in node.interfaces_in_use(None)
            assert "lo" not in node.interfaces_in_use(port)


def test_the_cores_are_those_of_taskset() -> None:
    code = (
        "import json\nfrom hpctrain.doctor import"
        " node\nprint(json.dumps(node.process_facts({'SLURM_CPUS_PER_TASK': '4'})))"
    )
    core = str(min(os.sched_getaffinity(0)))
    done = subprocess.run(
        ["taskset", "-c", core, sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f'"cpus": "{core}", "cpus_per_task": 4' in done.stdout


def test_the_places_of_a_node_are_measured(tmp_path: Path) -> None:
    found = node.node_facts({"TMPDIR": str(tmp_path), "SLURM_GPUS_ON_NODE": "2"})
    assert found["tmp"]["type"] == file_system(tmp_path).kind  # type: ignore[index]
    assert found["gpus_given"] == 2
    assert node.node_facts({"TMPDIR": "/no/such/place"})["tmp"] == {
        "path": "/no/such/place",
        "free": None,
        "type": None,
    }


class Nvml:
    """What this probe calls of pynvml; test_the_functions_exist checks the names against the real
    one.
    """

    NVMLError = pynvml.NVMLError
    (
        NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        NVML_VOLATILE_ECC,
        NVML_AGGREGATE_ECC,
        NVML_TEMPERATURE_GPU,
    ) = (1, 0, 1, 0)
    nvmlClocksThrottleReasonHwThermalSlowdown = 0x40  # noqa: N815
    nvmlClocksThrottleReasonSwPowerCap = 0x4  # noqa: N815

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "570.1"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 4

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetIndex(self, handle: int) -> int:  # noqa: N802
        return handle

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=handle * 1000, total=10_000)

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:  # noqa: N802
        if handle == 3:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 10 * kind + counter

    def nvmlDeviceGetRemappedRows(self, handle: int) -> tuple[int, int, int, int]:  # noqa: N802
        return (0, 1, 1, 0)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:  # noqa: N802
        return 0x44

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:  # noqa: N802
        return 41

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=4711)]


def test_gpus_are_those_of_the_job_with_their_health() -> None:
    found, driver = node.gpus({"CUDA_VISIBLE_DEVICES": "1,3"}, Nvml())
    assert driver == "570.1"
    assert [gpu["index"] for gpu in found] == [1, 3]
    assert (found[0]["ecc_volatile"], found[0]["ecc_aggregate"], found[1]["ecc_volatile"]) == (
        10,
        11,
        None,
    )
    assert (found[0]["rows_pending"], found[0]["rows_failed"]) == (True, False)
    assert found[0]["throttled"] == ["power cap", "heat (hardware)"]
    assert (found[0]["celsius"], found[0]["processes"], found[0]["name"]) == (41, [4711], None)
    assert len(node.gpus({}, Nvml())[0]) == 4


def test_the_functions_exist_in_the_real_pynvml() -> None:
    import re

    text = Path(node.__file__).read_text()
    names = set(re.findall(r"nvml\.(nvml\w+|NVML_\w+)", text))
    assert len(names) > 10
    assert [name for name in names if not hasattr(pynvml, name)] == []
    for key in node._THROTTLES:
        assert hasattr(pynvml, f"nvmlClocksThrottleReason{key}")


def test_no_driver_is_no_gpu() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA driver")
    assert node.gpus({}) == ([], None)
