"""The shape of a model: the dimensions of its architecture, read from config.json, and the
parameters that LoRA trains, as peft counts them.

FAMILIES has one row per `model_type`, taken from transformers 5.23 (models/NAME/modeling_NAME.py);
the tests compare the parameter counts with transformers on the meta device. Defaults are those of
the configuration class, for keys that a config.json may omit. LoRA's default targets are from peft
0.21 (peft/utils/constants.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.fit.layout import Lora
from hpctrain.util.text import wrap

Norm = Literal["rms", "gemma"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture.

    Attributes:
        norm: `rms` (weights; computed in float32, scaled in the input's dtype) or `gemma` (all in
            float32).
        norms_after: norms follow attention and MLP too, before the residual addition.
        qk_norm: queries and keys are normalized over each head.
        packed: q, k and v are one projection, and so are the MLP's gate and up.
        biases: config.json keys that enable the biases of (q, k and v; o; mlp), or a fixed True or
            False.
        tied, head_dim: the defaults.
        experts, expert_size: keys with the number and inner size of a mixture's experts.
    """

    norm: Norm = "rms"
    norms_after: bool = False
    qk_norm: bool = False
    packed: bool = False
    biases: tuple[bool | str, bool | str, bool | str] = (False, False, False)
    tied: bool = False
    head_dim: int | None = None
    experts: str | None = None
    expert_size: str = "intermediate_size"


_ATTENTION_BIAS = ("attention_bias", "attention_bias", False)
_ALL_BIASES = ("attention_bias", "attention_bias", "mlp_bias")

FAMILIES: Mapping[str, Family] = {
    "llama": Family(biases=_ALL_BIASES),
    "mistral": Family(),
    "qwen2": Family(biases=(True, False, False)),
    "qwen3": Family(qk_norm=True, head_dim=128, biases=_ATTENTION_BIAS),
    "smollm3": Family(tied=True, biases=_ALL_BIASES),
    "granite": Family(biases=_ALL_BIASES),
    "gemma": Family(norm="gemma", tied=True, head_dim=256, biases=_ATTENTION_BIAS),
    "gemma2": Family(
        norm="gemma", norms_after=True, tied=True, head_dim=256, biases=_ATTENTION_BIAS
    ),
    "gemma3_text": Family(
        norm="gemma",
        norms_after=True,
        qk_norm=True,
        tied=True,
        head_dim=256,
        biases=_ATTENTION_BIAS,
    ),
    "phi3": Family(packed=True),
    "mixtral": Family(experts="num_local_experts"),
    "qwen3_moe": Family(
        qk_norm=True,
        biases=_ATTENTION_BIAS,
        experts="num_experts",
        expert_size="moe_intermediate_size",
    ),
}


_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
#: Larger than any size of a real model; larger values are typing mistakes.
_LARGEST = 10**9


@dataclass(frozen=True, slots=True)
class Linear:
    """One linear layer of a decoder layer.

    Attributes:
        name: its path within the decoder layer, such as `self_attn.q_proj`.
        inputs, outputs: features.
        bias: whether it has a bias.
    """

    name: str
    inputs: int
    outputs: int
    bias: bool = False

    @property
    def parameters(self) -> int:
        """The number of weights and biases."""
        return self.inputs * self.outputs + self.outputs * self.bias


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The dimensions of a decoder-only language model.

    Attributes:
        model_type: from config.json, such as `llama`.
        vocab, hidden, layers, heads, kv_heads, head_dim, intermediate: sizes; `kv_heads` are the
            key and value heads, `intermediate` the inner size of the MLP (of one expert, in a
            mixture of experts).
        labels: outputs per row of a classifier; 0: a language model, with an output per vocabulary
            entry.
        tied: whether the output layer shares the embeddings.
        projections: the linear layers of one decoder layer, in order of use, without experts.
        experts, experts_per_token: of a mixture of experts, else 0.
        norm, norms_after, qk_norm, packed: see `Family`.
    """

    model_type: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    tied: bool
    projections: tuple[Linear, ...]
    norm: Norm = "rms"
    norms_after: bool = False
    qk_norm: bool = False
    packed: bool = False
    experts: int = 0
    experts_per_token: int = 0
    labels: int = 0

    @property
    def outputs(self) -> int:
        """Features of the output layer: a classifier's labels, otherwise the vocabulary."""
        return self.labels or self.vocab

    @property
    def queries(self) -> int:
        """Features of all queries of a token, and of the attention output."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Features of all keys of a token, and of all values."""
        return self.kv_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """Parameters of one decoder layer, with its experts and their router."""
        linears = sum(each.parameters for each in self.projections)
        linears += self.experts * (3 * self.hidden * self.intermediate + self.hidden)
        norms = (4 if self.norms_after else 2) * self.hidden
        return linears + norms + 2 * self.head_dim * self.qk_norm

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embeddings."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters; tied ones count once."""
        head = 0 if self.tied else self.outputs * self.hidden
        return self.embedding_parameters + self.layers * self.layer_parameters + self.hidden + head


