"""The layouts that a job could have: which fit, how fast they are, and what would fit where none does.

Pure. The global batch stays what was asked: what more processes or larger micro batches take, less accumulation gives back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from hpctrain.fit import memory, parameters, speed
from hpctrain.fit.correction import NONE, UNKNOWN, Correction, Factor
from hpctrain.fit.gpus import Gpu
from hpctrain.fit.layout import Checkpointing, Layout, Lora, Sharding
from hpctrain.fit.shape import ModelShape

_MICRO = (1, 2, 4, 8, 16, 32, 64, 128)
#: Times more nodes than asked that are looked at; where nothing fits, further ones.
_TIMES = (1, 2, 4)
_MOST_NODES = 1024
#: GPUs of a node where nobody knows: few have more.
_NODE = 8
#: Speeds closer than this are the same: the layout that needs less is shown.
_SAME = 1.02
#: The formula is right to five percent.
_SAFE = 0.95
_SHORTEST = 64
_LORA = "use_peft: true, lora_target_modules: all-linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What the layouts have room in.

    Attributes:
        gpu_bytes: what a GPU has for programs.
        gpu: its kind; None: unknown, and then nothing is said of speed.
        gpus_per_node: of a node; None: unknown.
        nodes_max: of a job; None: unknown.
        whole_nodes: a job gets, and pays, its nodes whole.
    """

    gpu_bytes: int
    gpu: Gpu | None = None
    gpus_per_node: int | None = None
    nodes_max: int | None = None
    whole_nodes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How much there is to do.

    Attributes:
        tokens: of the whole training, padding included; None: unknown.
        context: mean tokens that attention reaches over; None: the row.
    """

    tokens: int | None = None
    context: float | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One layout, judged. Its memory is worked out when somebody looks at it.

    Attributes:
        shape: the model.
        factor: what the user's own runs multiply its memory by.
        site: what it has room in.
        tokens_per_s: of all processes, corrected likewise; None where the GPU is unknown.
        seconds: of the whole training; None where its size is unknown.
        gpus_paid: GPUs that are charged: of whole nodes, all.
    """

    shape: ModelShape
    layout: Layout
    site: Site
    factor: Factor = UNKNOWN
    tokens_per_s: float | None = None
    speed: speed.Speed | None = None
    seconds: float | None = None
    gpus_paid: int = 1

    @cached_property
    def memory(self) -> memory.GpuMemory:
        """Memory of each GPU, by part, as the formula has it."""
        return memory.gpu_memory(self.shape, self.layout)

    @cached_property
    def total(self) -> int:
        """Bytes of each GPU, corrected."""
        return self.factor.of(self.memory)

    @property
    def fits(self) -> bool:
        """Whether that is no more than a GPU has."""
        return self.total <= self.site.gpu_bytes

    @property
    def gpu_hours(self) -> float | None:
        """Hours times GPUs that are paid."""
        return None if self.seconds is None else self.seconds / 3600 * self.gpus_paid

    @property
    def node_hours(self) -> float | None:
        """Hours times nodes."""
        return None if self.seconds is None else self.seconds / 3600 * self.layout.nodes


def judged(shape: ModelShape, layout: Layout, site: Site, work: Work, learnt: Correction = NONE) -> Row:
    """Return what is known of one layout."""
    estimate = speed.tokens_per_second(shape, layout, site.gpu, context=work.context) if site.gpu is not None else None
    rate = estimate.tokens_per_s * learnt.of_speed(layout).factor if estimate is not None else None
    per_node = max(site.gpus_per_node or 0, layout.gpus_per_node) if site.whole_nodes else layout.gpus_per_node
    return Row(
        shape=shape, layout=layout, site=site, factor=learnt.of_memory(layout), tokens_per_s=rate, speed=estimate,
        seconds=work.tokens / rate if work.tokens is not None and rate else None, gpus_paid=layout.nodes * per_node,
    )  # fmt: skip


