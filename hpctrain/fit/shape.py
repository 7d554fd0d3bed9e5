"""The shape of a model: the dimensions of its architecture, read from config.json, and the
parameters that LoRA trains, as peft counts them.

FAMILIES has one row per `model_type`, taken from transformers 5.23 (models/NAME/modeling_NAME.py);
the tests compare the parameter counts with transformers on the meta device. Defaults are those of
the configuration class, for keys that a config.json may omit. LoRA's default targets are from peft
0.21 (peft/utils/constants.py).
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hpctrain.errors import HpctrainError, UsageError
from hpctrain.fit.layout import Lora

Norm = Literal["rms", "gemma", "layer"]
QkNorm = Literal["none", "head", "all"]
Mlp = Literal["gated", "packed", "plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture.

    Attributes:
        norm: `rms` (weights; computed in float32, scaled in the input's dtype), `gemma` (all in
            float32; OLMo 2's too), `layer` (LayerNorm with weight and bias).
        norms: norms over the hidden size per layer.
        qk_norm: norms of queries and keys, over each head (`head`) or over all of them (`all`).
        attention: names of the projections in the order q, k, v, o; two names if q, k and v are one
            (`packed`).
        mlp: `gated` (gate, up, down), `packed` (gate and up in one, down), `plain` (up, down);
            `mlp_names` in that order.
        biases: config.json keys that enable the biases of (q, k and v; o; mlp), or a fixed True or
            False.
        tied, head_dim: the defaults.
        head_bias: whether the output layer has a bias.
        grouped: whether there may be fewer key and value heads than query heads.
        positions: whether positions are embedded by a table (GPT-2).
        keys: config.json keys that differ from Llama's.
        experts: key with the number of experts, for a mixture of experts; `expert_size`: key with
            their inner size.
        activation: key with the activation function.
    """

    norm: Norm = "rms"
    norms: int = 2
    qk_norm: QkNorm = "none"
    attention: tuple[str, ...] = (
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
    )
    mlp: Mlp = "gated"
    mlp_names: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    biases: tuple[bool | str, bool | str, bool | str] = (False, False, False)
    tied: bool = False
    head_dim: int | None = None
    head_bias: bool = False
    grouped: bool = True
    positions: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    experts: str | None = None
    expert_size: str = "intermediate_size"
    activation: str = "hidden_act"


_GPT2_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
}
_GEMMA = {
    "norm": "gemma",
    "tied": True,
    "head_dim": 256,
    "biases": ("attention_bias", "attention_bias", False),
}
_PLAIN_NAMES = ("mlp.fc1", "mlp.fc2")

FAMILIES: Mapping[str, Family] = {
    "llama": Family(biases=("attention_bias", "attention_bias", "mlp_bias")),
    "mistral": Family(),
    "qwen2": Family(biases=(True, False, False)),
    "qwen3": Family(
        qk_norm="head", head_dim=128, biases=("attention_bias", "attention_bias", False)
    ),
    "smollm3": Family(tied=True, biases=("attention_bias", "attention_bias", "mlp_bias")),
    "granite": Family(biases=("attention_bias", "attention_bias", "mlp_bias")),
    "gemma": Family(**_GEMMA),  # type: ignore[arg-type]
    "gemma2": Family(norms=4, activation="hidden_activation", **_GEMMA),  # type: ignore[arg-type]
    "gemma3_text": Family(norms=4, qk_norm="head", activation="hidden_activation", **_GEMMA),  # type: ignore[arg-type]
    "phi3": Family(
        attention=("self_attn.qkv_proj", "self_attn.o_proj"),
        mlp="packed",
        mlp_names=("mlp.gate_up_proj", "mlp.down_proj"),
    ),
    "phi": Family(
        norm="layer",
        norms=1,
        attention=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.dense"),
        mlp="plain",
        mlp_names=_PLAIN_NAMES,
        biases=(True, True, True),
        head_bias=True,
        defaults={"hidden_act": "gelu_new"},
    ),
    "olmo2": Family(
        norm="gemma", qk_norm="all", biases=("attention_bias", "attention_bias", False)
    ),
    "olmo3": Family(
        norm="gemma", qk_norm="all", biases=("attention_bias", "attention_bias", False)
    ),
    "starcoder2": Family(
        norm="layer",
        mlp="plain",
        mlp_names=("mlp.c_fc", "mlp.c_proj"),
        tied=True,
        biases=("use_bias", "use_bias", "use_bias"),
        defaults={"use_bias": True},
    ),
    "gpt2": Family(
        norm="layer",
        attention=("attn.c_attn", "attn.c_proj"),
        mlp="plain",
        mlp_names=("mlp.c_fc", "mlp.c_proj"),
        biases=(True, True, True),
        tied=True,
        grouped=False,
        positions=True,
        keys=_GPT2_KEYS,
        activation="activation_function",
        defaults={"activation_function": "gelu_new"},
    ),
    "gpt_neox": Family(
        norm="layer",
        attention=("attention.query_key_value", "attention.dense"),
        mlp="plain",
        mlp_names=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
        biases=("attention_bias", "attention_bias", True),
        grouped=False,
        defaults={"attention_bias": True},
    ),
    "mixtral": Family(experts="num_local_experts"),
    "qwen3_moe": Family(
        qk_norm="head",
        biases=("attention_bias", "attention_bias", False),
        experts="num_experts",
        expert_size="moe_intermediate_size",
    ),
}


