"""What one process of the preflight job sees of its node, before torch is asked for anything. Standard library only, but for NVML."""

from __future__ import annotations

import importlib
import os
import platform
import resource
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpctrain.doctor.probes.storage import file_system
from hpctrain.doctor.words import ranges
from hpctrain.memory import cgroup

_THROTTLES = {
    "SwPowerCap": "power cap",
    "HwSlowdown": "hardware slowdown",
    "SwThermalSlowdown": "heat (software)",
    "HwThermalSlowdown": "heat (hardware)",
    "HwPowerBrakeSlowdown": "power brake",
}


def name(environ: Mapping[str, str] = os.environ) -> str:
    """Return the node's name: Slurm's own, so that it can be given to scontrol, else the host's."""
    return environ.get("SLURMD_NODENAME") or socket.gethostname()


def process_facts(environ: Mapping[str, str] = os.environ) -> dict[str, object]:
    """Return what differs from process to process: the cores it may use, and what its task was promised."""
    return {
        "cpus": ranges(os.sched_getaffinity(0)),
        "cpus_per_task": _int(environ.get("SLURM_CPUS_PER_TASK")),
        "task": _int(environ.get("SLURM_PROCID")),
        "job_nodes": _int(environ.get("SLURM_JOB_NUM_NODES")),
        "omp": _int(environ.get("OMP_NUM_THREADS")),
        "memlock": _limit(resource.RLIMIT_MEMLOCK),
        "nofile": _limit(resource.RLIMIT_NOFILE),
    }


