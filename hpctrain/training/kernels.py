"""Which kernels a training computes with: chosen from what is installed and what the GPU and the model can, and said in words.

Nothing is ever fetched from the hub. What was asked for is taken or refused, and never replaced without a word; `eager`, which holds a
matrix of length x length for each head, is only taken where nothing else computes what the model needs, and that is said.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpctrain.training.preflight import Problem, text_config

#: Attention as transformers names it, to the module that must be importable for it.
_PACKAGES = {"flash_attention_3": "flash_attn_interface", "flash_attention_2": "flash_attn"}
_PIP = {"flash_attention_3": "flash-attn-3 (built from the flash-attention sources)", "flash_attention_2": "flash-attn"}
_LOOKED_FOR = (*_PACKAGES.values(), "liger_kernel", "bitsandbytes", "peft")
NAMES = ("flash_attention_3", "flash_attention_2", "flex_attention", "sdpa", "eager")
"""What can be asked for, fastest first where examples have to be kept apart."""
SHORT = {"flash_attention_3": "flash 3", "flash_attention_2": "flash 2", "flex_attention": "flex"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What this process can compute with.

    Attributes:
        gpu: it trains on a GPU.
        capability: CUDA's compute capability; None on another maker's GPU and on the CPU.
        installed: modules of `_LOOKED_FOR` that can be imported.
    """

    gpu: bool
    capability: tuple[int, int] | None = None
    installed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What the model's class says of itself, by its config.json.

    Attributes:
        can: names of NAMES that its class takes.
        softcap: its attention's scores are capped, which sdpa does not compute.
        max_head: values of a head; None where the config does not say.
        known: the class is transformers' own.
    """

    can: frozenset[str] = frozenset(NAMES)
    softcap: bool = False
    max_head: int | None = None
    known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The attention, and why it is this one."""

    attention: str
    why: str


def machine(*, cpu: bool) -> Machine:
    """Return what this process can compute with; imports torch."""
    found = frozenset(name for name in _LOOKED_FOR if importlib.util.find_spec(name) is not None)
    if cpu:
        return Machine(gpu=False, installed=found)
    import torch

    if not torch.cuda.is_available() or torch.version.hip is not None:
        return Machine(gpu=True, installed=found)
    own = int(os.environ.get("LOCAL_RANK") or 0)  # not device 0, on which every rank would take some memory
    capability = torch.cuda.get_device_capability(own if own < torch.cuda.device_count() else 0)
    return Machine(gpu=True, capability=capability, installed=found)


def model(config: Mapping[str, Any]) -> Model:
    """Return what the class that a config.json names says of itself; imports transformers."""
    import transformers

    text = text_config(config)
    names = config.get("architectures")
    class_ = getattr(transformers, str(names[0]), None) if isinstance(names, list) and names else None
    heads, hidden, head = text.get("num_attention_heads"), text.get("hidden_size"), text.get("head_dim")
    if not isinstance(head, int):
        head = hidden // heads if isinstance(heads, int) and isinstance(hidden, int) and heads else None
    softcap = text.get("attn_logit_softcapping") is not None
    if class_ is None:
        return Model(softcap=softcap, max_head=head, known=False)
    can = {"eager"} | {name for name in _PACKAGES if getattr(class_, "_supports_flash_attn", False)}
    can |= {"sdpa"} if getattr(class_, "_supports_sdpa", False) else set()
    can |= {"flex_attention"} if getattr(class_, "_supports_flex_attn", False) else set()
    # What the model's authors name is fetched from the hub in place of the installed flash (gpt-oss).
    if getattr(class_, "_compatible_flash_implementations", None) is not None:
        can -= set(_PACKAGES) - set(class_._compatible_flash_implementations)
    return Model(can=frozenset(can), softcap=softcap, max_head=head)


def choose(here: Machine, of: Model, *, apart: bool, half: bool) -> Choice:
    """Return the attention of a training that asked for none.

    Args:
        here: what the process can compute with.
        of: the model.
        apart: several examples lie in one row (packing, padding-free), and must not see each other. sdpa then computes a whole matrix of
            (rows x length) squared under a mask; flash and flex leave out what is masked.
        half: attention is computed in bfloat16 or float16; flash has no other.
    """
    if not here.gpu:
        if not of.softcap and "sdpa" in of.can:
            return Choice(attention="sdpa", why="on the CPU")
        return Choice(attention="eager", why="the model caps its scores" if of.softcap else "the model has no other on the CPU")
    without: list[str] = []
    for name in ("flash_attention_3", "flash_attention_2"):
        reason = _not_flash(name, here, of, half=half)
        if reason is None:
            return Choice(attention=name, why="installed")
        without.append(reason)
    if (apart or of.softcap or "sdpa" not in of.can) and "flex_attention" in of.can:
        why = "keeps examples apart" if apart else "sdpa does not cap scores" if of.softcap else "the model has no sdpa"
        return Choice(attention="flex_attention", why=f"{why}; {without[-1]}")
    if "sdpa" in of.can and not of.softcap:
        return Choice(attention="sdpa", why=without[-1])
    return Choice(attention="eager", why=f"the model has no other; {without[-1]}")


