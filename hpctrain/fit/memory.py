"""GPU and host memory of a training, by part, from the model's shape and the layout alone.

Temporary memory of the forward and backward pass is in activations.py and sharding.py. Pure: no
torch, no files. Sizes are bytes. Within 5 % of torch's MemTracker: docs/fit-accuracy.md.

Host memory of a node, to compare with the job's `--mem`:

- 0.44 GiB for each process that has imported torch, transformers and trl (facts of torch 2.13,
  transformers 5.23, measured on a CPU).
- 1.6 GiB more once it uses CUDA: 2.0 GiB for a process with torch 2.2 and CUDA 11.8 on an RTX 3090
  (pytorch issue 113326). `least` excludes it.
- The model while it is loaded, in the training's dtype: each process loads it, then moves it to its
  GPU. With fsdp one process per node does (cpu_ram_efficient_loading); with zero3 and quantized
  weights it is read piece by piece. The page cache of the files does not count, because the kernel
  reclaims it before it kills a process.
- 0.3 GiB for each data loader worker, and 0.25 GiB of pinned and shared buffers (NCCL, data loader)
  for each process: assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hpctrain.fit import activations, sharding
from hpctrain.fit.activations import WIDTH, Parts
from hpctrain.fit.layout import Layout
from hpctrain.fit.shape import ModelShape, adapted, trainable

MIB = 1 << 20
#: The CUDA context with torch's kernels, outside max_memory_reserved. An allowance: 0.4 to 0.7 GiB,
#: depending on GPU and driver.
CONTEXT = 600 * MIB
#: What the compiled kernels of flex attention add to it: one measurement, on an H100
#: (docs/performance.md).
FLEX_CONTEXT = 3270 * MIB
#: NCCL's channel buffers with several processes: for the ring within a node, and for the network
#: between nodes. An allowance.
NCCL_NODE, NCCL_NETWORK = 400 * MIB, 300 * MIB
#: cuBLAS and cuBLASLt take their workspace from torch's allocator (torch docs,
#: CUBLAS_WORKSPACE_CONFIG: 32 MiB on Hopper).
CUBLAS = 32 * MIB
#: Fraction of temporary memory that the caching allocator cannot reuse in time. An allowance: a
#: run's measured value replaces it.
FRAGMENTATION = 0.04
#: bitsandbytes 4 bit: half a byte, and one float32 per block of 64 (TRL's default is without double
#: quantization, which needs a byte instead and one float32 per 256 blocks); 8 bit: one byte, and
#: one float32 per row.
NF4 = 0.5 + 4 / 64
#: bitsandbytes keeps the states of smaller tensors in float32 (optim/optimizer.py, min_8bit_size).
SMALL_8BIT = 4096


def is_zero(layout: Layout) -> bool:
    """Whether DeepSpeed shards across several processes."""
    return layout.sharding in ("zero2", "zero3") and layout.processes > 1


def shares(layout: Layout) -> int:
    """Return the number of processes that gradients and optimizer states are sharded across."""
    return layout.processes if layout.sharding != "ddp" else 1


def _narrow(layout: Layout) -> int:
    return WIDTH[layout.compute or layout.weights]


def trained_width(layout: Layout) -> int:
    """Return the bytes of a trained parameter in the optimizer.

    peft stores adapters in float32, TRL those of quantized models in bfloat16; accelerate's FSDP2
    and DeepSpeed keep float32 copies of the trained parameters whenever bf16 is on.
    """
    if layout.sharding != "ddp" and layout.compute is not None:
        return 4
    if layout.lora is None:
        return WIDTH[layout.weights]
    return 2 if layout.quantization != "none" else 4


def weights_bytes(shape: ModelShape, layout: Layout) -> int:
    """Return the bytes of the weights of one process, adapters included."""
    trained, zero = trainable(shape, layout.lora), is_zero(layout)
    # DeepSpeed keeps all weights in the compute dtype, and a float32 copy of its shard of the
    # trained ones.
    width = _narrow(layout) if zero else WIDTH[layout.weights]
    of_trained = width if zero else trained_width(layout)
    base = shape.parameters * width
    if layout.quantization != "none":
        linears = shape.layers * sum(each.inputs * each.outputs for each in shape.projections)
        rows = shape.layers * sum(each.outputs for each in shape.projections)
        packed = int(linears * NF4) if layout.quantization == "4bit" else linears + 4 * rows
        base = packed + (shape.parameters - linears) * width
    held = trained * of_trained + (base if layout.lora is not None else 0)
    parts = layout.processes if layout.sharding in ("fsdp", "zero3") else 1
    return held // parts + zero * trained * 4 // layout.processes


def optimizer_bytes(shape: ModelShape, layout: Layout) -> int:
    """Return the bytes of the optimizer states of one process."""
    trained, name = trainable(shape, layout.lora), layout.optimizer
    if "paged" in name or (name == "adafactor" and not is_zero(layout)):
        # Managed memory is not counted by torch, and moved to the host when the GPU is full;
        # Adafactor has a row and a column of each matrix, a thousandth of the weights.
        return 0
    # Numbers per parameter: two for AdamW and for unknown ones.
    states = 3 if "ademamix" in name else 0 if name == "sgd" else 2
    if "lion" in name or name.startswith(("rmsprop", "adagrad", "adafactor")):
        states = 1
    if "8bit" not in name:
        width = 4 if "bnb" in name or "32bit" in name else trained_width(layout)
        return trained * states * width // shares(layout)
    # In float32: the embeddings, as Trainer requests (transformers/trainer.py, create_optimizer),
    # and adapter tensors of fewer than 4096 elements. ZeRO passes one flat tensor.
    whole = shape.embedding_parameters if layout.lora is None else _small(shape, layout, SMALL_8BIT)
    whole *= not is_zero(layout)
    # One byte, and a float32 per block of 256.
    return int(states * ((trained - whole) * (1 + 4 / 256) + whole * 4)) // shares(layout)


def _small(shape: ModelShape, layout: Layout, limit: int) -> int:
    """Return the elements in adapter tensors of fewer elements than `limit`."""
    rank = layout.lora.rank if layout.lora is not None else 0
    sides = [side for each in adapted(shape, layout.lora) for side in (each.inputs, each.outputs)]
    return shape.layers * sum(rank * side for side in sides if rank * side < limit)


def optimizer_work(shape: ModelShape, layout: Layout) -> int:
    """Return the temporary bytes of the optimizer's step."""
    trained, zero = trainable(shape, layout.lora) // shares(layout), 0
    if is_zero(layout):
        # Gradients are concatenated again and copied to float32: all at once in stage 2, group by
        # group in stage 3.
        trained = min(trained, sharding.SETTINGS.group) if layout.sharding == "zero3" else trained
        zero = trained * _narrow(layout) + trained * 4 * (_narrow(layout) != 4)
    if layout.optimizer == "adafactor":
        # The update, its square and a float32 copy, one parameter at a time; the largest is the
        # embeddings.
        largest = shape.embedding_parameters if layout.lora is None else 0
        return zero + 3 * 4 * (trained if zero else largest)
    # foreach: a temporary of each parameter at once
    is_foreach = layout.optimizer in ("adamw_torch", "rmsprop", "adagrad")
    return zero + trained * trained_width(layout) * is_foreach


