"""A tape that counts the bytes of a forward and a backward pass, as torch's autograd holds them, without torch.

A tensor here is a size. An operation allocates its output and keeps what torch keeps of its inputs for the backward pass; the backward pass
runs the operations in the opposite order, allocates the gradients, and lets go of what was kept. Lifetimes are Python's own: a block is
freed when nothing refers to it any more, as torch's storages are. So code that follows a model's forward pass line by line has the peak
of that pass. The fidelity is tested against torch's MemTracker (tests/fit/test_memory.py).
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Ledger:
    """Adds up what is allocated, and remembers the parts at the highest point."""

    def __init__(self) -> None:
        self.now = 0
        self.parts: dict[str, int] = {}
        self.peak = 0
        self.peak_parts: dict[str, int] = {}
        self.part = "activations"

    def restart(self) -> None:
        """Look for the highest point from here on."""
        self.peak = 0
        self.add(self.part, 0)

    def add(self, part: str, size: int) -> None:
        """Allocate (or free, when negative)."""
        self.now += size
        self.parts[part] = self.parts.get(part, 0) + size
        if self.now > self.peak:
            self.peak = self.now
            self.peak_parts = dict(self.parts)


class Block:
    """Memory of one tensor and of its views; it is freed when the last reference goes."""

    __slots__ = ("ledger", "part", "size")

    def __init__(self, ledger: Ledger, size: float, part: str) -> None:
        self.ledger, self.size, self.part = ledger, int(size), part
        ledger.add(part, self.size)

    def __del__(self) -> None:
        self.ledger.add(self.part, -self.size)

    def move(self, part: str) -> None:
        """Count it as another part from now on."""
        if part != self.part:
            self.ledger.parts[self.part] -= self.size
            self.ledger.parts[part] = self.ledger.parts.get(part, 0) + self.size
            self.part = part


class Tensor:
    """A tensor: how many elements of how many bytes, its block, and the operation that made it, if a gradient goes through it."""

    __slots__ = ("block", "elements", "node", "width")

    def __init__(self, elements: int, width: int, block: Block | None, node: Node | None) -> None:
        self.elements, self.width, self.block, self.node = elements, width, block, node

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.elements * self.width


class Node:
    """An operation that the backward pass will run."""

    __slots__ = ("edges", "grow", "number", "saved", "waiting", "work")

    def __init__(self, number: int, edges: Sequence[tuple[Node | None, int]], saved: Sequence[object], work: float) -> None:
        self.number, self.edges, self.saved, self.work = number, edges, saved, work
        self.waiting = 0
        self.grow: Callable[[list[Block]], list[Block | None]] | None = None


#: Parameters come first of what is ready, and each has its own number, so that two of them can be put in order.
_PARAMETERS = count(1 << 60)


class Parameter(Node):
    """Where the gradient of one trained parameter gathers; or, with a part of its own, that of the input of what is computed again.

    With `sink`, it is handed on to that in place of being kept.
    """

    __slots__ = ("grad", "part", "sink")

    def __init__(self, part: str = "gradients") -> None:
        super().__init__(next(_PARAMETERS), (), (), 0)
        self.part = part
        self.sink: Callable[[Block], None] | None = None
        self.grad: Block | None = None


class Tape:
    """Records operations, and runs them backward."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._count = 0
        self.recording = True

    def empty(self, elements: float, width: int, part: str | None = None) -> Tensor:
        """Allocate a tensor that no gradient goes through."""
        return Tensor(int(elements), width, Block(self.ledger, elements * width, part or self.ledger.part), None)

    def op(
        self,
        inputs: Sequence[Tensor],
        elements: float,
        width: int,
        *,
        saved: Sequence[object] = (),
        work: float = 0,
        view: bool = False,
        part: str | None = None,
        passes: bool = False,
        grad: int | None = None,
        absent: bool = False,
    ) -> Tensor:
        """Record one operation.

        Args:
            inputs: those that a gradient may go to.
            elements: of the output.
            width: bytes of each of them.
            saved: what is kept for the backward pass (tensors or anything that holds them).
            work: bytes of the backward pass beside the gradients of the inputs.
            view: the output shares the block of the first input.
            part: what its memory is counted as.
            passes: the gradient of the output is that of the inputs (an addition): nothing is allocated for it, unless the dtypes differ.
            grad: bytes of each input's gradient, where it is neither of these nor as large as the input.
            absent: the output is never made.
        """
        block = inputs[0].block if view else None if absent else Block(self.ledger, elements * width, part or self.ledger.part)
        out = Tensor(int(elements), width, block, None)
        if self.recording and any(each.node is not None for each in inputs):
            self._count += 1
            edges = [(each.node, _grad_size(each, width, passes or view) if grad is None else grad) for each in inputs]
            out.node = Node(self._count, edges, [each.block if isinstance(each, Tensor) else each for each in saved], work)
        return out

    def custom(self, inputs: Sequence[Tensor], out: Tensor, grow: Callable[[list[Block]], list[Block | None]]) -> None:
        """Record an operation whose backward pass is `grow`: a list with the gradient of the output in, one for each input out."""
        if self.recording and any(each.node is not None for each in inputs):
            self._count += 1
            out.node = Node(self._count, [(each.node, each.bytes) for each in inputs], (), 0)
            out.node.grow = grow

    def hook(self, tensor: Tensor, call: Callable[[], None]) -> Tensor:
        """Return the same tensor, of which `call` is told when its gradient is there."""
        if not self.recording or tensor.node is None:
            return tensor
        out = Tensor(tensor.elements, tensor.width, tensor.block, None)

        def grow(box: list[Block]) -> list[Block | None]:
            call()
            return [box.pop()]

        self.custom([tensor], out, grow)
        return out

    def backward(self, root: Tensor, gradient: Block | None = None) -> None:
        """Run backward from `root`; the gradients of parameters stay with their `Parameter`."""
        if root.node is None:
            raise ValueError("nothing is trained")
        ledger, before = self.ledger, self.ledger.part
        ledger.part = "working memory"
        gathered: dict[Node, Block] = {root.node: gradient or Block(ledger, root.bytes, ledger.part)}
        del gradient
        _count_edges(root.node)
        ready: list[tuple[int, Node]] = []
        heappush(ready, (-root.node.number, root.node))
        root.node = None
        while ready:
            _, node = heappop(ready)
            self._run(node, gathered, ready)
            del node
        ledger.part = before

    def _run(self, node: Node, gathered: dict[Node, Block], ready: list[tuple[int, Node]]) -> None:
        gradient = gathered.pop(node)
        if isinstance(node, Parameter):
            if node.sink is not None:
                node.sink(gradient)
            elif node.grad is None:
                gradient.move(node.part)
                node.grad = gradient
            return
        box = [gradient]
        del gradient
        grads = self._gradients(node, box)
        node.saved, node.grow = (), None
        box.clear()
        for index, (target, _) in enumerate(node.edges):
            if target is None:
                continue
            block = grads[index]
            grads[index] = None
            if block is not None and target not in gathered:
                gathered[target] = block
            del block
            target.waiting -= 1
            if target.waiting == 0:
                heappush(ready, (-target.number, target))
        node.edges = ()

    def _gradients(self, node: Node, box: list[Block]) -> list[Block | None]:
        if node.grow is not None:
            return node.grow(box)
        work = Block(self.ledger, node.work, self.ledger.part) if node.work else None
        grads: list[Block | None] = []
        for target, size in node.edges:
            if target is None:
                grads.append(None)
            else:
                grads.append(Block(self.ledger, size, self.ledger.part) if size else box[0])
        del work
        return grads


def _grad_size(tensor: Tensor, width: int, passes: bool) -> int:
    return 0 if passes and tensor.width == width else tensor.bytes


def _count_edges(root: Node) -> None:
    """Set how many gradients each operation waits for."""
    seen, todo = {root}, [root]
    while todo:
        for target, _ in todo.pop().edges:
            if target is None:
                continue
            if target not in seen:
                seen.add(target)
                todo.append(target)
                target.waiting = 0
            target.waiting += 1
