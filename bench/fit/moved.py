"""The bytes that a decoder layer moves per token between the matrix products, forward and backward,
counted over the operations of transformers' eager code; `fit`'s estimate of the speed has them as
constants (hpctrain/fit/speed.py).

    python bench/fit/moved.py            # a CPU, half a minute

Each operation reads its inputs and writes its outputs. Matrix products and attention kernels are
left out, and so is what does not grow with the tokens, such as casts of the weights.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: Operations that move nothing, or that are no part of it.
_LEFT_OUT = frozenset(
    [
        "view",
        "transpose",
        "t",
        "unsqueeze",
        "squeeze",
        "expand",
        "slice",
        "_unsafe_view",
        "permute",
        "select",
        "alias",
        "detach",
        "as_strided",
        "split",
        "split_with_sizes",
        "unbind",
        "_reshape_alias",
        "empty",
        "empty_like",
        "new_empty",
        "new_empty_strided",
        "empty_strided",
        "mm",
        "addmm",
        "bmm",
    ]
)
#: A decoder with norms, rotary positions and a gated MLP; small, for the bytes are proportional.
BASE = {
    "vocab_size": 32,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "tie_word_embeddings": True,
}


class Moved(TorchDispatchMode):
    """Counts the bytes of the inputs and outputs of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = operation(*args, **(kwargs or {}))
        name = operation._schema.name.partition("::")[2]
        if name not in _LEFT_OUT and "attention" not in name:
            leaves = tree_leaves((args, kwargs, found))
            self.bytes += sum(each.nbytes for each in leaves if isinstance(each, torch.Tensor))
        return found


def of_layer(kind: str, dtype: torch.dtype, **changes: int) -> float:
    """Return the bytes per token of one layer of a model type, its weights in a dtype."""
    config = {**BASE, **changes}

    def moved(layers: int, tokens: int) -> int:
        from transformers import AutoConfig, AutoModel

        made = AutoConfig.for_model(kind, **config, num_hidden_layers=layers)
        model = AutoModel.from_config(made, attn_implementation="sdpa", dtype=dtype)
        ids = torch.zeros((1, tokens), dtype=torch.long)
        with Moved() as counter:
            with torch.autocast("cpu", torch.bfloat16):
                hidden = model(input_ids=ids, use_cache=False).last_hidden_state
            hidden.float().sum().backward()
        return counter.bytes

    def of_tokens(tokens: int) -> int:
        return moved(2, tokens) - moved(1, tokens)

    return (of_tokens(128) - of_tokens(64)) / 64


def coefficients(kind: str, dtype: torch.dtype) -> Mapping[str, float]:
    """Return the bytes per element of a layer's hidden size, inner size, and queries and keys."""
    base = of_layer(kind, dtype)
    return {
        "hidden": (of_layer(kind, dtype, hidden_size=256) - base) / 128,
        "inner": (of_layer(kind, dtype, intermediate_size=512) - base) / 256,
        "queries and keys": (of_layer(kind, dtype, num_attention_heads=8) - base) / 128,
    }


if __name__ == "__main__":
    for kind in ("llama", "qwen3"):
        for dtype in (torch.float32, torch.bfloat16):
            sys.stdout.write(f"{kind}, weights in {dtype}: {coefficients(kind, dtype)}\n")
