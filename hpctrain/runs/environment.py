"""What two starts of a run ran with, compared: attempts/*/environment.json, which hpctrain/training/surroundings.py collects.

Pure but for `newest`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpctrain.runs import files, metrics

FILE = "environment.json"

PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "accelerate",
    "datasets",
    "peft",
    "tokenizers",
    "safetensors",
    "numpy",
    "flash-attn",
    "deepspeed",
    "triton",
)
"""The packages whose version can change what a training computes, or what a checkpoint holds."""

#: What is compared besides them, in this order, and how it is called.
_PLAIN = {
    "python": "Python",
    "cuda": "CUDA",
    "rocm": "ROCm",
    "driver": "GPU driver",
    "nccl": "NCCL",
    "slurm": "Slurm",
    "world_size": "world size",
}
#: Variables that differ between any two starts.
_OTHER_EACH_TIME = frozenset({"SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_JOB_NODELIST", "CUDA_VISIBLE_DEVICES"})


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return what is another now, such as `torch 2.13.0 then, 2.14.0 now`; [] when nothing that matters is.

    Args:
        old: the JSON object of an earlier start's environment.json. What is of another type than it should be counts as not known.
        new: that of this start.
    """
    return [*_versions(old, new), *_values(old, new), *_gpus(old, new), *_variables(old, new), *_others(old, new)]


def newest(run_dir: Path, but: str | None = None) -> dict[str, Any] | None:
    """Return what the newest start ran with; None when no start of the run says so.

    Args:
        run_dir: the run directory.
        but: the name of the attempt that is passed over: one's own.
    """
    for attempt in reversed(metrics.attempts(run_dir)):
        if attempt.name != but and (found := files.read_json(attempt / FILE)) is not None:
            return found
    return None


def _versions(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    then, now = _mapping(old, "versions"), _mapping(new, "versions")
    for name in PACKAGES:
        if then.get(name) != now.get(name):
            yield _pair(name, then.get(name, "not installed"), now.get(name, "not installed"))


def _values(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for key, name in _PLAIN.items():
        # A value that one of them does not have is not known, rather than another.
        if key in old and key in new and old[key] != new[key]:
            yield _pair(name, old[key], new[key])


def _gpus(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    then, now = _list(old, "gpus"), _list(new, "gpus")
    if then != now:
        yield _pair("GPUs", _counted(then), _counted(now))


def _variables(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    if "variables" not in old or "variables" not in new:
        return
    then, now = _mapping(old, "variables"), _mapping(new, "variables")
    for name in sorted(then.keys() | now.keys()):
        if name not in _OTHER_EACH_TIME and then.get(name) != now.get(name):
            yield _pair(name, then.get(name, "unset"), now.get(name, "unset"))


def _others(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line about all packages that have no line of their own."""
    if "packages" not in old or "packages" not in new:
        return
    then, now = (dict(line.partition("==")[::2] for line in _list(each, "packages")) for each in (old, new))
    changed = [name for name in then.keys() | now.keys() if name not in PACKAGES and then.get(name) != now.get(name)]
    if changed:
        shown = ", ".join(sorted(changed)[:3])
        yield f"{len(changed)} other package{'s' * (len(changed) > 1)} changed ({shown}{', ...' * (len(changed) > 3)})"


def _pair(name: str, then: Any, now: Any) -> str:
    return f"{name} {then} then, {now} now"


def _counted(names: list[str]) -> str:
    """Return `4 x NVIDIA H100`, for instance."""
    return " and ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "none"


def _mapping(facts: Mapping[str, Any], key: str) -> dict[str, str]:
    found = facts.get(key)
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _list(facts: Mapping[str, Any], key: str) -> list[str]:
    found = facts.get(key)
    return [str(each) for each in found] if isinstance(found, list) else []
