"""What a training is expected to take, worked out by hpctrain.fit from the Trainer as it was really built.

Needs torch for the GPU's name and size only. Nothing here raises: what cannot be worked out carries the reason.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from hpctrain.errors import HpctrainError
from hpctrain.fit import asked, flops, gpus, host, memory, speed
from hpctrain.fit.gpus import Gpu
from hpctrain.fit.host import HostMemory
from hpctrain.fit.layout import Layout, Sharding
from hpctrain.fit.memory import GpuMemory
from hpctrain.fit.shape import ModelShape, read_shape
from hpctrain.runs import files

SHARDINGS = ("ddp", "fsdp", "zero2", "zero3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What one process trains on.

    Attributes:
        name: of the GPU, as torch has it; None on the CPU.
        memory: bytes of the GPU; None on the CPU.
    """

    name: str | None = None
    memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What was worked out.

    Attributes:
        shape, layout: the model and how it is trained; None: `why` says why.
        memory: of one GPU; None on the CPU, or without shape and layout.
        host: of a node, likewise.
        speed: None where the GPU is not known.
        gpu: the known GPU.
        device: what there is.
        why: why something is missing, empty where nothing is.
    """

    shape: ModelShape | None = None
    layout: Layout | None = None
    memory: GpuMemory | None = None
    host: HostMemory | None = None
    speed: speed.Speed | None = None
    gpu: Gpu | None = None
    device: Device = Device()  # frozen
    why: str = ""

    @property
    def no_memory(self) -> str:
        """Why no peak is expected."""
        return self.why or "it trains on the CPU"

    @property
    def no_speed(self) -> str:
        """Why no speed is expected."""
        if self.why or self.device.name is None:
            return self.no_memory
        return f"the speed of {self.device.name} is not known"

    def mfu(self, tokens_per_s: float, context: float | None, processes: int) -> float | None:
        """Return which part of the GPUs' dense bfloat16 peak so many tokens take; None where that is not known.

        Args:
            tokens_per_s: of all processes.
            context: mean length of the examples, weighted by their tokens.
            processes: one to a GPU.
        """
        if self.shape is None or self.layout is None or self.gpu is None or not self.gpu.bf16:
            return None
        return tokens_per_s * flops.model_flops_per_token(self.shape, self.layout, context=context) / (processes * self.gpu.bf16)

    def as_record(self) -> dict[str, Any]:
        """Return the part of fit.json that is known before the first step (hpctrain.runs.predicted)."""
        predicted = None
        if self.memory is not None:
            predicted = {
                "total": self.memory.total,
                "allocated": self.memory.allocated,
                "reserved": self.memory.reserved,
                "parts": {part.name: part.bytes for part in self.memory.parts},
                "host": None if self.host is None else self.host.total,
                "tokens_per_s": None if self.speed is None else self.speed.tokens_per_s,
            }
        return {
            "layout": None if self.layout is None else asdict(self.layout),
            "shape": None if self.shape is None else asdict(self.shape),
            "gpu": self.device.name,
            "gpu_bytes": self.device.memory,
            "predicted": predicted,
        }


def device_of(args: Any) -> Device:
    """Return what this process trains on, of its training arguments."""
    import torch

    if args.use_cpu or not torch.cuda.is_available():
        return Device()
    return Device(name=torch.cuda.get_device_name(), memory=int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory))


def expect(trainer: Any, options: Any, *, longest: int | None, context: float | None) -> Expectation:
    """Return what is expected of a Trainer that is about to train.

    Args:
        trainer: as it was built.
        options: hpctrain.training.options.Options.
        longest: tokens of the longest row that it trains on; None where that is not known.
        context: the mean length of the examples, weighted by their tokens, likewise.
    """
    device = Device()
    try:
        device = device_of(trainer.args)
        labels = _labels(trainer.model)
        if not labels and not _is_language_model(trainer.model):
            return Expectation(device=device, why="the estimate is of language models and classifiers only")
        shape = read_shape(_config(trainer, options), labels=labels)
        layout = _layout(trainer, options, shape, device, longest)
        if device.name is None:
            return Expectation(shape=shape, layout=layout, device=device)
        gpu = gpus.find(device.name, device.memory)
        return Expectation(
            shape=shape,
            layout=layout,
            memory=memory.gpu_memory(shape, layout),
            host=host.host_memory(shape.parameters, layout, workers=trainer.args.dataloader_num_workers),
            speed=None if gpu is None else speed.tokens_per_second(shape, layout, gpu, context=context),
            gpu=gpu,
            device=device,
        )
    except HpctrainError as error:
        return Expectation(device=device, why=error.what)
    except Exception as error:  # an estimate must not keep a training from beginning
        return Expectation(device=device, why=f"{type(error).__name__}: {error}")


def sharding_of(trainer: Any, environ: Mapping[str, str] = os.environ) -> Sharding:
    """Return the sharding that the Trainer really has."""
    kind = trainer.accelerator.distributed_type.name
    if kind == "FSDP":
        return "fsdp"
    if kind == "DEEPSPEED":
        asked_for = environ.get("HPCTRAIN_SHARDING", "")
        stage = getattr(getattr(trainer.accelerator.state, "deepspeed_plugin", None), "zero_stage", None)
        return cast("Sharding", f"zero{stage}" if f"zero{stage}" in SHARDINGS else asked_for if asked_for in SHARDINGS else "zero3")
    return "ddp"


def checkpoints_activations(model: Any) -> bool:
    """Say whether a model computes activations again in the backward pass, in whatever it is wrapped."""
    return any(bool(getattr(module, "gradient_checkpointing", False)) for module in model.modules())


def _is_language_model(model: Any) -> bool:
    """Say whether a model predicts tokens, in whatever it is wrapped."""
    return any("CausalLM" in (name := type(module).__name__) or "LMHeadModel" in name for module in model.modules())


def _labels(model: Any) -> int:
    """Return how many numbers a classifier puts out for a row, in whatever it is wrapped; 0 of another model."""
    found = next((module for module in model.modules() if "ForSequenceClassification" in type(module).__name__), None)
    return int(found.config.num_labels) if found is not None and hasattr(found, "config") else 0


def nodes_of(world_size: int, environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return nodes and processes of each, as the launcher says it."""
    local = environ.get("LOCAL_WORLD_SIZE", "")
    each = int(local) if local.isascii() and local.isdigit() and int(local) > 0 and world_size % int(local) == 0 else world_size
    return world_size // each, each