def node_facts(environ: Mapping[str, str] = os.environ) -> dict[str, object]:
    """Return what all processes of a node share. Sizes are bytes."""
    temporary = environ.get("TMPDIR") or "/tmp"  # noqa: S108 - a place to look at
    level = _quietly(cgroup.find_limit)
    limit = None if level is None else _quietly(level.limit_mib)
    return {
        "hostname": socket.gethostname(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "memory_limit": None if limit is None else limit << 20,
        "gpus_given": _int(environ.get("SLURM_GPUS_ON_NODE")),
        "infiniband": sorted(path.name for path in Path("/sys/class/infiniband").glob("*"))[:16],
        "played": "HPCTRAIN_LOCAL_JOB" in environ,
        "shm": _room("/dev/shm"),  # noqa: S108
        "tmp": _room(temporary),
    }


def gpus(environ: Mapping[str, str] = os.environ, nvml: Any = None) -> tuple[list[dict[str, object]], str | None]:
    """Return the health of every NVIDIA GPU that the job may use, and the driver's version; nothing where there is no driver.

    Called before this process touches a GPU, so that what is in use is somebody else's.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
        except Exception:  # no package, no library, no driver: all mean that NVML has nothing to say
            return [], None
    driver = _quietly(lambda: _text(nvml.nvmlSystemGetDriverVersion()))
    found = []
    for handle in _visible(nvml, environ.get("CUDA_VISIBLE_DEVICES")):
        found.append(gpu(nvml, handle))
    return found, driver


def gpu(nvml: Any, handle: Any) -> dict[str, object]:
    """Return one GPU's health; what it or its driver does not say is None."""
    memory = _quietly(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    rows = _quietly(lambda: nvml.nvmlDeviceGetRemappedRows(handle))
    retired = _quietly(lambda: nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
    throttled = _quietly(lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
    processes = _quietly(lambda: [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)])
    uncorrected = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    return {
        "index": _quietly(lambda: int(nvml.nvmlDeviceGetIndex(handle))),
        "name": _quietly(lambda: _text(nvml.nvmlDeviceGetName(handle))),
        "uuid": _quietly(lambda: _text(nvml.nvmlDeviceGetUUID(handle))),
        "used": None if memory is None else int(memory.used),
        "total": None if memory is None else int(memory.total),
        "ecc_volatile": _quietly(lambda: int(nvml.nvmlDeviceGetTotalEccErrors(handle, uncorrected, nvml.NVML_VOLATILE_ECC))),
        "ecc_aggregate": _quietly(lambda: int(nvml.nvmlDeviceGetTotalEccErrors(handle, uncorrected, nvml.NVML_AGGREGATE_ECC))),
        "rows_pending": bool(rows[2]) if rows is not None else bool(retired) if retired is not None else None,
        "rows_failed": None if rows is None else bool(rows[3]),
        "throttled": None if throttled is None else _throttles(nvml, throttled),
        "celsius": _quietly(lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
        "processes": None if processes is None else processes[:20],
    }


def _visible(nvml: Any, visible: str | None) -> list[Any]:
    """Return the handles of the GPUs that CUDA_VISIBLE_DEVICES names, else of all; Slurm may hide the others from NVML too."""
    count = int(nvml.nvmlDeviceGetCount())
    every = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    if visible is None:
        return every
    chosen = []
    for entry in (word.strip() for word in visible.split(",")):
        if entry.isdecimal():
            chosen += every[int(entry) : int(entry) + 1]
        elif entry.startswith(("GPU-", "MIG-")):
            handle = _quietly(lambda entry=entry: nvml.nvmlDeviceGetHandleByUUID(entry))
            chosen += [handle] if handle is not None else []
    return chosen


def _throttles(nvml: Any, reasons: int) -> list[str]:
    bits = {words: getattr(nvml, f"nvmlClocksThrottleReason{key}", 0) for key, words in _THROTTLES.items()}
    return [words for words, bit in bits.items() if reasons & int(bit)]


def interfaces_in_use(ignored_port: int | None, root: Path = Path("/proc/self")) -> list[str]:
    """Return the interfaces that this process's TCP connections go over, those of the rendezvous (by its port) left out.

    Looked up, not guessed from variables: which of its addresses a process uses, the libraries decide.
    """
    inodes = set()
    for descriptor in (root / "fd").iterdir():
        target = _quietly(lambda descriptor=descriptor: str(descriptor.readlink()))
        if target and target.startswith("socket:["):
            inodes.add(target[8:-1])
    addresses = _addresses()
    found: dict[str, int] = {}
    for table in ("net/tcp", "net/tcp6"):
        text = _quietly(lambda table=table: (root / table).read_text()) or ""
        for row in (line.split() for line in text.splitlines()[1:]):
            if row[3] != "01" or row[9] not in inodes:  # 01: established
                continue
            (here, port), (_, other) = (_endpoint(word) for word in (row[1], row[2]))
            if ignored_port in (port, other):
                continue
            interface = "lo" if here.startswith("127.") or here == "::1" else addresses.get(here, here)
            found[interface] = found.get(interface, 0) + 1
    return sorted(found, key=lambda each: -found[each])


def _endpoint(word: str) -> tuple[str, int]:
    """Return address and port of an entry of /proc/net/tcp: words of 32 bits, each in the machine's own byte order (proc(5))."""
    address, _, port = word.partition(":")
    raw = b"".join(bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8))
    if len(raw) == 16 and raw[:12] == b"\0" * 10 + b"\xff\xff":
        raw = raw[12:]  # an IPv4 address in a socket of IPv6
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw), int(port, 16)


def _addresses() -> dict[str, str]:
    import psutil

    return {entry.address.partition("%")[0]: name for name, entries in psutil.net_if_addrs().items() for entry in entries}


def _room(path: str) -> dict[str, object]:
    status = _quietly(lambda: os.statvfs(path))
    if status is None:
        return {"path": path, "total": None, "free": None, "type": None}
    size = status.f_frsize
    return {"path": path, "total": status.f_blocks * size, "free": status.f_bavail * size, "type": file_system(path)}


def _limit(which: int) -> int | None:
    """Return the soft limit; None is none."""
    soft = resource.getrlimit(which)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _quietly(call: Any) -> Any:
    """Return what `call` returns, or None where the node does not answer that question."""
    try:
        return call()
    except Exception:  # a sensor that fails is unknown, and no reason to stop the job
        return None
