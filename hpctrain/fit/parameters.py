"""What of a model is trained: LoRA's layers and their parameters, as peft counts them.

Pure. The default targets are peft 0.21's own table (peft/utils/constants.py), of the architectures known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpctrain.fit.layout import Lora
    from hpctrain.fit.shape import Linear, ModelShape

#: peft's word for every linear layer but the output layer.
ALL_LINEAR = "all-linear"

#: Parameters of a mixture of experts that peft adapts with `all-linear`: of all experts at once, and the router.
EXPERTS = ("gate_up_proj", "down_proj", "gate")

_QV = ("q_proj", "v_proj")
PEFT_DEFAULTS = {
    "llama": _QV,
    "mistral": _QV,
    "qwen2": _QV,
    "qwen3": _QV,
    "gemma": _QV,
    "gemma2": _QV,
    "gemma3_text": _QV,
    "stablelm": _QV,
    "phi": ("q_proj", "v_proj", "fc1", "fc2"),
    "gpt2": ("c_attn",),
    "gpt_neox": ("query_key_value",),
}


def lora_targets(shape: ModelShape, words: Sequence[str] | str | None) -> tuple[str, ...]:
    """Return the names of the linear layers that LoRA is put on.

    Args:
        shape: the model.
        words: of `--lora_target_modules`: names, or `all-linear`; none at all for peft's default of that architecture.

    Raises:
        UsageError: the model has no such layer, or peft has no default for its architecture.
    """
    words = (words,) if isinstance(words, str) else tuple(words or ())
    names = tuple(dict.fromkeys(each.name.rpartition(".")[2] for each in shape.projections)) + (EXPERTS if shape.experts else ())
    if any(word.lower() == ALL_LINEAR for word in words):
        return names
    if not words:
        words = PEFT_DEFAULTS.get(shape.model_type, ())
        if not words:
            what = f"peft has no default for LoRA's layers in architecture '{shape.model_type}', and --lora_target_modules is not given"
            raise UsageError(what, fix="--lora_target_modules all-linear")
    missing = [word for word in words if word not in names and not any(_matches(each, word) for each in shape.projections)]
    if missing:
        what = f"the model has no linear layer{'s' * (len(missing) > 1)} {', '.join(repr(word) for word in missing)} for LoRA"
        raise UsageError(what, details=(f"it has: {', '.join(names)}",), fix="--lora_target_modules all-linear")
    return tuple(dict.fromkeys(words))


def adapted(shape: ModelShape, lora: Lora | None) -> tuple[Linear, ...]:
    """Return the linear layers of one decoder layer that carry an adapter."""
    if lora is None:
        return ()
    return tuple(each for each in shape.projections if any(_matches(each, target) for target in lora.targets))


def _matches(linear: Linear, target: str) -> bool:
    """Whether peft puts LoRA on that layer: the target is its path, or the end of it."""
    return linear.name == target or linear.name.endswith("." + target)


def lora_layer_parameters(shape: ModelShape, lora: Lora) -> int:
    """Return the parameters of the adapters of one decoder layer; of a mixture of experts, of a layer with experts."""
    linears = sum(lora.rank * (each.inputs + each.outputs) for each in adapted(shape, lora))
    if not shape.experts:
        return linears
    hidden, inner = shape.hidden, shape.intermediate
    of_experts = {  # peft doubles the rank where gate and up are one parameter
        "gate_up_proj": 2 * (hidden + 2 * inner) * shape.experts,
        "down_proj": (inner + hidden) * shape.experts,
        "gate": hidden + shape.experts,
    }
    return linears + lora.rank * sum(size for name, size in of_experts.items() if name in lora.targets)


def trainable(shape: ModelShape, lora: Lora | None) -> int:
    """Return how many parameters are trained: all, or those of the adapters and of a classifier's output layer."""
    if lora is None:
        return shape.parameters
    attention = sum(lora.rank * (each.inputs + each.outputs) for each in adapted(shape, lora))
    # A classifier's output layer is trained beside the adapter (peft's modules_to_save), as a copy.
    # With all-linear peft 0.21 leaves out the ordinary MLPs between layers of experts.
    layers = (shape.layers - shape.dense_layers) * lora_layer_parameters(shape, lora) + shape.dense_layers * attention
    return layers + shape.labels * shape.hidden
