"""What one process of a training has to say when a line of the speed is due, and what all of them together have done."""

from __future__ import annotations

import resource
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpctrain.memory.reader import Identity, MemoryReader, node_name
from hpctrain.training.meter import Window

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """Of one process.

    Attributes:
        node: where it runs.
        window: since the last line.
        total: since the first step of this start.
        peak, reserved, used, gpu_total: of GPU memory, MiB; None where that is not known. `used` is by all processes.
        rss, rss_peak: of host memory, MiB, with the data loader's workers; the most there ever was.
    """

    node: str
    window: Window
    total: Window
    peak: int | None = None
    reserved: int | None = None
    used: int | None = None
    gpu_total: int | None = None
    rss: int | None = None
    rss_peak: int | None = None


class Sensors:
    """Reads the memory of this process.

    Args:
        rank, world_size: of the training.
        note: called once with each reason why something cannot be read.
    """

    def __init__(self, rank: int, world_size: int, note: Any) -> None:
        self._node = node_name()
        self._reader = MemoryReader(Identity(host=self._node, rank=rank, world_size=world_size, local_rank=0), note=note)

    def read(self, step: int, window: Window, total: Window, *, thorough: bool) -> Local:
        """Return what this process has to say; `thorough` looks for new data loader workers, too."""
        sample = self._reader.read(step, "save" if thorough else "step")
        workers = sample.children_rss_mib or 0
        unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes there, KiB elsewhere
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // MIB
        return Local(
            node=self._node,
            window=window,
            total=total,
            peak=sample.torch_peak_mib,
            reserved=sample.torch_reserved_mib,
            used=sample.gpu_used_mib,
            gpu_total=sample.gpu_total_mib,
            rss=None if sample.rss_mib is None else sample.rss_mib + workers,
            rss_peak=most + workers,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """What all processes did in some steps.

    Attributes:
        steps, seconds: of the slowest.
        tokens, useful, squares, trained: of all of them; None where one of them does not know.
        wait: the greatest part of its time that one of them waited for data.
    """

    steps: int
    seconds: float
    tokens: int
    useful: int | None
    squares: int | None
    trained: int | None
    wait: float | None

    def per_second(self, number: int | None) -> float | None:
        """Return a number of all of these seconds as a rate."""
        return None if number is None or self.seconds <= 0 or self.steps == 0 else number / self.seconds

    @property
    def step_s(self) -> float | None:
        """Seconds of a step."""
        return self.seconds / self.steps if self.steps else None

    @property
    def context(self) -> float | None:
        """Mean length of the examples, weighted by their tokens."""
        return self.squares / self.useful if self.squares and self.useful else None


def together(windows: Sequence[Window]) -> Together:
    """Return what all processes did, of one window of each."""
    whole = sum(windows[1:], windows[0])
    waits = [window.wait / window.seconds for window in windows if window.seconds > 0]
    return Together(
        steps=max(window.steps for window in windows),
        seconds=max(window.seconds for window in windows),
        tokens=whole.tokens,
        useful=whole.useful,
        squares=whole.squares,
        trained=whole.trained,
        wait=max(waits, default=None),
    )


def fullest(locals_: Sequence[Local | None]) -> tuple[int, Local] | None:
    """Return the rank whose GPU memory is the fullest, and what it says; None where none knows."""
    known = [(rank, local) for rank, local in enumerate(locals_) if local is not None and local.peak is not None]
    return max(known, key=lambda each: each[1].peak or 0, default=None)


def of_a_node(locals_: Sequence[Local | None], attribute: str) -> int | None:
    """Return the host memory of all processes of a node, where it is most, in MiB."""
    sums: dict[str, int] = defaultdict(int)
    for local in locals_:
        if local is not None and getattr(local, attribute) is not None:
            sums[local.node] += getattr(local, attribute)
    return max(sums.values(), default=None)
