"""The files of a run that rank 0 of its training writes: its environment and its metrics.

    trainer = Trainer(..., callbacks=[RunFiles(run_dir, attempt)])

`RUN_DIR/attempts/ATTEMPT/environment.json` is written when the training starts, and `metrics.jsonl`
beside it gets one line for each event (hpctrain/runs/metrics.py documents and reads it).
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import math
import os
import platform
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hpctrain.runs import metrics
from hpctrain.slurm.notations import hostlist
from hpctrain.training.process import Guard
from hpctrain.util import files
from hpctrain.util.secrets import looks_secret

#: Packages whose version can change the results of a training, or the content of a checkpoint.
PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "accelerate",
    "datasets",
    "peft",
    "tokenizers",
    "safetensors",
    "numpy",
    "flash-attn",
    "deepspeed",
    "triton",
)

#: Environment variables that are recorded. None is meant for a secret; a value that looks like one
#: is left out anyway.
VARIABLES = frozenset(
    {
        *(
            "CUDA_VISIBLE_DEVICES",
            "ROCR_VISIBLE_DEVICES",
            "HIP_VISIBLE_DEVICES",
            "CUDA_DEVICE_MAX_CONNECTIONS",
            "CUDA_LAUNCH_BLOCKING",
        ),
        *(
            "CUBLAS_WORKSPACE_CONFIG",
            "NVIDIA_TF32_OVERRIDE",
            "PYTORCH_CUDA_ALLOC_CONF",
            "PYTORCH_ALLOC_CONF",
            "PYTORCH_HIP_ALLOC_CONF",
        ),
        *(
            "TORCH_NCCL_ASYNC_ERROR_HANDLING",
            "TORCH_NCCL_BLOCKING_WAIT",
            "TORCH_DISTRIBUTED_DEBUG",
            "GLOO_SOCKET_IFNAME",
        ),
        *(
            "NCCL_ALGO",
            "NCCL_PROTO",
            "NCCL_DEBUG",
            "NCCL_IB_DISABLE",
            "NCCL_IB_HCA",
            "NCCL_NET",
            "NCCL_P2P_DISABLE",
            "NCCL_SHM_DISABLE",
        ),
        *(
            "NCCL_SOCKET_IFNAME",
            "NCCL_CROSS_NIC",
            "NCCL_NET_GDR_LEVEL",
            "NCCL_NVLS_ENABLE",
            "FI_PROVIDER",
            "FI_CXI_RDZV_GET_MIN",
        ),
        *(
            "OMP_NUM_THREADS",
            "MKL_NUM_THREADS",
            "OMP_PROC_BIND",
            "OMP_PLACES",
            "PYTHONHASHSEED",
            "TOKENIZERS_PARALLELISM",
        ),
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
        *(
            "SLURM_JOB_ID",
            "SLURM_ARRAY_JOB_ID",
            "SLURM_ARRAY_TASK_ID",
            "SLURM_RESTART_COUNT",
            "SLURM_JOB_PARTITION",
            "SLURM_JOB_QOS",
        ),
        *(
            "SLURM_CLUSTER_NAME",
            "SLURM_JOB_NUM_NODES",
            "SLURM_NTASKS",
            "SLURM_CPUS_PER_TASK",
            "SLURM_GPUS_ON_NODE",
            "SLURM_JOB_NODELIST",
        ),
    }
)


def collect_environment(
    *, world_size: int, environ: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Return the JSON object of environment.json."""
    torch = sys.modules.get("torch")
    cuda = torch.cuda if torch is not None and torch.cuda.is_available() else None
    versions, hosts = dict[str, str](), list[str]()
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    with contextlib.suppress(KeyError, ValueError):
        hosts = list(hostlist.expand(environ["SLURM_JOB_NODELIST"]))
    found: dict[str, Any] = {
        "schema": 1,
        "at": round(time.time(), 3),
        "host": socket.gethostname(),
        "hosts": hosts,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "world_size": world_size,
        "versions": versions,
        "cuda": getattr(getattr(torch, "version", None), "cuda", None),
        "rocm": getattr(getattr(torch, "version", None), "hip", None),
        "gpus": [cuda.get_device_name(each) for each in range(cuda.device_count())] if cuda else [],
        "slurm": environ.get("SLURM_VERSION"),
        "variables": {
            name: environ[name]
            for name in sorted(VARIABLES)
            if name in environ and not looks_secret(name, environ[name])
        },
    }
    return {name: value for name, value in found.items() if value is not None}


