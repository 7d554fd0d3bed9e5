"""The GPUs that are known by name: their dense peaks, their memory and how they are linked. Data: gpus.yaml, each row with its source.

Pure: reads nothing but its own table.
"""

from __future__ import annotations

import pkgutil
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from hpctrain import yaml12
from hpctrain.fit.layout import Layout
from hpctrain.scheduler.parse import memory_size

GIB = 1024**3
_TABLE = "gpus.yaml"
_SIZE = re.compile(r"(?<![a-z0-9])([0-9]{2,3}) ?gi?b?(?![a-z0-9])")
#: What makes the rest of a name say less than it seems: behind GH200 stands the memory of the CPU (`NVIDIA GH200 480GB`).
_PART = re.compile(r"(?<![a-z0-9])(?:mig ?)?([1-7])c?g ([0-9]{1,3})gb(?![a-z0-9])")
"""A part of a GPU that MIG made: `1g.10gb` has one of seven slices of the arithmetic, and 10 GB."""
_MISLEADING = re.compile(r"\bgh200\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of GPU.

    Attributes:
        memory: bytes that programs can have, the CUDA context included.
        bf16, fp16, fp32: FLOP/s of dense matrix products at best; None: the GPU has no such arithmetic.
        bandwidth: of its memory, bytes/s; `link`: to the other GPUs of the node, bytes/s in one direction.
        evidence: how well the peaks and the bandwidth are attested, a word of hpctrain/clusters/evidence.py.
        source: where that is written, as far as it was read or is remembered.
    """

    name: str
    memory: int
    bf16: float | None
    fp16: float
    fp32: float
    bandwidth: float
    link: float
    evidence: str
    source: str

    def peak(self, layout: Layout) -> float:
        """Return the FLOP/s that matrix products reach at best in the precision that a layout computes in."""
        precision = layout.compute or layout.weights
        if precision == "bfloat16":
            return self.bf16 or self.fp32
        return self.fp16 if precision == "float16" else self.fp32


def find(name: str, memory: int | None = None) -> Gpu | None:
    """Return the GPU of a name; None where the table has none.

    Args:
        name: as torch, nvidia-smi, Slurm's GRES or a cluster profile writes it: `NVIDIA H100 80GB HBM3`, `a100`, `AMD Instinct MI250X`.
        memory: bytes of it, where they are known: they decide between variants of one name.
    """
    there = variants(name)
    if not there:
        return None
    if is_part(name):
        return _part(name, there, memory)
    said = None if _MISLEADING.search(name.lower()) else _SIZE.search(_words(name))
    known = memory if memory is not None else int(said[1]) * GIB if said else None
    return there[0] if known is None else min(there, key=lambda gpu: abs(gpu.memory - known))


def is_part(name: str) -> bool:
    """Whether a name is that of a part of a GPU, as MIG makes them: `nvidia_a100_3g.20gb`, `1g.10gb`, `a100_mig`."""
    return _PART.search(_words(name)) is not None or re.search(r"\bmig\b", _words(name)) is not None


def part_memory(name: str) -> int | None:
    """Return the bytes that programs can have of the part that a name stands for, a twentieth less than it says; None: it says none."""
    found = _PART.search(_words(name))
    return int(found[2]) * GIB * 19 // 20 if found is not None else None


def _part(name: str, there: tuple[Gpu, ...], memory: int | None) -> Gpu | None:
    """Return the part of a GPU; None where the name does not say how large it is."""
    found, whole = _PART.search(_words(name)), max(there, key=lambda gpu: gpu.memory)
    if found is None:
        return None
    share, size = int(found[1]) / 7, memory or part_memory(name) or whole.memory
    return replace(
        whole, name=f"{whole.name}, MIG {found[1]}g.{found[2]}gb", memory=size, bf16=whole.bf16 and whole.bf16 * share,
        fp16=whole.fp16 * share, fp32=whole.fp32 * share, bandwidth=whole.bandwidth * min(1.0, size / whole.memory),
    )  # fmt: skip


def variants(name: str) -> tuple[Gpu, ...]:
    """Return the GPUs that a name may stand for, which differ in their memory."""
    first = next((pattern for pattern, _ in _rows() if re.search(pattern, _words(name))), None)
    return tuple(gpu for pattern, gpu in _rows() if pattern == first)


def _words(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", name.lower()).strip()


def names() -> tuple[str, ...]:
    """Return the names of all that are known, in the order of the table."""
    return tuple(gpu.name for _, gpu in _rows())


@cache
def _rows() -> tuple[tuple[str, Gpu], ...]:
    text = (pkgutil.get_data("hpctrain.fit", _TABLE) or b"").decode()
    rows = yaml12.load(f"gpus:\n{text}", _TABLE).data["gpus"]
    return tuple((str(row["match"]), _gpu(row)) for row in rows)


def _gpu(row: dict[str, Any]) -> Gpu:
    def tera(name: str) -> float | None:
        return float(row[name]) * 1e12 if name in row else None

    return Gpu(
        name=str(row["name"]),
        memory=memory_size.parse(row["memory"]),
        bf16=tera("bf16"),
        fp16=tera("fp16") or 0.0,
        fp32=tera("fp32") or 0.0,
        bandwidth=float(row["bandwidth"]) * 1e9,
        link=float(row["link"]) * 1e9,
        evidence=str(row["evidence"]),
        source=str(row["source"]),
    )


def usable(name: str | None, memory: int | None) -> int | None:
    """Return the bytes that programs can have of a GPU: what is built in, less what the table knows that the driver keeps.

    Args:
        name: of the GPU, or None.
        memory: what is built in, as a profile or a person says it: `80G` of an H100, of which torch shows 79.1 GiB. None: unknown.
    """
    gpu = find(name, memory) if name is not None else None
    if gpu is None:
        return memory or (part_memory(name) if name is not None else None)
    if memory is None:
        return gpu.memory
    near = abs(gpu.memory - memory) < memory // 10  # anything else is a part of one, or another one
    return min(memory, gpu.memory) if near else memory
