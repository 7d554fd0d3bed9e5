"""The forward pass of a decoder-only model on the tape, line by line as transformers 5.23 and TRL 1.16 write it.

What is followed: models/llama/modeling_llama.py and its relatives, peft/tuners/lora/layer.py, trl/kernels/chunked_logprob.py, torch's
autocast (casts of trained leaves are kept until the end of the forward pass) and torch.utils.checkpoint (non-reentrant). Variables that
hold a tensor there hold it here, because they decide when it is freed. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.fit.memory_operations import WIDTH, Operations, Weights, is_masked
from hpctrain.fit.memory_tape import Block, Parameter, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpctrain.fit.shape import Linear, ModelShape

#: TRL 1.16: trl/kernels/chunked_logprob.py TOKEN_CHUNK_SIZE, and trl/trainer/utils.py _CHUNKED_LOGPROB_CHUNK_SIZE.
LOSS_TOKENS, LOSS_VOCABULARY = 4096, 32768

__all__ = ["WIDTH", "Pass", "is_masked"]


class Pass(Operations):
    """One forward and backward pass of one process."""

    # -- attention --------------------------------------------------------------------------------------------------------

    def attend(self, query: Tensor, key: Tensor, value: Tensor, shape: ModelShape) -> Tensor:
        """The kernel: flash without a mask, the efficient one with a mask, which also repeats keys and values; or eager."""
        if self.masked and shape.heads != shape.kv_heads:
            key, value = (self.tape.op([each], self.tokens * shape.queries, each.width) for each in (key, value))
        if self.layout.attention == "eager":
            return self._eager(query, key, value, shape)
        query, key, value = self.to_compute(query), self.to_compute(key), self.to_compute(value)
        tape, mask = self.tape, None
        if self.masked:
            mask = tape.empty(self.rows * self.length * self.length, query.width)
        out = tape.empty(self.tokens * shape.queries, query.width)
        sums = tape.empty(self.tokens * shape.heads, 4)
        saved: list[object] = [query.block, key.block, value.block, out.block, sums.block, None if mask is None else mask.block]
        grads = [(each.bytes, each.node is not None) for each in (query, key, value)]
        work = 4 * self.tokens * shape.heads
        if not self.masked:
            work += 4 * self.tokens * shape.heads * -(-shape.head_dim // 32) * 32
            work += 2 * query.bytes * (shape.heads != shape.kv_heads)

        def grow(box: list[Block]) -> list[Block | None]:
            held = Block(self.ledger, work, self.ledger.part)
            given = [Block(self.ledger, size, self.ledger.part) if wanted else None for size, wanted in grads]
            saved.clear()
            box.clear()
            del held
            return list(given)

        tape.custom([query, key, value], out, grow)
        return out

    def _eager(self, query: Tensor, key: Tensor, value: Tensor, shape: ModelShape) -> Tensor:
        """Scores of every token with every other one, for each head, several times: in the compute dtype and in float32."""
        tape, pairs = self.tape, self.rows * shape.heads * self.length * self.length
        if shape.heads != shape.kv_heads:
            key, value = (tape.op([each], self.tokens * shape.queries, each.width) for each in (key, value))
        query, key, value = self.to_compute(query), self.to_compute(key), self.to_compute(value)
        width = query.width
        scores = tape.op([query, key], pairs, width, saved=[query, key])
        scores = tape.op([scores], pairs, width)
        scores = tape.op([scores], pairs, width, passes=True)  # the mask
        wide = self.cast(scores, 4)
        wide = tape.op([wide], pairs, 4)
        if wide.node is not None:
            wide.node.saved = [wide.block]
        scores = self.cast(wide, width)
        del wide
        return tape.op([scores, value], self.tokens * shape.queries, width, saved=[scores, value])

    def _roped(self, tensor: Tensor) -> Tensor:
        return self.cast(self.rope(tensor, 4), tensor.width) if self.shape.wide_rope else self.rope(tensor, self.width)

    def attention(self, hidden: Tensor, layer: dict[str, Weights]) -> Tensor:
        """The attention of one layer, projections included."""
        shape, tape = self.shape, self.tape
        projections = [each for each in shape.projections if not each.name.startswith("mlp")]
        if len(projections) == 2:
            packed = self.linear(hidden, layer, projections[0])
            sizes = [shape.queries, shape.keys, shape.keys]
            query, key, value = (tape.op([packed], self.tokens * size, packed.width, view=True, grad=packed.bytes) for size in sizes)
            del packed
        else:
            query, key, value = (self.linear(hidden, layer, each) for each in projections[:3])
        if shape.qk_norm != "none":
            heads = (shape.heads, shape.kv_heads) if shape.qk_norm == "head" else (1, 1)
            query = self.normed(query, layer["q_norm"], self.tokens * heads[0])
            key = self.normed(key, layer["k_norm"], self.tokens * heads[1])
        if not shape.positions:
            query, key = self._roped(query), self._roped(key)
        out = self.attend(query, key, value, shape)
        return self.linear(out, layer, projections[-1])

    def mlp(self, hidden: Tensor, layer: dict[str, Weights]) -> Tensor:
        """The MLP of one layer."""
        shape, tape = self.shape, self.tape
        linears: Sequence[Linear] = [each for each in shape.projections if each.name.startswith("mlp")]
        if shape.experts:
            return self._experts(hidden, layer)
        if shape.mlp == "plain":
            return self.linear(self.activation(self.linear(hidden, layer, linears[0])), layer, linears[1])
        if shape.mlp == "packed":
            packed = self.linear(hidden, layer, linears[0])
            gate, up = (tape.op([packed], packed.elements // 2, packed.width, view=True, grad=packed.bytes) for _ in range(2))
            gate = self.activation(gate)
            inner = tape.op([up, gate], gate.elements, gate.width, saved=[up, gate])
            return self.linear(inner, layer, linears[1])
        gate = self.activation(self.linear(hidden, layer, linears[0]))
        up = self.linear(hidden, layer, linears[1])
        kept = [gate] * (up.node is not None) + [up] * (gate.node is not None)  # each for the gradient of the other
        inner = tape.op([gate, up], gate.elements, gate.width, saved=kept)
        del gate, up, kept
        return self.linear(inner, layer, linears[2])

    def _experts(self, hidden: Tensor, layer: dict[str, Weights]) -> Tensor:
        """A mixture of experts (transformers/integrations/moe.py, grouped_mm): each token goes through some experts' MLPs, copied for each.

        The grouped product is none of autocast's: what goes in is cast to the dtype of the experts' weights.
        """
        shape, tape, copies = self.shape, self.tape, self.tokens * self.shape.experts_per_token
        width, inner = hidden.width, copies * shape.intermediate
        logits = self.matmul(hidden, layer["experts.gate"], shape.experts)
        chances = tape.op([self.cast(logits, 4)], logits.elements, 4)
        if chances.node is not None:
            chances.node.saved = [chances.block]
        del logits
        scores = tape.op([chances], copies, 4)
        order = [tape.empty(copies, 8) for _ in range(3)]
        chosen = tape.op([hidden], copies * shape.hidden, width, saved=[order])
        both = self._grouped(chosen, layer["experts.gate_up"], 2 * inner)
        half = tape.op([both], inner, both.width, view=True, grad=both.bytes, work=both.bytes / 2)  # both halves, of one chunk
        gate = tape.op([half], inner, both.width, saved=[half])
        product = tape.op([gate, half], inner, both.width, saved=[gate, half])
        del both, gate, half
        out = self._grouped(product, layer["experts.down"], chosen.elements)
        del product
        weighed = tape.op([out, scores], out.elements, 4, saved=[out, scores], work=4 * out.elements * (out.width == 4))
        del out, scores, chances
        # Computed again, it stops here, where all is kept that the backward pass needs; a sum's gradient is a view of what comes.
        weighed = tape.op([weighed], weighed.elements, 4, saved=[order], absent=self.again)
        del chosen
        summed = tape.op([weighed], hidden.elements, 4, grad=0, absent=self.again)
        return summed if width == 4 else tape.op([summed], hidden.elements, width, absent=self.again)

    def _grouped(self, tensor: Tensor, weights: Weights, elements: int) -> Tensor:
        weight = weights.tensor
        tensor = self.cast(tensor, weight.width)
        return self.tape.op([tensor, weight], elements, weight.width, saved=[tensor] * (weight.node is not None))

    # -- the model --------------------------------------------------------------------------------------------------------

    def layer(self, hidden: Tensor, layer: dict[str, Weights]) -> Tensor:
        """One decoder layer; computed again, it stops once it has what the backward pass needs, before the last addition."""
        norms = self.shape.norms
        after = self.shape.norms_after
        before = norms == 4 or not after
        residual = hidden
        if before:
            hidden = self.normed(hidden, layer["norm0"])
        if norms == 1 or self.shape.parallel:  # attention and MLP side by side
            attended = self.attention(hidden, layer)
            hidden = hidden if norms == 1 else self.normed(residual, layer["norm1"])
            return self.sum(self.add(attended, self.mlp(hidden, layer)), residual)
        hidden = self.attention(hidden, layer)
        if after:
            hidden = self.normed(hidden, layer["norm1" if before else "norm0"])
        hidden = self.add(residual, hidden)
        residual = hidden
        if before:
            hidden = self.normed(hidden, layer["norm2" if after else "norm1"])
        hidden = self.mlp(hidden, layer)
        if after:
            hidden = self.normed(hidden, layer["norm3" if before else "norm1"])
        return self.sum(residual, hidden)

    def checkpointed(self, hidden: Tensor, layer: dict[str, Weights]) -> Tensor:
        """One decoder layer of which the input alone is kept; its backward pass computes it again."""
        tape = self.tape
        tape.recording = False
        out = self.layer(hidden, layer)
        tape.recording = True
        out = Tensor(out.elements, out.width, out.block, None)
        kept = [hidden.block]
        elements, width, wants = hidden.elements, hidden.width, hidden.node is not None

        def grow(box: list[Block]) -> list[Block | None]:
            block = kept.pop()  # torch's checkpoint frame holds the layer's input until the layer's backward pass is over
            part, self.ledger.part = self.ledger.part, "recomputed layer"
            boundary = Parameter("working memory")
            self.again = True
            if self.is_last_adapter(self.shape.projections[-1]):
                self.scaled = Block(self.ledger, elements * (self.compute if self.auto else self.adapters), "working memory")
            again = self.layer(Tensor(elements, width, block, boundary if wants else None), layer)
            self.again = False
            self.clear()
            self.ledger.part = part
            tape.backward(again, box.pop())
            del block
            return [boundary.grad]

        trained = [each.tensor for each in layer.values() if each.tensor.node is not None]
        if wants or trained:
            source = hidden if wants else Tensor(0, 1, None, Parameter())
            tape.custom([source], out, grow)
        return out

    def forward(self) -> Tensor:
        """The whole forward pass; returns the loss."""
        shape, tape = self.shape, self.tape
        mask = tape.empty(self.rows * self.length * self.length, 1) if self.masked else None
        held: list[object] = [tape.empty(3 * self.tokens, 8)]  # the words, the labels, the positions
        if not shape.positions:
            # cos and sin: of one row for all, unless each row says its own positions, as a classifier's do
            held.append(tape.empty(2 * self.length * shape.head_dim * (self.rows if shape.labels else 1), self.width))
        if self.sharder is not None:
            self.sharder.before_forward(self.embedding_unit)
        hidden = tape.op([self.embedding.tensor], self.tokens * shape.hidden, self.width)
        checkpointing = self.layout.checkpointing == "full"
        if checkpointing and hidden.node is None:  # enable_input_require_grads
            hidden.node = Parameter("working memory")
        embedded = hidden  # the model's forward has a name for it until it returns (inputs_embeds)
        if shape.positions:
            hidden = tape.op([hidden], hidden.elements, hidden.width, passes=True)
        if self.sharder is not None and not shape.tied:
            hidden = self.leave(hidden, self.embedding_unit)
        for index, layer in enumerate(self.layers):
            hidden = hidden if self.sharder is None else self.enter(hidden, self.layer_units[index])
            hidden = self.checkpointed(hidden, layer) if checkpointing else self.layer(hidden, layer)
            hidden = hidden if self.sharder is None else self.leave(hidden, self.layer_units[index])
        if self.sharder is not None and shape.tied:  # its gradient is sent when all is over: nothing of its first input's has one
            self.sharder.before_forward(self.tail_unit)
        elif self.sharder is not None:
            hidden = self.enter(hidden, self.tail_unit)
        hidden = self.normed(hidden, self.norm)
        del embedded
        self.ledger.part = "loss"
        loss = {"fused": self._fused_loss, "logits": self._logits_loss, "classes": self._classes_loss}[self.layout.loss](hidden)
        if self.sharder is not None:
            loss = self.leave(loss, self.tail_unit)
            self.sharder.end_of_forward()
        self.ledger.part = "activations"
        self.held = [*held, mask]  # the loop over the layers hands them on, and what is computed again needs them
        del mask, hidden, held
        self.clear()
        return loss

    def _fused_loss(self, hidden: Tensor) -> Tensor:
        """TRL's loss in pieces: the logits of 4096 tokens and 32768 words at a time, computed again in the backward pass."""
        shape, tape, compute = self.shape, self.tape, self.compute
        count = self.tokens - self.rows
        indices = tape.empty(2 * count, 8)
        chosen = tape.op([hidden], count * shape.hidden, hidden.width, saved=[indices])
        del indices
        statistics = tape.empty(9 * count, 4)
        width = compute if self.auto else chosen.width
        tile = min(count, LOSS_TOKENS) * LOSS_VOCABULARY * width
        of_tokens = min(count, LOSS_TOKENS) * shape.hidden * width * (chosen.width != width)
        of_words = min(shape.vocab, LOSS_VOCABULARY) * shape.hidden * width * (self.head.tensor.width != width)
        # The backward pass still has a name for the last piece while it makes the next.
        more = of_words * max(0, min(shape.vocab / LOSS_VOCABULARY - 1, 1)), of_tokens * max(0, min(count / LOSS_TOKENS - 1, 1))
        pieces, again = of_tokens + of_words, of_tokens + of_words + max(more)
        work = tape.empty(tile + pieces, 1)
        del work
        weight = self.head.tensor
        loss = tape.empty(self.tokens, 4)
        saved = [chosen.block, statistics.block]

        def grow(box: list[Block]) -> list[Block | None]:
            part = "loss"
            of_hidden = Block(self.ledger, 4 * count * shape.hidden, part)
            of_weight = Block(self.ledger, 4 * weight.elements, part) if weight.node is not None else None
            Block(self.ledger, tile + again, part)
            held = Block(self.ledger, tile + pieces, part)
            given: list[Block | None] = [of_hidden, of_weight]
            if chosen_width != 4:
                given[0] = Block(self.ledger, count * shape.hidden * chosen_width, part)
            if of_weight is not None and weight.width != 4:
                given[1] = Block(self.ledger, weight.bytes, part)
            saved.clear()
            box.clear()
            del held
            return given

        chosen_width = chosen.width
        tape.custom([chosen, weight], loss, grow)
        return loss

    def _classes_loss(self, hidden: Tensor) -> Tensor:
        """A classifier's: the output layer sees every token, and the loss the last of each row (transformers/modeling_layers.py)."""
        tape, labels = self.tape, self.shape.labels
        scores = self.matmul(hidden, self.head, labels)
        last = tape.op([scores], self.rows * labels, scores.width, grad=scores.bytes)
        return tape.op([self.cast(last, 4)], 1, 4)

    def _logits_loss(self, hidden: Tensor) -> Tensor:
        """The logits of all tokens, in the compute dtype and in float32, and their log-softmax."""
        tape, words = self.tape, self.shape.vocab
        logits = self.matmul(hidden, self.head, words)
        wide = self.cast(logits, 4)
        soft = tape.op([wide], wide.elements, 4)
        if soft.node is not None:
            soft.node.saved = [soft.block]
        loss = tape.op([soft], 1, 4, grad=soft.bytes)
        del wide, soft
        given = tape.empty(logits.elements, 4) if self.auto and logits.width != 4 else None  # accelerate gives outputs out in float32
        del given
        return loss
