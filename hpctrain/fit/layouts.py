"""The possible layouts of a job: which fit, how fast they are, and which smaller training would fit
if none does.

Pure. The global batch size stays as requested: more processes or larger micro batches reduce
accumulation.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from hpctrain.fit import memory, speed
from hpctrain.fit.gpus import Gpu
from hpctrain.fit.layout import Checkpointing, Layout, Lora, Sharding
from hpctrain.fit.shape import ModelShape, lora_targets

_MICRO = (1, 2, 4, 8, 16, 32, 64, 128)
#: Multiples of the requested nodes that are tried; more if nothing fits.
_TIMES = (1, 2, 4)
_MOST_NODES = 1024
#: GPUs per node if unknown: few nodes have more.
_NODE = 8
#: Speeds within this factor count as equal: the layout that needs less memory is shown.
_SAME = 1.02
#: The formula is accurate to 5 %.
_SAFE = 0.95
_SHORTEST = 64
_LORA = "use_peft: true, lora_target_modules: all-linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The resources available to a layout.

    Attributes:
        gpu_bytes: memory of a GPU available to programs.
        gpu: its model; None: unknown, and so is the speed.
        gpus_per_node: None: unknown.
        nodes_max: maximum nodes per job; None: unknown.
        whole_nodes: jobs get, and are charged for, entire nodes.
    """

    gpu_bytes: int
    gpu: Gpu | None = None
    gpus_per_node: int | None = None
    nodes_max: int | None = None
    whole_nodes: bool = False


class Workload(NamedTuple):
    """The size of the training.

    Attributes:
        tokens: in total, padding included; None: unknown.
        context: mean number of tokens that attention spans; None: the row.
    """

    tokens: int | None = None
    context: float | None = None


@dataclass(frozen=True, kw_only=True)
class LayoutEstimate:
    """The estimate for one layout.

    Attributes:
        shape: the model.
        site: the available resources.
        factor: measured memory of a known run divided by the formula's, for torch's allocator.
        tokens_per_s: of all processes; None if the GPU is unknown.
        seconds: of the whole training; None if its size is unknown.
        gpus_paid: charged GPUs; with whole nodes, all of theirs.
    """

    shape: ModelShape
    layout: Layout
    site: Site
    factor: float = 1.0
    tokens_per_s: float | None = None
    speed: speed.SpeedEstimate | None = None
    seconds: float | None = None
    gpus_paid: int = 1

    @cached_property
    def memory(self) -> memory.GpuMemory:
        """Memory of each GPU, by part, from the formula."""
        return memory.gpu_memory(self.shape, self.layout)

    @property
    def total(self) -> int:
        """Bytes of each GPU, corrected by `factor`."""
        context = self.memory.context
        return context + round((self.memory.total - context) * self.factor)

    @property
    def fits(self) -> bool:
        """Whether `total` is within a GPU's memory."""
        return self.total <= self.site.gpu_bytes

    @property
    def gpu_hours(self) -> float | None:
        """Hours times charged GPUs."""
        return None if self.seconds is None else self.seconds / 3600 * self.gpus_paid

    @property
    def node_hours(self) -> float | None:
        """Hours times nodes."""
        return None if self.seconds is None else self.seconds / 3600 * self.layout.nodes


def evaluate(shape: ModelShape, layout: Layout, site: Site, work: Workload) -> LayoutEstimate:
    """Return the estimate for one layout."""
    estimate = None
    if site.gpu is not None:
        estimate = speed.tokens_per_second(shape, layout, site.gpu, context=work.context)
    rate = estimate.tokens_per_s if estimate is not None else None
    whole = site.gpus_per_node or 0 if site.whole_nodes else 0
    return LayoutEstimate(
        shape=shape,
        layout=layout,
        site=site,
        tokens_per_s=rate,
        speed=estimate,
        seconds=work.tokens / rate if work.tokens is not None and rate else None,
        gpus_paid=layout.nodes * max(whole, layout.gpus_per_node),
    )


def table(
    shape: ModelShape,
    asked: Layout,
    site: Site,
    work: Workload,
    *,
    every: bool = False,
) -> tuple[LayoutEstimate, ...]:
    """Return the layouts that fit, fastest first (fewest GPUs first if the GPU is unknown).

    Of layouts that differ only in the micro batch, the fastest is shown, or the smallest of equally
    fast ones; checkpointing is shown only if the same layout does not fit, or barely fits, without
    it. `every` shows all. The requested layout is included if it fits.
    """
    judged = (evaluate(shape, layout, site, work) for layout in candidates(asked, site))
    fitting = [row for row in judged if row.fits]
    if every:
        return tuple(sorted(fitting, key=_order))
    groups: dict[tuple[int, int, str], dict[str, list[LayoutEstimate]]] = {}
    for row in sorted(fitting, key=lambda row: row.layout.micro_batch):
        each = row.layout
        group = groups.setdefault((each.nodes, each.gpus_per_node, each.sharding), {})
        group.setdefault(each.checkpointing, []).append(row)
    found = {row.layout: row for row in fitting if row.layout == asked}
    for group in groups.values():
        kept = [_preferred(group["off"])] if "off" in group else []
        if "full" in group and all(is_tight(row, site) for row in kept):
            kept.append(_preferred(group["full"]))
        found |= {row.layout: row for row in kept}
    return tuple(sorted(found.values(), key=_order))


def _preferred(rows: list[LayoutEstimate]) -> LayoutEstimate:
    fastest = max(row.tokens_per_s or 0.0 for row in rows)
    return next(row for row in rows if (row.tokens_per_s or 0.0) * _SAME >= fastest)