def gradient_bytes(shape: ModelShape, layout: Layout) -> int:
    """Return the bytes of all gradients of one process at the optimizer's step; ZeRO's are in the
    compute dtype.
    """
    width = _narrow(layout) if is_zero(layout) else trained_width(layout)
    return trainable(shape, layout.lora) * width // shares(layout)


def buffer_bytes(shape: ModelShape, layout: Layout) -> int:
    """Return the bytes of the sharding's buffers that exist throughout a step."""
    if layout.processes == 1:
        return 0
    if layout.sharding == "ddp":
        # The buckets: gradients are copied into them (gradient_as_bucket_view is off).
        return trainable(shape, layout.lora) * trained_width(layout)
    if layout.sharding != "zero3":
        return 0  # temporary (sharding.py)
    # Small adapter tensors are never sharded; norms are negligible.
    undivided = _small(shape, layout, sharding.SETTINGS.persistent)
    return (sharding.SETTINGS.bucket + undivided) * _narrow(layout)


_WORK = ("activations", "casts", "recomputed layer", "loss", "working memory")
_MOMENTS = {
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer's step",
    "evaluation": "an evaluation",
}


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One named part of a memory estimate."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """The peak memory of one GPU.

    Attributes:
        parts: the parts at the peak; they add up to `total`.
        moment: when the peak occurs, as text.
        allocated: bytes that torch's allocator has handed out at the peak
            (`torch.cuda.max_memory_allocated`).
        reserved: bytes that torch has reserved by then (`max_memory_reserved`): allocated plus
            fragmentation.
        context: bytes outside torch's allocator: the CUDA context and NCCL.
        total: everything, as in nvidia-smi.
    """

    parts: tuple[MemoryPart, ...]
    moment: str
    allocated: int
    reserved: int
    context: int
    total: int


def gpu_memory(shape: ModelShape, layout: Layout) -> GpuMemory:
    """Return the peak memory of one GPU.

    An upper bound: rows are assumed to be full, and every token unmasked. Several rows that are not
    concatenated are assumed to differ in length, and need a mask with sdpa.
    """
    moment, peak = max(moments(shape, layout).items(), key=lambda each: each[1].total())
    moving = {name: max(0, int(size)) for name, size in peak.items()}
    parts = [
        MemoryPart("weights", weights_bytes(shape, layout)),
        MemoryPart("gradients", moving.get("gradients", 0)),
        MemoryPart("optimizer", optimizer_bytes(shape, layout)),
        *(MemoryPart(name, moving.get(name, 0)) for name in _WORK),
        MemoryPart("buffers", moving.get("buffers", 0) + buffer_bytes(shape, layout)),
        MemoryPart("cublas", CUBLAS),
    ]
    allocated = sum(part.bytes for part in parts)
    loose = int(FRAGMENTATION * sum(part.bytes for part in parts if part.name in _WORK))
    context = CONTEXT + (NCCL_NODE if layout.processes > 1 else 0)
    context += NCCL_NETWORK if layout.nodes > 1 else 0
    if layout.attention == "flex":
        context += FLEX_CONTEXT
    parts += [MemoryPart("fragmentation", loose), MemoryPart("context", context)]
    return GpuMemory(
        parts=tuple(parts),
        moment=_MOMENTS[moment],
        allocated=allocated,
        reserved=allocated + loose,
        context=context,
        total=allocated + loose + context,
    )


def moments(shape: ModelShape, layout: Layout) -> Mapping[str, Parts]:
    """Return the temporary memory at the peak of each phase of a step."""
    layout = layout if layout.processes > 1 else replace(layout, sharding="ddp")
    computed = layout
    if layout.sharding != "ddp" and layout.compute is not None:
        # FSDP2 and DeepSpeed pass weights in the compute dtype to the forward pass.
        computed = replace(
            layout,
            weights=layout.compute,
            compute=layout.compute if layout.sharding == "fsdp" else None,
        )
    forward, backward = activations.moments(shape, computed, trained_width(layout))
    optimizer = Parts({"working memory": optimizer_work(shape, layout)})
    optimizer["gradients"] = gradient_bytes(shape, layout)
    found = {"forward": forward, "backward": backward, "optimizer": optimizer}
    if layout.evaluation:
        found["evaluation"] = activations.evaluation(shape, computed, trained_width(layout))
    return found


GIB = 1024**3
PROCESS = int(0.44 * GIB)
CUDA = int(1.6 * GIB)
LAUNCHER = int(0.22 * GIB)
WORKER = int(0.3 * GIB)
PINNED = int(0.25 * GIB)
#: The largest piece of a model that is read piece by piece: one safetensors file.
PIECE = 5 * GIB


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The peak host memory of one node, by part."""

    parts: tuple[MemoryPart, ...]

    @property
    def total(self) -> int:
        """The best estimate, in bytes."""
        return sum(part.bytes for part in self.parts)

    @property
    def certain(self) -> tuple[MemoryPart, ...]:
        """The parts without CUDA: the processes, and the model while it is loaded."""
        return tuple(part for part in self.parts if part.name in ("processes", "model"))

    @property
    def least(self) -> int:
        """Bytes of the certain parts."""
        return sum(part.bytes for part in self.certain)


