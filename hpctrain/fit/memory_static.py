"""What lies on a GPU all through a step: weights, optimizer, the sharding's buffers; and what is beside torch's allocator.

Pure. Sizes are bytes. Each figure that is not arithmetic has its source beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.fit import memory_zero
from hpctrain.fit.memory_model import WIDTH
from hpctrain.fit.parameters import adapted, trainable

if TYPE_CHECKING:
    from hpctrain.fit.layout import Layout
    from hpctrain.fit.shape import ModelShape

MIB = 1 << 20
#: The CUDA context with the kernels of torch, beside max_memory_reserved. An allowance: between 0.4 and 0.7 GiB, by GPU and driver.
CONTEXT = 600 * MIB
#: Of NCCL, with more than one process: buffers of its channels for one node's ring, and for the network between nodes. An allowance.
NCCL_NODE, NCCL_NETWORK = 400 * MIB, 300 * MIB
#: cuBLAS and cuBLASLt take theirs from torch's allocator (torch docs, CUBLAS_WORKSPACE_CONFIG: 32 MiB on Hopper).
CUBLAS = 32 * MIB
#: Share of what comes and goes that the caching allocator cannot use again in time. An allowance: a run's own figure replaces it.
FRAGMENTATION = 0.04
#: bitsandbytes 4 bit: half a byte, and one float32 to each block of 64 (TRL's default is without double quantization, which would
#: make that one byte and a float32 to 256 blocks); 8 bit: one byte, and one float32 to each row.
NF4 = 0.5 + 4 / 64
#: bitsandbytes keeps the states of smaller tensors in float32 (optim/optimizer.py, min_8bit_size).
SMALL_8BIT = 4096


def divided(layout: Layout) -> bool:
    """Whether the weights are divided among the processes."""
    return layout.sharding in ("fsdp", "zero3") and layout.processes > 1


def stage(layout: Layout) -> int:
    """Return the stage of ZeRO; 0 where it is another sharding."""
    return {"zero2": 2, "zero3": 3}.get(layout.sharding, 0)


def is_zero(layout: Layout) -> bool:
    """Whether DeepSpeed divides something among several processes."""
    return stage(layout) > 0 and layout.processes > 1


def shares(layout: Layout) -> int:
    """Return among how many processes gradients and optimizer states are divided."""
    return layout.processes if layout.sharding != "ddp" else 1


def trained_width(layout: Layout) -> int:
    """Bytes of a trained parameter as the optimizer sees it.

    peft keeps adapters in float32, TRL those of quantized models in bfloat16; accelerate's FSDP2 and DeepSpeed keep float32 copies of
    what is trained whenever bf16 is on.
    """
    if layout.sharding != "ddp" and layout.compute is not None:
        return 4
    if layout.lora is None:
        return WIDTH[layout.weights]
    return 2 if layout.quantization != "none" else 4


def weights(shape: ModelShape, layout: Layout) -> int:
    """Return the bytes of the weights that one process holds, adapters included."""
    trained, width = trainable(shape, layout.lora), WIDTH[layout.weights]
    if layout.lora is None:
        held = shape.parameters * trained_width(layout)
    else:
        held = _base(shape, layout, width) + trained * trained_width(layout)
    if divided(layout):
        held //= layout.processes
    if is_zero(layout):
        # DeepSpeed trains with all weights in the compute dtype, and has a float32 copy of its part of what is trained.
        width = WIDTH[layout.compute or layout.weights]
        narrow = shape.parameters * width if layout.lora is None else _base(shape, layout, width) + trained * width
        return narrow // (layout.processes if stage(layout) == 3 else 1) + trained * 4 // layout.processes
    return held


def _base(shape: ModelShape, layout: Layout, width: int) -> int:
    if layout.quantization == "none":
        return shape.parameters * width
    linears = shape.layers * (sum(each.inputs * each.outputs for each in shape.projections))
    rows = shape.layers * sum(each.outputs for each in shape.projections)
    packed = int(linears * NF4) if layout.quantization == "4bit" else linears + 4 * rows
    return packed + (shape.parameters - linears) * width


def optimizer(shape: ModelShape, layout: Layout) -> int:
    """Return the bytes of the optimizer's states that one process holds."""
    trained, name, width = trainable(shape, layout.lora), layout.optimizer, trained_width(layout)
    states = _states(name)
    if "paged" in name:
        held = 0.0  # in managed memory, which torch does not count, and which moves to the host when the GPU is full
    elif "8bit" in name:
        whole = _whole_states(shape, layout) if not is_zero(layout) else 0  # of ZeRO it sees one flat tensor
        held = states * ((trained - whole) * (1 + 4 / 256) + whole * 4)  # one byte, and a float32 to each block of 256
    elif name == "adafactor" and not is_zero(layout):  # a row and a column of each matrix in place of it
        held = _rows_and_columns(shape, layout) * width
    else:
        held = trained * states * (4 if "bnb" in name or "32bit" in name else width)
    return int(held) // shares(layout)


def _states(name: str) -> int:
    """Return how many numbers an optimizer keeps for each parameter: AdamW and what nobody knows two, of the parameter's dtype."""
    if name == "sgd":
        return 0
    if "ademamix" in name:
        return 3
    return 1 if "lion" in name or name == "adafactor" or name.startswith(("rmsprop", "adagrad")) else 2


