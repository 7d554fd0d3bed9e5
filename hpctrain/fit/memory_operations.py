"""What a forward pass is made of, on the tape: weights, autocast, linear layers with adapters, norms, rotary positions, activations.

Each follows what torch, transformers 5.23 and peft 0.21 write, and keeps what they keep. For hpctrain/fit/memory_model.py. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from hpctrain.fit.memory_tape import Block, Ledger, Parameter, Tape, Tensor
from hpctrain.fit.parameters import adapted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpctrain.fit.layout import Layout
    from hpctrain.fit.shape import Linear, ModelShape

WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}


def is_masked(layout: Layout) -> bool:
    """Whether sdpa gets a mask of length x length: of padded rows of different lengths, or of rows that are laid end to end."""
    return layout.attention == "sdpa" and (layout.padding_free or layout.micro_batch > 1)


class Weights:
    """One weight: its elements and dtype, its gradient's place, and autocast's copy of it while that is kept."""

    __slots__ = ("cached", "packed", "tensor")

    def __init__(self, elements: int, width: int, trained: bool, packed: bool = False) -> None:
        self.packed = packed
        self.tensor = Tensor(elements, width, None, Parameter() if trained else None)
        self.cached: Tensor | None = None


class Sharder(Protocol):
    """What gathers and sends for a process: FSDP2 (memory_fsdp.py) or ZeRO (memory_zero.py); a unit is what it makes of some weights."""

    reduces: bool

    def unit(self, weights: Sequence[Weights], *, stays: bool = False) -> Any:
        """Add a unit."""

    def before_forward(self, unit: Any, /) -> None:
        """Gather a unit."""

    def after_forward(self, unit: Any, /) -> None:
        """Let a unit go."""

    def end_of_forward(self) -> None:
        """The model's forward pass is over."""

    def before_backward(self, unit: Any, /) -> None:
        """Gather a unit again."""

    def after_backward(self, unit: Any, /) -> None:
        """Send the gradients of a unit, and let it go."""

    def end_of_backward(self) -> None:
        """The backward pass is over."""


