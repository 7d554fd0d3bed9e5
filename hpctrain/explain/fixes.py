"""Fixes with the user's own numbers: computed from the samples, the formula of `hpctrain fit`, the
record and the config. PURE.

A rule names one of them (`fix:`). Each returns None if the numbers are unknown or the job already
has the fix; then the rule's remedy is shown. `changes` holds what `hpctrain resubmit --apply-fix`
can do: changes that keep the training and its global batch, and for a custom script only Slurm's
resources. The text describes the rest.

Keys of `case.extra` that are used here: `run` (its id),
`variables` (of the job's environment) and `time_max_s` (of the partition).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hpctrain.explain.facts import host_use, left_to_do
from hpctrain.explain.model import Change, Fix, JobContext
from hpctrain.explain.values import (
    GIB,
    MIB,
    Groups,
    change,
    current,
    fix,
    is_ours,
    kept,
    setting,
    told,
    whole,
)
from hpctrain.fit import layouts, memory
from hpctrain.fit.layout import Layout, Sharding
from hpctrain.fit.shape import ModelShape
from hpctrain.slurm.notations import hostlist, units
from hpctrain.util.stored import made
from hpctrain.util.text import duration, size

#: RFC 1123 names, and Slurm's own: text from a log must not inject anything else into a command
#: line.
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(?:/[A-Za-z0-9][\w.-]{0,95})?\Z", re.ASCII)


# -- GPU memory ------------------------------------------------------------------------------------

#: Usable fraction: the formula is accurate to five percent, and NCCL, evaluations and fragmentation
#: need some memory.
_FULL = 0.92
_MICRO, _ACCUMULATION = "per_device_train_batch_size", "gradient_accumulation_steps"
_CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")
_EXPANDABLE, _HIP_ALLOC = "expandable_segments:True", "PYTORCH_HIP_ALLOC_CONF"
#: torch 2.9 to 2.11 read only this name; all versions read it (pytorch issue 183387).
_CUDA_ALLOC = "PYTORCH_CUDA_ALLOC_CONF"


def gpu_batch(case: JobContext, _: Groups) -> Fix | None:
    """Return the smallest change of layout that fits by the formula: a smaller micro batch with
    more accumulation, checkpointing, sharding. Without a formula, the first of these.
    """
    fit: Mapping[str, Any] = case.fit or {}
    known, shape = made(Layout, fit.get("layout")), made(ModelShape, fit.get("shape"))
    seen = max((sample.gpu_total_mib or 0 for sample in case.samples), default=0) * MIB
    room = whole(fit.get("gpu_bytes")) or seen or case.gpu_memory_bytes
    now = known or _configured(case)
    if case.config is None or now is None:
        return None
    smaller = _smaller(case, now)
    if known is None or shape is None or room is None:
        found, need = next(smaller, None), ""
    else:
        site = layouts.Site(gpu_bytes=int(_FULL * room))
        # It ran out of memory: it needs at least what there is, even if the formula predicts less.
        predicted = memory.gpu_memory(shape, now)
        factor = (room - predicted.context) / (predicted.total - predicted.context)
        fitting = (
            layouts.LayoutEstimate(shape=shape, layout=each, site=site, factor=max(1.0, factor))
            for each in smaller
        )
        best = next((each for each in fitting if each.fits), None)
        found = best.layout if best else None
        need = f"; each GPU then needs about {size(best.total)} of {size(room)}" if best else ""
    return None if found is None else _as_fix(case, now, found, need)


def _configured(case: JobContext) -> Layout | None:
    micro = whole(setting(case, "training", _MICRO))
    accumulation = whole(setting(case, "training", _ACCUMULATION)) or 1
    sharding: Any = setting(case, "sharding") or "ddp"
    asked = setting(case, "training", _checkpointing_key(case))
    if not micro:
        return None
    return Layout(
        gpus_per_node=case.world_size or 1,
        micro_batch=micro,
        accumulation=accumulation,
        sharding=sharding,
        # An unset value may be the model's own default: do not guess that it is on.
        checkpointing="off" if str(asked).lower() == "false" else "full",
    )


def _checkpointing_key(case: JobContext) -> str:
    held = (name for name in _CHECKPOINTING if setting(case, "training", name) is not None)
    return next(held, _CHECKPOINTING[0])


def _smaller(case: JobContext, now: Layout) -> Iterator[Layout]:
    """Yield layouts with the same global batch that need less memory, the smallest change first."""
    yield from _with_micro(now, now.micro_batch // 2)
    if not is_ours(case):  # the meaning of a custom script's options is unknown
        return
    full = replace(now, checkpointing="full")
    if now.checkpointing == "off":
        yield from _with_micro(full, now.micro_batch)
    sharding: Sharding = "zero3" if now.sharding.startswith("zero") else "fsdp"
    plain = setting(case, "accelerate_config") in (None, "multi_gpu.yaml")
    if now.processes > 1 and now.sharding != sharding and plain and now.quantization == "none":
        yield from _with_micro(replace(full, sharding=sharding), now.micro_batch)


def _with_micro(layout: Layout, most: int) -> Iterator[Layout]:
    rows = layout.micro_batch * layout.accumulation
    for micro in range(most, 0, -1):
        if rows % micro == 0:
            yield replace(layout, micro_batch=micro, accumulation=rows // micro)


def _as_fix(case: JobContext, now: Layout, new: Layout, need: str) -> Fix:
    rows = now.micro_batch * now.accumulation * now.processes
    changes: list[Change] = []
    if new.sharding != now.sharding:
        changes.append(change(case, "sharding", new.sharding))
    if new.checkpointing != now.checkpointing:
        changes.append(change(case, f"training.{_checkpointing_key(case)}", True))
    words = [told(each) for each in changes]
    if new.micro_batch != now.micro_batch:
        pairs = ((_MICRO, new.micro_batch), (_ACCUMULATION, new.accumulation))
        changes += [change(case, f"training.{name}", value) for name, value in pairs]
        words += [
            f"{_MICRO}: {now.micro_batch} -> {new.micro_batch}",
            f"{_ACCUMULATION}: {now.accumulation} -> {new.accumulation}",
        ]
    more = f"the global batch stays {rows} sequences{need}"
    if not is_ours(case):
        more += ", if your script takes these options as the Trainer does"
    elif new.sharding != now.sharding and case.step:
        more += (
            "; a checkpoint of another sharding cannot be resumed: start another run, with"
            " --init_from for the weights"
        )
    elif new.checkpointing != now.checkpointing:
        more += "; activations are recomputed in the backward pass: about a third more time"
    resumes = is_ours(case) and (new.sharding == now.sharding or not case.step)
    return fix(", ".join(words), *(kept(case, *changes) if resumes else ()), more=more)


def fragmentation(case: JobContext, groups: Groups) -> Fix | None:
    """Enable torch's expandable segments."""
    name = groups.get("variable")
    name = _HIP_ALLOC if name == _HIP_ALLOC else _CUDA_ALLOC
    held = _variables(case)
    if any("expandable_segments:true" in value.lower() for value in held.values()):
        return None
    before = setting(case, "environment", "env", name)
    switch = change(
        case, f"environment.env.{name}", f"{before},{_EXPANDABLE}" if before else _EXPANDABLE
    )
    more = "much of what torch holds is in pieces too small to use; with this, pieces can grow"
    return fix(f"export {name}={switch.new}", *kept(case, switch), more=more)