def labels_of(config: Mapping[str, Any]) -> int:
    """Return the number of outputs of a classifier with this config.json: as many as it names, else
    two, as in transformers.
    """
    named, count = config.get("id2label"), config.get("num_labels")
    if isinstance(named, dict) and named:
        return len(named)
    return count if type(count) is int and 0 < count <= _LARGEST else 2


def read_shape(config: Mapping[str, Any], *, labels: int = 0) -> ModelShape:
    """Return the shape of the model in a config.json.

    Args:
        config: the JSON object.
        labels: number of outputs of a classifier, whose output layer replaces the language model's
            and is never tied; 0: a language model.

    Raises:
        HpctrainError: the architecture is not supported, or sizes are missing or not numbers; one
            error with all problems.
    """
    family = _family(config)
    problems: list[str] = []

    def size(name: str, default: int | None = None) -> int:
        value = config.get(name)
        value = default if value is None else value
        if isinstance(value, int) and (0 < value <= _LARGEST or value == default):
            return value
        problems.append(f"{name} must be a positive integer, got {str(value)[:40]!r}")
        return 1

    vocab, hidden, layers, heads = (size(name) for name in _SIZES)
    head_dim = size("head_dim", family.head_dim or max(hidden // heads, 1))
    kv_heads, intermediate = size("num_key_value_heads", heads), size(family.expert_size)
    experts = per_token = 0
    if family.experts is not None:
        per_token = size("num_experts_per_tok")
        other = "num_local_experts"  # transformers 5 writes this key, published configs have either
        experts = size(other if other in config else family.experts)
        if config.get("mlp_only_layers") or config.get("decoder_sparse_step") not in (None, 1):
            problems.append("layers without experts between those with experts are not supported")
    if heads % kv_heads and not problems:
        problems.append(
            f"num_attention_heads, {heads}, must be a multiple of num_key_value_heads, {kv_heads}"
        )
    if problems:
        raise HpctrainError(
            f"config.json does not describe the model's size: {problems[0]}",
            details=tuple(problems[1:]),
            hint="use the config.json that was published with the model",
        )
    flags = [bool(config.get(each)) if isinstance(each, str) else each for each in family.biases]
    return ModelShape(
        model_type=str(config["model_type"]),
        vocab=vocab,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        tied=not labels and bool(config.get("tie_word_embeddings", family.tied)),
        projections=_projections(
            (hidden, heads * head_dim, kv_heads * head_dim, 0 if experts else intermediate),
            flags,
            family.packed,
        ),
        norm=family.norm,
        norms_after=family.norms_after,
        qk_norm=family.qk_norm,
        packed=family.packed,
        experts=experts,
        experts_per_token=per_token,
        labels=labels,
    )


def _family(config: Mapping[str, Any]) -> Family:
    name, inner = config.get("model_type"), config.get("text_config")
    if isinstance(name, str) and name in FAMILIES:
        return FAMILIES[name]
    what = f"the architecture {str(name)[:60]!r} is unknown"
    inner_name = inner.get("model_type") if isinstance(inner, dict) else None
    if inner_name in FAMILIES:
        raise HpctrainError(
            f"{what}: it wraps a language model ({inner_name}) with others, such as one for images",
            hint="run: jq .text_config FOLDER/config.json > text.json && hpctrain fit --model"
            " text.json",
        )
    known = wrap(f"known: {', '.join(sorted(FAMILIES))}", 78, hanging="  ")
    raise HpctrainError(
        what,
        details=(*known, "the memory lines in the log of a short job show the peak"),
        fix="hpctrain submit --time 15 -- --max_steps 5",
    )


def _projections(
    sizes: tuple[int, int, int, int], biases: Sequence[bool], packed: bool
) -> tuple[Linear, ...]:
    hidden, queries, keys, inner = sizes
    of_qkv, of_output, of_mlp = biases
    qkv = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    mlp = {"gate_proj": inner, "up_proj": inner}
    if packed:
        qkv = {"qkv_proj": queries + 2 * keys}
        mlp = {"gate_up_proj": 2 * inner}
    layers = [
        *((f"self_attn.{name}", hidden, width, of_qkv) for name, width in qkv.items()),
        ("self_attn.o_proj", queries, hidden, of_output),
        *((f"mlp.{name}", hidden, width, of_mlp) for name, width in mlp.items()),
        ("mlp.down_proj", inner, hidden, of_mlp),
    ]
    return tuple(Linear(*each) for each in layers if each[1] and each[2])  # experts are not linear


#: peft's name for all linear layers except the output layer.
ALL_LINEAR = "all-linear"
#: Parameters of a mixture of experts that peft adapts with `all-linear`: those of all experts, and
#: the router.
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
}


def lora_targets(shape: ModelShape, words: Sequence[str] | str | None) -> tuple[str, ...]:
    """Return the names of the linear layers to adapt.

    Args:
        shape: the model.
        words: the value of `--lora_target_modules`: names, or `all-linear`; empty for peft's
            default of that architecture.

    Raises:
        UsageError: the model has no such layer, or peft has no default for its architecture.
    """
    words = (words,) if isinstance(words, str) else tuple(words or ())
    names = tuple(each.name.rpartition(".")[2] for each in shape.projections)
    names += EXPERTS if shape.experts else ()
    if any(word.lower() == ALL_LINEAR for word in words):
        return names
    what = ""
    details: tuple[str, ...] = ()
    if not words:
        words = PEFT_DEFAULTS.get(shape.model_type, ())
        what = (
            f"peft has no default for LoRA's layers in architecture '{shape.model_type}', and"
            " --lora_target_modules is not given"
        ) * (not words)
    known = {*names, *(each.name for each in shape.projections)}
    if missing := [word for word in words if word not in known]:
        what = (
            f"the model has no linear layer{'s' * (len(missing) > 1)}"
            f" {', '.join(repr(word) for word in missing)} for LoRA"
        )
        details = (f"it has: {', '.join(names)}",)
    if what:
        raise UsageError(what, details=details, hint="use --lora_target_modules all-linear")
    return tuple(dict.fromkeys(words))


def adapted(shape: ModelShape, lora: Lora | None) -> tuple[Linear, ...]:
    """Return the linear layers of one decoder layer that have an adapter."""
    # peft adapts a layer if the target is its path, or a suffix of it.
    targets = lora.targets if lora is not None else ()
    return tuple(
        each
        for each in shape.projections
        if any(f".{each.name}".endswith(f".{one}") for one in targets)
    )


def trainable(shape: ModelShape, lora: Lora | None) -> int:
    """Return the number of trained parameters: all, or those of the adapters and a classifier's
    output layer.
    """
    if lora is None:
        return shape.parameters
    layer = sum(lora.rank * (each.inputs + each.outputs) for each in adapted(shape, lora))
    if shape.experts:
        hidden, inner = shape.hidden, shape.intermediate
        of_experts = {  # peft doubles the rank if gate and up are one parameter
            "gate_up_proj": 2 * (hidden + 2 * inner) * shape.experts,
            "down_proj": (inner + hidden) * shape.experts,
            "gate": hidden + shape.experts,
        }
        layer += lora.rank * sum(of_experts.get(name, 0) for name in lora.targets)
    # A copy of a classifier's output layer is trained with the adapter (peft's modules_to_save).
    return shape.layers * layer + shape.labels * shape.hidden