def host_memory(
    parameters: int | None, layout: Layout, *, workers: int = 0, cuda: bool = True
) -> HostMemory:
    """Return the host memory of the processes of one node.

    Args:
        parameters: of the model; None: unknown, and the model is not counted.
        layout: how it is trained.
        workers: data loader workers per process (`dataloader_num_workers`).
        cuda: whether the processes use GPUs.
    """
    count = layout.gpus_per_node
    model = (parameters or 0) * WIDTH[layout.weights]
    if layout.quantization != "none" or layout.sharding == "zero3":
        model = min(model, PIECE)
    if layout.quantization != "none" or layout.sharding not in ("fsdp", "zero3"):
        model *= count
    # Workers start after the model has moved to the GPU: only their excess over it counts.
    running = count * (workers * WORKER + PINNED)
    sizes = {
        "processes": count * PROCESS,
        "CUDA": count * CUDA * cuda,
        "model": model,
        "launcher": LAUNCHER,
        "data loading": max(0, running - model),
    }
    return HostMemory(tuple(MemoryPart(name, size) for name, size in sizes.items() if size))


def gib(count: int) -> str:
    """Return bytes as in the tables of `fit`: `39.6 GiB`, `500 MiB`."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"


def billions(count: int) -> str:
    """Return a number of parameters as text: `1.24 billion`, `360.0 million`."""
    return f"{count / 1e9:.2f} billion" if count >= 1e8 else f"{count / 1e6:.1f} million"