# -- host memory -----------------------------------------------------------------------------------

#: The required memory is unknown: half as much again is the usual next try.
_MORE = 1.5


def host_memory(case: JobContext, _: Groups) -> Fix | None:
    """Request half as much memory again, up to a node's."""
    each = whole(setting(case, "resources", "mem_per_cpu"))
    had, node = _memory_limit(case), case.node_memory_bytes
    if had is None:
        return None
    peak = max(((host_use(sample)[0] or 0) * MIB for sample in current(case)), default=0)
    why = f"the samples saw {size(peak)} of {size(had)}" if peak else f"{size(had)} was not enough"
    wanted = _rounded_up(had * _MORE, GIB if had >= 2 * GIB else MIB)
    if node is not None and wanted > node:
        if had >= node or each:
            return None
        everything = change(case, "resources.mem", "0")
        more = f"all memory of a node, {size(node)}: {why}"
        return fix(told(everything), *kept(case, everything), more=more)
    if each:
        per_cpu = units.format_memory(_rounded_up(each * _MORE, 256 * MIB))
        new = change(case, "resources.mem_per_cpu", per_cpu)
        return fix(told(new), *kept(case, new), more=why)
    new = change(case, "resources.mem", units.format_memory(wanted))
    before = units.format_memory(_rounded_up(had, MIB))  # cgroups count single bytes
    return fix(f"--mem {before} -> {new.new}", *kept(case, new), more=why)