def table(shape: ModelShape, asked: Layout, site: Site, work: Work, learnt: Correction = NONE, *, every: bool = False) -> tuple[Row, ...]:
    """Return the layouts that fit, fastest first (without a known GPU: fewest GPUs first).

    Of those that differ by the micro batch alone, the fastest is shown, and of equally fast ones the one that needs least; and one that
    computes again only where the same without it does not fit, or hardly. `every` shows all. The asked layout is among them, where it
    fits.
    """

    def judge(layout: Layout) -> Row:
        return judged(shape, layout, site, work, learnt)

    if every:
        rows = [row for layout in candidates(asked, site) if (row := judge(layout)).fits]
        return tuple(sorted(rows, key=_order))
    groups: dict[tuple[object, ...], dict[str, list[Layout]]] = {}
    for layout in candidates(asked, site):
        key = (layout.nodes, layout.gpus_per_node, layout.sharding)
        groups.setdefault(key, {}).setdefault(layout.checkpointing, []).append(layout)
    found = {row.layout: row for group in groups.values() for row in _of_group(group, judge, site)}
    if asked not in found and (own := judge(asked)).fits:
        found[asked] = own
    return tuple(sorted(found.values(), key=_order))


def _of_group(group: dict[str, list[Layout]], judge: Callable[[Layout], Row], site: Site) -> Iterator[Row]:
    off = _best(group.get("off", []), judge)
    if off is not None:
        yield off
    if off is None or is_tight(off, site):
        full = _best(group.get("full", []), judge)
        if full is not None:
            yield full


def _best(layouts: list[Layout], judge: Callable[[Layout], Row]) -> Row | None:
    """Return the best of layouts that differ by their micro batch: memory is looked at no more often than it takes, as it costs most."""
    there = sorted(layouts, key=lambda layout: layout.micro_batch)
    while there:
        preferred = _preferred([judge(layout) for layout in there])
        if preferred.fits:
            return preferred
        there = [layout for layout in there if layout.micro_batch < preferred.layout.micro_batch]
    return None


def _preferred(rows: list[Row]) -> Row:
    fastest = max(row.tokens_per_s or 0.0 for row in rows)
    return next(row for row in rows if (row.tokens_per_s or 0.0) * _SAME >= fastest)


def _order(row: Row) -> tuple[float, int, int, int]:
    return (-(row.tokens_per_s or 0.0), row.layout.processes, row.layout.checkpointing == "full", row.total)


def candidates(asked: Layout, site: Site) -> Iterator[Layout]:
    """Return the layouts that keep the global batch of the asked one, this one first."""
    yield asked
    for nodes, gpus in _machines(asked, site):
        for layout in _on(asked, nodes, gpus):
            if layout != asked:
                yield layout


def _machines(asked: Layout, site: Site) -> list[tuple[int, int]]:
    """Return nodes and GPUs of each: parts of one node, then whole nodes, up to some times the asked ones."""
    node = max(site.gpus_per_node or (asked.gpus_per_node if asked.nodes > 1 else _NODE), asked.gpus_per_node)
    found = {(asked.nodes, asked.gpus_per_node)}
    if asked.nodes == 1:
        found.add((1, node))
        if not site.whole_nodes:
            found |= {(1, gpus) for gpus in (1, 2, 4, 8, 16) if asked.gpus_per_node <= gpus < node}
    if site.gpus_per_node is not None or asked.nodes > 1:
        found |= {(asked.nodes * times, node) for times in _TIMES if asked.nodes * times > 1}
    most = site.nodes_max or _MOST_NODES
    return sorted(each for each in found if each[0] <= max(most, asked.nodes))


def _on(asked: Layout, nodes: int, gpus: int) -> Iterator[Layout]:
    batch, processes = asked.micro_batch * asked.accumulation * asked.processes, nodes * gpus
    shardings = _shardings(asked, processes)
    for micro in sorted({*_MICRO, asked.micro_batch}):
        accumulation, rest = divmod(batch, micro * processes)
        if rest or not accumulation:
            continue
        for sharding in shardings:
            checkpointings: tuple[Checkpointing, ...] = ("off", "full")
            for checkpointing in checkpointings:
                yield replace(
                    asked, nodes=nodes, gpus_per_node=gpus, micro_batch=micro, accumulation=accumulation, sharding=sharding,
                    checkpointing=checkpointing,
                )  # fmt: skip


