"""What the user's own runs on a cluster say about predictions for further ones: factors, with the number of runs behind them.

Pure: records in, factors out. A record is a run's `fit.json`, parsed; who reads the files leaves out what is none.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hpctrain.fit import gpus
from hpctrain.fit.layout import Layout
from hpctrain.fit.memory import GpuMemory

#: A factor beyond these is a mistake in a record, or another thing than the one that was predicted.
_LEAST, _MOST = 0.25, 4.0
#: What two runs must have in common so that one says something of the other's memory: each changes what the formula has to know.
_KIND = ("sharding", "checkpointing", "weights", "compute", "quantization", "attention", "loss", "optimizer")


@dataclass(frozen=True, slots=True)
class Factor:
    """By what a prediction is multiplied, and how many runs say so."""

    factor: float = 1.0
    runs: int = 0

    def of(self, memory: GpuMemory) -> int:
        """Return a prediction's total, corrected: runs say what torch's allocator takes, and not how large the CUDA context is."""
        return memory.context + round((memory.total - memory.context) * self.factor)

    @property
    def words(self) -> str:
        """`corrected by 3 of your runs here: x1.07`."""
        return f"corrected by {self.runs} of your runs here: x{self.factor:.2f}"


UNKNOWN = Factor()


@dataclass(frozen=True, slots=True)
class Correction:
    """What the records of one cluster and one kind of GPU say.

    Attributes:
        memory: kind of layout (`kind`) -> factor of what torch's allocator gives out.
        speed: kind of layout -> factor of tokens/s.
    """

    memory: Mapping[tuple[Any, ...], Factor]
    speed: Mapping[tuple[Any, ...], Factor]

    def of_memory(self, layout: Layout) -> Factor:
        """Return the factor of a layout's memory; 1 where no run was of its kind."""
        return self.memory.get(kind(layout), UNKNOWN)

    def of_speed(self, layout: Layout) -> Factor:
        """Return the factor of a layout's tokens/s; 1 where no run was of its kind."""
        return self.speed.get(kind(layout), UNKNOWN)


NONE = Correction({}, {})


def kind(layout: Layout) -> tuple[Any, ...]:
    """Return what runs must have in common to say something of each other."""
    return _kind(asdict(layout))


def _kind(layout: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*(layout[name] for name in _KIND), layout.get("lora") is not None)


def correction(records: Iterable[Mapping[str, Any]], *, clusters: Collection[str | None], gpu: str | None) -> Correction:
    """Return what records say of predictions for one cluster and one kind of GPU.

    The factor is the median of measured over predicted. Records of other clusters or GPUs, without a measurement, or that are not
    understood, do not count.

    Args:
        records: `{"layout": ..., "gpu": name, "cluster": name or None, "predicted": {"allocated", "tokens_per_s", ...},
            "measured": {"allocated", "tokens_per_s", ...} or None}`; memory counts by what torch's allocator has given out.
        clusters: the names that records may have for the cluster; None is a run that knew of none.
        gpu: the name in the table of GPUs (hpctrain.fit.gpus).
    """
    memory: dict[tuple[Any, ...], list[float]] = {}
    speed: dict[tuple[Any, ...], list[float]] = {}
    for record in records:
        try:
            if record.get("cluster") not in clusters or not _same(record.get("gpu"), gpu) or not record["measured"]:
                continue
            of, predicted, measured = _kind(record["layout"]), record["predicted"], record["measured"]
            _put(memory, of, measured.get("allocated"), predicted.get("allocated"))
            _put(speed, of, measured.get("tokens_per_s"), predicted.get("tokens_per_s"))
        except (KeyError, TypeError, AttributeError):
            continue
    return Correction(_medians(memory), _medians(speed))


def _same(recorded: object, gpu: str | None) -> bool:
    if not isinstance(recorded, str) or gpu is None:
        return recorded == gpu
    found = gpus.find(recorded)
    return recorded == gpu or (found is not None and found.name == gpu)


def _put(where: dict[tuple[Any, ...], list[float]], of: tuple[Any, ...], measured: Any, predicted: Any) -> None:
    if not (_number(measured) and _number(predicted)):
        return
    factor = measured / predicted
    if _LEAST <= factor <= _MOST:
        where.setdefault(of, []).append(factor)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def _medians(found: Mapping[tuple[Any, ...], list[float]]) -> dict[tuple[Any, ...], Factor]:
    return {of: Factor(statistics.median(factors), len(factors)) for of, factors in found.items()}