def _rounded_up(size: float, unit: int) -> int:
    return -(-int(size) // unit) * unit


def _memory_limit(case: JobContext) -> int | None:
    """Return the job's bytes per node: from its record, config or cgroup; for `--mem 0`, the
    node's.
    """
    limits = [sample.cgroup_limit_mib * MIB for sample in current(case) if sample.cgroup_limit_mib]
    each = whole(setting(case, "resources", "mem_per_gpu"))
    gpus = whole(setting(case, "resources", "gpus_per_node")) or case.gpus_per_node or 1
    asked = each * gpus if each else whole(setting(case, "resources", "mem"))
    account = case.account.memory_bytes if case.account is not None else None
    return account or asked or min(limits, default=None) or case.node_memory_bytes


# -- nodes, processes ------------------------------------------------------------------------------


def exclude_node(case: JobContext, groups: Groups) -> Fix | None:
    """Exclude the node, in addition to those already excluded."""
    node = groups.get("node") or (case.account.failed_node if case.account is not None else None)
    if node is None or not _NODE.match(node):
        return None
    before = setting(case, "sbatch", "exclude")
    try:
        out = hostlist.expand(str(before)) if before else []
    except ValueError:
        out = [str(before)]
    short = node.partition(".")[0]  # Slurm's NodeName is the short one nearly everywhere
    if {node, short} & set(out):
        return None
    new = change(case, "sbatch.exclude", f"{before},{short}" if before else short)
    return fix(
        f"--exclude={new.new}",
        *kept(case, new),
        more=f"the next start uses other nodes than {short}; report it to your support",
    )


def offline(_: JobContext, groups: Groups) -> Fix | None:
    """Explain how to download the missing files on a login node."""
    named = groups.get("repo") or groups.get("name") or ""
    fetch = f"on a login node: hf download {named}" if _REPOSITORY.match(named) else ""
    return (
        fix(fetch, more="with the same HF_HOME as the job, or a directory as model_name_or_path")
        if fetch
        else None
    )


# -- network ---------------------------------------------------------------------------------------


def interface(case: JobContext, _: Groups) -> Fix | None:
    """Remove the variables that name an interface which the node lacks."""
    held = _variables(case)
    gone = [
        Change(key=f"environment.env.{name}", old=held[name], new=None)
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
        if name in held
    ]
    words = ", ".join(f"{each.key}: {each.old} -> removed" for each in gone)
    more = "NCCL and gloo then choose the interface themselves"
    return fix(words, *kept(case, *gone), more=more) if gone else None


def _variables(case: JobContext) -> dict[str, str]:
    """Return the variables that the job set, from all layers of its config, if known."""
    known = case.extra.get("variables")
    found = known if isinstance(known, Mapping) else _section(setting(case, "environment"), "env")
    return {str(name): str(value) for name, value in found.items()}


def _section(value: object, name: str) -> Mapping[str, Any]:
    found = value.get(name) if isinstance(value, Mapping) else None
    return found if isinstance(found, Mapping) else {}


# -- time ------------------------------------------------------------------------------------------

#: Factor for the run time beyond its steps: evaluations, saves, a slower node.
_SPARE = 1.1
_QUARTER, _HOUR = 900, 3600


def time_limit(case: JobContext, _: Groups) -> Fix | None:
    """Request the time that this start would have needed, or twice its limit, up to the partition's
    maximum, with restarts for the rest.
    """
    account, left = case.account, left_to_do(case)
    had = (account.time_limit_s if account else None) or whole(setting(case, "resources", "time"))
    most = whole(case.extra.get("time_max_s"))
    if not had:
        return None
    need = 2 * had
    why = "twice the time, as nothing says how many steps are left"
    if left is not None:
        need = int((had + left) * _SPARE)
        need = _rounded_up(need, _QUARTER if need <= 12 * _HOUR else _HOUR)
        why = f"step {case.step} of {case.max_steps} was done; {duration(left)} are left"
    changes = []
    if most is not None and need > most:
        why += f"; the partition allows {units.format_time(most)}"
        if setting(case, "restart", "mode") == "off" and is_ours(case):
            changes.append(change(case, "restart.mode", "requeue"))
        need = most
    if need > had:
        changes.insert(0, change(case, "resources.time", units.format_time(need)))
    if not changes:
        return None  # it already has the maximum, and continues automatically
    resumes = "it resumes from the newest checkpoint"
    own = "your script must resume from its own checkpoint, or start from scratch in that time"
    words = [told(each) for each in changes]
    if need > had:
        words[0] = f"--time {units.format_time(had)} -> {units.format_time(need)}"
    more = f"{why}; {resumes if is_ours(case) else own}"
    return fix(", ".join(words), *kept(case, *changes), more=more)


def time_max(case: JobContext, _: Groups) -> Fix | None:
    """Limit the time to the partition's maximum, with restarts to complete the training."""
    most = whole(case.extra.get("time_max_s"))
    asked = whole(setting(case, "resources", "time"))
    had = asked or (case.account.time_limit_s if case.account is not None else None)
    if most is None or had is None or had <= most:
        return None
    changes = [change(case, "resources.time", units.format_time(most))]
    more = f"the partition allows {units.format_time(most)}"
    if setting(case, "restart", "mode") == "off" and is_ours(case):
        changes.append(change(case, "restart.mode", "requeue"))
        more += "; the rest then continues in the same job, requeued"
    words = f"--time {units.format_time(had)} -> {units.format_time(most)}"
    return fix(words, *kept(case, *changes), more=more)


Remedy = Callable[[JobContext, Mapping[str, str]], Fix | None]

FIXES: Mapping[str, Remedy] = MappingProxyType(
    {
        "gpu_batch": gpu_batch,
        "fragmentation": fragmentation,
        "host_memory": host_memory,
        "time_limit": time_limit,
        "time_max": time_max,
        "exclude_node": exclude_node,
        "offline": offline,
        "interface": interface,
    }
)
