"""How fast a layout trains, estimated before anything has run: a roofline, and what recomputation and communication add to it.

Pure. What it assumes, besides what gpus.yaml says of the GPU:

- Matrix products reach half of the dense peak (`MATRIX`); reading and writing memory, four fifths of its bandwidth (`MEMORY`).
- Between the products each decoder layer moves so many bytes as its own operations do when nothing is compiled or fused
  (`_layer_bytes`), the optimizer reads and writes its state, and autocast copies the weights.
- A kernel takes 5 microseconds to start (`LAUNCH_S`), so that small models on large GPUs wait for the CPU.
- Collectives reach 70 % of the links of a node (`LINK`), and of the network between nodes 80 % of 100 Gbit/s for each GPU
  (`NETWORK`, such as Leonardo's and LUMI's); four fifths of them hide behind the computation, as far as there is any.

Held against published figures (tests/fit/test_speed.py has them, with sources), it is within 40 % of each, and within 25 % of all but one.
It knows nothing of a slow file system, of a shared node, or of torch.compile.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.fit import flops, parameters
from hpctrain.fit.gpus import Gpu
from hpctrain.fit.layout import Layout
from hpctrain.fit.shape import ModelShape

MATRIX = 0.5
MEMORY = 0.8
LAUNCH_S = 5e-6
LINK = 0.7
NETWORK = 0.8 * 12.5e9
_HIDDEN = 0.8
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
#: Kernels of one decoder layer, forward and backward, in eager mode; of each layer with an adapter on top.
_KERNELS = 150
_KERNELS_OF_ADAPTER = 12
#: What gathering and scattering costs the CPU, in kernels of each layer.
_KERNELS_OF_SHARDING = 60
#: Bytes that the optimizer moves for each byte of a trained weight: reads weight, gradient and state, writes weight and state; and the
#: norm of the gradients is taken.
_OPTIMIZER = {"adamw": 8.0, "adam": 8.0, "sgd": 4.0, "adafactor": 5.0}
ASSUMPTION = (
    f"an estimate: matrix products at {MATRIX:.0%} of the dense peak, memory at {MEMORY:.0%} of its bandwidth, nothing compiled;"
    " between nodes 100 Gbit/s for each GPU"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The estimate.

    Attributes:
        tokens_per_s: of all processes together, padding included.
        step_s: seconds of one optimizer step, and of these:
        compute_s: forward and backward, `recompute_s` of it because of checkpointing.
        optimizer_s: the optimizer's own.
        communication_s: what does not hide behind the computation.
        utilisation: FLOP/s of the model (no recomputation) over the dense peak, of one GPU: MFU.
        assumption: what to say along with it.
    """

    tokens_per_s: float
    step_s: float
    compute_s: float
    recompute_s: float
    optimizer_s: float
    communication_s: float
    utilisation: float
    assumption: str = ASSUMPTION


def tokens_per_second(shape: ModelShape, layout: Layout, gpu: Gpu, *, context: float | None = None) -> Speed:
    """Return how fast a layout trains on a kind of GPU.

    Args:
        shape: the model.
        layout: how it is trained.
        gpu: on what.
        context: mean tokens of the examples in a row, which attention reaches over; None: the whole row.
    """
    peak = gpu.peak(layout)
    model = flops.model_flops_per_token(shape, layout, context=context)
    hardware = flops.hardware_flops_per_token(shape, layout, context=context)
    one_pass = _pass_s(shape, layout, gpu, hardware)
    recompute = layout.accumulation * (one_pass - _pass_s(shape, layout, gpu, model, recomputed=False))
    compute = layout.accumulation * one_pass
    optimizer = _optimizer_s(shape, layout, gpu)
    communication = _communication_s(shape, layout, gpu)
    exposed = communication - min(_HIDDEN * communication, compute)
    step = compute + optimizer + exposed
    speed = layout.tokens_per_step / step
    return Speed(
        tokens_per_s=speed, step_s=step, compute_s=compute, recompute_s=recompute, optimizer_s=optimizer, communication_s=exposed,
        utilisation=speed * model / layout.processes / peak,
    )  # fmt: skip


