"""What a training runs with: versions, host, GPUs, the variables that matter. Read on rank 0 when the training begins.

`hpctrain.runs.environment` names the keys and compares two of these. A value that cannot be read is left out; nothing here raises.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpctrain.jobs.secret_forms import looks_secret
from hpctrain.runs.environment import PACKAGES
from hpctrain.scheduler.parse import hostlist

VARIABLES = frozenset(
    {
        *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING"),
        *("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"),
        *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT", "TORCH_DISTRIBUTED_DEBUG", "GLOO_SOCKET_IFNAME"),
        *("NCCL_ALGO", "NCCL_PROTO", "NCCL_DEBUG", "NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_NET", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"),
        *("NCCL_SOCKET_IFNAME", "NCCL_CROSS_NIC", "NCCL_NET_GDR_LEVEL", "NCCL_NVLS_ENABLE", "FI_PROVIDER", "FI_CXI_RDZV_GET_MIN"),
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "PYTHONHASHSEED", "TOKENIZERS_PARALLELISM"),
        *(
            "ACCELERATE_USE_CPU",
            "ACCELERATE_USE_FSDP",
            "ACCELERATE_USE_DEEPSPEED",
            "ACCELERATE_MIXED_PRECISION",
            "ACCELERATE_DYNAMO_BACKEND",
        ),
        *(
            "HF_HUB_OFFLINE",
            "HF_DATASETS_OFFLINE",
            "TRANSFORMERS_OFFLINE",
            "WANDB_MODE",
            "WORLD_SIZE",
            "LOCAL_WORLD_SIZE",
            "HPCTRAIN_SHARDING",
        ),
        *("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT", "SLURM_JOB_PARTITION", "SLURM_JOB_QOS"),
        *("SLURM_CLUSTER_NAME", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_CPUS_PER_TASK", "SLURM_GPUS_ON_NODE", "SLURM_JOB_NODELIST"),
    }
)
"""The variables that are written down. None holds a secret by its meaning; a value that looks like one is left out all the same."""

_DRIVER = Path("/proc/driver/nvidia/version")


def collect(*, world_size: int, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the JSON object of environment.json."""
    torch = sys.modules.get("torch")
    packages = installed()
    names = [f"{name}=={version}" for name, version in packages.items()]
    found: dict[str, Any] = {
        "schema": 1,
        "at": round(time.time(), 3),
        "host": socket.gethostname(),
        "hosts": _hosts(environ),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "world_size": world_size,
        "versions": {name: packages[name] for name in PACKAGES if name in packages},
        "cuda": getattr(getattr(torch, "version", None), "cuda", None),
        "rocm": getattr(getattr(torch, "version", None), "hip", None),
        "driver": _driver(),
        "nccl": _try(lambda: _nccl(torch)),
        "gpus": _try(lambda: _gpus(torch)) or [],
        "slurm": environ.get("SLURM_VERSION"),
        "variables": {name: environ[name] for name in sorted(VARIABLES) if name in environ and not looks_secret(name, environ[name])},
        "packages": names,
        "packages_digest": hashlib.sha256("\n".join(names).encode()).hexdigest(),
    }
    return {name: value for name, value in found.items() if value is not None}


def installed() -> dict[str, str]:
    """Return the version of each installed package by its normalized name (PEP 503); of several the first on the path, as Python does.

    Names and versions only: where a package came from may be a URL with a password.
    """
    found: dict[str, str] = {}
    for each in importlib.metadata.distributions():
        name, version = each.metadata["Name"], each.version
        if name and version:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)
    return dict(sorted(found.items()))


def _hosts(environ: Mapping[str, str]) -> list[str]:
    return _try(lambda: list(hostlist.expand(environ["SLURM_JOB_NODELIST"]))) or []


def _driver() -> str | None:
    text = _try(lambda: _DRIVER.read_text(encoding="utf-8"))
    found = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", text or "")
    return found[1] if found else None


def _nccl(torch: Any) -> str | None:
    if torch is None or not torch.cuda.is_available():
        return None
    return ".".join(map(str, torch.cuda.nccl.version()))


def _gpus(torch: Any) -> list[str]:
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def _try(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception:
        return None
