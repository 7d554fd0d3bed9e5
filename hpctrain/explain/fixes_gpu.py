"""Fixes of GPU memory. The global batch stays what it was, to the row; what cannot be had without changing the training is only said. PURE.

How much a layout needs is what hpctrain.fit's formula says, times what the job has shown: it ran out, so it needed more than there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hpctrain.explain.case import Case
from hpctrain.explain.facts_found import MIB, by_rank, current, gib, number, setting, whole
from hpctrain.explain.facts_gpu import moment_of
from hpctrain.explain.fixes_values import Groups, change, fix, is_ours, kept, told
from hpctrain.explain.model import Change, Fix
from hpctrain.fit import layouts, memory
from hpctrain.fit.layout import Layout, Lora
from hpctrain.fit.shape import Linear, ModelShape

#: What may be filled: the formula is right to five percent, and NCCL, evaluations and fragmentation want some.
_FULL = 0.92
_MICRO, _ACCUMULATION = "per_device_train_batch_size", "gradient_accumulation_steps"
_CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")
_EVAL = "per_device_eval_batch_size"
_EXPANDABLE, _HIP_ALLOC = "expandable_segments:True", "PYTORCH_HIP_ALLOC_CONF"
#: torch 2.9 to 2.11 ask for the name without CUDA and ignore it (pytorch issue 183387); later ones read both, earlier ones the other alone.
_ALLOC, _CUDA_ALLOC, _RENAMED = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", (2, 12)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Now:
    """The layout that ran out of memory.

    Attributes:
        micro, accumulation: rows of one pass, and passes of a step.
        checkpointing: whether activations are computed again; None: nobody knows.
        processes: of the job.
        room: bytes of a GPU; None: not known.
        layout, shape: of fit.json; None where the formula cannot be asked.
        factor: what the formula's figure is multiplied by.
    """

    micro: int
    accumulation: int
    checkpointing: bool | None
    processes: int
    room: int | None
    layout: Layout | None = None
    shape: ModelShape | None = None
    factor: float = 1.0

    @property
    def rows(self) -> int:
        """Rows of one process in one step."""
        return self.micro * self.accumulation

    def need(self, layout: Layout) -> int | None:
        """Return the bytes that a layout needs of each GPU."""
        if self.shape is None:
            return None
        found = memory.gpu_memory(self.shape, layout)
        return found.context + round((found.total - found.context) * self.factor)

    def fits(self, layout: Layout) -> bool:
        """Whether it does, with a margin."""
        need = self.need(layout)
        return need is not None and self.room is not None and need <= _FULL * self.room


def gpu_batch(case: Case, _: Groups) -> Fix | None:
    """Return a smaller micro batch with more accumulation; where that is no help, checkpointing, sharding, or what else would fit."""
    if case.config is None:
        return None
    samples = current(case)
    if is_ours(case) and samples and moment_of(case, max(by_rank(samples).values(), key=lambda each: each[-1].time_ms)) == "an evaluation":
        return _evaluation(case)
    now = _now(case)
    if now is None:
        return None
    return _micro(case, now) or _checkpointed(case, now) or _sharded(case, now) or _by_hand(now)


def _now(case: Case) -> _Now | None:
    """Return the layout that ran; None where nobody knows its batch."""
    fit: Mapping[str, Any] = case.fit or {}
    layout, shape = _layout(fit.get("layout")), _shape(fit.get("shape"))
    micro = layout.micro_batch if layout is not None else whole(setting(case, "training", _MICRO))
    accumulation = layout.accumulation if layout is not None else whole(setting(case, "training", _ACCUMULATION)) or 1
    if not micro or not accumulation:
        return None
    room = _room(case, fit)
    computed = layout is not None and shape is not None and room is not None
    said = setting(case, "training", _CHECKPOINTING[0]), setting(case, "training", _CHECKPOINTING[1])
    asked = next((str(value).lower() == "true" for value in said if value is not None), None)
    now = _Now(
        micro=micro, accumulation=accumulation, room=room, processes=layout.processes if layout is not None else case.world_size or 1,
        checkpointing=layout.checkpointing == "full" if layout is not None else asked,
        layout=layout if computed else None, shape=shape if computed else None,
    )  # fmt: skip
    return replace(now, factor=_factor(case, now)) if computed else now


def _room(case: Case, fit: Mapping[str, Any]) -> int | None:
    seen = max((sample.gpu_total_mib or 0 for sample in case.samples), default=0) * MIB
    return whole(fit.get("gpu_bytes")) or seen or case.gpu_memory_bytes


def _factor(case: Case, now: _Now) -> float:
    """Return by how much the job needs more than the formula says: it needed more than there is, and held what its samples saw."""
    if now.layout is None or now.shape is None or now.room is None:
        return 1.0
    found = memory.gpu_memory(now.shape, now.layout)
    measured, predicted = (number(((case.fit or {}).get(name) or {}).get("allocated")) for name in ("measured", "predicted"))
    seen = max((sample.torch_peak_mib or 0 for sample in current(case)), default=0) * MIB / found.allocated
    known = measured / predicted if measured and predicted else 1.0
    return max(known, seen, (now.room - found.context) / (found.total - found.context))


def _layout(said: object) -> Layout | None:
    try:
        values = dict(said) if isinstance(said, Mapping) else {}
        lora = values.pop("lora")
        held = Lora(rank=lora["rank"], targets=tuple(lora["targets"]), dropout=lora.get("dropout", False)) if lora is not None else None
        return Layout(**values, lora=held)
    except (KeyError, TypeError, ValueError):
        return None


def _shape(said: object) -> ModelShape | None:
    try:
        values = dict(said) if isinstance(said, Mapping) else {}
        return ModelShape(**{**values, "projections": tuple(Linear(**each) for each in values["projections"])})
    except (KeyError, TypeError, ValueError):
        return None


# -- the steps, the one that changes least first -----------------------------------------------------------------------


def _divisors(rows: int, most: int) -> Iterator[int]:
    """Return the micro batches that leave the global batch as it is, the largest first."""
    return (micro for micro in range(min(most, rows), 0, -1) if rows % micro == 0)


def _batch(case: Case, now: _Now, micro: int) -> tuple[Change, ...]:
    accumulation = now.rows // micro
    pairs = ((_MICRO, now.micro, micro), (_ACCUMULATION, now.accumulation, accumulation))
    return tuple(change(case, f"training.{name}", new) for name, old, new in pairs if old != new)


def _in_words(now: _Now, micro: int) -> str:
    return f"{_MICRO}: {now.micro} -> {micro}, {_ACCUMULATION}: {now.accumulation} -> {now.rows // micro}"


def _micro(case: Case, now: _Now) -> Fix | None:
    """Return the largest micro batch below the present one that fits; half of it where the formula cannot be asked."""
    if now.layout is not None:
        laid = now.layout
        fitting = iter([each for each in _divisors(now.rows, now.micro - 1) if now.fits(_with(laid, now, each))][:1])
    else:
        fitting = _divisors(now.rows, now.micro // 2)
    micro = next(fitting, None)
    if micro is None:
        return None
    more = f"the global batch stays {now.rows * now.processes} rows"
    if now.layout is not None and now.room is not None:
        need = now.need(_with(now.layout, now, micro))
        more += f"; each GPU then needs about {gib(need or 0)} of {gib(now.room)}"
    if not is_ours(case):  # what the options of somebody's own script mean, only that script knows
        return fix(_in_words(now, micro), more=f"{more}, if your script takes these options as the Trainer does")
    return fix(_in_words(now, micro), *_batch(case, now, micro), more=more)


def _with(layout: Layout, now: _Now, micro: int) -> Layout:
    return replace(layout, micro_batch=micro, accumulation=now.rows // micro)


def _checkpointed(case: Case, now: _Now) -> Fix | None:
    """Return checkpointing on, with the largest micro batch that then fits."""
    if now.checkpointing is not False or not is_ours(case):
        return None
    micro, more = now.micro, "activations are computed again in the backward pass: about a third more time for each step"
    if now.layout is not None and now.room is not None:
        full = replace(now.layout, checkpointing="full")
        found = next((each for each in _divisors(now.rows, now.micro) if now.fits(_with(full, now, each))), None)
        if found is None:
            return None
        micro = found
        more += f"; each GPU then needs about {gib(now.need(_with(full, now, micro)) or 0)} of {gib(now.room)}"
    switch = change(case, f"training.{_checkpointing_key(case)}", True)
    words = [told(switch), *([_in_words(now, micro)] if micro != now.micro else [])]
    return fix(", ".join(words), switch, *_batch(case, now, micro), more=f"{more}; the global batch stays")


def _checkpointing_key(case: Case) -> str:
    return next((name for name in _CHECKPOINTING if setting(case, "training", name) is not None), _CHECKPOINTING[0])


def _sharded(case: Case, now: _Now) -> Fix | None:
    """Return all divided among the processes; a change only before the first step, as no checkpoint of another sharding is resumed."""
    sharding = str(setting(case, "sharding") or "ddp")
    wanted = "zero3" if sharding.startswith("zero") else "fsdp"
    if now.processes < 2 or sharding == wanted or not is_ours(case) or setting(case, "accelerate_config") not in (None, "multi_gpu.yaml"):
        return None
    switch, micro, more = change(case, "sharding", wanted), now.micro, "weights, gradients and optimizer are divided among the processes"
    extra: tuple[Change, ...] = ()
    if now.layout is not None and now.room is not None:
        if now.layout.quantization != "none":
            return None
        divided = replace(now.layout, sharding="zero3" if wanted == "zero3" else "fsdp", checkpointing="full")
        found = next((each for each in _divisors(now.rows, now.micro) if now.fits(_with(divided, now, each))), None)
        if found is None:
            return None
        micro = found
        more += f"; each GPU then needs about {gib(now.need(_with(divided, now, micro)) or 0)} of {gib(now.room)}"
        extra = () if now.checkpointing else (change(case, f"training.{_checkpointing_key(case)}", True),)
    words = [told(switch), *(told(each) for each in extra), *([_in_words(now, micro)] if micro != now.micro else [])]
    if case.step:
        more += "; a checkpoint of another sharding cannot be resumed: a run of its own, with --init_from for the weights"
        return fix(", ".join(words), more=more)
    return fix(", ".join(words), switch, *extra, *_batch(case, now, micro), more=f"{more}; the global batch stays")


def _by_hand(now: _Now) -> Fix | None:
    """Return what would fit, where nothing that keeps the training as it is does: more nodes, shorter rows, LoRA."""
    if now.layout is None or now.shape is None or now.room is None:
        return None
    # What the formula does not see of this job is taken off the room.
    site = layouts.Site(gpu_bytes=round(_FULL * now.room / now.factor))
    there = [each for each in layouts.remedies(now.shape, now.layout, site) if each.fits]
    if not there:
        return None
    first = f"no micro batch fits {gib(now.room)}, not even 1 with checkpointing; what would, each by itself:"
    lines = [f"{each.what} ({gib(each.total * now.factor)} of each GPU): {each.fix}" for each in there[:3]]
    return fix("\n".join([first, *lines]), more="each makes another training of it, or another world size: hpctrain fit shows all")


def _evaluation(case: Case) -> Fix | None:
    """Return half the rows of an evaluation: what is computed stays the same."""
    asked = whole(setting(case, "training", _EVAL))
    rows = asked or 8  # TrainingArguments.per_device_eval_batch_size
    if rows < 2:
        return None
    each = change(case, f"training.{_EVAL}", rows // 2)
    return fix(f"{_EVAL}: {rows} -> {rows // 2}", each, more="memory ran out in an evaluation; its result stays the same, the training too")


# -- fragmentation -----------------------------------------------------------------------------------------------------


def fragmentation(case: Case, groups: Groups) -> Fix | None:
    """Return torch's expandable segments switched on, by the name of the variable that the torch of the job heeds."""
    name = _ALLOC if (_version(case.extra.get("torch")) or (0, 0)) >= _RENAMED else _CUDA_ALLOC
    name = _HIP_ALLOC if groups.get("variable") == _HIP_ALLOC else name
    held = [setting(case, "environment", "env", each) for each in (_ALLOC, _CUDA_ALLOC, _HIP_ALLOC)]
    if any("expandable_segments:true" in str(value).lower() for value in held if value is not None):
        return None
    before = setting(case, "environment", "env", name)
    switch = change(case, f"environment.env.{name}", f"{before},{_EXPANDABLE}" if before else _EXPANDABLE)
    more = "much of what torch holds is in pieces too small to use; with this, pieces can grow"
    return fix(f"export {name}={switch.new}", *kept(case, switch), more=more)


def _version(said: object) -> tuple[int, int] | None:
    parts = str(said).partition("+")[0].split(".")
    numbers = [whole(part) for part in parts[:2]]
    return (numbers[0], numbers[1]) if len(numbers) == 2 and numbers[0] is not None and numbers[1] is not None else None
