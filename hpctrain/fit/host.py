"""What the processes of one node hold in host memory, against what the job asks for (`--mem`).

Pure. What it is made of:

- 0.44 GiB for each process that has imported torch, transformers and trl (facts of torch 2.13, transformers 5.23, measured on a CPU).
- 1.6 GiB more once it uses CUDA: 2.0 GiB of a process with torch 2.2 and CUDA 11.8 on an RTX 3090 (pytorch issue 113326). `least` leaves
  it out.
- The model while it is loaded, in the dtype of the training: each process loads it, then moves it to its GPU. With fsdp one process of each
  node does (cpu_ram_efficient_loading), with zero3 and with quantised weights it is read piece by piece. The pages of the files themselves
  are the kernel's cache, which it gives up before it kills anybody, so they do not count.
- 0.3 GiB for each worker of the data loader, and 0.25 GiB of pinned and shared buffers (NCCL, the loader) for each process: assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.fit.layout import Layout

GIB = 1024**3
PROCESS = int(0.44 * GIB)
CUDA = int(1.6 * GIB)
LAUNCHER = int(0.22 * GIB)
WORKER = int(0.3 * GIB)
PINNED = int(0.25 * GIB)
#: Of a model that is read piece by piece, the largest piece: one file of safetensors.
PIECE = 5 * GIB
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class HostPart:
    """One part: what it is called, bytes on each node, and the sum that they come from."""

    name: str
    bytes: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Of one node.

    Attributes:
        parts: what is held at the worst moment.
        total: their sum, the best estimate.
        least: what is certain to be held: the processes without CUDA, and the model while it is loaded.
    """

    parts: tuple[HostPart, ...]
    least: int

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(part.bytes for part in self.parts)

    @property
    def words(self) -> str:
        """The parts, as a sum."""
        return " + ".join(part.what for part in self.parts)

    @property
    def least_words(self) -> str:
        """The certain parts, as a sum."""
        return " + ".join(part.what for part in self.parts if part.name in ("processes", "model"))


def host_memory(parameters: int | None, layout: Layout, *, workers: int = 0, cuda: bool = True) -> HostMemory:
    """Return what the processes of one node hold.

    Args:
        parameters: of the model; None: unknown, and then the model does not count.
        layout: how it is trained.
        workers: of the data loader, for each process (`dataloader_num_workers`).
        cuda: whether the processes use GPUs.
    """
    count = layout.gpus_per_node
    parts = [HostPart("processes", count * PROCESS, f"{count} processes x {_gib(PROCESS)}")]
    if cuda:
        parts.append(HostPart("CUDA", count * CUDA, f"{count} processes x {_gib(CUDA)} of CUDA's libraries and context"))
    loading = _loading(parameters, layout)
    parts += [loading] if loading.bytes else []
    least = parts[0].bytes + loading.bytes
    parts.append(HostPart("launcher", LAUNCHER, "the launcher"))
    # Workers start when the model has left for the GPU: only what they hold beyond it counts.
    running = count * (workers * WORKER + PINNED)
    if running > loading.bytes:
        said = f"{count} x {workers} workers x {_gib(WORKER)}, and " if workers else ""
        parts.append(HostPart("data loading", running - loading.bytes, f"{said}pinned buffers of {_gib(PINNED)} for each process"))
    return HostMemory(parts=tuple(parts), least=least)


def _loading(parameters: int | None, layout: Layout) -> HostPart:
    if parameters is None:
        return HostPart("model", 0, "")
    width = _BYTES[layout.weights]
    size = parameters * width
    if layout.quantization != "none" or layout.sharding == "zero3":
        times = layout.gpus_per_node if layout.quantization != "none" else 1
        return HostPart("model", times * min(size, PIECE), f"{times} x {_gib(min(size, PIECE))} of weights, file by file")
    times = 1 if layout.sharding == "fsdp" else layout.gpus_per_node
    words = f"{times} x {_gib(size)} of weights ({billions(parameters)} x {width} bytes)"
    return HostPart("model", times * size, words)


def billions(count: int) -> str:
    """Return a number of parameters as people say it."""
    return f"{count / 1e9:.2f} billion" if count >= 1e8 else f"{count / 1e6:.1f} million"


def _gib(size: int) -> str:
    return f"{size / GIB:.2g} GiB" if size < GIB else f"{size / GIB:.1f} GiB"
