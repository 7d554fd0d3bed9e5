"""The attention kernels of a training: chosen from what is installed and what GPU and model
support, and described as text.

Nothing is downloaded from the hub. A requested implementation is used or refused, never replaced
silently. `eager`, which stores a length x length matrix per head, is chosen only if nothing else
supports the model, with a message.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpctrain.training.preflight import Problem, text_config

FLASH_3, FLASH_2 = "flash_attention_3", "flash_attention_2"
#: Implementations that can be requested, fastest first for packed examples.
NAMES = (FLASH_3, FLASH_2, "flex_attention", "sdpa", "eager")
SHORT = {FLASH_3: "flash 3", FLASH_2: "flash 2", "flex_attention": "flex"}
#: The module that must be importable.
_PACKAGES = {FLASH_3: "flash_attn_interface", FLASH_2: "flash_attn"}
_PIP = {FLASH_3: "flash-attn-3 (built from the flash-attention sources)", FLASH_2: "flash-attn"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The compute capabilities of this process.

    Attributes:
        gpu: it trains on a GPU.
        capability: CUDA compute capability; None on other GPUs and on the CPU.
        installed: modules of `_PACKAGES` that can be imported.
    """

    gpu: bool
    capability: tuple[int, int] | None = None
    installed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What the model's class supports, from its config.json.

    Attributes:
        can: the implementations in NAMES that its class supports.
        softcap: it uses attention score soft-capping, which sdpa does not support.
        max_head: largest head dimension; None if not in the config.
    """

    can: frozenset[str] = frozenset(NAMES)
    softcap: bool = False
    max_head: int | None = None


def machine(*, cpu: bool) -> Machine:
    """Return the capabilities of this process; imports torch."""
    found = frozenset(name for name in _PACKAGES.values() if importlib.util.find_spec(name))
    if cpu:
        return Machine(gpu=False, installed=found)
    import torch

    if not torch.cuda.is_available() or torch.version.hip is not None:
        return Machine(gpu=True, installed=found)
    # Not device 0, on which every rank would allocate memory.
    own = int(os.environ.get("LOCAL_RANK") or 0)
    capability = torch.cuda.get_device_capability(own if own < torch.cuda.device_count() else 0)
    return Machine(gpu=True, capability=capability, installed=found)


def model(config: Mapping[str, Any]) -> Model:
    """Return what the model class of a config.json supports; imports transformers."""
    import transformers

    text, names = text_config(config), config.get("architectures")
    head = text.get("head_dim")
    if head is None and text.get("hidden_size") and text.get("num_attention_heads"):
        head = text["hidden_size"] // text["num_attention_heads"]
    softcap = text.get("attn_logit_softcapping") is not None
    class_ = getattr(transformers, str(names[0]), None) if names else None
    if class_ is None:
        return Model(softcap=softcap, max_head=head)
    flash = set(_PACKAGES) if getattr(class_, "_supports_flash_attn", False) else set()
    # For these models, transformers downloads another kernel from the hub instead of using the
    # installed flash-attn (gpt-oss).
    named = getattr(class_, "_compatible_flash_implementations", None)
    can = {"eager"} | (flash if named is None else flash & set(named))
    can |= {"sdpa"} if getattr(class_, "_supports_sdpa", False) else set()
    can |= {"flex_attention"} if getattr(class_, "_supports_flex_attn", False) else set()
    return Model(can=frozenset(can), softcap=softcap, max_head=head)


def choose(here: Machine, of: Model, *, apart: bool, half: bool) -> tuple[str, str]:
    """Return the default attention implementation for a training, and the reason.

    Args:
        here: the capabilities of the process.
        of: the model.
        apart: several examples are in one row (packing, padding-free) and must not attend to each
            other. sdpa then computes the full (rows x length) squared matrix with a mask; flash and
            flex skip what is masked.
        half: attention is computed in bfloat16 or float16, which flash requires.
    """
    rest = ("flex_attention", "sdpa") if apart else ("sdpa", "flex_attention")
    reasons = []
    for name in (FLASH_3, FLASH_2, *rest):
        reason = _refusal(name, here, of, half=half)
        if reason is None:
            break
        if name != FLASH_3:
            reasons.append(reason)
    else:
        name = "eager"
    if name in _PACKAGES:
        return name, "installed"
    return name, "; ".join(reasons) if here.gpu else "on the CPU"


def _refusal(name: str, here: Machine, of: Model, *, half: bool) -> str | None:
    words = SHORT.get(name, name)
    if name not in of.can:
        return f"the model has no {words}"
    if name == "sdpa" and of.softcap:
        return "sdpa does not cap scores, as this model does"
    if name == "flex_attention" and not here.gpu:
        return "flex has no backward pass on the CPU"
    if name not in _PACKAGES:
        return None
    # AMD GPUs are not checked: flash-attn's ROCm build only installs where it runs.
    capability = here.capability or ((0, 0) if name == FLASH_3 else (8, 0))
    fits = capability[0] == 9 if name == FLASH_3 else capability >= (8, 0)
    reasons = {
        f"{words} is not installed": _PACKAGES[name] not in here.installed,
        "there is no GPU": not here.gpu,
        f"{words} has no kernel for this GPU": not fits,
        f"{words} computes no float32": not half,
        f"{words} in transformers caps no scores": of.softcap and name == FLASH_3,
        f"{words} takes heads of 256 at most": (of.max_head or 0) > 256,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def attention_problems(asked: str | None, here: Machine, of: Model, *, half: bool) -> list[Problem]:
    """Return the problems of `--attn_implementation`."""
    fix, command = "leave --attn_implementation out, and the best one there is gets chosen", False
    if asked is None:
        return []
    if "/" in asked:
        what = "is a kernel of the hub: nothing is downloaded, and nothing unchecked is run"
    elif asked not in NAMES:
        what = f"is none of {', '.join(NAMES)}"
    elif reason := _refusal(asked, here, of, half=half):
        what = f"cannot be: {reason}"
        # transformers would silently download the kernel from the hub instead.
        if asked in of.can and _PACKAGES.get(asked) not in {None, *here.installed}:
            fix, command = f"pip install {_PIP[asked]}", True
    else:
        return []
    return [Problem(f"--attn_implementation {asked} {what}", fix, command=command)]


# -- as text ----------------------------------------------------------------------------------------


def attention_of(trainer: Any) -> str:
    """Return the attention implementation of a Trainer's model, as transformers names it."""
    config = trainer.model.config.get_text_config()
    return str(getattr(config, "_attn_implementation", None) or "unknown")


def attention_in_words(trainer: Any) -> str:
    """Return the attention implementation of a Trainer and the reason, such as `sdpa (flash 2 is
    not installed)`.
    """
    args, name = trainer.args, attention_of(trainer)
    chosen, why = choose(
        machine(cpu=args.use_cpu),
        model(trainer.model.config.to_dict()),
        apart=bool(getattr(trainer, "padding_free", False)),
        half=half(args, trainer.model.config),
    )
    return f"{SHORT.get(name, name)} ({why if name == chosen else 'asked for'})"


def half(args: Any, config: Any = None) -> bool:
    """Return whether attention is computed in 16 bits, by autocast or because of the weights'
    dtype.
    """
    dtype = str(getattr(args, "dtype", None) or getattr(config, "dtype", None) or "")
    return bool(args.bf16 or args.fp16) or dtype.removeprefix("torch.") in {"bfloat16", "float16"}