_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
#: Larger than any size of a real model; larger values are typing mistakes.
_LARGEST = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
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
        max_positions: the maximum sequence length, or None.
        projections: the linear layers of one decoder layer, in order of use, without experts.
        norm, norms, qk_norm, mlp, activation: see `Family`.
        head_bias, positions: whether the output layer has a bias, and whether positions are a
            table.
        experts, experts_per_token: of a mixture of experts, else 0.
        parallel: attention and MLP both read the layer's input, each through its own norm.
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
    max_positions: int | None
    projections: tuple[Linear, ...]
    norm: Norm = "rms"
    norms: int = 2
    qk_norm: QkNorm = "none"
    mlp: Mlp = "gated"
    activation: str = "silu"
    head_bias: bool = False
    positions: bool = False
    experts: int = 0
    experts_per_token: int = 0
    labels: int = 0
    parallel: bool = False

    @property
    def outputs(self) -> int:
        """Features of the output layer: a classifier's labels, otherwise the vocabulary."""
        return self.labels or self.vocab

    @property
    def norms_after(self) -> bool:
        """Whether norms follow attention and MLP, before the residual addition."""
        return self.norms == 4 or self.model_type in ("olmo2", "olmo3")

    @property
    def queries(self) -> int:
        """Features of all queries of a token, and of the attention output."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Features of all keys of a token, and of all values."""
        return self.kv_heads * self.head_dim

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm over the hidden size."""
        return (2 if self.norm == "layer" else 1) * self.hidden

    @property
    def layer_parameters(self) -> int:
        """Parameters of one decoder layer, experts included."""
        qk = {"none": 0, "head": 2 * self.head_dim, "all": self.queries + self.keys}[self.qk_norm]
        linears = sum(each.parameters for each in self.projections)
        return linears + self.norms * self.norm_parameters + qk + self.expert_parameters

    @property
    def expert_parameters(self) -> int:
        """Parameters of one layer's experts and router."""
        return self.experts * (3 * self.hidden * self.intermediate + self.hidden)

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embeddings."""
        return self.vocab * self.hidden

    @property
    def head_parameters(self) -> int:
        """Parameters of the output layer, without tied embeddings."""
        return (0 if self.tied else self.outputs * self.hidden) + (
            self.outputs if self.head_bias else 0
        )

    @property
    def parameters(self) -> int:
        """All parameters; tied ones count once."""
        table = (self.max_positions or 0) * self.hidden if self.positions else 0
        return (
            self.embedding_parameters
            + table
            + self.layers * self.layer_parameters
            + self.norm_parameters
            + self.head_parameters
        )


def labels_of(config: Mapping[str, Any]) -> int:
    """Return the number of outputs of a classifier with this config.json: as many as it names, else
    two, as in transformers.
    """
    named, count = config.get("id2label"), config.get("num_labels")
    if isinstance(named, dict) and named:
        return len(named)
    return (
        count
        if isinstance(count, int) and not isinstance(count, bool) and 0 < count <= _LARGEST
        else 2
    )


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
        key = family.keys.get(name, name)
        said = (config.get(key), config.get(name), default)
        value = next((each for each in said if each is not None), None)
        if isinstance(value, int) and (0 < value <= _LARGEST or value == default):
            return value
        problems.append(f"{key} must be a positive integer, got {str(value)[:40]!r}")
        return 1

    vocab, hidden, layers, heads = (size(name) for name in _SIZES)
    head_dim = size("head_dim", family.head_dim or max(hidden // heads, 1))
    kv_heads = size("num_key_value_heads", heads) if family.grouped else heads
    intermediate = size("intermediate_size", 4 * hidden if family.positions else None)
    positions = size("max_position_embeddings", None if family.positions else 0)
    inner, experts, per_token = intermediate, 0, 0
    if family.experts:
        inner, per_token = size(family.expert_size), size("num_experts_per_tok")
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
    flags = [
        bool(config.get(each, family.defaults.get(each))) if isinstance(each, str) else each
        for each in family.biases
    ]
    return ModelShape(
        model_type=str(config["model_type"]),
        vocab=vocab,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=inner,
        tied=not labels and bool(config.get("tie_word_embeddings", family.tied)),
        max_positions=positions or None,
        projections=_projections(
            family, (hidden, heads * head_dim, kv_heads * head_dim, intermediate), flags
        ),
        norm=family.norm,
        norms=family.norms,
        qk_norm=family.qk_norm,
        mlp=family.mlp,
        activation=str(
            config.get(family.activation) or family.defaults.get(family.activation) or "silu"
        ),
        head_bias=not labels and family.head_bias,
        positions=family.positions,
        experts=experts,
        experts_per_token=per_token,
        labels=labels,
        parallel=config["model_type"] == "gpt_neox"
        and bool(config.get("use_parallel_residual", True)),
    )


def _family(config: Mapping[str, Any]) -> Family:
    name = config.get("model_type")
    if isinstance(name, str) and name in FAMILIES:
        return FAMILIES[name]
    known = textwrap.wrap(
        f"known: {', '.join(sorted(FAMILIES))}", 78, subsequent_indent="  ", break_on_hyphens=False
    )
    what = f"the architecture {str(name)[:60]!r} is unknown"
    inner = config.get("text_config")
    inner_name = inner.get("model_type") if isinstance(inner, dict) else None
    if inner_name in FAMILIES:
        raise HpctrainError(
            f"{what}: it wraps a language model ({inner_name}) with others, such as one for images",
            hint=_TEXT_ALONE,
        )
    raise HpctrainError(
        what,
        details=(*known, "the memory lines in the log of a short job show the peak"),
        fix="hpctrain submit --time 15 -- --max_steps 5",
    )


#: The command that extracts the language model from a multimodal config.
_TEXT_ALONE = (
    "run: jq .text_config FOLDER/config.json > text.json && hpctrain fit --model text.json"
)


def _projections(
    family: Family, sizes: tuple[int, int, int, int], biases: Sequence[bool]
) -> tuple[Linear, ...]:
    hidden, queries, keys, inner = sizes
    of_qkv, of_output, of_mlp = biases
    names = family.attention
    widths = [queries + 2 * keys] if len(names) == 2 else [queries, keys, keys]
    linears = [
        Linear(name=name, inputs=hidden, outputs=width, bias=of_qkv)
        for name, width in zip(names, widths, strict=False)
    ]
    linears.append(Linear(name=names[-1], inputs=queries, outputs=hidden, bias=of_output))
    if family.experts is not None:
        return tuple(linears)
    width = 2 * inner if family.mlp == "packed" else inner
    linears += [
        Linear(name=name, inputs=hidden, outputs=width, bias=of_mlp)
        for name in family.mlp_names[:-1]
    ]
    return (*linears, Linear(name=family.mlp_names[-1], inputs=inner, outputs=hidden, bias=of_mlp))


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
    "phi": ("q_proj", "v_proj", "fc1", "fc2"),
    "gpt2": ("c_attn",),
    "gpt_neox": ("query_key_value",),
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
    names = tuple(dict.fromkeys(each.name.rpartition(".")[2] for each in shape.projections)) + (
        EXPERTS if shape.experts else ()
    )
    if any(word.lower() == ALL_LINEAR for word in words):
        return names
    if not words:
        words = PEFT_DEFAULTS.get(shape.model_type, ())
        if not words:
            what = (
                f"peft has no default for LoRA's layers in architecture '{shape.model_type}', and"
                " --lora_target_modules is not given"
            )
            raise UsageError(what, hint="use --lora_target_modules all-linear")
    missing = [
        word
        for word in words
        if word not in names and not any(_matches(each, word) for each in shape.projections)
    ]
    if missing:
        what = (
            f"the model has no linear layer{'s' * (len(missing) > 1)}"
            f" {', '.join(repr(word) for word in missing)} for LoRA"
        )
        raise UsageError(
            what,
            details=(f"it has: {', '.join(names)}",),
            hint="use --lora_target_modules all-linear",
        )
    return tuple(dict.fromkeys(words))


def adapted(shape: ModelShape, lora: Lora | None) -> tuple[Linear, ...]:
    """Return the linear layers of one decoder layer that have an adapter."""
    if lora is None:
        return ()
    return tuple(
        each for each in shape.projections if any(_matches(each, target) for target in lora.targets)
    )


def _matches(linear: Linear, target: str) -> bool:
    """Whether peft adapts this layer: the target is its path, or a suffix of it."""
    return linear.name == target or linear.name.endswith("." + target)


def trainable(shape: ModelShape, lora: Lora | None) -> int:
    """Return the number of trained parameters: all, or those of the adapters and a classifier's
    output layer.
    """
    if lora is None:
        return shape.parameters
    layer = sum(lora.rank * (each.inputs + each.outputs) for each in adapted(shape, lora))
    hidden, inner = shape.hidden, shape.intermediate
    of_experts = {  # peft doubles the rank if gate and up are one parameter
        "gate_up_proj": 2 * (hidden + 2 * inner) * shape.experts,
        "down_proj": (inner + hidden) * shape.experts,
        "gate": hidden + shape.experts,
    }
    if shape.experts:
        named = (size for name, size in of_experts.items() if name in lora.targets)
        layer += lora.rank * sum(named)
    # A copy of a classifier's output layer is trained with the adapter (peft's modules_to_save).
    return shape.layers * layer + shape.labels * hidden