def _whole_states(shape: ModelShape, layout: Layout) -> int:
    """Return the trained parameters whose states bitsandbytes' 8-bit optimizers keep in float32.

    The tables of embeddings, as Trainer asks (transformers/trainer.py, create_optimizer), and tensors of fewer than 4096 elements.
    """
    if layout.lora is None:
        norms = shape.layers * shape.norms + 1
        tables = shape.embedding_parameters + (shape.max_positions or 0) * shape.hidden * shape.positions
        small = norms * shape.norm_parameters * (shape.hidden < SMALL_8BIT)
        return int(tables + small + shape.outputs * shape.hidden * (shape.outputs * shape.hidden < SMALL_8BIT) * (not shape.tied))
    sizes = [layout.lora.rank * side for each in adapted(shape, layout.lora) for side in (each.inputs, each.outputs)]
    head = shape.labels * shape.hidden
    return shape.layers * sum(size for size in sizes if size < SMALL_8BIT) + head * (head < SMALL_8BIT)


def _rows_and_columns(shape: ModelShape, layout: Layout) -> int:
    """Return the sum of the rows and columns of all trained matrices, and of what is a vector."""
    matrices = [(each.inputs, each.outputs) for each in shape.projections]
    others = [(shape.vocab, shape.hidden)] + [(shape.outputs, shape.hidden)] * (not shape.tied)
    if layout.lora is not None:
        of = adapted(shape, layout.lora)
        matrices = [(layout.lora.rank, side) for each in of for side in (each.inputs, each.outputs)]
        others = [(shape.labels, shape.hidden)] if shape.labels else []
    vectors = trainable(shape, layout.lora) - shape.layers * sum(a * b for a, b in matrices) - sum(a * b for a, b in others)
    experts = shape.layers * shape.expert_parameters * (layout.lora is None)  # of these the states are small too
    return shape.layers * sum(a + b for a, b in matrices) + sum(a + b for a, b in others) + max(vectors - experts, 0)


def optimizer_work(shape: ModelShape, layout: Layout) -> int:
    """Return the bytes that the optimizer's step needs for itself."""
    trained, width, name = trainable(shape, layout.lora) // shares(layout), trained_width(layout), layout.optimizer
    zero = 0
    if is_zero(layout):
        # Gradients are put together once more, and copied into float32: all at once in stage 2, one group after the other in stage 3.
        trained = min(trained, memory_zero.SETTINGS.group) if stage(layout) == 3 else trained
        narrow = WIDTH[layout.compute or layout.weights]
        zero = trained * narrow + trained * 4 * (narrow != 4)
    if name == "adafactor":  # transformers' Adafactor: the update, its square and a float32 copy, of one parameter after the other
        return zero + 3 * 4 * (_largest(shape, layout) if not zero else trained)
    if name in ("adamw_torch", "rmsprop", "adagrad"):  # foreach: a temporary of each parameter at once
        return zero + trained * width
    return zero


def _largest(shape: ModelShape, layout: Layout) -> int:
    """Return the elements of the largest trained parameter."""
    if layout.lora is None:
        return max(shape.embedding_parameters, *(each.inputs * each.outputs for each in shape.projections))
    return layout.lora.rank * max(max(each.inputs, each.outputs) for each in shape.projections)


def gradients(shape: ModelShape, layout: Layout) -> int:
    """Return the bytes of all gradients that one process holds when the optimizer steps; ZeRO's are of the dtype that is computed in."""
    if is_zero(layout):
        return trainable(shape, layout.lora) * WIDTH[layout.compute or layout.weights] // layout.processes
    return trainable(shape, layout.lora) * trained_width(layout) // shares(layout)


def buffers(shape: ModelShape, layout: Layout) -> int:
    """Return the bytes of the sharding's buffers that are there all through a step."""
    if layout.processes == 1:
        return 0
    trained = trainable(shape, layout.lora)
    narrow = WIDTH[layout.compute or layout.weights]
    if layout.sharding == "ddp":
        return trained * trained_width(layout)  # the buckets: gradients are copied into them (gradient_as_bucket_view is off)
    if layout.sharding == "fsdp":
        return 0  # comes and goes (memory_fsdp.py)
    return memory_zero.SETTINGS.bucket * narrow + _undivided(shape, layout) * narrow if layout.sharding == "zero3" else 0


def _undivided(shape: ModelShape, layout: Layout) -> int:
    """Return the elements of an adapter that stage 3 of ZeRO keeps gathered, as each of them is small; norms are not worth counting."""
    rank = layout.lora.rank if layout.lora is not None else 0
    sizes = [rank * side for each in adapted(shape, layout.lora) for side in (each.inputs, each.outputs)]
    return shape.layers * sum(size for size in sizes if size < memory_zero.SETTINGS.persistent)


def nccl(layout: Layout) -> int:
    """Return the allowance for NCCL's buffers."""
    if layout.processes == 1:
        return 0
    return NCCL_NODE + NCCL_NETWORK * (layout.nodes > 1)
