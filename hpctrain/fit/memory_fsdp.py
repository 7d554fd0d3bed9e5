"""What FSDP2 gathers and sends while a step runs, event by event, as torch 2.13 does it.

Followed: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_collectives.py, for the units that accelerate 1.15 makes
(utils/fsdp_utils.py, fsdp2_prepare_model): the table of embeddings, each decoder layer, and the last norm with the output layer, which
stays gathered until its backward pass; a tied table belongs to the last one. For hpctrain/fit/memory_model.py. Pure.

What lives at once follows from it. Forward, in a layer: its weights, and the buffer that they came in, which is freed only when the
next unit's weights have arrived in theirs. Backward, in a layer: its weights, the buffer of the layer that comes next (prefetched), the
buffer in which the layer before is sent, and its own gradients. When it is sent: gradients, and the buffer that they are copied into.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.fit.memory_tape import Block, Ledger, Parameter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpctrain.fit.memory_operations import Weights

_PART = "buffers"


class Unit:
    """Parameters that are gathered and sent together.

    Attributes:
        size: bytes of all of them, as they are gathered.
        copied: bytes of those that are held in another dtype than they are gathered in, as they are gathered.
        trained: where their gradients gather.
        stays: whether they stay gathered after the forward pass (`reshard_after_forward=False`).
    """

    __slots__ = ("arriving", "copied", "done", "shard", "size", "stays", "trained", "weights")

    def __init__(self, weights: Sequence[Weights], *, copied: int, stays: bool) -> None:
        self.size = sum(each.tensor.bytes for each in weights)
        self.copied = copied
        self.trained = [each.tensor.node for each in weights if isinstance(each.tensor.node, Parameter)]
        self.stays = stays
        self.weights: Block | None = None
        self.arriving: Block | None = None
        self.shard: Block | None = None
        self.done = False


class Fsdp:
    """The units of one process, and the buffers that they share.

    Attributes:
        reduces: whether a backward pass sends the gradients; Trainer has that in a step's last pass alone, unless `sync_each_batch` is set.
    """

    def __init__(self, ledger: Ledger, processes: int, width: int, frozen_width: int, trained_width: int) -> None:
        """Begin without units; widths are bytes of a parameter as it is gathered, and as it is held where it is frozen or trained."""
        self.ledger, self.processes = ledger, processes
        self._held = {True: trained_width, False: frozen_width}
        self._widens = trained_width / width
        self.reduces = True
        self.units: list[Unit] = []
        self._order: list[Unit] = []
        self._arrived: Block | None = None  # the buffer of the unit gathered last, in the forward pass
        self._sent: Block | None = None  # the buffer of the unit sent last

    def unit(self, weights: Sequence[Weights], *, stays: bool = False) -> Unit:
        """Add a unit."""
        copied = [each.tensor.bytes for each in weights if self._held[each.tensor.node is not None] != each.tensor.width]
        self.units.append(Unit(weights, copied=sum(copied), stays=stays))
        return self.units[-1]

    def _block(self, size: float, part: str = _PART) -> Block:
        return Block(self.ledger, size, part)

    def _gather(self, unit: Unit) -> None:
        """Begin to gather: a copy of the own share in the dtype that is gathered, and the buffer that all shares arrive in."""
        if unit.arriving is None and unit.weights is None:
            copy = self._block(unit.copied / self.processes)
            unit.arriving = self._block(unit.size)
            del copy

    def before_forward(self, unit: Unit) -> None:
        """Gather a unit; its buffer is freed when the next unit is copied out of its own: `prev_all_gather_state` holds it so long."""
        unit.done = False
        self._gather(unit)
        if unit.arriving is not None:
            unit.weights = self._block(unit.size)
            self._arrived, unit.arriving = unit.arriving, None

    def after_forward(self, unit: Unit) -> None:
        """Let go of the weights, unless they stay."""
        if not unit.stays:
            unit.weights = None
        self._order.append(unit)

    def end_of_forward(self) -> None:
        """The model's forward pass is over: free the last buffer."""
        self._arrived = None

    def before_backward(self, unit: Unit) -> None:
        """Have the unit's weights, and begin to gather those of the unit that was computed before it."""
        self._gather(unit)
        if unit.arriving is not None:
            unit.weights = self._block(unit.size)
            unit.arriving = None
        position = self._order.index(unit)
        if position:
            self._gather(self._order[position - 1])

    def after_backward(self, unit: Unit) -> None:
        """Let go of the weights, and send the gradients: copied into one buffer, from which the own share comes out, in the dtype held.

        The last parameter's gradient is held until all of that is over, by the name of a loop in `foreach_reduce`.
        """
        unit.done = True
        unit.weights = None
        if not self.reduces:
            return
        self._sent = None
        gradients = [each.grad for each in unit.trained if each.grad is not None]
        if not gradients:
            return
        size = sum(each.size for each in gradients)
        self._sent = self._block(size)
        for each in unit.trained:
            each.grad = None
        del gradients[:-1]
        share = self._block(size / self.processes, "gradients")
        if self._widens != 1:
            share = self._block(size / self.processes * self._widens, "gradients")
        if unit.shard is None:
            unit.shard = share  # else it is added to what is there

    def end_of_backward(self) -> None:
        """The backward pass is over: what no gradient came through to is sent now, and nothing stays gathered or on its way."""
        for unit in sorted(self.units, key=lambda each: not each.stays):
            if not unit.done:
                self.after_backward(unit)
            unit.arriving = None
        self._sent = None
        self._order.clear()
