"""hpctrain: correct, monitored, restartable training jobs on Slurm clusters.

Importing this package imports neither torch nor anything else that is slow: `MemoryCallback` and `SurvivorMixin` are looked up when they
are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpctrain.training.memory_callback import MemoryCallback
    from hpctrain.training.survivor_trainer import SurvivorMixin

__version__ = "0.1.0"
__all__ = ["MemoryCallback", "SurvivorMixin", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "MemoryCallback":
        from hpctrain.training.memory_callback import MemoryCallback

        return MemoryCallback
    if name == "SurvivorMixin":
        from hpctrain.training.survivor_trainer import SurvivorMixin

        return SurvivorMixin
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
