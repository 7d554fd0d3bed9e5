"""hpctrain: correct, monitored, restartable training jobs on Slurm clusters.

    job = hpctrain.Job.load("config.yaml", nodes=2, gpus=4)
    hpctrain.check(job)
    run = hpctrain.submit(job)
    hpctrain.list_runs("sft-*")

See docs/api.md. Importing this package loads neither torch nor any other slow module: its names are
imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpctrain.api import Job, Run, check, list_runs, render, submit
    from hpctrain.training.monitoring.memory_callback import MemoryCallback
    from hpctrain.training.survival.trainer import SurvivorMixin

__version__ = "0.1.0"

__all__ = [
    "Job",
    "MemoryCallback",
    "Run",
    "SurvivorMixin",
    "__version__",
    "check",
    "list_runs",
    "render",
    "submit",
]

_WHERE = {
    "Job": "api",
    "Run": "api",
    "check": "api",
    "list_runs": "api",
    "render": "api",
    "submit": "api",
    "MemoryCallback": "training.monitoring.memory_callback",
    "SurvivorMixin": "training.survival.trainer",
}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"hpctrain.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
