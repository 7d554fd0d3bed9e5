"""What a training needs of each GPU, by part, from the shape of the model and the layout alone.

What comes and goes is counted by following a forward and a backward pass on a tape (memory_model.py, memory_tape.py); what stays is
arithmetic (memory_static.py). Pure: no torch, no files. Sizes are bytes. Within 5 % of torch's MemTracker: docs/fit-accuracy.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from hpctrain.fit import memory_static as static
from hpctrain.fit.memory_fsdp import Fsdp
from hpctrain.fit.memory_model import WIDTH, Pass, is_masked
from hpctrain.fit.memory_operations import Sharder
from hpctrain.fit.memory_tape import Ledger
from hpctrain.fit.memory_zero import Zero
from hpctrain.fit.parameters import EXPERTS, trainable

if TYPE_CHECKING:
    from hpctrain.fit.layout import Layout
    from hpctrain.fit.shape import ModelShape

__all__ = ["GpuMemory", "Part", "gpu_memory", "is_masked", "is_rough"]

_WORK = ("activations", "casts", "recomputed layer", "loss", "working memory")
_WHAT = {
    "activations": "what the forward pass keeps for the backward pass",
    "casts": "autocast's copies of the weights in the dtype that is computed in",
    "recomputed layer": "one layer's activations, computed again from its input",
    "loss": "pieces of the logits and the gradients of the output layer",
    "working memory": "gradients of activations, and what one operation needs while it runs",
}
_MOMENTS = {
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer's step",
    "evaluation": "an evaluation",
}


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the peak: its name, its bytes, and a sentence of what it is."""

    name: str
    bytes: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """The peak of one GPU.

    Attributes:
        parts: what is there at the peak; they add up to `total`.
        moment: when it is, in words.
        allocated: what torch's allocator has given out at the peak (`torch.cuda.max_memory_allocated`).
        reserved: what torch holds of the GPU by then (`max_memory_reserved`): allocated, and what fragmentation costs.
        context: what lies beside torch's allocator: the CUDA context and NCCL.
        total: all of it, as nvidia-smi shows it.
        approximate: the activations are a rough figure (`is_rough`).
    """

    parts: tuple[Part, ...]
    moment: str
    allocated: int
    reserved: int
    context: int
    total: int
    approximate: bool = False


def gpu_memory(shape: ModelShape, layout: Layout) -> GpuMemory:
    """Return the peak of one GPU.

    Rows are taken as full, and every token as trained on: the most that there can be. Several rows that are not laid end to end are taken
    to be of different lengths, and need a mask with sdpa.
    """
    moment, moving = max(_moments(shape, _alone(layout)).items(), key=lambda each: sum(each[1].values()))
    moving = dict(moving)
    parts = [
        Part("weights", static.weights(shape, layout), _weights_in_words(layout)),
        Part("gradients", moving.pop("gradients", 0), "the gradients of what is trained"),
        Part("optimizer", static.optimizer(shape, layout), f"the states of {layout.optimizer}"),
        *(Part(name, moving.get(name, 0), _WHAT[name]) for name in _WORK),
        Part("buffers", moving.pop("buffers", 0) + static.buffers(shape, layout), _BUFFERS[layout.sharding]),
        Part("cublas", static.CUBLAS, "workspaces of cuBLAS, which it takes from torch"),
    ]
    allocated = sum(part.bytes for part in parts)
    loose = int(static.FRAGMENTATION * sum(part.bytes for part in parts if part.name in _WORK))
    context = static.CONTEXT + static.nccl(layout)
    parts += [
        Part("fragmentation", loose, "an allowance for gaps that torch's allocator cannot fill"),
        Part("context", context, "an allowance for the CUDA context and NCCL, beside torch's allocator"),
    ]
    return GpuMemory(
        parts=tuple(parts),
        moment=_MOMENTS[moment],
        allocated=allocated,
        reserved=allocated + loose,
        context=context,
        total=allocated + loose + context,
        approximate=is_rough(shape, layout),
    )


def is_rough(shape: ModelShape, layout: Layout) -> bool:
    """Whether the activations are a rough figure: of some layers without experts, or of adapters on experts, which are not followed."""
    return shape.approximate or (shape.experts > 0 and layout.lora is not None and not {*layout.lora.targets}.isdisjoint(EXPERTS))