class RunFiles(TrainerCallback):  # type: ignore[misc]  # transformers is not there on the login node
    """Writes environment.json and metrics.jsonl of this attempt.

    Errors never reach the training; the reason is printed once to standard error.

    Args:
        run_dir: the run's directory.
        attempt: the name of this start of the job.
    """

    def __init__(self, run_dir: Path, attempt: str) -> None:
        self._directory = run_dir / metrics.ATTEMPTS / attempt
        self._file: IO[bytes] | None = None
        self._guard = Guard("[train] notice: run files:")

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any
    ) -> None:
        self.begin(args, state, "begin")

    def on_log(
        self,
        _args: TrainingArguments,
        state: TrainerState,
        _control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if logs:
            self.write(
                "evaluate" if any(name.startswith("eval_") for name in logs) else "log", state, logs
            )

    def on_save(
        self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any
    ) -> None:
        self.write("save", state)

    def on_train_end(
        self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any
    ) -> None:
        self.write("end", state)

    # -- other writers -----------------------------------------------------------------------------

    def begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        event: str,
        values: dict[str, Any] | None = None,
    ) -> None:
        """Write environment.json and the first line of metrics.jsonl. An evaluation-only run has no
        `begin` event, which would discard earlier rows as repeated steps.
        """
        if state.is_world_process_zero:
            self._guard(self._open, self._directory / metrics.FILE)
            path, size = self._directory / "environment.json", int(args.world_size)
            self._guard(lambda: files.write_json(path, collect_environment(world_size=size)))
            self.write(event, state, values)

    def write(self, event: str, state: TrainerState, logs: dict[str, Any] | None = None) -> None:
        """Write one line of metrics.jsonl."""
        self._guard(self._append, event, state, logs or {})

    # -- implementation ----------------------------------------------------------------------------

    def _open(self, path: Path) -> None:
        if self._file is not None:
            self._file.close()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b", buffering=0)
        size = self._file.seek(0, os.SEEK_END)
        if size and os.pread(self._file.fileno(), 1, size - 1) != b"\n":
            os.write(
                self._file.fileno(), b"\n"
            )  # a start with the same name was killed during a write

    def _append(self, event: str, state: TrainerState, logs: dict[str, Any]) -> None:
        # An evaluation outside of a training does not belong to an attempt.
        if self._file is not None and state.is_world_process_zero:
            # One write, so that readers and other processes of the same name never see half a line.
            os.write(self._file.fileno(), metrics_line(event, state.global_step, state.epoch, logs))


def metrics_line(event: str, step: int, epoch: float | None, logs: dict[str, Any]) -> bytes:
    """Return one line of metrics.jsonl, as `hpctrain.runs.metrics` documents it: the numbers of
    `logs`, including tensors with one element.
    """
    row: dict[str, Any] = {
        "event": event,
        "step": int(step),
        "epoch": None if epoch is None else float(epoch),
        "at": round(time.time(), 3),
    }
    nonfinite: dict[str, str] = {}
    for name, value in logs.items():
        number = value
        with contextlib.suppress(Exception):  # a tensor or an array with one element
            number = value.item()
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number or name in metrics.OWN:
            continue
        if not math.isfinite(number):
            nonfinite[name], number = str(float(number)), None
        row[name] = number
    if nonfinite:
        row["nonfinite"] = nonfinite
    return json.dumps(row, allow_nan=False).encode() + b"\n"
