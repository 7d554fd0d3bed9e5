"""The training speed of a layout, estimated before anything has run: a roofline model plus
recomputation and communication.

Pure. Assumptions, besides the GPU's row in gpus.yaml:

- Matrix products reach half of the dense peak (`MATRIX`; a large one on an H100 was measured at
  69 %), reads and writes four fifths of the memory bandwidth (`MEMORY`; a copy at 90 %).
- Between the products each decoder layer moves as many bytes as its operations do when nothing
  is compiled or fused (`_layer_bytes`), the optimizer reads and writes its state, and autocast
  copies the weights.
- A kernel takes 5 microseconds to launch (`LAUNCH_S`), so small models on large GPUs wait for the
  CPU.
- Collectives reach 70 % of the links within a node (`LINK`), and 80 % of 100 Gbit/s per GPU
  between nodes (`NETWORK`, such as Leonardo's and LUMI's); up to four fifths of them overlap with
  computation.

Compared with published figures (in tests/fit/test_speed.py, with sources), it is within 30 % of
each; it is half above our own measurement, of a small model. It does not model slow file systems,
shared nodes or torch.compile.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.fit.activations import WIDTH
from hpctrain.fit.gpus import Gpu
from hpctrain.fit.layout import Layout
from hpctrain.fit.shape import ModelShape, adapted, trainable


def _layer_flops(
    shape: ModelShape, layout: Layout, context: float | None
) -> tuple[float, float, float]:
    """Return the operations of one layer's forward pass per token: of its weights, of the scores
    and their product with the values, and of the adapters.

    On average a token attends to half of its row: causal kernels skip the other half.
    """
    weights = sum(each.inputs * each.outputs for each in shape.projections)
    weights += 3 * shape.hidden * shape.intermediate * shape.experts_per_token
    weights += shape.hidden * shape.experts
    length = layout.length if context is None else context
    rank = layout.lora.rank if layout.lora is not None else 0
    sides = sum(each.inputs + each.outputs for each in adapted(shape, layout.lora))
    return 2.0 * weights, 2 * 2 * shape.queries * length / 2, 2.0 * rank * sides


def model_flops_per_token(
    shape: ModelShape, layout: Layout, *, context: float | None = None
) -> float:
    """Return the operations to train on one token, forward and backward, without recomputation.

    The backward pass has two products for each one of the forward pass: for the gradients of the
    input and of the weight; frozen weights need only the first.
    """
    weights, attention, adapter = _layer_flops(shape, layout, context)
    products = shape.layers * weights + 2 * shape.outputs * shape.hidden
    passes = 3 if layout.lora is None else 2
    return passes * products + 3 * shape.layers * (attention + adapter)


MATRIX = 0.5
MEMORY = 0.8
LAUNCH_S = 5e-6
LINK = 0.7
NETWORK = 0.8 * 12.5e9
_HIDDEN = 0.8
#: Kernels of one decoder layer, forward and backward, in eager mode; additional ones per adapted
#: linear layer.
_KERNELS = 150
_KERNELS_OF_ADAPTER = 12
#: CPU cost of all-gather and reduce-scatter, in kernels per layer.
_KERNELS_OF_SHARDING = 60
#: Bytes that the optimizer moves per byte of trained weights: reads weight, gradient and state,
#: writes weight and state; includes the gradient norm.
_OPTIMIZER = {"adamw": 8.0, "adam": 8.0, "sgd": 4.0, "adafactor": 5.0}
ASSUMPTION = (
    f"an estimate: matrix products at {MATRIX:.0%} of the dense peak, memory at {MEMORY:.0%} of its"
    " bandwidth, nothing compiled; between nodes 100 Gbit/s for each GPU"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedEstimate:
    """A speed estimate.

    Attributes:
        tokens_per_s: of all processes together, padding included.
        step_s: seconds per optimizer step.
        utilisation: MFU: the model's FLOP/s (no recomputation) divided by the dense peak.
    """

    tokens_per_s: float
    step_s: float
    utilisation: float


def tokens_per_second(
    shape: ModelShape, layout: Layout, gpu: Gpu, *, context: float | None = None
) -> SpeedEstimate:
    """Return the training speed of a layout.

    Args:
        shape: the model.
        layout: how it is trained.
        gpu: the GPU model.
        context: mean tokens of the examples in a row, which attention spans; None: the whole row.
    """
    again = 4 / 3 if layout.checkpointing == "full" else 1.0
    tokens, peak = layout.tokens_per_pass, gpu.peak(layout)
    model = model_flops_per_token(shape, layout, context=context)
    # Recomputed are the decoder layers with checkpointing, the scores in the backward pass of
    # sdpa's and flash's kernels, and the logits of the chunked loss.
    weights, attention, adapter = _layer_flops(shape, layout, context)
    recomputed = (weights + attention + adapter) * (layout.checkpointing == "full")
    recomputed += attention / 2 * (layout.attention != "eager")
    head = 2 * shape.vocab * shape.hidden * (layout.loss == "fused")
    per_token = model + shape.layers * recomputed + head
    moved = tokens * shape.layers * _layer_bytes(shape, layout) * again + _cast_bytes(shape, layout)
    kernels = _KERNELS + _KERNELS_OF_ADAPTER * len(adapted(shape, layout.lora))
    if layout.sharding in ("fsdp", "zero3") and layout.processes > 1:
        kernels += _KERNELS_OF_SHARDING
    one_pass = max(
        tokens * per_token / (peak * MATRIX) + moved / (gpu.bandwidth * MEMORY),
        shape.layers * kernels * again * LAUNCH_S,
    )
    compute = layout.accumulation * one_pass
    communication = _communication_s(shape, layout, gpu)
    exposed = communication - min(_HIDDEN * communication, compute)
    step = compute + _optimizer_s(shape, layout, gpu) + exposed
    speed = layout.tokens_per_step / step
    return SpeedEstimate(
        tokens_per_s=speed, step_s=step, utilisation=speed * model / layout.processes / peak
    )


def _layer_bytes(shape: ModelShape, layout: Layout) -> float:
    """Return the bytes that one layer moves per token between the matrix products, forward and
    backward.

    The bytes per element are those of transformers' eager code, counted over its operations by
    bench/fit/moved.py: of a norm, of residuals and casts, and of rotary positions.
    """
    # With float32 weights under autocast, norms and what follows them stay in float32.
    half = WIDTH[layout.weights] == 2 or layout.sharding != "ddp"
    norm, residual, rotary = (134, 38, 52) if half else (170, 60, 94)
    moved = shape.hidden * ((4 if shape.norms_after else 2) * norm + residual)
    moved += (shape.queries + shape.keys) * (rotary + norm * shape.qk_norm)
    moved += shape.intermediate * max(1, shape.experts_per_token) * 28
    if layout.attention == "eager":  # scores, mask, softmax in float32, dropout
        moved += 40 * shape.heads * layout.length
    if layout.lora is not None:
        moved += 15 * sum(each.inputs + each.outputs for each in adapted(shape, layout.lora))
    return moved


def _cast_bytes(shape: ModelShape, layout: Layout) -> float:
    """Return the bytes to cast the weights to autocast's dtype, or to dequantize the base, in one
    pass.
    """
    if layout.quantization != "none":
        held = 0.5 if layout.quantization == "4bit" else 1.0
        return 2 * shape.parameters * (held + 2)  # in the forward and again in the backward pass
    if layout.compute is None or layout.weights == layout.compute:
        return 0.0
    shared = layout.processes if layout.sharding in ("fsdp", "zero3") else 1
    return shape.parameters * (WIDTH[layout.weights] + WIDTH[layout.compute]) / shared


def _optimizer_s(shape: ModelShape, layout: Layout, gpu: Gpu) -> float:
    trained = trainable(shape, layout.lora) / (1 if layout.sharding == "ddp" else layout.processes)
    kind = next(
        (words for name, words in _OPTIMIZER.items() if layout.optimizer.startswith(name)), 8.0
    )
    width = 4 if layout.lora is not None else WIDTH[layout.weights]
    state = 0.25 if "8bit" in layout.optimizer else 1.0
    return trained * width * (4 + (kind - 4) * state) / (gpu.bandwidth * MEMORY)


def _communication_s(shape: ModelShape, layout: Layout, gpu: Gpu) -> float:
    """Return the seconds of all collectives of one step, with ring algorithms; gradients are
    reduced once per step.
    """
    n = layout.processes
    if n == 1:
        return 0.0
    inside = gpu.link * LINK
    speed = inside if layout.nodes == 1 else min(inside, layout.gpus_per_node * NETWORK)
    share = (n - 1) / n
    gradients = trainable(shape, layout.lora) * (
        4 if layout.lora is not None else WIDTH[layout.weights]
    )
    weights = float(shape.parameters * WIDTH[layout.compute or layout.weights])
    if layout.quantization != "none":
        weights = shape.parameters * (0.5 if layout.quantization == "4bit" else 1.0)
    once = share * gradients
    match layout.sharding:
        case "ddp":
            moved = 2 * once
        case "zero2":  # reduce-scatter in each pass, one all-gather of the weights
            moved = layout.accumulation * once + share * (gradients if layout.lora is None else 0)
        case _:  # weights are gathered in the forward and in the backward pass
            moved = 2 * layout.accumulation * share * weights + once
    return moved / speed
