"""Closed formulas for the temporary GPU memory of one forward and backward pass.

A decoder layer is a list of operations in forward order (`DecoderLayer.operations`), each with the
bytes that it keeps for the backward pass and those that its backward pass needs. The peak is in the
loss, in the backward pass of the last layer (all layers still keep theirs), or in that of the first
(nearly all gradients exist). Sources for what torch keeps: models/llama/modeling_llama.py and
similar in transformers 5.23, peft/tuners/lora/layer.py, trl/kernels/chunked_logprob.py, and torch's
autocast, which keeps the copies of weights until the backward pass has used them. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from hpctrain.fit.layout import Layout
from hpctrain.fit.shape import Linear, ModelShape, adapted
from hpctrain.fit.sharding import FsdpSharder, Sharder, Unit, ZeroSharder, ZeroThreeSharder

WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}
#: TRL 1.16: trl/kernels/chunked_logprob.py TOKEN_CHUNK_SIZE, and trl/trainer/utils.py
#: _CHUNKED_LOGPROB_CHUNK_SIZE.
LOSS_TOKENS, LOSS_VOCABULARY = 4096, 32768

#: Bytes by purpose.
Parts = Counter[str]


def _parts(work: float = 0, **sizes: float) -> Parts:
    """Return the parts at one moment, in whole bytes; `work`: the working memory."""
    sizes["working memory"] = work
    return Counter({name: int(size) for name, size in sizes.items()})


def is_masked(layout: Layout) -> bool:
    """Whether sdpa gets a mask of length x length: for padded rows of different lengths, or
    concatenated rows.
    """
    return layout.attention == "sdpa" and (layout.padding_free or layout.micro_batch > 1)


class Operation(NamedTuple):
    """One operation.

    Attributes:
        kept: bytes that it keeps for its backward pass.
        work: bytes of its backward pass: gradients of its outputs and inputs, and temporaries;
            without the gradient on the residual path.
        gradients: bytes of the weight gradients that its backward pass produces.
    """

    kept: float = 0
    work: float = 0
    gradients: float = 0


class DecoderLayer:
    """The operations of one decoder layer, and their sizes.

    Attributes:
        weights: elements of its base weights and adapters.
        gradients: bytes of its gradients; `head_gradients`: of those of the output layer.
        copies: bytes of autocast's copies of its weights.
        inputs: bytes of the tensors that all layers share: token ids, labels, positions, the mask.
    """

    def __init__(self, shape: ModelShape, layout: Layout) -> None:
        self.shape, self.layout = shape, layout
        self.tokens = layout.tokens_per_pass
        self.rows, self.length = (
            (1, self.tokens) if layout.padding_free else (layout.micro_batch, layout.length)
        )
        self.width = WIDTH[layout.weights]
        self.autocast = layout.compute is not None
        self.compute = WIDTH[layout.compute or layout.weights]
        self.casts = self.autocast and self.width != self.compute
        self.trained = layout.lora is None
        self.adapted = adapted(shape, layout.lora)
        # peft stores adapters in float32, TRL those of quantized models in bfloat16; FSDP2 and
        # DeepSpeed pass them on in the compute dtype.
        handed_over = layout.processes > 1 and layout.sharding != "ddp"
        self.adapter_width = self.compute if handed_over else 4
        if layout.quantization != "none":
            self.adapter_width = 2
        self.masked = is_masked(layout)
        self.stream = self.tokens * shape.hidden * self.width
        rank = layout.lora.rank if layout.lora is not None else 0
        adapters = rank * sum(each.inputs + each.outputs for each in self.adapted)
        base = shape.layer_parameters
        head = shape.outputs * shape.hidden
        of_adapters = adapters * self.adapter_width
        self.weights = base + adapters
        self.gradients = base * self.width if self.trained else of_adapters
        of_head = self.width if self.trained else self.adapter_width * bool(shape.labels)
        self.head_gradients = head * of_head
        linears = sum(each.inputs * each.outputs for each in shape.projections)
        copied = linears * self.casts * (layout.quantization == "none")
        copied += adapters * (self.autocast and self.adapter_width != self.compute)
        self.copies = self.compute * copied
        # cos and sin: shared by all rows unless each has its own positions, as in a classifier
        rotary = 2 * self.length * shape.head_dim * (self.rows if shape.labels else 1) * self.width
        self.inputs = 24 * self.tokens + self.masked * self.rows * self.length**2 + rotary

    # -- operations --------------------------------------------------------------------------------

    def operations(self) -> Iterator[Operation]:
        """Yield the operations of the layer, in forward order."""
        shape, stream = self.shape, self.tokens * self.shape.hidden
        narrow = self.compute if self.autocast else self.width
        attention = [each for each in shape.projections if not each.name.startswith("mlp")]
        mlp = [each for each in shape.projections if each.name.startswith("mlp")]
        yield self.norm(stream, self.width)
        yield self.linears(attention[:-1], stream, self.width)
        queries, keys = self.tokens * shape.queries, self.tokens * shape.keys
        if shape.qk_norm:
            yield self.norm(queries, narrow, self.tokens * shape.heads)
            yield self.norm(keys, narrow, self.tokens * shape.heads)
        yield from self.attention(queries, keys, narrow)
        yield self.linears(attention[-1:], queries, narrow, held=self.layout.attention != "eager")
        if shape.norms_after:
            yield self.norm(stream, narrow)
        yield self.norm(stream, self.width)
        if shape.experts:
            yield from self.experts(stream)
        else:
            inner = self.tokens * shape.intermediate
            yield self.linears(mlp[:1], stream, self.width)
            # The activation function: of gate and up in one projection, it keeps their halves too.
            yield Operation((2 + shape.packed) * inner * narrow, 3 * inner * narrow)
            if not shape.packed:
                yield self.linears(mlp[1:2], stream, self.width, held=True)
                yield Operation(inner * narrow, 3 * inner * narrow)
            yield self.linears(mlp[-1:], inner, narrow)
        if shape.norms_after:
            yield self.norm(stream, narrow)

    def norm(self, elements: int, width: int, rows: int | None = None) -> Operation:
        """A norm, computed in float32: it keeps its input and, if its weight is trained, the
        normalized input.
        """
        scaled = (4 if self.shape.norm == "gemma" else width) * self.trained
        return Operation(elements * (4 + scaled) + 4 * (rows or self.tokens), elements * 16)

    def linears(
        self, linears: Sequence[Linear], elements: int, width: int, *, held: bool = False
    ) -> Operation:
        """Linear layers with a common input of `elements` numbers of `width` bytes; `held`: another
        operation already keeps that input.
        """
        lora, kept, shared = self.layout.lora, 0.0, False
        product = self.compute if self.autocast else self.adapter_width
        for each in linears:
            copied = self.autocast and width != self.compute
            if self.trained:
                kept += elements * self.compute * copied
            elif lora is not None and each in self.adapted:
                copied = width != self.adapter_width or lora.dropout or product != width
                kept += elements * (product * copied + lora.dropout)
                kept += self.tokens * lora.rank * product
            else:
                continue
            shared = shared or not copied
        kept += elements * width * (shared and not held)
        narrow = self.compute if self.autocast else width
        outputs = self.tokens * sum(each.outputs for each in linears)
        sizes = [each.inputs * each.outputs for each in linears]
        largest, gradients = max(sizes), sum(sizes) * self.width * self.trained
        of_inputs = elements * (narrow + width * (width != narrow))
        work = outputs * narrow + of_inputs
        if self.trained and self.casts:
            # A gradient is cast after that of the outputs is freed.
            work = of_inputs + largest * self.compute + max(outputs * narrow - gradients, 0)
        elif self.layout.quantization != "none":
            work += largest * self.compute
        elif lora is not None and any(each in self.adapted for each in linears):
            # Its recomputed forward pass needs more: the input in the adapter's dtype and after
            # dropout, and the adapter's output before and after scaling.
            wide = self.adapter_width * (self.adapter_width != width)
            dropped = elements * (width + wide * (1 + lora.dropout))
            scaled = 2 * self.tokens * linears[-1].outputs * narrow + elements * (width + wide)
            work = max(
                work + elements * (product + wide),
                outputs * narrow + 2 * self.stream + max(dropped, scaled),
            )
        return Operation(kept, work, gradients)

    def attention(self, queries: int, keys: int, width: int) -> Iterator[Operation]:
        """The attention kernel: flash without a mask, memory-efficient with one.

        With a mask, and in eager mode, keys and values are repeated for all heads; eager stores the
        scores of each head.
        """
        shape, eager = self.shape, self.layout.attention == "eager"
        grouped = shape.heads != shape.kv_heads
        keys = queries if grouped and (self.masked or eager) else keys
        inputs = (queries + 2 * keys) * width
        sums = 4 * self.tokens * shape.heads
        if eager:
            scores = self.rows * shape.heads * self.length**2
            yield Operation((queries + keys) * width + scores * 4, queries * width + scores * 8)
            copied = scores * width * (width != 4)
            yield Operation(keys * width + copied, queries * width + scores * width)
            return
        kept = inputs + queries * width + sums
        if shape.packed and keys == self.tokens * shape.keys:
            kept += (queries + keys) * width  # values are a view of the packed q, k and v
        work = queries * width + inputs + sums
        if self.masked:
            kept += self.rows * self.length**2 * width
        else:
            work += sums * -(-shape.head_dim // 32) * 32 + 2 * queries * width * grouped
        yield Operation(kept, work)

    def experts(self, stream: int) -> Iterator[Operation]:
        """A mixture of experts (transformers/integrations/moe.py, grouped_mm): each token is copied
        once per selected expert.
        """
        shape, copies = self.shape, self.tokens * self.shape.experts_per_token
        hidden, inner, wide = copies * shape.hidden, copies * shape.intermediate, self.width
        routing = 4 * self.tokens * shape.experts + 28 * copies
        weights = shape.experts * shape.hidden * shape.intermediate * wide * self.trained
        router = stream * (self.compute if self.autocast else wide) * self.trained
        yield Operation(
            routing + router + hidden * wide * self.trained,
            2 * inner * wide + 2 * hidden * wide,
            2 * weights,
        )
        yield Operation(3 * inner * wide, 3 * inner * wide)
        yield Operation(inner * wide * self.trained, hidden * wide + inner * wide, weights)
        yield Operation(hidden * wide, hidden * (4 + 4 * (wide == 4) + wide))

    # -- the loss ----------------------------------------------------------------------------------

    def loss(self) -> tuple[float, float, float]:
        """Return the bytes that the loss keeps, and the temporaries of its forward and backward
        pass.
        """
        shape, trained = self.shape, self.trained
        stream = self.tokens * shape.hidden
        if self.layout.loss == "classes":
            scores = self.tokens * shape.labels * 4
            return stream * self.compute, scores, 2 * scores + stream * self.compute
        head = shape.vocab * shape.hidden
        if self.layout.loss == "logits":
            logits = self.tokens * shape.vocab
            inputs = stream * self.compute * trained + head * self.compute * self.casts
            return inputs, logits * (8 + self.compute), logits * 12
        width = self.compute if self.autocast else self.width
        tokens, words = min(self.tokens, LOSS_TOKENS), min(shape.vocab, LOSS_VOCABULARY)
        of_words = words * shape.hidden * width * (self.width != width)
        of_tokens = tokens * shape.hidden * width * (self.width != width)
        tile = tokens * LOSS_VOCABULARY * width + of_words + of_tokens
        # The backward pass still references the previous chunk while it computes the next.
        again = max(
            of_words * min(shape.vocab / LOSS_VOCABULARY - 1, 1),
            of_tokens * min(self.tokens / LOSS_TOKENS - 1, 1),
            0,
        )
        gradients = 4 * stream + 4 * head * trained
        narrowed = (stream + head * trained) * self.width * (self.width != 4)
        kept = self.stream + 36 * self.tokens
        return kept, tile, gradients + tile + max(again, narrowed)


# -- one pass --------------------------------------------------------------------------------------


def _through(layer: DecoderLayer, operations: Sequence[Operation], *, gathers: bool) -> Parts:
    """Return the parts at the peak of one layer's backward pass; `gathers`: its weight gradients
    exist together, instead of being added elsewhere one by one.
    """
    best, kept, gradients = Parts(), sum(each.kept for each in operations), 0.0
    casts, cast = float(layer.copies), layer.casts * layer.compute / layer.width
    for each in reversed(operations):
        gradients = each.gradients + gathers * gradients
        now = _parts(activations=kept, casts=casts, gradients=gradients, work=each.work)
        best = max(best, now, key=Parts.total)
        kept -= each.kept
        casts -= each.gradients * cast
    return best


def moments(shape: ModelShape, layout: Layout, trained_width: int) -> tuple[Parts, Parts]:
    """Return the parts at the peaks of one forward and one backward pass.

    `trained_width`: bytes of a trained parameter in the optimizer.
    """
    layer = DecoderLayer(shape, layout)
    sharder = _sharder(layer, trained_width)
    full, layers, inputs = layout.checkpointing == "full", shape.layers, layer.inputs
    operations = list(layer.operations())
    through = _through(layer, operations, gathers=sharder.gathers)
    # A float32 norm keeps the layer's input, which the checkpoint keeps as well.
    shared = full * layer.stream * (layer.width == 4 and not shape.norms_after)
    each_layer = layer.stream if full else sum(each.kept for each in operations)
    kept, forward, backward = layer.loss()
    norm = layer.norm(layer.tokens * shape.hidden, layer.width)
    beneath = inputs + layers * each_layer + norm.kept
    cached = layers * layer.copies
    before = sharder.gradients(layers + 1)
    in_loss = _parts(
        activations=beneath,
        loss=kept + forward,
        casts=cached * (layer.trained or not full),
        buffers=sharder.forward(),
    )
    gathering = [
        _parts(activations=inputs + layer.stream + done * each_layer, buffers=buffers)
        for done, buffers in sharder.gathering()
    ]
    ahead = max(in_loss, *gathering, key=Parts.total) + _parts(gradients=before)
    above = _parts(
        activations=beneath, casts=cached * (not full), buffers=sharder.backward(layers + 1)
    )
    table = shape.embedding_parameters * layer.trained * layer.width
    candidates = [
        above + _parts(gradients=before, loss=kept + backward),
        above + _parts(gradients=before + sharder.head.gradients, work=norm.work + layer.stream),
        _parts(
            activations=inputs,
            gradients=sharder.gradients(0) + table,
            work=layer.stream,
            buffers=sharder.backward(0),
        ),
    ]
    for index in {layers, max(layers - 1, 1), min(2, layers), 1}:
        below = inputs + (index - 1) * each_layer - shared
        now = through + _parts(
            activations=below,
            gradients=sharder.gradients(index),
            work=layer.stream,
            casts=layer.copies * (0 if full else index - 1),
            buffers=sharder.backward(index),
        )
        if full:
            now["recomputed layer"] = through["activations"]
            now["activations"] = int(below + layer.stream)
        candidates.append(now)
    return ahead, max(candidates, key=Parts.total)


def _sharder(layer: DecoderLayer, trained_width: int) -> Sharder:
    shape, layout, width = layer.shape, layer.layout, layer.compute
    table = shape.embedding_parameters * layer.width * (not shape.tied)
    several = layout.processes > 1 and layout.sharding != "ddp"
    kinds = {"fsdp": FsdpSharder, "zero2": ZeroSharder, "zero3": ZeroThreeSharder}
    return (kinds[layout.sharding] if several else Sharder)(
        processes=layout.processes,
        width=width,
        widens=trained_width / width,
        layers=shape.layers,
        layer=Unit(layer.weights * width, layer.gradients),
        head=Unit((shape.outputs + 1) * shape.hidden * layer.width, layer.head_gradients),
        table=Unit(table, table * layer.trained),
        tied=shape.tied,
        accumulates=layout.accumulation > 1,
    )


def evaluation(shape: ModelShape, layout: Layout, trained_width: int) -> Parts:
    """Return the parts at the peak of an evaluation, a forward pass that keeps nothing."""
    layer = DecoderLayer(shape, replace(layout, micro_batch=layout.evaluation))
    narrow = layer.compute if layer.autocast else layer.width
    wide, adapters = max(narrow, layer.width), bool(layer.adapted)
    stream = layer.tokens * shape.hidden
    queries, keys = layer.tokens * shape.queries, layer.tokens * shape.keys
    inner = layer.tokens * shape.intermediate * max(shape.experts_per_token, 1) * narrow
    mlp = (3 + adapters) * inner + stream * (narrow + adapters * layer.adapter_width)
    rotation = 4 * queries * wide + keys * (wide + narrow)
    mask = layer.masked * layer.rows * layer.length**2 * narrow
    repeated = queries * (wide + 4 * narrow) + keys * (wide + narrow) + mask
    scores = layer.rows * shape.heads * layer.length**2 * 8 * (layout.attention == "eager")
    inside = max(mlp, rotation, repeated * layer.masked, queries * 2 * narrow + scores)
    return _parts(
        activations=layer.inputs + 3 * layer.stream + inside,
        casts=shape.layers * layer.copies,
        buffers=max(bytes_ for _, bytes_ in _sharder(layer, trained_width).gathering()),
    )
