"""What one process of the preflight job finds on its node before it uses torch, and the node's
speed when reading the dataset and writing a checkpoint: real files, limited in size and time,
deleted again.

Standard library only, except for NVML and psutil.
"""

from __future__ import annotations

import importlib
import itertools
import os
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from hpctrain.memory import host
from hpctrain.slurm.notations import array
from hpctrain.util.file_systems import file_system
from hpctrain.util.text import integer

_THROTTLES = {
    "SwPowerCap": "power cap",
    "HwSlowdown": "hardware slowdown",
    "SwThermalSlowdown": "heat (software)",
    "HwThermalSlowdown": "heat (hardware)",
    "HwPowerBrakeSlowdown": "power brake",
}
_PIECE = 8 << 20


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """Return the node's name: Slurm's, which scontrol accepts, else the host name."""
    return environ.get("SLURMD_NODENAME") or socket.gethostname()


def process_facts(environ: Mapping[str, str] = os.environ) -> dict[str, object]:
    """Return the facts that differ per process: its usable cores, and the resources of its task."""
    return {
        "cpus": array.compress(os.sched_getaffinity(0)),
        "cpus_per_task": integer(environ.get("SLURM_CPUS_PER_TASK", "")),
        "task": integer(environ.get("SLURM_PROCID", "")),
        "job_nodes": integer(environ.get("SLURM_JOB_NUM_NODES", "")),
    }


def node_facts(environ: Mapping[str, str] = os.environ) -> dict[str, object]:
    """Return the facts that all processes of a node share. Sizes are bytes."""
    temporary = environ.get("TMPDIR") or "/tmp"  # noqa: S108 - a place to look at
    level = _quietly(host.find_limit)
    limit = None if level is None else _quietly(level.limit_mib)
    return {
        "hostname": socket.gethostname(),
        "cores": os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "memory_limit": None if limit is None else limit << 20,
        "gpus_given": integer(environ.get("SLURM_GPUS_ON_NODE", "")),
        "infiniband": sorted(path.name for path in Path("/sys/class/infiniband").glob("*"))[:16],
        "interfaces": sorted(name for _, name in socket.if_nameindex())[:64],
        "played": "HPCTRAIN_LOCAL_JOB" in environ,
        "shm": _room("/dev/shm"),  # noqa: S108
        "tmp": _room(temporary),
    }


