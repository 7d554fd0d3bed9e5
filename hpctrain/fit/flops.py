"""Floating-point operations of a training, for each token.

Pure. A multiplication and an addition count as two operations; norms, activation functions and the optimizer are left out, as is usual
(PaLM, arXiv:2204.02311, appendix B).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.fit.parameters import adapted

if TYPE_CHECKING:
    from hpctrain.fit.layout import Layout
    from hpctrain.fit.shape import ModelShape


def _layer_weights(shape: ModelShape) -> float:
    """Weights that one token is multiplied with in one decoder layer; of a mixture of experts, the mean over its layers."""
    attention = sum(each.inputs * each.outputs for each in shape.projections)
    if not shape.experts:
        return attention
    sparse = 3 * shape.hidden * shape.intermediate * shape.experts_per_token + shape.hidden * shape.experts
    dense = 3 * shape.hidden * shape.dense_intermediate
    return attention + (sparse * (shape.layers - shape.dense_layers) + dense * shape.dense_layers) / shape.layers


def _attention(shape: ModelShape, layout: Layout, context: float | None) -> float:
    """Operations of the scores and of their product with the values, of one token in one layer's forward pass.

    A token attends to half of what its row has, on average: causal kernels leave the other half out.
    """
    length = layout.length if context is None else context
    return 2 * 2 * shape.queries * length / 2


def forward_flops_per_token(shape: ModelShape, layout: Layout, *, context: float | None = None) -> float:
    """Return the operations of one token's forward pass, the adapter's included.

    Args:
        shape: the model.
        layout: how it is trained.
        context: the mean length of the examples that a token attends within; the length of a row where they are not known. Of packed
            rows this is the length of the examples, weighted by their tokens, not that of the row.
    """
    return shape.layers * (_layer_forward(shape, layout, context) + _adapter(shape, layout)) + 2 * shape.outputs * shape.hidden


def _layer_forward(shape: ModelShape, layout: Layout, context: float | None) -> float:
    return 2 * _layer_weights(shape) + _attention(shape, layout, context)


def _adapter(shape: ModelShape, layout: Layout) -> float:
    if layout.lora is None:
        return 0.0
    return 2.0 * layout.lora.rank * sum(each.inputs + each.outputs for each in adapted(shape, layout.lora))


def model_flops_per_token(shape: ModelShape, layout: Layout, *, context: float | None = None) -> float:
    """Return the operations that training on one token needs: forward and backward, without what is computed again.

    The backward pass takes two products for each of the forward pass: one for the gradient of the input and one for that of the weight;
    frozen weights need the first alone.
    """
    hidden, head = _layer_weights(shape), shape.outputs * shape.hidden
    products = 2 * (shape.layers * hidden + head)
    backward = 2 * products if layout.lora is None else products
    attention = 3 * shape.layers * _attention(shape, layout, context)
    return products + backward + attention + 3 * shape.layers * _adapter(shape, layout)


def hardware_flops_per_token(shape: ModelShape, layout: Layout, *, context: float | None = None) -> float:
    """Return the operations that a GPU does for one token: the model's, and what is computed again.

    Computed again are the decoder layers with checkpointing, the scores in the backward pass of sdpa's and flash's kernels, and the
    logits where the loss is computed in pieces.
    """
    again = 0.0
    if layout.checkpointing == "full":
        again += shape.layers * (_layer_forward(shape, layout, context) + _adapter(shape, layout))
    if layout.attention != "eager":
        again += shape.layers * _attention(shape, layout, context) / 2
    if layout.loss == "fused":
        again += 2 * shape.vocab * shape.hidden
    return model_flops_per_token(shape, layout, context=context) + again