def _shardings(asked: Layout, processes: int) -> tuple[Sharding, ...]:
    """Return the shardings worth showing: DeepSpeed's only to who has asked for one of them, as it has to be installed."""
    if processes == 1:
        return (asked.sharding,)
    quantised = asked.quantization != "none"  # fsdp wants the weights stored in another way then
    both: tuple[Sharding, ...] = ("ddp", "zero2", "zero3") if asked.sharding.startswith("zero") else ("ddp", "fsdp")
    return (asked.sharding,) if quantised else both


def synced(shape: ModelShape, asked: Layout, site: Site, learnt: Correction = NONE, *, best: Row | None) -> Row | None:
    """Return a layout that fits only where gradients are sent in each pass of a step that accumulates (`sync_each_batch`).

    The asked one, where that is one; else the fastest on no more GPUs than asked, where it is faster than `best` or nothing else fits.
    """

    def judge(layout: Layout, sync: bool) -> Row:
        return judged(shape, replace(layout, sync_each_batch=sync), site, Work(), learnt)

    found = []
    for layout in candidates(asked, site):
        several = layout.sharding == "fsdp" and 1 < layout.processes <= asked.processes and layout.accumulation > 1
        if several and not layout.sync_each_batch and not judge(layout, False).fits and (row := judge(layout, True)).fits:
            if layout == asked:
                return row
            found.append(row)
    fastest = min(found, key=_order, default=None)
    if fastest is None or best is None:
        return fastest
    return fastest if (fastest.tokens_per_s or 0.0) > (best.tokens_per_s or 0.0) * _SAME else None


def is_tight(row: Row, site: Site) -> bool:
    """Whether a layout that fits leaves less to spare than the formula may be wrong by."""
    return row.total > _SAFE * site.gpu_bytes


def choice(asked: Layout, rows: tuple[Row, ...], site: Site) -> Row | None:
    """Return the row to take: the fastest on no more GPUs than asked; where none fits there, the fastest on as few as it takes.

    A layout that is tight counts only where there is no other.
    """
    good = tuple(row for row in rows if not is_tight(row, site))
    for some in (rows, good) if any(row.layout.processes <= asked.processes for row in rows) else (good, rows):
        most = max(asked.processes, min((row.layout.processes for row in some), default=0))
        there = [row for row in rows if row.layout.processes <= most]
        if there:
            return next((row for row in there if row in good), there[0])
    return None


def nearest(asked: Layout, rows: tuple[Row, ...]) -> Row | None:
    """Return the row that changes least of what was asked; of equals, the fastest."""
    return min(rows, key=lambda row: (_distance(asked, row.layout), -(row.tokens_per_s or 0.0)), default=None)


def _distance(one: Layout, other: Layout) -> float:
    def steps(a: int, b: int) -> int:
        return abs(a.bit_length() - b.bit_length())

    return (
        (one.checkpointing != other.checkpointing) * 1
        + steps(one.micro_batch, other.micro_batch) * 1
        + (one.sharding != other.sharding) * 2
        + steps(one.processes, other.processes) * 8
    )


def differences(asked: Layout, other: Layout) -> tuple[str, ...]:
    """Return what changes from one layout to the other, in words: `fsdp in place of ddp`."""
    found = []
    if other.nodes != asked.nodes or other.gpus_per_node != asked.gpus_per_node:
        found.append(f"{other.nodes} x {other.gpus_per_node} GPUs in place of {asked.nodes} x {asked.gpus_per_node}")
    if other.sharding != asked.sharding:
        found.append(f"{other.sharding} in place of {asked.sharding}")
    if other.checkpointing != asked.checkpointing:
        found.append("activation checkpointing" if other.checkpointing == "full" else "no activation checkpointing")
    if other.micro_batch != asked.micro_batch:
        found.append(f"a micro batch of {other.micro_batch} in place of {asked.micro_batch} (accumulation {other.accumulation})")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Remedy:
    """What would fit where nothing does: the words, bytes of each GPU then, whether that is enough, and what to type for it."""

    what: str
    total: int
    fits: bool
    fix: str