class Operations:
    """The weights of a model, and the operations of torch, transformers and peft that its forward pass is made of."""

    def __init__(self, shape: ModelShape, layout: Layout, ledger: Ledger, sharder: Sharder | None = None) -> None:
        self.shape, self.layout, self.ledger = shape, layout, ledger
        self.tape = Tape(ledger)
        self.tokens = layout.tokens_per_pass
        self.rows, self.length = (1, self.tokens) if layout.padding_free else (layout.micro_batch, layout.length)
        self.width = WIDTH[layout.weights]
        self.auto = layout.compute is not None
        self.compute = WIDTH[layout.compute or layout.weights]
        # peft holds adapters in float32, TRL those of quantized models in bfloat16; FSDP2 and DeepSpeed hand over the compute dtype.
        self.adapters = 2 if layout.quantization != "none" else self.compute if layout.processes > 1 else 4
        self.masked = is_masked(layout)
        self.cache: list[Weights] = []
        self.held: list[object] = []
        self.again = False  # whether a layer is being computed again
        self.scaled: Block | None = None  # then, the gradient of its last adapter
        self.frozen = layout.lora is not None
        self._adapted = {each.name for each in adapted(shape, layout.lora)}
        self.layers = [self._layer_weights() for _ in range(shape.layers)]
        self.embedding = self._weights(shape.embedding_parameters)
        self.norm = self._weights(shape.norm_parameters)
        self.head = self.embedding if shape.tied else self._head_weights()
        self.sharder = sharder
        if sharder is not None:
            tail = [self.norm, self.head]
            self.tail_unit = sharder.unit(tail, stays=True)
            self.embedding_unit = self.tail_unit if shape.tied else sharder.unit([self.embedding])
            self.layer_units = [sharder.unit(list(layer.values())) for layer in self.layers]

    # -- what FSDP2 or ZeRO gathers and sends ------------------------------------------------------------------------------

    def enter(self, tensor: Tensor, unit: Any) -> Tensor:
        """Gather a unit, of which this is the input; when the gradient gets here, its gradients are sent."""
        assert self.sharder is not None  # noqa: S101 - for mypy
        sharder = self.sharder
        sharder.before_forward(unit)
        return self.tape.hook(tensor, lambda: sharder.after_backward(unit))

    def leave(self, tensor: Tensor, unit: Any) -> Tensor:
        """Let a unit go, of which this is the output; when the gradient gets here, it is gathered again."""
        assert self.sharder is not None  # noqa: S101 - for mypy
        sharder = self.sharder
        sharder.after_forward(unit)
        return self.tape.hook(tensor, lambda: sharder.before_backward(unit))

    # -- weights ----------------------------------------------------------------------------------------------------------

    def _weights(self, elements: int) -> Weights:
        return Weights(elements, self.width, not self.frozen)

    def _head_weights(self) -> Weights:
        elements = self.shape.outputs * self.shape.hidden
        return Weights(elements, self.adapters, True) if self.shape.labels and self.frozen else self._weights(elements)

    def _layer_weights(self) -> dict[str, Weights]:
        shape, weights = self.shape, {}
        for each in shape.projections:
            packed = self.layout.quantization != "none"
            weights[each.name] = Weights(each.inputs * each.outputs, self.width, not self.frozen, packed)
            if self.layout.lora is not None and each.name in self._adapted:
                rank = self.layout.lora.rank
                weights[each.name + ".A"] = Weights(each.inputs * rank, self.adapters, True)
                weights[each.name + ".B"] = Weights(rank * each.outputs, self.adapters, True)
        for index in range(shape.norms):
            weights[f"norm{index}"] = self._weights(shape.norm_parameters)
        if shape.qk_norm != "none":
            weights["q_norm"] = self._weights(shape.head_dim if shape.qk_norm == "head" else shape.queries)
            weights["k_norm"] = self._weights(shape.head_dim if shape.qk_norm == "head" else shape.keys)
        if shape.experts:
            one = shape.experts * shape.hidden * shape.intermediate
            weights["experts.gate"] = self._weights(shape.experts * shape.hidden)
            weights["experts.gate_up"], weights["experts.down"] = self._weights(2 * one), self._weights(one)
        return weights

    def _leaf(self, weights: Weights) -> Tensor:
        """Return the weight in the dtype that is computed in; autocast keeps the copies of trained ones."""
        if not self.auto or weights.tensor.width == self.compute:
            return weights.tensor
        if weights.cached is not None:
            return weights.cached
        cast = self.tape.op([weights.tensor], weights.tensor.elements, self.compute, part="casts")
        if weights.tensor.node is not None:
            weights.cached = cast
            self.cache.append(weights)
        return cast

    def clear(self) -> None:
        """Leave autocast: its copies go, unless the backward pass needs them."""
        for each in self.cache:
            each.cached = None
        self.cache = []

    # -- operations -------------------------------------------------------------------------------------------------------

    def cast(self, tensor: Tensor, width: int) -> Tensor:
        """Copy into another dtype; the tensor itself where it has it already."""
        return tensor if tensor.width == width else self.tape.op([tensor], tensor.elements, width)

    def to_compute(self, tensor: Tensor) -> Tensor:
        """What autocast does to the input of a matrix product."""
        return self.cast(tensor, self.compute) if self.auto else tensor

    def matmul(self, tensor: Tensor, weights: Weights, outputs: int, *, absent: bool = False) -> Tensor:
        """Multiply with a weight: the input is kept where the weight is trained, the weight where a gradient goes to the input."""
        if weights.packed:  # bitsandbytes unpacks it, here and once more in the backward pass, and keeps neither
            tensor, size = self.to_compute(tensor), weights.tensor.elements * self.compute
            unpacked = self.tape.empty(weights.tensor.elements, self.compute)
            out = self.tape.op([tensor], self.tokens * outputs, tensor.width, work=size)
            del unpacked
            return out
        tensor, weight = self.to_compute(tensor), self._leaf(weights)
        saved = [weight] * (tensor.node is not None) + [tensor] * (weight.node is not None)
        return self.tape.op([tensor, weight], self.tokens * outputs, tensor.width, saved=saved, absent=absent)

    def linear(self, tensor: Tensor, layer: dict[str, Weights], linear: Linear) -> Tensor:
        """One linear layer, with its adapter where it has one (peft's LoRA).

        When a layer is computed again it stops as soon as all that the backward pass needs is there: for the last adapter, in the product
        with its second matrix, whose output is never made. By then the gradient has come to that product through the addition and the
        multiplication with the scale, which keep no tensor, so the scaled gradient is there while the layer is computed again.
        """
        stops = self.again and self.is_last_adapter(linear)
        result = self.matmul(tensor, layer[linear.name], linear.outputs)
        lora = self.layout.lora
        if lora is None or linear.name not in self._adapted:
            return result
        tensor = self.cast(tensor, self.adapters)
        dropped = tensor
        if lora.dropout:
            kept = self.tape.empty(tensor.elements, 1)
            dropped = self.tape.op([tensor], tensor.elements, tensor.width, saved=[kept])
            del kept
        low = self.matmul(dropped, layer[linear.name + ".A"], lora.rank)
        del dropped
        high = self.matmul(low, layer[linear.name + ".B"], linear.outputs, absent=stops)
        if stops and high.node is not None:
            high.node.saved = [*high.node.saved, self.scaled]
            self.scaled = None
        del low
        high = self.tape.op([high], high.elements, high.width, absent=stops, passes=stops)
        out = self.tape.op([result, high], result.elements, max(result.width, high.width), passes=True, absent=stops)
        del high
        return self.cast(out, result.width)

    def is_last_adapter(self, linear: Linear) -> bool:
        """Whether nothing but additions comes after this layer's adapter in a decoder layer."""
        return linear is self.shape.projections[-1] and linear.name in self._adapted and not self.shape.norms_after

    def add(self, one: Tensor, other: Tensor) -> Tensor:
        """Add two tensors."""
        return self.tape.op([one, other], one.elements, max(one.width, other.width), passes=True)

    def sum(self, one: Tensor, other: Tensor) -> Tensor:
        """Add the residual to the output of a layer."""
        return self.tape.op([one, other], one.elements, max(one.width, other.width), passes=True, absent=self.again)

    def normed(self, tensor: Tensor, weights: Weights, rows: int | None = None) -> Tensor:
        """Norm over the last dimension; `rows`: how many are normed, each token once where it is not given."""
        kind = self.shape.norm
        if kind in ("layer", "plain"):
            return self._layer_norm(tensor, weights)
        tape, n, rows, width = self.tape, tensor.elements, rows or self.tokens, tensor.width
        weight = weights.tensor
        tensor = self.cast(tensor, 4)
        square = tape.op([tensor], n, 4, saved=[tensor], work=8 * n)
        variance = tape.op([square], rows, 4, work=4 * n)
        del square
        variance = tape.op([variance], rows, 4)
        root = tape.op([variance], rows, 4)
        if root.node is not None:
            root.node.saved = [root.block]
        del variance
        scaled = tape.op([tensor, root], n, 4, saved=[tensor, root], work=4 * n)
        del tensor, root
        trained = weight.node is not None
        if kind == "gemma":
            if weight.width != 4:
                weight = tape.op([weight], weight.elements, 4)
            out = tape.op([scaled, weight], n, 4, saved=[scaled] * trained, work=4 * n * trained)
            del scaled
            return self.cast(out, width)
        narrow = self.cast(scaled, width)
        wide = max(width, weight.width)
        return tape.op([narrow, weight], n, wide, saved=[narrow] * trained, work=wide * n * trained)

    def _layer_norm(self, tensor: Tensor, weights: Weights) -> Tensor:
        """Layer norm as torch has it; autocast computes it in float32 and gives that out (ATen/autocast_mode.h, the fp32 list)."""
        width, plain = tensor.width, self.shape.norm == "plain"  # OLMo's, which is written in float32, and casts back
        tensor = self.cast(tensor, 4) if self.auto or plain else tensor
        statistics = self.tape.empty(2 * self.tokens, 4)
        out = self.tape.op([tensor, weights.tensor], tensor.elements, tensor.width, saved=[tensor, statistics])
        del tensor
        return self.cast(out, width) if plain else out

    def rope(self, tensor: Tensor, width: int) -> Tensor:
        """Rotary positions: `tensor * cos + rotate_half(tensor) * sin`, of which nothing large is kept."""
        tape, n = self.tape, tensor.elements
        wide = max(tensor.width, width)
        straight = tape.op([tensor], n, wide)
        halves = [tape.op([tensor], n // 2, tensor.width, view=True, grad=tensor.bytes) for _ in range(2)]
        minus = tape.op([halves[1]], n // 2, tensor.width)
        turned = tape.op([minus, halves[0]], n, tensor.width, grad=0)
        del minus, halves
        turned = tape.op([turned], n, wide)
        return self.add(straight, turned)

    def activation(self, tensor: Tensor) -> Tensor:
        """The activation function: its input is kept. GPT-2's gelu_new is written out in eight operations, of which five keep something."""
        if self.shape.activation != "gelu_new":
            return self.tape.op([tensor], tensor.elements, tensor.width, saved=[tensor])
        tape, n, width = self.tape, tensor.elements, tensor.width
        half = tape.op([tensor], n, width)
        wide = self.cast(tensor, 4) if self.auto else tensor  # CUDA's autocast takes powers in float32
        cube = tape.op([wide], n, wide.width, saved=[wide], work=2 * n * wide.width)
        width = wide.width
        del wide
        cube = tape.op([cube], n, width)
        cube = self.add(tensor, cube)
        cube = tape.op([cube], n, width)
        tanh = tape.op([cube], n, width)
        if tanh.node is not None:
            tanh.node.saved = [tanh.block]
        del cube
        one = tape.op([tanh], n, width, passes=True)
        del tanh
        return tape.op([half, one], n, width, saved=[half, one])
