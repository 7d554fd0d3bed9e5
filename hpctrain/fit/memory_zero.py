"""What DeepSpeed's ZeRO holds while a step runs, event by event, as DeepSpeed 0.19.8 does it with the config that accelerate makes.

Followed: runtime/zero/stage_1_and_2.py, stage3.py and partitioned_param_coordinator.py; measured with real trainings of two and four
processes (tests/fit/test_zero.py). For hpctrain/fit/memory_model.py. Pure.

Stage 2: with the first gradient a bucket is made, whatever the model's size. Each gradient is copied into it; when it is full, it is
copied once more, sent, and each process keeps its own part. After the backward pass the bucket goes.
Stage 3: the bucket and the own part of the gradients are there always. Weights are gathered ahead of their use, in one buffer out of
which they are copied, and stay gathered where they are used again soon: as many as the reuse distance, as it was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpctrain.fit.memory_tape import Block, Ledger, Parameter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpctrain.fit.memory_operations import Weights

_PART = "buffers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """DeepSpeed's own numbers, in elements (runtime/zero/config.py), which accelerate leaves as they are.

    Attributes:
        bucket: `reduce_bucket_size`.
        prefetch: `stage3_prefetch_bucket_size`.
        reuse: `stage3_max_reuse_distance`, and as large `stage3_max_live_parameters`.
        persistent: `stage3_param_persistence_threshold`: smaller parameters are never divided.
        group: `sub_group_size`: of stage 3's optimizer, which takes one such part of its parameters after the other.
    """

    bucket: int = 500_000_000
    prefetch: int = 50_000_000
    reuse: int = 1_000_000_000
    persistent: int = 100_000
    group: int = 1_000_000_000


SETTINGS = Settings()


class Unit:
    """Parameters of which the gradients gather here, and how many elements they have."""

    __slots__ = ("elements", "largest")

    def __init__(self, weights: Sequence[Weights]) -> None:
        self.elements = sum(each.tensor.elements for each in weights)
        self.largest = max((each.tensor.elements for each in weights), default=0)


class Zero:
    """Gathering and sending of one process.

    Attributes:
        reduces: not looked at: ZeRO sends the gradients of each pass.
    """

    def __init__(self, ledger: Ledger, processes: int, width: int, stage: int, trained: int) -> None:
        """Begin without units.

        Args:
            ledger: what is allocated from.
            processes: among which is divided.
            width: bytes of a parameter as it is computed with.
            stage: 2 or 3.
            trained: elements of all trained parameters.
        """
        self.ledger, self.processes, self.width, self.stage, self.settings = ledger, processes, width, stage, SETTINGS
        self.reduces = True
        self._share = trained / processes * width
        self.units: list[Unit] = []
        self._bucket: Block | None = None
        self._waiting = 0  # elements that are in the bucket
        self._large: list[Block] = []  # gradients that no bucket holds
        self._left = 0  # elements that the backward pass has not come through yet
        self._live: Block | None = None  # what is gathered
        self._ahead: Block | None = None  # what arrives
        self._kept = self._block(self._share, "gradients") if stage == 3 else None
        self._own: Block | None = None

    def _block(self, size: float, part: str = _PART) -> Block:
        return Block(self.ledger, size, part)

    # -- gradients --------------------------------------------------------------------------------------------------------

    def unit(self, weights: Sequence[Weights], *, stays: bool = False) -> Unit:
        """Add a unit; what stays is worked out here, not said."""
        del stays
        made = Unit(weights)
        self.units.append(made)
        for each in weights:
            if isinstance(each.tensor.node, Parameter):
                each.tensor.node.sink = self._take
        return made

    def _take(self, gradient: Block) -> None:
        """Copy a gradient into the bucket; one that is larger than that is sent from where it is."""
        elements = gradient.size // self.width
        if self.stage == 2 and self._bucket is None:
            self._bucket = self._block(self.settings.bucket * self.width)
        if self._waiting and self._waiting + elements > self.settings.bucket:
            self._send()
        if elements > self.settings.bucket:
            self._large.append(gradient)
        self._waiting += elements

    def _send(self) -> None:
        """Send what waits: put together in a further buffer, then copied to the own part, which stage 2 makes in each pass anew."""
        buffer = self._block(self._waiting * self.width)
        self._large.clear()
        self._waiting = 0
        del buffer
        if self.stage == 2 and self._own is None:
            self._own = self._block(self._share, "gradients")

    def end_of_backward(self) -> None:
        """The backward pass is over: what waits is sent, and stage 2 lets its bucket go, and adds its part to what is there."""
        if self._waiting:
            self._send()
        self._bucket = None
        self._kept = self._kept or self._own
        self._own = None
        self._live = self._ahead = None

    # -- weights ----------------------------------------------------------------------------------------------------------

    def before_forward(self, unit: Unit) -> None:
        """Gather: as much as is held at once, and the buffer in which the next weights arrive."""
        del unit
        if self.stage != 3 or self._live is not None:
            return
        self._left = sum(each.elements for each in self.units)
        arriving = max(each.largest for each in self.units) + self.settings.prefetch
        self._live = self._block(min(self._left, self.settings.reuse) * self.width)
        self._ahead = self._block(min(self._left, arriving) * self.width)

    def after_forward(self, unit: Unit) -> None:
        """Of the forward pass as much stays gathered as may; there is nothing to do."""

    def end_of_forward(self) -> None:
        """The model's forward pass is over: nothing is on its way where all stays gathered."""
        if self._left <= self.settings.reuse:
            self._ahead = None

    def before_backward(self, unit: Unit) -> None:
        """The weights are there, or take the place of others."""

    def after_backward(self, unit: Unit) -> None:
        """Let go of the weights, where no others take their place."""
        self._left -= unit.elements
        if self._live is not None and self._left < self.settings.reuse:
            self._live = self._ahead = None
            self._live = self._block(self._left * self.width) if self._left > 0 else None