def _not_flash(name: str, here: Machine, of: Model, *, half: bool) -> str | None:
    """Return why a flash kernel is not taken; None: it can be."""
    words, package = SHORT[name], _PACKAGES[name]
    if name not in of.can:
        return f"the model has no {words}"
    if package not in here.installed:
        return f"{words} is not installed"
    least = (9, 0) if name == "flash_attention_3" else (8, 0)
    # AMD's GPUs are left to the package: flash-attn's ROCm build only installs where it runs.
    if here.capability is not None and (here.capability < least or (name == "flash_attention_3" and here.capability[0] != 9)):
        return f"{words} has no kernel for this GPU"
    if here.capability is None and name == "flash_attention_3":
        return f"{words} is for NVIDIA alone"
    if not half:
        return f"{words} computes no float32"
    if of.softcap and name == "flash_attention_3":
        return f"{words} in transformers caps no scores"
    if of.max_head is not None and of.max_head > 256:
        return f"{words} takes heads of 256 at most"
    return None


def attention_problems(asked: str | None, here: Machine, of: Model, *, half: bool) -> list[Problem]:
    """Return what is wrong with `--attn_implementation`."""
    if asked is None:
        return []
    leave_out = "leave --attn_implementation out, and the best one there is gets chosen"
    if "/" in asked:
        what = f"--attn_implementation {asked} is a kernel of the hub: nothing is downloaded, and nothing unchecked is run"
        return [Problem(what, leave_out)]
    if asked not in NAMES:
        return [Problem(f"--attn_implementation must be one of {', '.join(NAMES)}, not '{asked}'", leave_out)]
    if asked in _PACKAGES and asked in of.can and _PACKAGES[asked] not in here.installed:
        # transformers would look for the kernel on the hub instead, without a word.
        return [Problem(f"--attn_implementation {asked} needs {_PACKAGES[asked]}, which is not installed", f"pip install {_PIP[asked]}")]
    if asked not in of.can:
        return [Problem(f"the model's class has no {asked}; it has {', '.join(name for name in NAMES if name in of.can)}", leave_out)]
    if asked in _PACKAGES:
        reason = "there is no GPU" if not here.gpu else _not_flash(asked, here, of, half=half)
        return [] if reason is None else [Problem(f"--attn_implementation {asked} cannot be: {reason}", leave_out)]
    if asked == "sdpa" and of.softcap:
        return [Problem("the model caps its attention's scores, and sdpa does not compute that", leave_out)]
    if asked == "flex_attention" and not here.gpu:
        return [Problem("flex_attention has no backward pass on the CPU", leave_out)]
    return []


def liger_problems(asked: Any, here: Machine) -> list[Problem]:
    """Return what is wrong with `--use_liger_kernel`, and with asking for kernels of the hub."""
    found = []
    if asked.use_liger_kernel:
        if "liger_kernel" not in here.installed:
            found.append(Problem("--use_liger_kernel needs liger-kernel, which is not installed", "pip install liger-kernel"))
        elif not here.gpu:
            found.append(Problem("--use_liger_kernel has kernels for GPUs only", "leave --use_liger_kernel out"))
    return found


def takes_liger(here: Machine, model_type: str) -> bool:
    """Say whether Liger's layers replace the model's where nobody asked: they are installed, there is a GPU, and they know the model."""
    if not here.gpu or "liger_kernel" not in here.installed:
        return False
    try:
        known = importlib.import_module("liger_kernel.transformers.monkey_patch").MODEL_TYPE_TO_APPLY_LIGER_FN
    except Exception:  # a broken installation (a triton that does not fit) is not asked for, so it is not used
        return False
    return model_type in known


# -- in words ----------------------------------------------------------------------------------------------------------


def attention_of(trainer: Any) -> str:
    """Return the attention that the model of a Trainer computes with, as transformers names it."""
    return str(getattr(trainer.model.config.get_text_config(), "_attn_implementation", None) or "unknown")


def in_words(trainer: Any) -> str:
    """Return, for the first lines of the log, attention, loss, Liger and torch.compile of a Trainer that was built.

    For instance `sdpa (flash 2 is not installed), loss fused`.
    """
    args = trainer.args
    name = attention_of(trainer)
    here, of = machine(cpu=args.use_cpu), model(trainer.model.config.to_dict())
    apart = bool(getattr(trainer, "padding_free", False))
    choice = choose(here, of, apart=apart, half=half(args, trainer.model.config))
    words = [f"{SHORT.get(name, name)} ({choice.why})" if name == choice.attention else f"{SHORT.get(name, name)} (asked for)"]
    words.append(f"loss {loss_in_words(trainer)}")
    if getattr(args, "use_liger_kernel", False):
        words.append("liger layers")
    if args.torch_compile:
        words.append(f"torch.compile ({args.torch_compile_backend or 'inductor'})")
    return ", ".join(words)


def loss_in_words(trainer: Any) -> str:
    """Return how the loss is computed: `fused` never holds the logits of all tokens, `logits` does."""
    args = trainer.args
    kind = getattr(args, "loss_type", None)
    if kind is None:
        return "of the model"
    whole = trainer.compute_loss_func is not None or (args.label_smoothing_factor > 0 and kind == "nll")
    return f"{'logits' if whole else 'fused'}{'' if kind == 'nll' else f' {kind}'}"


def half(args: Any, config: Any = None) -> bool:
    """Say whether attention is computed in 16 bits: by autocast, or because the weights are."""
    dtype = str(getattr(args, "dtype", None) or getattr(config, "dtype", None) or "")
    return bool(args.bf16 or args.fp16) or dtype.removeprefix("torch.") in {"bfloat16", "float16"}
