"""What fixes are written with: a change of one key, in the words of the option that a person would type. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpctrain.explain.case import Case
from hpctrain.explain.facts_found import setting, whole
from hpctrain.explain.model import Change, Fix, Scalar
from hpctrain.scheduler.parse import duration, memory_size

Groups = Mapping[str, str]

GIB = 1 << 30
#: Keys that are typed as an option of sbatch, and of hpctrain.
_OPTIONS = {
    "resources.mem": "--mem", "resources.mem_per_cpu": "--mem-per-cpu", "resources.time": "--time", "resources.nodes": "--nodes",
    "resources.gpus_per_node": "--gpus", "resources.cpus_per_task": "--cpus-per-task", "resources.cpus_per_gpu": "--cpus-per-gpu",
    "resources.partition": "--partition", "resources.account": "--account", "resources.qos": "--qos", "restart.mode": "--restart",
}  # fmt: skip
_SIZES = frozenset({"resources.mem", "resources.mem_per_cpu"})


def change(case: Case, key: str, new: Scalar) -> Change:
    """Return a change of a key from what the config says, which is None where nobody has said anything."""
    return Change(key=key, old=_scalar(setting(case, *path_of(key))), new=new)


def path_of(key: str) -> tuple[str, ...]:
    """Return the keys of a path; what stands behind `environment.env` and `sbatch` is one key, whatever it holds."""
    for section in ("environment.env.", "sbatch.", "training."):
        if key.startswith(section):
            return (*section.rstrip(".").split("."), key.removeprefix(section))
    return tuple(key.split("."))


def _scalar(value: Any) -> Scalar:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def is_ours(case: Case) -> bool:
    """Whether the training is one of hpctrain's, whose options mean what they say."""
    return case.config is not None and setting(case, "script") is None


def kept(case: Case, *changes: Change) -> tuple[Change, ...]:
    """Return the changes that `--apply-fix` can make: none without a config, and none that changes nothing."""
    return () if case.config is None else tuple(each for each in changes if str(each.old).lower() != str(each.new).lower())


def told(each: Change) -> str:
    """Return a change as a person types it: `--mem 64G -> 96G`, `per_device_train_batch_size: 4 -> 2`."""
    option, old, new = _OPTIONS.get(each.key), shown(each.key, each.old), shown(each.key, each.new)
    if each.key.startswith("sbatch."):
        name = each.key.removeprefix("sbatch.")
        return f"--{name} {old} -> {new}" if each.old is not None else f"--{name}={new}"
    if option is not None:
        return f"{option} {old} -> {new}" if each.old is not None else f"{option} {new}"
    name = each.key.removeprefix("training.")
    return f"{name}: {old} -> {new}"


def shown(key: str, value: Scalar) -> str:
    """Return a value of the config as a person writes it: sizes and times in Slurm's forms, None as `not set`."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    size = whole(value)
    if key in _SIZES and size is not None:
        return memory_size.format(size)
    if key == "resources.time" and size is not None:
        return duration.format(size)
    return str(value)


def fix(first: str, *changes: Change, more: str = "") -> Fix:
    """Return a fix: what is done in the first line, what there is to know in the second."""
    return Fix(text=f"{first}\n{more}" if more else first, changes=changes)


def gpus_per_node(case: Case) -> int:
    """Return the GPUs, so the training processes, of each node; 1 where nobody knows."""
    return whole(setting(case, "resources", "gpus_per_node")) or case.gpus_per_node or 1


def round_up(size: int) -> int:
    """Return a memory size that a person would ask for: a multiple of 4, 8, 16, 32 GiB, the coarser the larger it is."""
    for most, step in ((32, 4), (64, 8), (256, 16), (1 << 20, 32)):
        if size <= most * GIB:
            return -(-size // (step * GIB)) * step * GIB
    return size
