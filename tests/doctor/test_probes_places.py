"""The probes of places, on this machine: file systems, the network switched off, a node with its GPUs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from hpctrain.doctor.facts import Case
from hpctrain.doctor.probes import disk, node, offline, storage

# -- storage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/proc", "/dev/shm", "/usr/bin/env"])
def test_the_file_system_is_what_findmnt_says(path: str) -> None:
    said = subprocess.run(["findmnt", "-n", "-o", "FSTYPE", "-T", path], capture_output=True, text=True, check=True)
    assert storage.file_system(path) == said.stdout.split()[-1]


def test_the_size_of_a_folder_is_what_du_says(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").write_bytes(os.urandom(3_000_000))
    (tmp_path / "a/link").symlink_to("/usr")
    facts = storage.folder("x", tmp_path / "a")
    du = int(subprocess.run(["du", "-s", "-B1", str(tmp_path / "a/b/file")], capture_output=True, text=True, check=True).stdout.split()[0])
    assert (facts.size, facts.files, facts.whole) == (du, 3, True)
    assert storage.folder("y", tmp_path / "not/there").exists is False


def test_a_walk_ends_when_its_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        (tmp_path / str(number)).touch()
    monkeypatch.setattr(storage, "WALK_S", 0.0)
    facts = storage.folder("x", tmp_path)
    assert facts.whole is False
    assert facts.files is not None
    assert 0 < facts.files < 50


def test_caches_are_where_the_variables_put_them(case: Callable[..., Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    found = {each.name: each for each in storage.caches(case(spec={"env": (("TRITON_CACHE_DIR", str(tmp_path / "t")),)}))}
    assert (found["Hugging Face"].path, found["Hugging Face"].set_by) == (str(tmp_path / "hf"), "HF_HOME")
    assert found["Triton"].path == str(tmp_path / "t")


def test_the_quota_programs_are_asked(case: Callable[..., Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin/quota"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\n[ "$*" = -wp ] || exit 9\necho "Disk quotas for user ada (uid 1):"\n'
        'echo "  Filesystem blocks quota limit grace files quota limit grace"\necho "  nas:/h 100* 90 100 5 7 0 0 0"\nexit 1\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    facts = storage.quotas(case())
    assert "quota" in facts.asked
    assert [(quota.file_system, quota.used, quota.limit) for quota in facts.quotas] == [("nas:/h", 102400, 102400)]


# -- the network switched off ------------------------------------------------------------------------------------------


def test_the_network_is_really_off(case: Callable[..., Case], tmp_path: Path) -> None:
    """The same script connects with the network on; a listener on this machine stands for the internet."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (tmp_path / "net.py").write_text(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2).close()\n")
        (tmp_path / "train.py").write_text("import json\nimport net\n")
        asked = case(spec={"venv": sys.prefix, "script": "train.py"})
        words = ["-m", "hpctrain.training.offline_check", "--script", "train.py"]
        online = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
        assert online.returncode == 0, online.stderr
        facts = offline.offline(asked)
    if facts.way != "namespace":
        pytest.skip(f"no network namespace can be made here: {facts.no_namespace}")
    assert facts.interfaces == ("lo",)
    assert facts.steps == ("import json",)
    assert facts.failed == "import net"
    assert "Network is unreachable" in facts.said[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "the job names no model and no dataset yet"),
        (("--model_name_or_path", "m"), "the job names no dataset yet"),
        (("--dataset-name=d",), "the job names no model yet"),
    ],
)
def test_what_is_not_named_is_said(case: Callable[..., Case], arguments: tuple[str, ...], said: str) -> None:
    assert offline.offline(case(spec={"arguments": arguments})).skipped == said


def test_without_a_namespace_the_libraries_are_told(case: Callable[..., Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin/unshare"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    (tmp_path / "says.py").write_text("import os, sys\nsys.exit(os.environ['https_proxy'] + os.environ['HF_HUB_OFFLINE'])\n")
    (tmp_path / "train.py").write_text("import says\n")
    facts = offline.offline(case(spec={"venv": sys.prefix, "script": "train.py"}))
    assert (facts.way, facts.no_namespace) == ("variables", "unshare: unshare failed: Operation not permitted")
    assert facts.said == ("SystemExit: http://127.0.0.1:91",)


# -- a node ------------------------------------------------------------------------------------------------------------


def test_reading_and_writing_are_measured_and_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/part.arrow").write_bytes(os.urandom(5 << 20))
    found = disk.read_speed(str(tmp_path / "data"), most=4 << 20)
    assert 4 << 20 <= int(str(found["bytes"])) <= 5 << 20
    assert float(str(found["seconds"])) > 0
    before = sorted(tmp_path.rglob("*"))
    written = disk.write_speed(str(tmp_path / "runs/sft-1/checkpoints"), most=16 << 20)
    assert written["bytes"] == 16 << 20
    assert sorted(tmp_path.rglob("*")) == before


def test_what_cannot_be_read_or_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert disk.write_speed(str(tmp_path / "file/out"))["error"] == "Not a directory"
    assert disk.write_speed("/proc/sys")["error"]
    assert disk.read_speed(str(tmp_path / "nowhere"))["error"] == "it holds no file"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_the_interfaces_of_real_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert "lo" not in node.interfaces_in_use(None), "who listens has no connection"
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), server.accept()[0]:
            assert "lo" in node.interfaces_in_use(None)
            assert "lo" not in node.interfaces_in_use(port)


def test_the_cores_are_those_of_taskset() -> None:
    code = "import json\nfrom hpctrain.doctor.probes import node\nprint(json.dumps(node.process_facts({'SLURM_CPUS_PER_TASK': '4'})))"
    core = str(min(os.sched_getaffinity(0)))
    done = subprocess.run(["taskset", "-c", core, sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f'"cpus": "{core}", "cpus_per_task": 4' in done.stdout


def test_the_places_of_a_node_are_measured(tmp_path: Path) -> None:
    found = node.node_facts({"TMPDIR": str(tmp_path), "SLURM_GPUS_ON_NODE": "2"})
    assert found["tmp"]["type"] == storage.file_system(str(tmp_path))  # type: ignore[index]
    assert abs(found["tmp"]["total"] - shutil.disk_usage(tmp_path).total) < 4096  # type: ignore[index]
    assert found["gpus_given"] == 2
    assert node.node_facts({"TMPDIR": "/no/such/place"})["tmp"] == {"path": "/no/such/place", "total": None, "free": None, "type": None}


class Nvml:
    """What this probe calls of pynvml; test_the_functions_exist checks the names against the real one."""

    NVMLError = pynvml.NVMLError
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, NVML_AGGREGATE_ECC, NVML_TEMPERATURE_GPU = 1, 0, 1, 0
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
    assert (found[0]["ecc_volatile"], found[0]["ecc_aggregate"], found[1]["ecc_volatile"]) == (10, 11, None)
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
