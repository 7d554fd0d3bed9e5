"""The shape of a model, from its config.json alone: sizes, linear layers, and the exact number of parameters.

Pure: a mapping in, a value out. The counts equal transformers' own (tests/fit/test_shape.py asks it, on the meta device).
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpctrain.errors import HpctrainError
from hpctrain.fit.shape_families import FAMILIES, Family, Mlp, Norm, QkNorm

if TYPE_CHECKING:
    from collections.abc import Mapping

_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
#: Larger than any size of a real model; a typing mistake above it would only give numbers that nobody can read.
_LARGEST = 10**9
#: Layers are followed one by one; no model has a tenth of these.
_MOST_LAYERS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """One linear layer of a decoder layer.

    Attributes:
        name: its path within the decoder layer, such as `self_attn.q_proj`.
        inputs, outputs: features.
        bias: whether it has one.
    """

    name: str
    inputs: int
    outputs: int
    bias: bool = False

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return self.inputs * self.outputs + self.outputs * self.bias


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What a decoder-only language model is made of.

    Attributes:
        model_type: of config.json, such as `llama`.
        vocab, hidden, layers, heads, kv_heads, head_dim, intermediate: sizes; `kv_heads` are the heads of keys and values, `intermediate`
            the inner size of the MLP (of one expert, in a mixture of experts).
        labels: numbers that a classifier puts out for a row; 0: a language model, whose output layer has a number for each word.
        tied: whether the output layer is the table of embeddings.
        max_positions: the longest row it was made for, or None.
        projections: the linear layers of one decoder layer, in the order in which they are used; of a mixture of experts without them.
        norm, norms, qk_norm, mlp, activation: see `shape_families.Family`.
        head_bias, positions: whether the output layer has a bias, and positions a table.
        experts, experts_per_token: of a mixture of experts, else 0; `dense_layers`: its layers with an ordinary MLP.
        parallel: attention and MLP both see the layer's input, each through a norm of its own.
        approximate: the memory of activations is a rough figure (a mixture of experts with ordinary layers in between, which are taken
            to have experts; the parameters are counted).
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
    dense_layers: int = 0
    dense_intermediate: int = 0
    extra_norm_parameters: int = 0
    approximate: bool = False
    labels: int = 0
    parallel: bool = False

    @property
    def outputs(self) -> int:
        """Features of the output layer: of a classifier its labels, otherwise the vocabulary."""
        return self.labels or self.vocab

    @property
    def norms_after(self) -> bool:
        """Whether a norm comes after attention and MLP, before what they give is added."""
        return self.norms == 4 or self.model_type in ("olmo2", "olmo3")

    @property
    def wide_rope(self) -> bool:
        """Whether rotary positions are computed in float32, whatever the queries are (`q_embed.to(q_type)`)."""
        return self.model_type in ("olmo", "olmo2", "olmo3")

    @property
    def linears(self) -> Mapping[str, tuple[int, int]]:
        """The linear layers of one decoder layer: path -> (inputs, outputs)."""
        return {each.name: (each.inputs, each.outputs) for each in self.projections}

    @property
    def queries(self) -> int:
        """Features of all queries of a token; the output of attention has as many."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Features of all keys of a token; the values have as many."""
        return self.kv_heads * self.head_dim

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm over the hidden size."""
        return {"rms": 1, "gemma": 1, "layer": 2, "plain": 0}[self.norm] * self.hidden

    @property
    def layer_parameters(self) -> int:
        """Parameters of one decoder layer; of a mixture of experts, of one with experts."""
        qk = {"none": 0, "head": 2 * self.head_dim, "all": self.queries + self.keys}[self.qk_norm]
        own = sum(each.parameters for each in self.projections) + self.norms * self.norm_parameters + qk + self.extra_norm_parameters
        return own + self.expert_parameters

    @property
    def expert_parameters(self) -> int:
        """Parameters of all experts of one layer, and of its router."""
        return self.experts * (3 * self.hidden * self.intermediate + self.hidden)

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the table of embeddings."""
        return self.vocab * self.hidden

    @property
    def head_parameters(self) -> int:
        """Parameters of the output layer beyond the table of embeddings."""
        return (0 if self.tied else self.outputs * self.hidden) + (self.outputs if self.head_bias else 0)

    @property
    def parameters(self) -> int:
        """All parameters, those that are tied once."""
        dense = 3 * self.hidden * self.dense_intermediate - self.expert_parameters
        table = (self.max_positions or 0) * self.hidden if self.positions else 0
        return (
            self.embedding_parameters
            + table
            + self.layers * self.layer_parameters
            + self.dense_layers * dense
            + self.norm_parameters
            + self.head_parameters
        )