def _config(trainer: Any, options: Any) -> Mapping[str, Any]:
    """Return the model's config.json, or what transformers made of it."""
    folder = options.weights.model
    found = files.read_json(Path(folder) / "config.json") if folder else None
    made = cast("Mapping[str, Any]", trainer.model.config.to_dict())
    if found and _labels(trainer.model) and "vocab_size" in made:  # made from scratch, it has the data's vocabulary
        found["vocab_size"] = made["vocab_size"]
    return found or made


def _layout(trainer: Any, options: Any, shape: ModelShape, device: Device, longest: int | None) -> Layout:
    args = trainer.args
    nodes, each = nodes_of(args.world_size)
    layout = asked.layout_of(
        {**_fields(options.model), **_fields(args)},
        nodes=nodes,
        gpus_per_node=each,
        sharding=sharding_of(trainer),
        shape=shape,
        cuda=device.name is not None,
        gpu_bytes=device.memory,
        stored=str(trainer.model.config.dtype or "").removeprefix("torch.") or None,
    )
    # What the Trainer and the data really have counts more than what the options would give.
    return replace(
        layout,
        length=longest or layout.length,
        attention=_attention(trainer),
        checkpointing="full" if checkpoints_activations(trainer.model) else "off",
        padding_free=bool(getattr(trainer, "padding_free", layout.padding_free)),
    )


def _fields(value: Any) -> dict[str, Any]:
    """Return the plain values of a dataclass of options: its own attributes, as `asdict` would copy what cannot be copied."""
    return {name: each for name, each in vars(value).items() if not name.startswith("_")}


def _attention(trainer: Any) -> Any:
    from hpctrain.training.kernels import attention_of

    name = attention_of(trainer)
    return "eager" if name == "eager" else "flex" if "flex" in name else "flash" if "flash" in name else "sdpa"
