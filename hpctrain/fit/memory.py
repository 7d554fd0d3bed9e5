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
    trained, width = trainable(shape, layout.lora), WIDTH[layout.weights]
    if layout.lora is None:
        held = shape.parameters * trained_width(layout)
    else:
        held = _base(shape, layout, width) + trained * trained_width(layout)
    if layout.sharding in ("fsdp", "zero3") and layout.processes > 1:
        held //= layout.processes
    if is_zero(layout):
        # DeepSpeed keeps all weights in the compute dtype, and a float32 copy of its shard of the
        # trained ones.
        width = WIDTH[layout.compute or layout.weights]
        narrow = (
            shape.parameters * width
            if layout.lora is None
            else _base(shape, layout, width) + trained * width
        )
        return (
            narrow // (layout.processes if layout.sharding == "zero3" else 1)
            + trained * 4 // layout.processes
        )
    return held


def _base(shape: ModelShape, layout: Layout, width: int) -> int:
    if layout.quantization == "none":
        return shape.parameters * width
    linears = shape.layers * (sum(each.inputs * each.outputs for each in shape.projections))
    rows = shape.layers * sum(each.outputs for each in shape.projections)
    packed = int(linears * NF4) if layout.quantization == "4bit" else linears + 4 * rows
    return packed + (shape.parameters - linears) * width


def optimizer_bytes(shape: ModelShape, layout: Layout) -> int:
    """Return the bytes of the optimizer states of one process."""
    trained, name, width = trainable(shape, layout.lora), layout.optimizer, trained_width(layout)
    states = _states(name)
    if "paged" in name:
        # managed memory: not counted by torch, and moved to the host when the GPU is full
        held = 0.0
    elif "8bit" in name:
        whole = (
            _whole_states(shape, layout) if not is_zero(layout) else 0
        )  # ZeRO passes one flat tensor
        held = states * (
            (trained - whole) * (1 + 4 / 256) + whole * 4
        )  # one byte, and a float32 per block of 256
    elif name == "adafactor" and not is_zero(layout):
        held = 0.0  # a row and a column of each matrix: a thousandth of the weights
    else:
        held = trained * states * (4 if "bnb" in name or "32bit" in name else width)
    return int(held) // shares(layout)


def _states(name: str) -> int:
    """Return how many numbers an optimizer stores per parameter, in the parameter's dtype: two for
    AdamW and for unknown ones.
    """
    if name == "sgd":
        return 0
    if "ademamix" in name:
        return 3
    return (
        1 if "lion" in name or name == "adafactor" or name.startswith(("rmsprop", "adagrad")) else 2
    )


def _whole_states(shape: ModelShape, layout: Layout) -> int:
    """Return the number of trained parameters whose states bitsandbytes' 8-bit optimizers keep in
    float32.

    These are the embeddings, as Trainer requests (transformers/trainer.py, create_optimizer), and
    adapter tensors of fewer than 4096 elements (optim/optimizer.py, min_8bit_size).
    """
    if layout.lora is None:
        return shape.embedding_parameters
    sizes = [
        layout.lora.rank * side
        for each in adapted(shape, layout.lora)
        for side in (each.inputs, each.outputs)
    ]
    return shape.layers * sum(size for size in sizes if size < SMALL_8BIT)


def optimizer_work(shape: ModelShape, layout: Layout) -> int:
    """Return the temporary bytes of the optimizer's step."""
    trained, width, name = (
        trainable(shape, layout.lora) // shares(layout),
        trained_width(layout),
        layout.optimizer,
    )
    zero = 0
    if is_zero(layout):
        # Gradients are concatenated again and copied to float32: all at once in stage 2, group by
        # group in stage 3.
        trained = min(trained, sharding.SETTINGS.group) if layout.sharding == "zero3" else trained
        narrow = WIDTH[layout.compute or layout.weights]
        zero = trained * narrow + trained * 4 * (narrow != 4)
    if name == "adafactor":
        # The update, its square and a float32 copy, one parameter at a time; the largest is the
        # embeddings.
        largest = shape.embedding_parameters if layout.lora is None else 0
        return zero + 3 * 4 * (trained if zero else largest)
    if name in (
        "adamw_torch",
        "rmsprop",
        "adagrad",
    ):  # foreach: a temporary of each parameter at once
        return zero + trained * width
    return zero


def gradient_bytes(shape: ModelShape, layout: Layout) -> int:
    """Return the bytes of all gradients of one process at the optimizer's step; ZeRO's are in the
    compute dtype.
    """
    if is_zero(layout):
        return (
            trainable(shape, layout.lora)
            * WIDTH[layout.compute or layout.weights]
            // layout.processes
        )
    return trainable(shape, layout.lora) * trained_width(layout) // shares(layout)


def buffer_bytes(shape: ModelShape, layout: Layout) -> int:
    """Return the bytes of the sharding's buffers that exist throughout a step."""
    if layout.processes == 1:
        return 0
    trained = trainable(shape, layout.lora)
    narrow = WIDTH[layout.compute or layout.weights]
    if layout.sharding == "ddp":
        return trained * trained_width(
            layout
        )  # the buckets: gradients are copied into them (gradient_as_bucket_view is off)
    if layout.sharding == "fsdp":
        return 0  # temporary (sharding.py)
    return (
        sharding.SETTINGS.bucket * narrow + _undivided(shape, layout) * narrow
        if layout.sharding == "zero3"
        else 0
    )


def _undivided(shape: ModelShape, layout: Layout) -> int:
    """Return the adapter elements that ZeRO stage 3 never shards because the tensors are small;
    norms are negligible.
    """
    rank = layout.lora.rank if layout.lora is not None else 0
    sizes = [
        rank * side for each in adapted(shape, layout.lora) for side in (each.inputs, each.outputs)
    ]
    return shape.layers * sum(size for size in sizes if size < sharding.SETTINGS.persistent)


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
    computed = _as_computed(layout)
    forward, backward = activations.moments(shape, computed, trained_width(layout))
    found = {"forward": forward, "backward": backward}
    found["optimizer"] = Parts(gradients=gradient_bytes(shape, layout))
    found["optimizer"]["working memory"] = optimizer_work(shape, layout)
    if layout.evaluation:
        found["evaluation"] = activations.evaluation(shape, computed, trained_width(layout))
    return found


def _as_computed(layout: Layout) -> Layout:
    """Return the layout as the forward pass sees it: FSDP2 and DeepSpeed pass weights in the
    compute dtype.
    """
    if layout.processes == 1 or layout.sharding == "ddp" or layout.compute is None:
        return layout
    return replace(
        layout,
        weights=layout.compute,
        compute=layout.compute if layout.sharding == "fsdp" else None,
    )


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