def labels_of(config: Mapping[str, Any]) -> int:
    """Return how many numbers a classifier made of this config.json puts out: as many as it names, else two, as transformers has it."""
    named, count = config.get("id2label"), config.get("num_labels")
    if isinstance(named, dict) and named:
        return len(named)
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 < count <= _LARGEST else 2


def read_shape(config: Mapping[str, Any], *, labels: int = 0) -> ModelShape:
    """Return the shape of the model that a config.json describes.

    Args:
        config: the JSON object.
        labels: of a classifier, whose output layer takes the place of the language model's and is never tied; 0: a language model.

    Raises:
        HpctrainError: the architecture is not known, or sizes are missing or are no numbers; all of them in one error.
    """
    family = _family(config)
    reader = _Reader(config, family)
    vocab, hidden, layers, heads = (reader.size(name) for name in _SIZES)
    head_dim = reader.size("head_dim", default=family.head_dim or max(hidden // max(heads, 1), 1))
    kv_heads = reader.size("num_key_value_heads", default=heads) if family.grouped else heads
    intermediate = reader.size("intermediate_size", default=4 * hidden if family.positions else None)
    positions = reader.size("max_position_embeddings", default=None if family.positions else 0)
    inner = reader.size(family.expert_size) if family.experts else intermediate
    experts = reader.size(family.experts, other="num_local_experts") if family.experts else 0
    per_token = reader.size("num_experts_per_tok") if family.experts else 0
    if layers > _MOST_LAYERS:
        reader.problem(f"num_hidden_layers must be {_MOST_LAYERS} at most, not {layers}")
    if heads % kv_heads and not reader.has_problems:
        reader.problem(f"num_attention_heads, {heads}, must be a multiple of num_key_value_heads, {kv_heads}")
    dense = _dense_layers(config, reader, layers) if family.experts else 0
    reader.check()
    flags = [_flag(config, each, family.defaults.get(each, False)) if isinstance(each, str) else each for each in family.biases]
    return ModelShape(
        model_type=str(config["model_type"]),
        vocab=vocab,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=inner,
        tied=not labels and _flag(config, "tie_word_embeddings", family.tied),
        max_positions=positions or None,
        projections=_projections(family, (hidden, heads * head_dim, kv_heads * head_dim, intermediate), flags),
        norm=family.norm,
        norms=1 if family.norms == 2 and config.get("use_parallel_residual") and config["model_type"] == "stablelm" else family.norms,
        qk_norm=family.qk_norm,
        mlp=family.mlp,
        activation=str(config.get(family.activation) or family.defaults.get(family.activation) or "silu"),
        head_bias=not labels and family.head_bias,
        positions=family.positions,
        experts=experts,
        experts_per_token=per_token,
        dense_layers=dense,
        dense_intermediate=intermediate if family.experts else 0,
        extra_norm_parameters=_extra_norms(config, heads, kv_heads, head_dim),
        approximate=dense > 0,
        labels=labels,
        parallel=config["model_type"] == "gpt_neox" and _flag(config, "use_parallel_residual", True),
    )


def _family(config: Mapping[str, Any]) -> Family:
    name = config.get("model_type")
    if isinstance(name, str) and name in FAMILIES:
        return FAMILIES[name]
    known = textwrap.wrap(f"known are: {', '.join(sorted(FAMILIES))}", 78, subsequent_indent="  ", break_on_hyphens=False)
    if name is None:
        fix = "the config.json that was published with the model"
        raise HpctrainError("config.json has no model_type, which says which architecture the model has", details=tuple(known), fix=fix)
    what = f"the memory of architecture {name if isinstance(name, int) else str(name)[:60]!r} is not known"
    if isinstance(config.get("text_config"), dict):
        what += ": it wraps a language model with others, such as one for images"
        inner = config["text_config"].get("model_type")
        if isinstance(inner, str) and inner in FAMILIES:
            details = (f"its language model ({inner}) is known; what the images' part and their tokens take is not",)
            raise HpctrainError(what, details=details, fix=_TEXT_ALONE)
    raise HpctrainError(what, details=(*known, *_TRACKED), fix="hpctrain submit --time 15 -- --max_steps 5")


#: What works out the language model of one that wraps it.
_TEXT_ALONE = "jq .text_config FOLDER/config.json > text.json && hpctrain fit --model text.json"
_TRACKED = (
    "with torch, this counts causal language models; classifiers with --loss classes:",
    "  python -m hpctrain.training.fit_exact FOLDER",
    "else a short job is tried, whose log says what it took",
)


class _Reader:
    """Reads sizes, and remembers what is wrong with them."""

    def __init__(self, config: Mapping[str, Any], family: Family) -> None:
        self._config, self._keys = config, family.keys
        self._problems: list[str] = []

    def problem(self, what: str) -> None:
        """Remember what is wrong."""
        self._problems.append(what)

    @property
    def has_problems(self) -> bool:
        """Whether sizes are missing or wrong: then nothing is to be said of how they go together."""
        return bool(self._problems)

    def size(self, name: str, *, default: int | None = None, other: str | None = None) -> int:
        """Return a size, or `default`; 1 where neither is there, which `check` reports. `other`: a further name of it."""
        key = self._keys.get(name, name)
        value = self._config.get(key, self._config.get(other or name))
        if value is None and default is not None:
            return default
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _LARGEST:
            return value
        said = f"{str(value)[:40]!r}" if isinstance(value, str) else str(value)[:40]
        self._problems.append(f"{key} is missing" if value is None else f"{key} must be a whole number above 0, not {said}"[:80])
        return 1

    def check(self) -> None:
        """Raise what was found wrong."""
        if not self._problems:
            return
        what = f"config.json does not say how large the model is: {self._problems[0]}"
        if len(self._problems) > 1:
            what = f"config.json has {len(self._problems)} problems"
        details = tuple(dict.fromkeys(self._problems)) if len(self._problems) > 1 else ()
        raise HpctrainError(what, details=details, fix="the config.json that was published with the model")


def _flag(config: Mapping[str, Any], key: str, default: bool) -> bool:
    value = config.get(key)
    return default if value is None else value if isinstance(value, bool) else str(value).lower() not in ("false", "0", "no", "none")


def _projections(family: Family, sizes: tuple[int, int, int, int], biases: list[Any]) -> tuple[Linear, ...]:
    hidden, queries, keys, inner = sizes
    of_qkv, of_output, of_mlp = (bool(each) for each in biases)
    names = family.attention
    widths = [queries + 2 * keys] if family.packed_attention else [queries, keys, keys]
    linears = [Linear(name=name, inputs=hidden, outputs=width, bias=of_qkv) for name, width in zip(names, widths, strict=False)]
    linears.append(Linear(name=names[-1], inputs=queries, outputs=hidden, bias=of_output))
    if family.experts is not None:
        return tuple(linears)
    width = 2 * inner if family.mlp == "packed" else inner
    linears += [Linear(name=name, inputs=hidden, outputs=width, bias=of_mlp) for name in family.mlp_names[:-1]]
    return (*linears, Linear(name=family.mlp_names[-1], inputs=inner, outputs=hidden, bias=of_mlp))


def _dense_layers(config: Mapping[str, Any], reader: _Reader, layers: int) -> int:
    """Return how many layers of a mixture of experts have none (Qwen3-MoE: mlp_only_layers, decoder_sparse_step)."""
    step = reader.size("decoder_sparse_step", default=1)
    said = config.get("mlp_only_layers") or ()
    if not isinstance(said, list | tuple) or not all(isinstance(each, int) for each in said):
        reader.problem(f"mlp_only_layers must be a list of layers, not {str(said)[:40]!r}")
        said = ()
    only = set(said)
    return layers <= _MOST_LAYERS and sum(index in only or (index + 1) % step != 0 for index in range(layers))


def _extra_norms(config: Mapping[str, Any], heads: int, kv_heads: int, head_dim: int) -> int:
    """Return the parameters of the norms of queries and keys that two architectures have only when asked (qk_layernorm)."""
    if not config.get("qk_layernorm"):
        return 0
    if config["model_type"] == "phi":  # LayerNorm over a head, with a bias
        return 4 * head_dim
    return (heads + kv_heads) * head_dim if config["model_type"] == "stablelm" else 0