def _order(row: LayoutEstimate) -> tuple[float, int, int, int]:
    return (
        -(row.tokens_per_s or 0.0),
        row.layout.processes,
        row.layout.checkpointing == "full",
        row.total,
    )


def candidates(asked: Layout, site: Site) -> Iterator[Layout]:
    """Yield the layouts with the requested global batch size, the requested one first.

    DeepSpeed's sharding is tried only if it was requested, because it must be installed; fsdp would
    need another storage of quantized weights.
    """
    yield asked
    batch = asked.micro_batch * asked.accumulation * asked.processes
    both: tuple[Sharding, ...] = ("ddp", "fsdp")
    if asked.sharding.startswith("zero"):
        both = ("ddp", "zero2", "zero3")
    checkpointings: tuple[Checkpointing, ...] = ("off", "full")
    for nodes, gpus in _machines(asked, site):
        is_fixed = nodes * gpus == 1 or asked.quantization != "none"
        tried = itertools.product(
            sorted({*_MICRO, asked.micro_batch}),
            (asked.sharding,) if is_fixed else both,
            checkpointings,
        )
        for micro, sharding, checkpointing in tried:
            accumulation, rest = divmod(batch, micro * nodes * gpus)
            layout = replace(
                asked,
                nodes=nodes,
                gpus_per_node=gpus,
                micro_batch=micro,
                accumulation=accumulation,
                sharding=sharding,
                checkpointing=checkpointing,
            )
            if accumulation and not rest and layout != asked:
                yield layout


def _machines(asked: Layout, site: Site) -> list[tuple[int, int]]:
    """Return pairs of nodes and GPUs per node: parts of one node, then whole nodes, up to a
    multiple of the requested ones.
    """
    usual = asked.gpus_per_node if asked.nodes > 1 else _NODE
    node = max(site.gpus_per_node or usual, asked.gpus_per_node)
    found = {(asked.nodes, asked.gpus_per_node)}
    if asked.nodes == 1:
        parts = () if site.whole_nodes else (1, 2, 4, 8, 16)
        found |= {(1, gpus) for gpus in (*parts, node) if asked.gpus_per_node <= gpus <= node}
    if site.gpus_per_node is not None or asked.nodes > 1:
        found |= {(asked.nodes * times, node) for times in _TIMES if asked.nodes * times > 1}
    most = max(site.nodes_max or _MOST_NODES, asked.nodes)
    return sorted(each for each in found if each[0] <= most)


def is_tight(row: LayoutEstimate, site: Site) -> bool:
    """Whether a layout that fits has a smaller margin than the formula's error."""
    return row.total > _SAFE * site.gpu_bytes


def choice(asked: Layout, rows: tuple[LayoutEstimate, ...], site: Site) -> LayoutEstimate | None:
    """Return the recommended layout: the fastest on at most the requested GPUs, else the fastest on
    the fewest GPUs possible. Tight layouts count only if there are no others.
    """
    if not rows:
        return None
    good = [row for row in rows if not is_tight(row, site)]
    most = asked.processes
    if not any(row.layout.processes <= most for row in rows):
        most = min(row.layout.processes for row in good or rows)
    usable = [row for row in rows if row.layout.processes <= most]
    return next((row for row in usable if row in good), usable[0])


@dataclass(frozen=True, slots=True)
class Remedy:
    """A smaller training that fits: description, bytes of each GPU, and options."""

    what: str
    total: int
    fix: str


def remedies(shape: ModelShape, asked: Layout, site: Site) -> tuple[Remedy, ...]:
    """Return what fits if no layout of the requested training does: the fewest nodes, LoRA, QLoRA,
    and the longest sequences (of powers of two).

    Each uses the smallest micro batch, checkpointing and, on several GPUs, full sharding.
    """
    full: Sharding = "zero3" if asked.sharding.startswith("zero") else "fsdp"
    plain = asked.quantization == "none"
    sharding = full if plain and asked.processes > 1 else asked.sharding
    tight = replace(asked, micro_batch=1, checkpointing="full", sharding=sharding)
    lora = asked.lora or Lora(rank=16, targets=lora_targets(shape, "all-linear"))
    weights = "bfloat16" if asked.compute == "bfloat16" else asked.weights
    adapted = replace(tight, lora=lora, weights=weights)
    gpus = site.gpus_per_node or max(asked.gpus_per_node, _NODE)
    most = site.nodes_max or _MOST_NODES
    more_nodes = [
        (
            f"{nodes} node{'s' * (nodes > 1)} x {gpus} GPUs, {full}, micro batch 1, checkpointing",
            f"--nodes {nodes} --gpus {gpus} --sharding {full}",
            replace(tight, nodes=nodes, gpus_per_node=gpus, sharding=full),
        )
        for nodes in (asked.nodes << times for times in range(most.bit_length()))
        if nodes <= most
    ]
    shorter = [
        (
            f"sequences of {length} tokens instead of {asked.length}",
            f"max_length: {length}",
            replace(tight, length=length),
        )
        for length in (_SHORTEST << times for times in range(asked.length.bit_length(), -1, -1))
        if length < asked.length
    ]
    packed = replace(adapted, sharding="ddp", quantization="4bit")
    found: list[Remedy] = []
    for tried in (
        more_nodes if plain else [],
        [("LoRA of rank 16 on all linear layers", _LORA, adapted)] if asked.lora is None else [],
        [("QLoRA: LoRA on a base of 4 bits", f"{_LORA}, load_in_4bit: true", packed)][:plain],
        shorter,
    ):
        rows = (
            (what, fix, evaluate(shape, layout, replace(site, gpu=None), Workload()))
            for what, fix, layout in tried
        )
        fitting = (Remedy(what, row.total, fix) for what, fix, row in rows if row.fits)
        found += itertools.islice(fitting, 1)
    return tuple(found)