_BUFFERS = {
    "ddp": "DDP's buckets: a second copy of the gradients, where there are several processes",
    "fsdp": "the layers that FSDP has gathered, and what it sends",
    "zero2": "the bucket of gradients that ZeRO sends, and what it sends them in",
    "zero3": "the weights that ZeRO has gathered, and the bucket that it sends",
}


def _weights_in_words(layout: Layout) -> str:
    whose = "this process's share of the weights" if static.divided(layout) else "the weights"
    held = layout.weights if layout.quantization == "none" else f"{layout.quantization}, embeddings in {layout.weights}"
    return f"{whose} in {held}" + (", and the adapter" if layout.lora is not None else "")


def _alone(layout: Layout) -> Layout:
    """Return the layout without what changes nothing in what comes and goes, so that it is worked out once for all of them."""
    several = layout.processes > 1
    return replace(
        layout,
        nodes=1,
        gpus_per_node=layout.processes if several and layout.sharding != "ddp" else 1,
        sharding=layout.sharding if several else "ddp",
        accumulation=min(layout.accumulation, 2),
        sync_each_batch=layout.sync_each_batch and several and layout.sharding == "fsdp" and layout.accumulation > 1,
    )


@lru_cache(maxsize=512)
def _moments(shape: ModelShape, layout: Layout) -> dict[str, dict[str, int]]:
    """Return what comes and goes at the peak of each part of a step: part -> bytes."""
    ledger = Ledger()
    one = _pass(shape, layout, ledger)
    passes = min(layout.accumulation, 2)
    moments: dict[str, dict[str, int]] = {}
    for number in range(passes):
        if one.sharder is not None:
            one.sharder.reduces = layout.sync_each_batch or number == passes - 1
        ledger.restart()
        loss = one.forward()
        _higher(moments, "forward", ledger)
        ledger.restart()
        one.tape.backward(loss)
        if one.sharder is not None:
            one.sharder.end_of_backward()
        _higher(moments, "backward", ledger)
    moments["optimizer"] = {
        "gradients": static.gradients(shape, layout),
        "working memory": static.optimizer_work(shape, layout),
    }
    if layout.evaluation:
        moments["evaluation"] = _evaluation(shape, layout)
    return moments


def _pass(shape: ModelShape, layout: Layout, ledger: Ledger) -> Pass:
    """Return the passes of one process, with what gathers and sends where something is divided."""
    sharder: Sharder | None = None
    width = WIDTH[layout.compute or layout.weights]
    if layout.processes > 1 and layout.sharding == "fsdp":
        sharder = Fsdp(ledger, layout.processes, width, WIDTH[layout.weights], static.trained_width(layout))
    elif layout.processes > 1 and layout.sharding != "ddp":
        sharder = Zero(ledger, layout.processes, width, static.stage(layout), trainable(shape, layout.lora))
    return Pass(shape, _as_computed(layout), ledger, sharder)


def _higher(moments: dict[str, dict[str, int]], name: str, ledger: Ledger) -> None:
    """Keep the highest point of several passes."""
    if name not in moments or ledger.peak > sum(moments[name].values()):
        moments[name] = ledger.peak_parts


def _evaluation(shape: ModelShape, layout: Layout) -> dict[str, int]:
    """Return what comes and goes at the peak of an evaluation: a forward pass of which nothing is kept."""
    ledger = Ledger()
    lora = None if layout.lora is None else replace(layout.lora, dropout=False)
    one = _pass(shape, replace(layout, micro_batch=layout.evaluation, checkpointing="off", lora=lora), ledger)
    one.tape.recording = False
    ledger.restart()
    loss = one.forward()
    parts = ledger.peak_parts
    del loss
    return parts


def _as_computed(layout: Layout) -> Layout:
    """Return the layout that the forward pass sees: FSDP2 and DeepSpeed hand it weights in the compute dtype."""
    if layout.processes == 1 or layout.sharding == "ddp" or layout.compute is None:
        return layout
    return replace(layout, weights=layout.compute, compute=layout.compute if layout.sharding == "fsdp" else None)
