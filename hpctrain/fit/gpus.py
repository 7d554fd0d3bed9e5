"""The table of known GPUs: dense peaks, memory and links.

Data: gpus.yaml, with a source for each row. Pure: reads only its own table.
"""

from __future__ import annotations

import pkgutil
import re
from dataclasses import dataclass
from functools import cache

from hpctrain.fit.layout import Layout
from hpctrain.slurm.notations import units
from hpctrain.util import yaml12

GIB = 1024**3
_TABLE = "gpus.yaml"
_SIZE = re.compile(r"(?<![a-z0-9])([0-9]{2,3}) ?gi?b?(?![a-z0-9])")
#: Names whose size is not the GPU's: GH200 is followed by the CPU's memory (`NVIDIA GH200 480GB`).
#: A MIG instance: `1g.10gb` has one of seven compute slices, and 10 GB.
_PART = re.compile(r"(?<![a-z0-9])(?:mig ?)?([1-7])c?g ([0-9]{1,3})gb(?![a-z0-9])")
_MISLEADING = re.compile(r"\bgh200\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU model.

    Attributes:
        memory: bytes available to programs, including the CUDA context.
        bf16, fp16, fp32: peak FLOP/s of dense matrix products; None: not supported.
        bandwidth: of its memory, bytes/s; `link`: to the other GPUs of the node, bytes/s per
            direction.
        evidence: how well peaks and bandwidth are attested, with the terms of
            hpctrain/clusters/load.py.
    """

    name: str
    memory: int
    bf16: float | None
    fp32: float
    bandwidth: float
    link: float
    evidence: str
    fp16: float

    def peak(self, layout: Layout) -> float:
        """Return the peak FLOP/s of matrix products in the layout's compute precision."""
        precision = layout.compute or layout.weights
        if precision == "bfloat16":
            return self.bf16 or self.fp32
        return self.fp16 if precision == "float16" else self.fp32


def find(name: str, memory: int | None = None) -> Gpu | None:
    """Return the GPU with this name; None for unknown GPUs and for MIG instances.

    Args:
        name: as in torch, nvidia-smi, Slurm's GRES or a cluster profile: `NVIDIA H100 80GB HBM3`,
            `a100`, `AMD Instinct MI250X`.
        memory: its bytes, if known; selects between variants with the same name.
    """
    there = variants(name)
    if not there or is_part(name):  # the speed of a MIG instance is unknown
        return None
    said = None if _MISLEADING.search(name.lower()) else _SIZE.search(_words(name))
    known = memory if memory is not None else int(said[1]) * GIB if said else None
    return there[0] if known is None else min(there, key=lambda gpu: abs(gpu.memory - known))


def is_part(name: str) -> bool:
    """Whether the name is that of a MIG instance: `nvidia_a100_3g.20gb`, `1g.10gb`, `a100_mig`."""
    return _PART.search(_words(name)) is not None or re.search(r"\bmig\b", _words(name)) is not None


def part_memory(name: str) -> int | None:
    """Return the usable bytes of a MIG instance, 5 % less than in its name; None if the name has no
    size.
    """
    found = _PART.search(_words(name))
    return int(found[2]) * GIB * 19 // 20 if found is not None else None


def variants(name: str) -> tuple[Gpu, ...]:
    """Return the GPUs with this name, which differ in their memory."""
    first = next((pattern for pattern, _ in _rows() if re.search(pattern, _words(name))), None)
    return tuple(gpu for pattern, gpu in _rows() if pattern == first)


def _words(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", name.lower()).strip()


def names() -> tuple[str, ...]:
    """Return all known names, in the order of the table."""
    return tuple(gpu.name for _, gpu in _rows())


@cache
def _rows() -> tuple[tuple[str, Gpu], ...]:
    text = (pkgutil.get_data("hpctrain.fit", _TABLE) or b"").decode()
    found = []
    for row in yaml12.load(f"gpus:\n{text}", _TABLE).data["gpus"]:
        tera = {name: float(row[name]) * 1e12 for name in ("bf16", "fp16", "fp32") if name in row}
        gpu = Gpu(
            name=str(row["name"]),
            memory=units.parse_memory(row["memory"]),
            bf16=tera.get("bf16"),
            fp16=tera.get("fp16", 0.0),
            fp32=tera["fp32"],
            bandwidth=float(row["bandwidth"]) * 1e9,
            link=float(row["link"]) * 1e9,
            evidence=str(row["evidence"]),
        )
        found.append((str(row["match"]), gpu))
    return tuple(found)


def usable(name: str | None, memory: int | None) -> int | None:
    """Return the GPU memory available to programs: the physical memory, less the driver's share
    according to the table.

    Args:
        name: of the GPU, or None.
        memory: physical memory according to a profile or a user: `80G` for an H100, of which torch
            reports 79.1 GiB. None: unknown.
    """
    gpu = find(name, memory) if name is not None else None
    if gpu is None:
        return memory or (part_memory(name) if name is not None else None)
    if memory is None:
        return gpu.memory
    near = abs(gpu.memory - memory) < memory // 10  # otherwise a MIG instance or another GPU
    return min(memory, gpu.memory) if near else memory
