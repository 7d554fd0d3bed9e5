"""The attention implementation of a training that names none: the fastest that is installed and that
GPU and model support. A requested one is used as it is, or refused by transformers.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpctrain.training.preflight import text_config


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The compute capabilities of this process.

    Attributes:
        gpu: it trains on a GPU.
        capability: CUDA compute capability; None on other GPUs and on the CPU.
        flash: flash-attn 2 is installed.
    """

    gpu: bool
    capability: tuple[int, int] | None = None
    flash: bool = False

    @property
    def bf16(self) -> bool:
        """Whether it has kernels for bfloat16; AMD GPUs are not checked."""
        return self.gpu and (self.capability is None or self.capability >= (8, 0))


def machine(*, cpu: bool) -> Machine:
    """Return the capabilities of this process; imports torch."""
    if cpu:
        return Machine(gpu=False)
    import torch

    flash = importlib.util.find_spec("flash_attn") is not None
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return Machine(gpu=True, flash=flash)
    # Not device 0, on which every rank would allocate memory.
    own = int(os.environ.get("LOCAL_RANK") or 0)
    capability = torch.cuda.get_device_capability(own if own < torch.cuda.device_count() else 0)
    return Machine(gpu=True, capability=capability, flash=flash)


def choose(here: Machine, config: Mapping[str, Any], *, apart: bool, half: bool) -> str | None:
    """Return the default attention implementation of a training; None leaves it to transformers.

    Args:
        here: the capabilities of the process.
        config: the model's config.json; imports transformers.
        apart: several examples are in one row (packing, padding-free) and must not attend to each
            other. sdpa then computes the full (rows x length) squared matrix with a mask; flash and
            flex skip what is masked.
        half: attention is computed in bfloat16 or float16, which flash requires.
    """
    import transformers

    names, text = config.get("architectures"), text_config(config)
    model = getattr(transformers, str(names[0]), None) if names else None
    # For these models, transformers downloads another kernel from the hub instead (gpt-oss).
    own = getattr(model, "_compatible_flash_implementations", None)
    has_flash = getattr(model, "_supports_flash_attn", False) and own is None
    small_heads = (text.get("head_dim") or 0) <= 256
    if here.flash and here.bf16 and half and has_flash and small_heads:
        return "flash_attention_2"
    # sdpa does not cap scores, as some models do.
    needs_flex = apart or text.get("attn_logit_softcapping") is not None
    if here.gpu and needs_flex and getattr(model, "_supports_flex_attn", False):
        return "flex_attention"
    return None


def attention_of(trainer: Any) -> str:
    """Return the attention implementation of a Trainer's model, as transformers names it."""
    config = trainer.model.config.get_text_config()
    return str(getattr(config, "_attn_implementation", None) or "unknown")


def half(args: Any) -> bool:
    """Return whether attention is computed in 16 bits, by autocast or because of the weights'
    dtype.
    """
    dtype = str(getattr(args, "dtype", None) or "")
    return bool(args.bf16 or args.fp16) or dtype.removeprefix("torch.") in {"bfloat16", "float16"}
