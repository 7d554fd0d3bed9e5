"""How each known architecture is built: which linear layers, norms and biases one of its decoder layers has.

Data for hpctrain/fit/shape.py, one row for each `model_type`; each was read in transformers 5.23 (models/NAME/modeling_NAME.py), and the
tests count the same parameters as transformers does on the meta device. Defaults are those of the configuration class, for keys that a
config.json may leave out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Norm = Literal["rms", "gemma", "layer", "plain"]
QkNorm = Literal["none", "head", "all"]
Mlp = Literal["gated", "packed", "plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture.

    Attributes:
        norm: `rms` (weights; computed in float32, scaled in the input's dtype), `gemma` (all in float32; OLMo 2's too), `layer` (LayerNorm
            with weight and bias), `plain` (LayerNorm without either).
        norms: norms over the hidden size in one layer.
        qk_norm: norms of queries and keys, over each head (`head`) or over all of them (`all`).
        attention: names of the projections in the order q, k, v, o; two names where q, k and v are one (`packed`).
        mlp: `gated` (gate, up, down), `packed` (gate and up in one, down), `plain` (up, down); `mlp_names` in that order.
        biases: keys of config.json that switch the biases of (q, k and v; o; mlp) on, or True or False where it is fixed.
        tied, head_dim: the defaults.
        head_bias: whether the output layer has one.
        grouped: whether there may be fewer heads of keys and values than of queries.
        positions: whether positions are embedded by a table (GPT-2).
        keys: names in config.json, where they are not Llama's.
        experts: name of the key with the number of experts, of a mixture of experts; `expert_size`: of the key with their inner size.
        activation: name of the key with the activation function.
    """

    norm: Norm = "rms"
    norms: int = 2
    qk_norm: QkNorm = "none"
    attention: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
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

    @property
    def packed_attention(self) -> bool:
        """Whether q, k and v are one linear layer."""
        return len(self.attention) == 2


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
    "qwen3": Family(qk_norm="head", head_dim=128, biases=("attention_bias", "attention_bias", False)),
    "smollm3": Family(tied=True, biases=("attention_bias", "attention_bias", "mlp_bias")),
    "granite": Family(biases=("attention_bias", "attention_bias", "mlp_bias")),
    "gemma": Family(**_GEMMA),  # type: ignore[arg-type]
    "gemma2": Family(norms=4, activation="hidden_activation", **_GEMMA),  # type: ignore[arg-type]
    "gemma3_text": Family(norms=4, qk_norm="head", activation="hidden_activation", **_GEMMA),  # type: ignore[arg-type]
    "phi3": Family(attention=("self_attn.qkv_proj", "self_attn.o_proj"), mlp="packed", mlp_names=("mlp.gate_up_proj", "mlp.down_proj")),
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
    "olmo": Family(norm="plain", biases=("attention_bias", "attention_bias", False)),
    "olmo2": Family(norm="gemma", qk_norm="all", biases=("attention_bias", "attention_bias", False)),
    "olmo3": Family(norm="gemma", qk_norm="all", biases=("attention_bias", "attention_bias", False)),
    "starcoder2": Family(
        norm="layer",
        mlp="plain",
        mlp_names=("mlp.c_fc", "mlp.c_proj"),
        tied=True,
        biases=("use_bias", "use_bias", "use_bias"),
        defaults={"use_bias": True},
    ),
    "stablelm": Family(norm="layer", biases=("use_qkv_bias", False, False)),
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
        qk_norm="head", biases=("attention_bias", "attention_bias", False), experts="num_experts", expert_size="moe_intermediate_size"
    ),
}