def remedies(shape: ModelShape, asked: Layout, site: Site, learnt: Correction = NONE) -> tuple[Remedy, ...]:
    """Return what would make the training smaller, each for itself, with what each GPU would hold then; where none suffices, two at once.

    Each is taken with the smallest micro batch, checkpointing and (on several GPUs, but for quantised weights) full sharding.
    """

    def judge(layout: Layout) -> Row:
        return judged(shape, layout, replace(site, gpu=None), Work(), learnt)

    tight = replace(asked, micro_batch=1, checkpointing="full", sharding=_tightest(asked))
    smaller = dict(_smaller(shape, tight))
    found = [] if tight.quantization != "none" else [_more_nodes(tight, site, judge)]
    found += _shorter("", "", tight, judge)
    for words, (layout, fix) in smaller.items():
        row = judge(layout)
        found.append(Remedy(words, row.total, row.fits, fix))
    if not any(remedy.fits for remedy in found):
        for words, (layout, fix) in smaller.items():
            found += _shorter(f"{words}, and ", f"{fix}, ", layout, judge)
    return tuple(found)


def _smaller(shape: ModelShape, tight: Layout) -> Iterator[tuple[str, tuple[Layout, str]]]:
    """Return layouts of which less is trained, or held, with their words and what to write for them."""
    if tight.lora is None:
        lora = Lora(rank=16, targets=parameters.lora_targets(shape, "all-linear"))
        tight = replace(tight, lora=lora, weights="bfloat16" if tight.compute == "bfloat16" else tight.weights)
        yield "LoRA of rank 16 on all linear layers", (tight, _LORA)
    if tight.quantization == "none":
        yield "QLoRA: LoRA on a base of 4 bits", (replace(tight, sharding="ddp", quantization="4bit"), f"{_LORA}, load_in_4bit: true")


def _tightest(asked: Layout) -> Sharding:
    if asked.processes == 1 or asked.quantization != "none":
        return asked.sharding
    return "zero3" if asked.sharding.startswith("zero") else "fsdp"


def _more_nodes(tight: Layout, site: Site, judge: Callable[[Layout], Row]) -> Remedy:
    """Return the fewest nodes on which the training fits when everything is divided among their GPUs, or that no number suffices."""
    gpus = site.gpus_per_node or max(tight.gpus_per_node, _NODE)
    sharding: Sharding = "zero3" if tight.sharding.startswith("zero") else "fsdp"
    nodes = tight.nodes
    while True:
        row = judge(replace(tight, nodes=nodes, gpus_per_node=gpus, sharding=sharding))
        if row.fits or nodes * 2 > _MOST_NODES:
            break
        nodes *= 2
    beyond = site.nodes_max is not None and nodes > site.nodes_max
    words = f"{nodes} node{'s' * (nodes > 1)} x {gpus} GPUs, {sharding}, micro batch 1, checkpointing"
    words += f" (a job here has {site.nodes_max} at most)" if beyond else "" if row.fits else " (nodes do not divide the activations)"
    return Remedy(words, row.total, row.fits and not beyond, f"--nodes {nodes} --gpus {gpus} --sharding {sharding}")


def _shorter(words: str, fix: str, tight: Layout, judge: Callable[[Layout], Row]) -> Iterator[Remedy]:
    """Return the longest row, of powers of two, that fits with everything else as tight as it goes; nothing where none does."""
    length = 1 << max(0, (tight.length - 1).bit_length() - 1)
    while length >= _SHORTEST:
        row = judge(replace(tight, length=length))
        if row.fits:
            yield Remedy(f"{words}rows of {length} tokens in place of {tight.length}", row.total, True, f"{fix}max_length: {length}")
            return
        length //= 2