def gpus(
    environ: Mapping[str, str] = os.environ, nvml: Any = None
) -> tuple[list[dict[str, object]], str | None]:
    """Return the health of each NVIDIA GPU available to the job, and the driver's version; nothing
    without a driver.

    Called before this process uses a GPU, so that memory in use belongs to other processes.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
        except Exception:  # no package, no library or no driver: no NVML
            return [], None
    driver = _quietly(lambda: _text(nvml.nvmlSystemGetDriverVersion()))
    handles = _visible(nvml, environ.get("CUDA_VISIBLE_DEVICES"))
    return [gpu(nvml, handle) for handle in handles], driver


def gpu(nvml: Any, handle: Any) -> dict[str, object]:
    """Return one GPU's health; None for values that the driver does not report."""
    memory = _quietly(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    rows = _quietly(lambda: nvml.nvmlDeviceGetRemappedRows(handle))
    retired = _quietly(lambda: nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
    throttled = _quietly(lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
    processes = _quietly(
        lambda: [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    )
    uncorrected = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    return {
        "index": _quietly(lambda: int(nvml.nvmlDeviceGetIndex(handle))),
        "name": _quietly(lambda: _text(nvml.nvmlDeviceGetName(handle))),
        "uuid": _quietly(lambda: _text(nvml.nvmlDeviceGetUUID(handle))),
        "used": None if memory is None else int(memory.used),
        "ecc_volatile": _quietly(
            lambda: int(
                nvml.nvmlDeviceGetTotalEccErrors(handle, uncorrected, nvml.NVML_VOLATILE_ECC)
            )
        ),
        "ecc_aggregate": _quietly(
            lambda: int(
                nvml.nvmlDeviceGetTotalEccErrors(handle, uncorrected, nvml.NVML_AGGREGATE_ECC)
            )
        ),
        "rows_pending": (
            bool(rows[2]) if rows is not None else bool(retired) if retired is not None else None
        ),
        "rows_failed": None if rows is None else bool(rows[3]),
        "throttled": None if throttled is None else _throttles(nvml, throttled),
        "celsius": _quietly(
            lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        ),
        "processes": None if processes is None else processes[:20],
    }


def _visible(nvml: Any, visible: str | None) -> list[Any]:
    """Return the handles of the GPUs in CUDA_VISIBLE_DEVICES, else of all; Slurm may hide the
    others from NVML too.
    """
    every = [
        nvml.nvmlDeviceGetHandleByIndex(index) for index in range(int(nvml.nvmlDeviceGetCount()))
    ]
    numbers = [integer(word.strip()) for word in (visible or "").split(",")]
    chosen = [each for number, each in enumerate(every) if number in numbers]
    return chosen or every


def _throttles(nvml: Any, reasons: int) -> list[str]:
    bits = {
        words: getattr(nvml, f"nvmlClocksThrottleReason{key}", 0)
        for key, words in _THROTTLES.items()
    }
    return [words for words, bit in bits.items() if reasons & int(bit)]


def interfaces_in_use(ignored_port: int | None) -> list[str]:
    """Return the interfaces of this process's TCP connections, most used first, without those of
    the rendezvous (by its port).

    Read from the connections instead of variables, because the libraries choose the address.
    """
    interfaces = {
        entry.address.partition("%")[0]: name
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
    }
    found = Counter[str]()
    for each in psutil.Process().net_connections("tcp"):
        if each.status == psutil.CONN_ESTABLISHED and ignored_port not in (
            each.laddr.port,
            each.raddr.port,
        ):
            here = each.laddr.ip.removeprefix("::ffff:")  # IPv4 in a socket of IPv6
            local = here.startswith("127.") or here == "::1"
            found["lo" if local else interfaces.get(here, here)] += 1
    return [name for name, _ in found.most_common()]


def _room(path: str) -> dict[str, object]:
    system = file_system(path) if Path(path).is_dir() else None
    return {
        "path": path,
        "free": None if system is None else system.free,
        "type": None if system is None else system.kind,
    }


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _quietly(call: Any) -> Any:
    """Return the result of `call`, or None if it fails."""
    try:
        return call()
    except Exception:  # a failing sensor must not stop the job
        return None


# -- disks -----------------------------------------------------------------------------------------


def read_speed(folder: str, *, most: int = 256 << 20, limit_s: float = 8.0) -> dict[str, object]:
    """Read up to `most` bytes of the largest files in `folder`, for at most `limit_s` seconds.

    The node's page cache is dropped first (posix_fadvise DONTNEED); a file server's cache is not.

    Returns:
        bytes, seconds, files, and `dropped`: whether the page cache could be dropped; or `error`.
    """
    try:
        files = _largest(Path(folder))
        if not files:
            return {"path": folder, "error": "it contains no file"}
        done, dropped, began = 0, True, time.perf_counter()
        for path in files:
            with path.open("rb", buffering=0) as stream:
                dropped = _drop(stream.fileno()) and dropped
                while done < most and time.perf_counter() - began < limit_s:
                    piece = stream.read(_PIECE)
                    if not piece:
                        break
                    done += len(piece)
        return {
            "path": folder,
            "bytes": done,
            "seconds": time.perf_counter() - began,
            "files": len(files),
            "dropped": dropped,
        }
    except OSError as error:
        return {"path": folder, "error": error.strerror or str(error)}


def write_speed(folder: str, *, most: int = 256 << 20, limit_s: float = 8.0) -> dict[str, object]:
    """Write up to `most` bytes to a new file in `folder`, fsync included, for about `limit_s`
    seconds at most.

    The file is unnamed, so nothing remains even if this process is killed; a missing directory is
    created and removed again.

    Returns:
        bytes and seconds; or `error`.
    """
    made: list[Path] = []
    try:
        path = Path(folder)
        for missing in [each for each in (path, *path.parents) if not each.exists()][::-1]:
            missing.mkdir(exist_ok=True)
            made.append(missing)
        piece = os.urandom(_PIECE)  # some file systems compress zeros
        with tempfile.TemporaryFile(prefix=".hpctrain-doctor-", dir=folder, buffering=0) as stream:
            done, began = 0, time.perf_counter()
            while done < most and time.perf_counter() - began < limit_s:
                done += stream.write(piece)
                os.fsync(stream.fileno())
        return {"path": folder, "bytes": done, "seconds": time.perf_counter() - began}
    except OSError as error:
        return {"path": folder, "error": error.strerror or str(error)}
    finally:
        for each in made[::-1]:
            try:
                each.rmdir()
            except OSError:  # another process wrote into it
                break


def _largest(folder: Path) -> list[Path]:
    """Return the files of a directory, the largest first; at most a thousand are considered."""
    files = itertools.islice(filter(Path.is_file, folder.rglob("*")), 1000)
    sized = sorted(((path.stat().st_size, path) for path in files), reverse=True)
    return [path for size, path in sized if size > 0][:32]


def _drop(descriptor: int) -> bool:
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except (OSError, AttributeError):
        return False
    return True