def _pass_s(shape: ModelShape, layout: Layout, gpu: Gpu, per_token: float, *, recomputed: bool = True) -> float:
    """Return the seconds of one forward and backward pass of a micro batch."""
    again = 4 / 3 if recomputed and layout.checkpointing == "full" else 1.0
    tokens = layout.tokens_per_pass
    matrix = tokens * per_token / (gpu.peak(layout) * MATRIX)
    moved = tokens * shape.layers * _layer_bytes(shape, layout) * again + _cast_bytes(shape, layout)
    kernels = _KERNELS + _KERNELS_OF_ADAPTER * len(parameters.adapted(shape, layout.lora))
    kernels += _KERNELS_OF_SHARDING if layout.sharding in ("fsdp", "zero3") and layout.processes > 1 else 0
    return max(matrix + moved / (gpu.bandwidth * MEMORY), shape.layers * kernels * again * LAUNCH_S)


def _layer_bytes(shape: ModelShape, layout: Layout) -> float:
    """Return the bytes that the operations between the products of one layer move for a token, forward and backward.

    Of transformers' eager code in bfloat16: a norm reads and writes its input about 15 times over, in part as float32; rotary positions do
    so 6 times with queries and keys; the gate 5 times with the inner activations; a residual 3 times. Backward takes about as much again,
    and a half.
    """
    width = _BYTES[layout.compute or layout.weights]
    inner = shape.intermediate * max(1, shape.experts_per_token)
    forward = shape.hidden * (shape.norms * 15 + 6) + (shape.queries + shape.keys) * 12 + inner * 5
    if layout.attention == "eager":  # scores, mask, softmax in float32, dropout
        forward += shape.heads * layout.length * 8
    adapters = sum(each.inputs + each.outputs for each in parameters.adapted(shape, layout.lora)) * 3 if layout.lora is not None else 0
    return 2.5 * width * (forward + adapters)


def _cast_bytes(shape: ModelShape, layout: Layout) -> float:
    """Return the bytes of copying the weights into the dtype of autocast, or of a quantised base out of its own, in one pass."""
    if layout.quantization != "none":
        held = 0.5 if layout.quantization == "4bit" else 1.0
        return 2 * shape.parameters * (held + 2)  # for the forward and again for the backward pass
    if layout.compute is None or layout.weights == layout.compute:
        return 0.0
    shared = layout.processes if layout.sharding in ("fsdp", "zero3") else 1
    return shape.parameters * (_BYTES[layout.weights] + _BYTES[layout.compute]) / shared


def _optimizer_s(shape: ModelShape, layout: Layout, gpu: Gpu) -> float:
    trained = parameters.trainable(shape, layout.lora) / (1 if layout.sharding == "ddp" else layout.processes)
    kind = next((words for name, words in _OPTIMIZER.items() if layout.optimizer.startswith(name)), 8.0)
    width = 4 if layout.lora is not None else _BYTES[layout.weights]
    state = 0.25 if "8bit" in layout.optimizer else 1.0
    return trained * width * (4 + (kind - 4) * state) / (gpu.bandwidth * MEMORY)


def _communication_s(shape: ModelShape, layout: Layout, gpu: Gpu) -> float:
    """Return the seconds of all collectives of one step, by ring algorithms; gradients go round once for each step."""
    n = layout.processes
    if n == 1:
        return 0.0
    inside = gpu.link * LINK
    speed = inside if layout.nodes == 1 else min(inside, layout.gpus_per_node * NETWORK)
    share = (n - 1) / n
    gradients = parameters.trainable(shape, layout.lora) * (4 if layout.lora is not None else _BYTES[layout.weights])
    weights = float(shape.parameters * _BYTES[layout.compute or layout.weights])
    if layout.quantization != "none":
        weights = shape.parameters * (0.5 if layout.quantization == "4bit" else 1.0)
    once = share * gradients
    match layout.sharding:
        case "ddp":
            moved = 2 * once
        case "zero2":  # gradients are scattered in each pass, weights gathered once
            moved = layout.accumulation * once + share * (gradients if layout.lora is None else 0)
        case _:  # weights are gathered for the forward and for the backward pass
            sent = layout.accumulation if layout.sync_each_batch else 1
            moved = 2 * layout.accumulation * share * weights + sent * once
    return moved / speed
